//! Renewal of leases: a device's heartbeat and the leases of its runs.
//!
//! Renewal and taking are checked against the same record, so one of the two fails. The first keeper writes
//! durably through the store; one that keeps renewals in memory may stand behind the same trait later.

use std::sync::Arc;

use futures::future::BoxFuture;
use panda_api::meta::{IdSource, MicroTime, ObjectMeta};
use panda_api::{Lease, LeaseSpec, Resource, Run};
use panda_rpc::v1::RunEpoch;

use super::objects::{Error, Objects};

/// How long a grant lasts, counted from when the device sent its renewal.
pub(crate) const GRANT_TTL: std::time::Duration = std::time::Duration::from_secs(40);
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
    ) -> BoxFuture<'a, Result<Vec<RunEpoch>, Error>>;
}

/// Writes each renewal durably.
pub(crate) struct DurableKeeper {
    objects: Objects,
    ids: Arc<dyn IdSource>,
}

impl DurableKeeper {
    pub(crate) fn new(objects: Objects, ids: Arc<dyn IdSource>) -> Self {
        Self { objects, ids }
    }

    async fn heartbeat(&self, device: &super::DeviceId, now: MicroTime) -> Result<(), Error> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let new = || new_lease(ObjectMeta::namespaced(SYSTEM, &device.name), &device.uid, now);
            let mut lease = self.objects.get_or::<Lease>(SYSTEM, &device.name, new).await?;
            let spec = &mut lease.object.spec;
            if spec.holder_identity.as_deref() != Some(device.uid.as_str()) {
                // The name belongs to a newer device now: its uid is the holder from here on.
                spec.holder_identity = Some(device.uid.clone());
                spec.acquire_time = Some(now);
                spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0) + 1);
            }
            spec.renew_time = Some(now);
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
    ) -> Result<Vec<RunEpoch>, Error> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let mut ops = Vec::with_capacity(runs.len());
            let mut held = Vec::with_capacity(runs.len());
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
                    ops.push(lease.write());
                    held.push(RunEpoch {
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
    ) -> BoxFuture<'a, Result<Vec<RunEpoch>, Error>> {
        Box::pin(async move {
            self.heartbeat(device, now).await?;
            let mut held = Vec::with_capacity(runs.len());
            for batch in runs.chunks(BATCH) {
                held.extend(self.renew_runs(device, batch, now).await?);
            }
            Ok(held)
        })
    }
}

/// A lease held by a device, of epoch 1.
pub(crate) fn new_lease(metadata: ObjectMeta, device_uid: &str, now: MicroTime) -> Lease {
    Lease {
        metadata,
        spec: LeaseSpec {
            holder_identity: Some(device_uid.to_owned()),
            lease_duration_seconds: i32::try_from(GRANT_TTL.as_secs()).ok(),
            acquire_time: Some(now),
            renew_time: Some(now),
            lease_transitions: Some(1),
        },
        ..Lease::default()
    }
}

/// The lease of a Run that is being bound.
pub(crate) fn run_lease(run: &Run, uid: String, now: MicroTime) -> Lease {
    let mut metadata = ObjectMeta::namespaced(&run.metadata.namespace, &run.metadata.name);
    metadata.uid = uid;
    metadata.creation_timestamp = Some(now.0.into());
    metadata.owner_references = vec![run.controller_reference()];
    new_lease(metadata, &run.spec.device_uid, now)
}
