//! Heartbeats as they are seen.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use panda_api::meta::Clock;
use panda_api::{Device, Lease};
use panda_client::runtime::controller::{Config, Controller};
use panda_client::runtime::{InformerHandle, ObjectRef, Outcome, Store};
use tokio_util::sync::CancellationToken;

use super::{Heartbeat, View, plan};
use crate::framework::Runner;
use crate::framework::execute::Error;

/// Namespace of the Leases of Devices.
pub(crate) const SYSTEM: &str = "panda-system";

/// Judges every Device until the token is cancelled.
pub(crate) async fn run(
    devices: InformerHandle<Device>,
    leases: InformerHandle<Lease>,
    runner: Runner,
    clock: Arc<dyn Clock>,
    config: Config,
    token: CancellationToken,
) {
    let observer = Arc::new(Observer {
        devices: devices.store().clone(),
        leases: leases.store().clone(),
        began: clock.monotonic(),
        beats: Mutex::default(),
        runner,
        clock,
    });
    let seen = Arc::clone(&observer);
    let controller = Controller::new("device", config)
        .reconciles(&devices)
        // Told inside the informer, so the time is that of the change, not that of its turn in the queue.
        .watches(&leases, move |lease: &Lease| seen.see(lease));
    controller
        .run(
            move |request| {
                let observer = Arc::clone(&observer);
                async move { observer.reconcile(&request.key).await }
            },
            token,
        )
        .await;
}

struct Observer {
    devices: Store<Device>,
    leases: Store<Lease>,
    began: Duration,
    /// By name of the Device.
    beats: Mutex<BTreeMap<String, Heartbeat>>,
    runner: Runner,
    clock: Arc<dyn Clock>,
}

impl Observer {
    fn see(&self, lease: &Lease) -> Vec<ObjectRef> {
        let meta = &lease.metadata;
        // A change is told as it was and as it is; what the cache holds is what it is.
        let Some(lease) = self
            .leases
            .get(&ObjectRef::of(meta))
            .filter(|_| meta.namespace == SYSTEM)
        else {
            return Vec::new();
        };
        let mut beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        let beat = Heartbeat::observe(beats.get(&meta.name), &lease, self.clock.monotonic());
        beats.insert(meta.name.clone(), beat);
        vec![ObjectRef::new("", &meta.name)]
    }

    async fn reconcile(&self, key: &ObjectRef) -> Result<Outcome, Error> {
        let Some(device) = self.devices.get(key) else {
            let mut beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
            beats.remove(key.name());
            return Ok(Outcome::Done);
        };
        let heartbeat = {
            let beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
            beats.get(key.name()).cloned()
        };
        let view = View {
            lease: self
                .leases
                .get(&ObjectRef::new(SYSTEM, key.name()))
                .map(|lease| (*lease).clone()),
            heartbeat,
            began: self.began,
            monotonic: self.clock.monotonic(),
        };
        let plan = plan(&view, &device, self.clock.now());
        self.runner.run(&plan, None).await
    }
}
