//! Renewals as they are seen.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use panda_api::meta::Clock;
use panda_api::{Device, Lease, Run, RunPhase};
use panda_client::runtime::controller::{Config, Controller};
use panda_client::runtime::{InformerHandle, ObjectRef, Outcome, Store};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::super::bound::Lost;
use super::super::wiring::SYSTEM;
use super::{Renewal, View, plan, plan_lease};
use crate::framework::Runner;
use crate::framework::execute::Error;

/// What the controller looks at.
pub(crate) struct Caches {
    pub(crate) runs: InformerHandle<Run>,
    pub(crate) leases: InformerHandle<Lease>,
    pub(crate) devices: InformerHandle<Device>,
}

/// Gives up Runs of silent devices until the token is cancelled.
pub(crate) async fn run(
    caches: Caches,
    lost: Lost,
    runner: Runner,
    clock: Arc<dyn Clock>,
    config: Config,
    token: CancellationToken,
) {
    let observer = Arc::new(Observer {
        runs: caches.runs.store().clone(),
        leases: caches.leases.store().clone(),
        devices: caches.devices.store().clone(),
        began: clock.monotonic(),
        renewals: Mutex::default(),
        lost,
        runner,
        clock,
    });
    let seen = Arc::clone(&observer);
    let controller = Controller::new("lost", config)
        .reconciles(&caches.runs)
        // Told inside the informer, so the time is that of the change, not that of its turn in the queue.
        .watches(&caches.leases, move |lease: &Lease| seen.see(lease));
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
    runs: Store<Run>,
    leases: Store<Lease>,
    devices: Store<Device>,
    began: Duration,
    /// By the Run, whose Lease has its name.
    renewals: Mutex<BTreeMap<ObjectRef, Renewal>>,
    lost: Lost,
    runner: Runner,
    clock: Arc<dyn Clock>,
}

impl Observer {
    fn see(&self, lease: &Lease) -> Vec<ObjectRef> {
        let key = ObjectRef::of(&lease.metadata);
        if lease.metadata.namespace == SYSTEM
            && lease.metadata.owner_references.iter().all(|o| o.kind != "Run")
        {
            return Vec::new();
        }
        // A change is told as it was and as it is; what the cache holds is what it is.
        let Some(lease) = self.leases.get(&key) else {
            return vec![key];
        };
        let mut renewals = self.renewals.lock().unwrap_or_else(PoisonError::into_inner);
        let renewal = Renewal::observe(renewals.get(&key), &lease, self.clock.monotonic());
        renewals.insert(key.clone(), renewal);
        // A renewal leads to nothing: the Run is looked at when its bound has passed. Only a Lease that was taken may.
        // One without a Run waits for its bound.
        if lease.spec.holder_identity.is_some() && self.runs.get(&key).is_some() {
            Vec::new()
        } else {
            vec![key]
        }
    }

    async fn reconcile(&self, key: &ObjectRef) -> Result<Outcome, Error> {
        let lease = |key: &ObjectRef| self.leases.get(key).map(|lease| (*lease).clone());
        let held = lease(key).filter(|lease| lease.metadata.is_on_device());
        // A Run that took the name of one whose Lease is still held is another, and cannot be bound yet.
        let owner = held.as_ref().and_then(|lease| lease.metadata.controller());
        let own = |run: &Arc<Run>| owner.is_none_or(|owner| owner.uid == run.metadata.uid);
        let run = self.runs.get(key).filter(own);
        let live = |run: &Arc<Run>| !run.status.phase.is_some_and(RunPhase::is_terminal);
        let renewal = {
            let mut renewals = self.renewals.lock().unwrap_or_else(PoisonError::into_inner);
            if held.is_none() && !run.as_ref().is_some_and(live) {
                renewals.remove(key);
            }
            renewals.get(key).cloned()
        };
        let Some(run) = run else {
            let view = View {
                renewal,
                began: self.began,
                monotonic: self.clock.monotonic(),
                ..View::default()
            };
            let Some(lease) = held else {
                return Ok(Outcome::Done);
            };
            let plan = plan_lease(&view, &lease, &self.lost);
            if !plan.is_idle() {
                tracing::warn!(
                    namespace = key.namespace(),
                    name = key.name(),
                    "the run is gone, and its device has been silent for the bound: its lease is taken"
                );
            }
            return self.runner.run(&plan, None).await;
        };
        let device = self.devices.get(&ObjectRef::new("", &run.spec.device_name));
        let view = View {
            lease: lease(key),
            renewal,
            device: device
                .filter(|device| device.metadata.uid == run.spec.device_uid)
                .map(|device| (*device).clone()),
            heartbeat: lease(&ObjectRef::new(SYSTEM, &run.spec.device_name)),
            began: self.began,
            monotonic: self.clock.monotonic(),
        };
        let plan = plan(&view, &run, &self.lost, self.clock.now());
        let span = if plan.is_idle() {
            tracing::Span::none()
        } else {
            tracing::warn_span!(
                "give_up",
                kind = "Run",
                namespace = run.metadata.namespace,
                name = run.metadata.name,
                device = run.spec.device_name
            )
        };
        self.runner
            .run(&plan, run.metadata.traceparent())
            .instrument(span)
            .await
    }
}
