//! Whether a caller may speak of a Run, act for it, or only hand over what it had.

use panda_api::{Run, RunPhase};
use panda_rpc::v1::Fence;
use tonic::Status;

use super::accept::{self, Stale};
use super::session::internal;
use super::{Agentlets, DeviceId};

fn stale(why: Stale) -> Status {
    Status::failed_precondition(why.to_string())
}

impl Agentlets {
    /// The Run that a fence names, if it is bound to the caller, whatever has become of it since.
    pub(crate) async fn bound_run(&self, device: &DeviceId, fence: Option<&Fence>) -> Result<Run, Status> {
        let fence = fence.ok_or_else(|| Status::invalid_argument("a fence is needed"))?;
        self.registered(device).await?;
        let unknown = || stale(Stale::UnknownRun);
        let key = self.index.find(&device.uid, &fence.run_uid).ok_or_else(unknown)?;
        let run = self
            .objects
            .get::<Run>(&key.namespace, &key.name)
            .await
            .map_err(internal)?
            .ok_or_else(unknown)?;
        accept::check_fence(&run.object, fence, &device.uid).map_err(stale)?;
        Ok(run.object)
    }

    /// The Run that a fence names, if the caller may act for it now: bound to the caller, live, epoch current, Lease
    /// held. What is given out on a Run's behalf (secrets, tokens) is given out behind this.
    ///
    /// # Errors
    /// `FailedPrecondition` when the caller has lost the Run or never had it; `PermissionDenied` for a device that was
    /// removed.
    pub(crate) async fn live_run(&self, device: &DeviceId, fence: Option<&Fence>) -> Result<Run, Status> {
        let run = self.bound_run(device, fence).await?;
        if run.status.phase.is_some_and(RunPhase::is_terminal) {
            return Err(stale(Stale::AlreadyEnded));
        }
        let lease = self.objects.run_lease(&run).await.map_err(internal)?;
        accept::check_lease(lease.as_ref().map(|lease| &lease.object), &accept::fence_of(&run))
            .map_err(stale)?;
        Ok(run)
    }

    /// Whether a device may hand over bytes under this fence: the Run is its own, or was before it was deleted.
    pub(crate) async fn may_upload(&self, device: &DeviceId, fence: Option<&Fence>) -> Result<(), Status> {
        let refused = match self.bound_run(device, fence).await {
            Ok(_) => return Ok(()),
            Err(status) => status,
        };
        if refused.code() == tonic::Code::FailedPrecondition
            && let Some(fence) = fence
            && self.orphan_of(device, fence).await.map_err(internal)?.is_some()
        {
            return Ok(());
        }
        self.metrics.stale_uploads.inc();
        tracing::warn!(
            device = %device.name,
            run = fence.map(|fence| fence.run_uid.as_str()),
            why = %refused.message(),
            "upload refused"
        );
        Err(refused)
    }
}
