//! What a device says of itself when it connects.

use panda_api::{Run, RunPhase};
use panda_rpc::v1::{Fence, Hello};
use tonic::Status;

use super::objects::{Error, Stranger};
use super::session::internal;
use super::{Agentlets, DeviceId, accept, late};

/// How often a lost race is run again.
const ATTEMPTS: usize = 8;
/// Most runs that a device may name.
const MAX_RUNS: usize = 4096;

/// What the server answers, and how it goes on.
#[derive(Debug)]
pub(crate) struct Greeting {
    /// What the device is to know the store as.
    pub(crate) store_uid: String,
    /// The last outbox number that was accepted.
    pub(crate) last_outbox_seq: u64,
    /// Whether the server acts on its store.
    pub(crate) active: bool,
}

impl Agentlets {
    /// Takes in what a device says when it connects.
    pub(crate) async fn greet(&self, device: &DeviceId, hello: &Hello) -> Result<Greeting, Status> {
        if hello.device_uid != device.uid {
            return Err(Status::permission_denied(
                "the certificate is for another device uid",
            ));
        }
        if hello.live_runs.len() > MAX_RUNS || hello.finished_runs.len() > MAX_RUNS {
            return Err(Status::resource_exhausted(format!(
                "a device has at most {MAX_RUNS} runs"
            )));
        }
        let activation = self.activation().await.map_err(internal)?.object;
        let store_uid = self.store_uid(&activation);
        let same_store = hello.store_uid == store_uid;
        if let Some(reason) = self.rolled_back(device, hello, same_store).await? {
            self.mark_restored(&device.name, reason).await.map_err(internal)?;
            return Err(Status::unavailable(
                "the control plane was restored and is not active; connect again",
            ));
        }
        let last_outbox_seq = self.note(device, hello, same_store).await.map_err(internal)?;
        for fence in &hello.finished_runs {
            self.announced(device, fence).await.map_err(internal)?;
        }
        tracing::info!(
            device = %device.name,
            boot_id = %hello.boot_id,
            live_runs = hello.live_runs.len(),
            finished_runs = hello.finished_runs.len(),
            same_store,
            "device connected"
        );
        Ok(Greeting {
            store_uid,
            last_outbox_seq,
            active: !activation.inactive,
        })
    }

    /// How the device's memory shows that this store went back in time, if it does.
    async fn rolled_back(
        &self,
        device: &DeviceId,
        hello: &Hello,
        same_store: bool,
    ) -> Result<Option<String>, Status> {
        if !same_store {
            return Ok(None);
        }
        let revision = self.objects.store().current_revision().await;
        let revision = revision.map_err(|error| internal(error.into()))?.0;
        if hello.last_revision > revision {
            return Ok(Some(format!(
                "device {} has heard of revision {}, the store is at {revision}",
                device.name, hello.last_revision
            )));
        }
        let outbox = self.objects.outbox(&device.uid).await.map_err(internal)?;
        let known = outbox.object.last_seq;
        Ok((hello.last_ack > known).then(|| {
            format!(
                "report {} of device {} was acknowledged, the store knows {known}",
                hello.last_ack, device.name
            )
        }))
    }

    /// Remembers the device's boot, and which of its live runs this store does not know.
    async fn note(&self, device: &DeviceId, hello: &Hello, same_store: bool) -> Result<u64, Error> {
        // What the store that the device knows has forgotten is ended by the device; that of another one is not.
        let strangers: Vec<Stranger> = hello
            .live_runs
            .iter()
            .filter(|fence| !same_store && self.index.find(&device.uid, &fence.run_uid).is_none())
            .map(|fence| Stranger {
                task_uid: fence.task_uid.clone(),
                run_uid: fence.run_uid.clone(),
            })
            .collect();
        let mut attempts = 0;
        loop {
            attempts += 1;
            let mut outbox = self.objects.outbox(&device.uid).await?;
            let before = outbox.object.clone();
            let live = |run: &Stranger| hello.live_runs.iter().any(|fence| fence.run_uid == run.run_uid);
            // One that was unknown to this store before may be alive still.
            let kept: Vec<Stranger> = before.strangers.iter().filter(|run| live(run)).cloned().collect();
            outbox.object.strangers.clone_from(&strangers);
            for run in kept {
                let known = self.index.find(&device.uid, &run.run_uid).is_some();
                if !known && !outbox.object.strangers.contains(&run) {
                    outbox.object.strangers.push(run);
                }
            }
            hello.boot_id.clone_into(&mut outbox.object.boot_id);
            if outbox.object == before {
                return Ok(before.last_seq);
            }
            if !before.boot_id.is_empty() && before.boot_id != hello.boot_id {
                // Its runs fail as DeviceRestarted when the device reports so; what was granted before is void there.
                tracing::warn!(device = %device.name, "device was restarted");
            }
            for run in &outbox.object.strangers {
                tracing::warn!(
                    device = %device.name,
                    run = %run.run_uid,
                    task = %run.task_uid,
                    "a run that this store does not know is alive; its task is not scheduled until it has ended"
                );
            }
            match self.objects.commit(vec![outbox.write()]).await {
                Ok(_) => return Ok(before.last_seq),
                Err(error) if error.is_conflict() && attempts < ATTEMPTS => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Notes that the result of a Lost Run is on its way.
    async fn announced(&self, device: &DeviceId, fence: &Fence) -> Result<(), Error> {
        for _ in 0..ATTEMPTS {
            let Some(key) = self.index.find(&device.uid, &fence.run_uid) else {
                return Ok(());
            };
            let Some(mut run) = self.objects.get::<Run>(&key.namespace, &key.name).await? else {
                return Ok(());
            };
            let ours = accept::check_fence(&run.object, fence, &device.uid).is_ok();
            if !ours || run.object.status.phase != Some(RunPhase::Lost) {
                return Ok(());
            }
            let Some(status) = late::announce(&run.object, self.clock.now().into()) else {
                return Ok(());
            };
            run.object.status = status;
            match self.objects.commit(vec![run.write()]).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
