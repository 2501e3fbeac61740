//! Renewal of leases: a device's heartbeat and the leases of its runs.
//!
//! Renewal and taking are checked against the same record, so one of the two fails. The first keeper writes
//! durably through the store; one that keeps renewals in memory may stand behind the same trait later.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use panda_api::meta::{IdSource, MicroTime, ObjectMeta};
use panda_api::{AFTER_GRANT, DEVICE_FINALIZER, Device, Lease, LeaseSpec, Resource, Run, RunRole, TASK_UID};
use panda_rpc::v1::RunEpoch;

use super::objects::{Error, Objects};

/// Namespace of the devices' heartbeat leases.
pub(crate) const SYSTEM: &str = "panda-system";
/// Leases renewed in one transaction.
const BATCH: usize = 256;
/// How often a lost race is run again.
const ATTEMPTS: usize = 8;

/// Who keeps leases alive.
pub(crate) trait LeaseKeeper: Send + Sync + 'static {
    /// Renews the heartbeat of a device and those of its `runs` that it still holds; these are returned.
    fn renew<'a>(
        &'a self,
        device: &'a super::DeviceId,
        runs: &'a [Run],
        now: MicroTime,
    ) -> BoxFuture<'a, Result<Granted, Error>>;
}

/// What a renewal grants.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Granted {
    /// The runs whose Leases the device still holds.
    pub(crate) runs: Vec<RunEpoch>,
    /// For how long, from when the renewal was sent. The duration of a Run's Lease never changes, because observers
    /// count with it: when the server's configuration has changed since, the shorter of the two is granted.
    pub(crate) ttl: Duration,
}

impl Granted {
    fn new(ttl: Duration) -> Self {
        Self {
            runs: Vec::new(),
            ttl,
        }
    }

    fn shorten(&mut self, seconds: Option<i32>) {
        if let Some(seconds) = seconds.and_then(|seconds| u64::try_from(seconds).ok()) {
            self.ttl = self.ttl.min(Duration::from_secs(seconds));
        }
    }
}

/// Writes each renewal durably.
pub(crate) struct DurableKeeper {
    objects: Objects,
    ids: Arc<dyn IdSource>,
    ttl: Duration,
}

impl DurableKeeper {
    /// A keeper of leases that last `ttl`.
    pub(crate) fn new(objects: Objects, ids: Arc<dyn IdSource>, ttl: Duration) -> Self {
        Self { objects, ids, ttl }
    }

    async fn heartbeat(&self, device: &super::DeviceId, now: MicroTime) -> Result<(), Error> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let new = || {
                let mut metadata = ObjectMeta::namespaced(SYSTEM, &device.name);
                metadata.owner_references = vec![owner(device)];
                new_lease(metadata, &device.uid, self.ttl, now)
            };
            let mut lease = self.objects.get_or::<Lease>(SYSTEM, &device.name, new).await?;
            let spec = &mut lease.object.spec;
            if spec.holder_identity.as_deref() != Some(device.uid.as_str()) {
                // It is of a former device of this name: nothing of it is taken over.
                match self.objects.commit(lease.remove().into_iter().collect()).await {
                    Err(error) if !error.is_conflict() || attempts >= ATTEMPTS => return Err(error),
                    _ => continue,
                }
            }
            spec.renew_time = Some(now);
            spec.lease_duration_seconds = seconds(self.ttl);
            if lease.object.metadata.uid.is_empty() {
                lease.object.metadata.uid = self.ids.uuid().to_string();
                lease.object.metadata.creation_timestamp = Some(now.0.into());
            }
            match self.objects.commit(vec![lease.write()]).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_conflict() && attempts < ATTEMPTS => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn renew_runs(
        &self,
        device: &super::DeviceId,
        runs: &[Run],
        now: MicroTime,
    ) -> Result<Granted, Error> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let mut ops = Vec::with_capacity(runs.len());
            let mut held = Granted::new(self.ttl);
            for run in runs {
                let Some(mut lease) = self.objects.run_lease(run).await? else {
                    continue;
                };
                let spec = &mut lease.object.spec;
                let epoch = run.spec.lease_epoch.unwrap_or(0);
                if spec.holder_identity.as_deref() == Some(device.uid.as_str())
                    && spec.lease_transitions == Some(epoch)
                {
                    spec.renew_time = Some(now);
                    held.shorten(spec.lease_duration_seconds);
                    ops.push(lease.write());
                    held.runs.push(RunEpoch {
                        run_uid: run.metadata.uid.clone(),
                        epoch,
                    });
                }
            }
            if ops.is_empty() {
                return Ok(held);
            }
            match self.objects.commit(ops).await {
                Ok(_) => return Ok(held),
                Err(error) if error.is_conflict() && attempts < ATTEMPTS => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl LeaseKeeper for DurableKeeper {
    fn renew<'a>(
        &'a self,
        device: &'a super::DeviceId,
        runs: &'a [Run],
        now: MicroTime,
    ) -> BoxFuture<'a, Result<Granted, Error>> {
        Box::pin(async move {
            self.heartbeat(device, now).await?;
            let mut granted = Granted::new(self.ttl);
            for batch in runs.chunks(BATCH) {
                let held = self.renew_runs(device, batch, now).await?;
                granted.ttl = granted.ttl.min(held.ttl);
                granted.runs.extend(held.runs);
            }
            Ok(granted)
        })
    }
}

fn owner(device: &super::DeviceId) -> panda_api::meta::OwnerReference {
    let metadata = ObjectMeta {
        uid: device.uid.clone(),
        ..ObjectMeta::named(&device.name)
    };
    Device {
        metadata,
        ..Device::default()
    }
    .controller_reference()
}

fn seconds(ttl: Duration) -> Option<i32> {
    i32::try_from(ttl.as_secs()).ok()
}

/// A lease held by a device, of epoch 1.
fn new_lease(metadata: ObjectMeta, device_uid: &str, ttl: Duration, now: MicroTime) -> Lease {
    Lease {
        metadata,
        spec: LeaseSpec {
            holder_identity: Some(device_uid.to_owned()),
            lease_duration_seconds: seconds(ttl),
            acquire_time: Some(now),
            renew_time: Some(now),
            lease_transitions: Some(1),
        },
        ..Lease::default()
    }
}

/// Uid of the Task of which no two runs may be alive: helpers of a Run may work beside it.
pub(crate) fn task_label(run: &Run) -> Option<&str> {
    let task = run.spec.task_ref.uid.as_str();
    (run.spec.role == RunRole::Worker && !task.is_empty()).then_some(task)
}

/// The lease of a Run that is being bound.
pub(crate) fn run_lease(run: &Run, uid: String, ttl: Duration, now: MicroTime) -> Lease {
    let mut metadata = ObjectMeta::namespaced(&run.metadata.namespace, &run.metadata.name);
    metadata.uid = uid;
    metadata.creation_timestamp = Some(now.0.into());
    metadata.owner_references = vec![run.controller_reference()];
    // It outlives the Run, if need be, and then says all that has to be known.
    metadata.finalizers = vec![DEVICE_FINALIZER.into()];
    let after = panda_api::meta::Duration::from(run.after_grant());
    metadata.annotations.insert(AFTER_GRANT.into(), after.to_string());
    if let Some(task) = task_label(run) {
        metadata.labels.insert(TASK_UID.into(), task.to_owned());
    }
    new_lease(metadata, &run.spec.device_uid, ttl, now)
}
