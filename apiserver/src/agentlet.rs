//! The server side of the agentlet service, and the subresources of Runs that live on what devices send.
//!
//! Only this module writes what a device reports. Its rules are those of [`accept`]: a report counts while its fence
//! is the server's own record and the device holds the Run's Lease; it counts once; terminal phases never change.
//!
//! | module | holds |
//! |---|---|
//! | `service` | the gRPC service |
//! | `session` | one session of one device, level by level |
//! | `outgoing` | what waits for a device that reads slowly |
//! | `index` | which runs belong to which device |
//! | `hello` | what a device says of itself when it connects |
//! | `fence` | who may speak of a Run, or act for it |
//! | `reports`, `accept` | reports into the store, once |
//! | `late`, `orphans` | what comes of Runs that were taken away, or deleted |
//! | `activation` | a restored store waits for a person |
//! | `devices` | removal of Devices |
//! | `leases` | renewal |
//! | `members` | which devices there still are, and whether their certificates are good |
//! | `skew` | whether a device's wall clock is ours |
//! | `secrets` | the values that a live run names |
//! | `binding` | POST `runs/NAME/binding` |
//! | `logs` | GET `runs/NAME/log`, `tasks/NAME/log`, `runs/NAME/events` |
//! | `artifacts` | GET `runs/NAME/artifacts`, `tasks/NAME/artifacts` |

mod accept;
mod activation;
mod artifacts;
mod binding;
mod devices;
mod fence;
mod hello;
mod http;
mod index;
mod labels;
mod late;
mod leases;
mod logs;
mod members;
pub(crate) mod objects;
mod orphans;
mod outgoing;
mod reports;
mod secrets;
mod service;
mod session;
mod skew;
mod slots;
mod sweep;

pub(crate) use activation::{Activation, key as activation_key};

use std::sync::Arc;
use std::time::Duration;

use panda_api::Run;
use panda_api::meta::{Clock, IdSource};
use panda_rpc::v1::agentlet_server::AgentletServer;
use panda_store::Store;
use panda_store::blob::BlobStore;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::authn::RunTokens;
use crate::config::Leases;
use crate::metrics::SharedRegistry;
use crate::pressure::Pressure;
use crate::registry::Registry;
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
    stale_uploads: Counter,
    late: Counter,
    inactive: Gauge,
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
    /// The objects as clients see them: Secrets are opened there.
    pub registry: Registry,
    /// Makes the tokens of Runs.
    pub run_tokens: RunTokens,
    /// Whether the disk is nearly full.
    pub pressure: Arc<Pressure>,
}

/// The agentlet service.
pub struct Agentlets {
    objects: Objects,
    blobs: Arc<dyn BlobStore>,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
    registry: Registry,
    run_tokens: RunTokens,
    pressure: Arc<Pressure>,
    keeper: Arc<dyn LeaseKeeper>,
    /// How long a grant lasts.
    ttl: Duration,
    /// How far a device's wall clock may be off before people are told.
    max_clock_skew: Duration,
    index: index::RunIndex,
    slots: slots::Slots,
    turns: binding::Turns,
    sessions: session::Sessions,
    members: members::Members,
    tracker: TaskTracker,
    /// Readers that follow a log end with it; they would hold the server up otherwise.
    stopping: CancellationToken,
    metrics: AgentletMetrics,
}

impl Agentlets {
    /// Puts the service together; metrics go into `metrics`.
    pub fn build(config: &Leases, deps: Deps, metrics: &SharedRegistry) -> Arc<Self> {
        let objects = Objects::new(deps.store);
        let ttl = config.grant_ttl.get();
        let counters = AgentletMetrics::default();
        {
            let mut metrics = metrics.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            for (name, help, counter) in [
                (
                    "panda_agentlet_stale_reports",
                    "Reports of devices that did not count",
                    &counters.stale,
                ),
                (
                    "panda_agentlet_stale_uploads",
                    "Uploads of devices that were refused",
                    &counters.stale_uploads,
                ),
                (
                    "panda_agentlet_late_results",
                    "Last reports of Runs that were Lost before",
                    &counters.late,
                ),
            ] {
                metrics.register(name, help, counter.clone());
            }
            metrics.register(
                "panda_agentlet_inactive",
                "1 while the store was restored and waits for activation",
                counters.inactive.clone(),
            );
        }
        Arc::new(Self {
            keeper: Arc::new(DurableKeeper::new(objects.clone(), Arc::clone(&deps.ids), ttl)),
            ttl,
            max_clock_skew: config.max_clock_skew.get(),
            objects,
            blobs: deps.blobs,
            clock: deps.clock,
            ids: deps.ids,
            registry: deps.registry,
            run_tokens: deps.run_tokens,
            pressure: deps.pressure,
            index: index::RunIndex::new(),
            slots: slots::Slots::default(),
            turns: binding::Turns::default(),
            sessions: session::Sessions::default(),
            members: members::Members::default(),
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
            .merge(activation::routes(Arc::clone(self)))
            .merge(binding::routes(Arc::clone(self)))
            .merge(logs::routes(Arc::clone(self)))
            .merge(artifacts::routes(Arc::clone(self)))
    }

    /// Keeps the index of runs and sweeps unreferenced blobs until cancelled, then ends sessions and followed logs.
    pub async fn run(self: Arc<Self>, token: CancellationToken) {
        self.tell_activation().await;
        tokio::join!(
            self.index.run(&self.objects, token.clone()),
            self.follow_devices(token.clone()),
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
}

impl std::fmt::Debug for Agentlets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agentlets").finish_non_exhaustive()
    }
}
