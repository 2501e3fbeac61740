//! The planner of one Run whose device may be out of reach.

use std::time::Duration;

use jiff::Timestamp;
use panda_api::meta::{Condition, Duration as Length, ObjectMeta, Time, set_condition};
use panda_api::{
    DEVICE_FINALIZER, Device, DisconnectPolicy, Failure, FailureReason, Lease, Run, RunPhase, Task,
};
use serde_json::json;

use super::super::bound::Lost;
use super::super::plan::{DEFAULT_TTL, ttl};
use crate::framework::{Action, Basis, Check, Notice, Plan, Severity, Target};

/// When this observer saw the Lease of a Run renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    version: String,
    pub(super) seen: Duration,
    pub(super) ttl: Duration,
}

impl Renewal {
    /// What is known after the Lease was seen again. Any change by which it is still held counts: to wait longer is
    /// always safe. Being taken away is no renewal.
    #[must_use]
    pub fn observe(before: Option<&Self>, lease: &Lease, now: Duration) -> Self {
        let version = lease.metadata.resource_version.clone();
        match before {
            Some(before) if before.version == version => before.clone(),
            Some(before) if !is_held(lease) => Self {
                version,
                ..before.clone()
            },
            before => Self {
                version,
                seen: now,
                // What was granted before a shorter duration was written may still be alive.
                ttl: before
                    .map_or(Duration::ZERO, |before| {
                        before.seen.saturating_add(before.ttl).saturating_sub(now)
                    })
                    .max(ttl(lease)),
            },
        }
    }
}

fn is_held(lease: &Lease) -> bool {
    lease
        .spec
        .holder_identity
        .as_deref()
        .is_some_and(|holder| !holder.is_empty())
}

/// What the planner sees of one Run.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The Run's Lease, if there is one.
    pub lease: Option<Lease>,
    /// When it was seen renewed.
    pub renewal: Option<Renewal>,
    /// The Run's Device, if it is registered under the uid that the Run was bound to.
    pub device: Option<Device>,
    /// The heartbeat of that Device: it says how long grants last when the Run's Lease is gone.
    pub heartbeat: Option<Lease>,
    /// When this observer began to look, on its monotonic clock.
    pub began: Duration,
    /// The time on that clock.
    pub monotonic: Duration,
}

/// Plans whether a Run is taken away from its device.
#[must_use]
pub fn plan(view: &View, run: &Run, lost: &Lost, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    if run.status.phase.is_some_and(RunPhase::is_terminal) {
        return release(view, run, lost);
    }
    if run.spec.device_uid.is_empty() {
        return plan;
    }
    let (seen, granted) = match &view.renewal {
        Some(renewal) => (renewal.seen, renewal.ttl),
        None => (view.began, view.heartbeat.as_ref().map_or(DEFAULT_TTL, ttl)),
    };
    let bound = lost.bound(run, granted);
    let silent = view.monotonic.saturating_sub(seen);
    if silent < bound {
        plan.requeue = Some(bound.saturating_sub(silent));
        return plan;
    }
    plan.basis = Some(Basis::of(run));
    match &view.lease {
        None => plan.checks.push(Check::Absent {
            target: Target::new::<Lease>(&run.metadata.namespace, &run.metadata.name),
            uid: None,
        }),
        Some(lease) if is_held(lease) || lease.metadata.is_on_device() => plan.actions.push(take(lease)),
        // Taken already: by this observer, or by one that did not live to finish.
        Some(_) => {}
    }
    let message = message(view, run, silent, granted);
    plan.actions.push(Action::status(&give_up(run, &message, now)));
    let notice = |reason, message: String| Notice {
        severity: Severity::Warning,
        reason,
        message,
    };
    plan.events.push(notice("DeviceLost", message.clone()));
    let name = &run.metadata.name;
    let task = Basis {
        target: Target::new::<Task>(&run.metadata.namespace, &run.spec.task_ref.name),
        uid: run.spec.task_ref.uid.clone(),
        resource_version: String::new(),
    };
    plan.elsewhere
        .push((task, notice("RunLost", format!("Run {name} is lost: {message}"))));
    if let Some(device) = &view.device {
        let text = format!("Run {}/{name} was taken away: {message}", run.metadata.namespace);
        plan.elsewhere.push((Basis::of(device), notice("RunLost", text)));
    }
    plan
}

