//! The planner of one Device.

use std::sync::Arc;

use panda_api::{Device, Run, RunPhase};
use serde_json::json;

use crate::framework::{Action, Plan, Target};
use crate::scheduler::tolerates;

/// What the cache shows of a Device's Runs.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Runs that are bound to it, the ended among them.
    pub runs: Vec<Arc<Run>>,
}

/// Evicts the Runs that the Device's taints drive away.
#[must_use]
pub fn plan(view: &View, device: &Device) -> Plan {
    let driving: Vec<_> = device
        .spec
        .taints
        .iter()
        .filter(|taint| taint.effect == "NoExecute")
        .collect();
    let evicted = view.runs.iter().filter(|run| {
        let spec = &run.spec;
        let here = spec.device_name == device.metadata.name && spec.device_uid == device.metadata.uid;
        let tolerations = spec.device.as_ref().map_or(&[][..], |wanted| &wanted.tolerations);
        let driven = driving
            .iter()
            .any(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)));
        here && driven && movable(run)
    });
    Plan {
        actions: evicted.map(|run| evict(run)).collect(),
        ..Plan::default()
    }
}

/// Whether the Run is at work, and may be moved.
fn movable(run: &Run) -> bool {
    let phase = run.status.phase;
    let stays = phase.is_some_and(|phase| phase.is_terminal() || phase == RunPhase::Publishing);
    !stays && run.spec.publish.is_none() && run.spec.cancel != Some(true)
}

/// Only this version of the Run: it may have come to its publication meanwhile.
fn evict(run: &Run) -> Action {
    Action::Patch {
        target: Target::of(run),
        body: json!({
            "metadata": {"uid": run.metadata.uid, "resourceVersion": run.metadata.resource_version},
            "spec": {"cancel": true, "evict": true},
        }),
    }
}
