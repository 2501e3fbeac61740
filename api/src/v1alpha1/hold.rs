//! What keeps a bound Run, and its Lease, until nothing of it can be alive on its device.

use std::time::Duration;

use super::run::Run;
use super::shared::{DisconnectPolicy, OnDisconnect};
use crate::meta::ObjectMeta;

/// Finalizer of a Run and of its Lease, from binding until the device has reported the end, or the Lease was taken.
pub const DEVICE_FINALIZER: &str = "panda.dev/device";
/// Label of a Run and of its Lease: the uid of the Task.
pub const TASK_UID: &str = "panda.dev/task-uid";
/// Annotation of a Run's Lease: how long the run may be alive after its grant has ended. It outlives the Run there.
pub const AFTER_GRANT: &str = "panda.dev/after-grant";

/// What an agent has to end after its first signal, when it does not say.
const STOP_GRACE: Duration = Duration::from_secs(5);

impl ObjectMeta {
    /// Whether something of this may be alive on a device.
    #[must_use]
    pub fn is_on_device(&self) -> bool {
        self.finalizers.iter().any(|name| name == DEVICE_FINALIZER)
    }
}

impl Run {
    /// What happens while the device is out of reach, as the Run was frozen with.
    #[must_use]
    pub fn on_disconnect(&self) -> OnDisconnect {
        let device = self.spec.device.as_ref();
        device.and_then(|d| d.on_disconnect.clone()).unwrap_or_default()
    }

    /// What the run may go on, or stay frozen, after its grant has ended, and what its agent then has to stop.
    #[must_use]
    pub fn after_grant(&self) -> Duration {
        let rule = self.on_disconnect();
        let after = match rule.policy {
            DisconnectPolicy::Stop => Duration::ZERO,
            DisconnectPolicy::Pause | DisconnectPolicy::Continue => rule.after.get(),
        };
        let stop = self
            .spec
            .agent_spec
            .as_ref()
            .and_then(|agent| agent.stop.as_ref());
        let grace = stop.and_then(|stop| stop.grace.as_ref());
        after.saturating_add(grace.map_or(STOP_GRACE, |grace| grace.get()))
    }
}
