//! The server side of the agentlet service, and the subresources of Runs that live on what devices send.
//!
//! Only this module writes what a device reports. Its rules are those of [`accept`]: a report counts while its fence
//! is the server's own record and the device holds the Run's Lease; it counts once; terminal phases never change.
//!
//! | module | holds |
//! |---|---|
//! | `service` | the gRPC service |
//! | `session` | one session of one device, level by level |
//! | `index` | which runs belong to which device |
//! | `reports`, `accept` | reports into the store, once |
//! | `leases` | renewal |
//! | `binding` | POST `runs/NAME/binding` |
//! | `logs` | GET `runs/NAME/log`, `tasks/NAME/log`, `runs/NAME/events` |
//! | `artifacts` | GET `runs/NAME/artifacts/NAME` |

mod accept;
mod artifacts;
mod binding;
mod http;
mod index;
mod leases;
mod logs;
mod objects;
mod reports;
mod service;
mod session;
mod sweep;

use std::sync::Arc;
use std::time::Duration;

use panda_api::meta::{Clock, IdSource};
use panda_api::{Device, Run};
use panda_rpc::v1::agentlet_server::AgentletServer;
use panda_store::Store;
use panda_store::blob::BlobStore;
use prometheus_client::metrics::counter::Counter;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;

use crate::metrics::SharedRegistry;
use leases::{DurableKeeper, LeaseKeeper};
use objects::Objects;

/// Largest message of a device: a status with everything in it.
const MAX_MESSAGE: usize = 16 << 20;

/// A device as its certificate names it. The uid is the fence; names may be used again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceId {
    /// Name of the Device object.
    pub(crate) name: String,
    /// Its uid.
    pub(crate) uid: String,
}

#[derive(Default)]
struct AgentletMetrics {
    stale: Counter,
}

/// What the agentlet service needs.
pub struct Deps {
    /// Where objects live.
    pub store: Arc<dyn Store>,
    /// Where logs and artifacts live.
    pub blobs: Arc<dyn BlobStore>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Uids.
    pub ids: Arc<dyn IdSource>,
}

/// The agentlet service.
pub struct Agentlets {
    objects: Objects,
    blobs: Arc<dyn BlobStore>,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
    keeper: Arc<dyn LeaseKeeper>,
    index: index::RunIndex,
    sessions: session::Sessions,
    tracker: TaskTracker,
    /// Readers that follow a log end with it; they would hold the server up otherwise.
    stopping: CancellationToken,
    metrics: AgentletMetrics,
}

impl Agentlets {
    /// Puts the service together; metrics go into `metrics`.
    pub fn build(deps: Deps, metrics: &SharedRegistry) -> Arc<Self> {
        let objects = Objects::new(deps.store);
        let counters = AgentletMetrics::default();
        metrics
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .register(
                "panda_agentlet_stale_reports",
                "Reports of devices that did not count",
                counters.stale.clone(),
            );
        Arc::new(Self {
            keeper: Arc::new(DurableKeeper::new(objects.clone(), Arc::clone(&deps.ids))),
            objects,
            blobs: deps.blobs,
            clock: deps.clock,
            ids: deps.ids,
            index: index::RunIndex::new(),
            sessions: session::Sessions::default(),
            tracker: TaskTracker::new(),
            stopping: CancellationToken::new(),
            metrics: counters,
        })
    }

    /// Routes to merge into the server: the gRPC service and the subresources of Runs.
    pub fn routes(self: &Arc<Self>) -> axum::Router {
        let service = AgentletServer::new(service::Service(Arc::clone(self)))
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(usize::MAX);
        tonic::service::Routes::new(service)
            .into_axum_router()
            // Unknown paths are answered by the server, as a `Status`.
            .reset_fallback()
            .merge(binding::routes(Arc::clone(self)))
            .merge(logs::routes(Arc::clone(self)))
            .merge(artifacts::routes(Arc::clone(self)))
    }

    /// Keeps the index of runs and sweeps unreferenced blobs until cancelled, then ends sessions and followed logs.
    pub async fn run(self: Arc<Self>, token: CancellationToken) {
        tokio::join!(
            self.index.run(&self.objects, token.clone()),
            self.sweep(token.clone())
        );
        self.stopping.cancel();
        self.sessions.cut_all();
        self.tracker.close();
        // Sessions end at once when cut; a send that is stuck ends with its own patience.
        let _: Result<(), _> = tokio::time::timeout(Duration::from_secs(2), self.tracker.wait()).await;
    }

    /// The Run that a URL names.
    async fn run_named(&self, namespace: &str, name: &str) -> Result<Run, http::Failure> {
        let run = self.objects.get::<Run>(namespace, name).await?;
        Ok(run.ok_or_else(|| http::not_found("runs", name))?.object)
    }

    /// Whether a device is still registered under its uid.
    async fn registered(&self, device: &DeviceId) -> Result<(), Status> {
        let stored = self
            .objects
            .get::<Device>("", &device.name)
            .await
            .map_err(session::internal)?;
        match stored {
            Some(stored) if stored.object.metadata.uid == device.uid => Ok(()),
            _ => Err(Status::permission_denied(
                "this device was removed; join it again",
            )),
        }
    }
}

impl std::fmt::Debug for Agentlets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agentlets").finish_non_exhaustive()
    }
}