/// Lets a Run go that has ended, once its Lease says that nothing of it is alive.
fn release(view: &View, run: &Run, lost: &Lost) -> Plan {
    if let Some(lease) = view.lease.as_ref().filter(|lease| lease.metadata.is_on_device()) {
        return plan_lease(view, lease, lost);
    }
    let mut plan = Plan::default();
    if run.metadata.is_on_device() {
        plan.basis = Some(Basis::of(run));
        plan.actions.push(Action::Patch {
            target: Target::of(run),
            body: json!({"metadata": released(&run.metadata)}),
        });
    }
    plan
}

/// Plans whether a Lease is taken whose Run is gone, or was ended by another than its device: only with the bound is it
/// certain that nothing of it is alive.
#[must_use]
pub fn plan_lease(view: &View, lease: &Lease, lost: &Lost) -> Plan {
    let mut plan = Plan::default();
    if !lease.metadata.is_on_device() {
        return plan;
    }
    let (seen, granted) = match &view.renewal {
        Some(renewal) => (renewal.seen, renewal.ttl),
        None => (view.began, ttl(lease)),
    };
    let bound = lost.bound_of_lease(lease, granted);
    let silent = view.monotonic.saturating_sub(seen);
    if silent < bound {
        plan.requeue = Some(bound.saturating_sub(silent));
    } else {
        plan.actions.push(take(lease));
    }
    plan
}

/// The metadata of an object of exactly this version that is no longer held for its device.
fn released(meta: &ObjectMeta) -> serde_json::Value {
    let rest: Vec<&String> = meta
        .finalizers
        .iter()
        .filter(|name| *name != DEVICE_FINALIZER)
        .collect();
    json!({"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": rest})
}

/// Takes a Lease away, provided that nobody has renewed it since it was seen.
fn take(lease: &Lease) -> Action {
    Action::Patch {
        target: Target::of(lease),
        body: json!({
            "metadata": released(&lease.metadata),
            "spec": {
                "holderIdentity": null,
                "leaseTransitions": lease.spec.lease_transitions.unwrap_or(0).saturating_add(1),
            },
        }),
    }
}

fn give_up(run: &Run, message: &str, now: Timestamp) -> Run {
    let stamp = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    let mut run = run.clone();
    run.status.phase = Some(RunPhase::Lost);
    run.status.completion_time = Some(stamp);
    run.status.failure = Some(Failure {
        reason: FailureReason::DeviceLost,
        message: message.to_owned(),
        retryable: true,
        ..Failure::default()
    });
    let complete = Condition {
        type_: "Complete".into(),
        status: "False".into(),
        observed_generation: Some(run.metadata.generation),
        last_transition_time: stamp,
        reason: "DeviceLost".into(),
        message: message.to_owned(),
    };
    set_condition(&mut run.status.conditions, complete);
    run
}

fn message(view: &View, run: &Run, silent: Duration, granted: Duration) -> String {
    let device = &run.spec.device_name;
    let silent = Length::from_secs(silent.as_secs());
    let granted = Length::from_secs(granted.as_secs());
    let what = if view.device.is_some() {
        format!("device {device} has not renewed the lease for {silent}")
    } else {
        format!("device {device} was removed, and the lease was not renewed for {silent}")
    };
    if matches!(run.status.phase, None | Some(RunPhase::Pending)) {
        return format!("{what} (grant {granted}); the run had not begun");
    }
    let rule = run.on_disconnect();
    let why = match rule.policy {
        DisconnectPolicy::Stop => "policy Stop".to_owned(),
        policy => format!("policy {policy:?} for {}", rule.after),
    };
    let mut text = format!("{what} (grant {granted}, {why}); it can have no live process any more");
    if run.status.phase == Some(RunPhase::Publishing) {
        text.push_str("; whether its branch was moved is known to that device alone");
    }
    text
}
