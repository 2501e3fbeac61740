//! The planner of one Device.

use std::time::Duration;

use jiff::Timestamp;
use panda_api::meta::{Condition, Time, set_condition};
use panda_api::{Device, Lease};

use crate::framework::{Basis, Notice, Plan, Severity, to_value};

/// How long a heartbeat counts when its Lease does not say.
pub(super) const DEFAULT_TTL: Duration = Duration::from_secs(40);
const READY: &str = "Ready";

/// When this observer saw the Lease of a Device change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// Uid of the Lease: another one of its name says nothing of this one.
    pub lease: String,
    /// The version last seen.
    pub version: String,
    /// When that version was first seen, on the observer's monotonic clock.
    pub seen: Duration,
    /// Whether the Lease changed before this observer's eyes, or was only found.
    pub changed: bool,
}

impl Heartbeat {
    /// What is known after the Lease was seen again.
    #[must_use]
    pub fn observe(before: Option<&Self>, lease: &Lease, now: Duration) -> Self {
        let version = &lease.metadata.resource_version;
        match before.filter(|before| before.lease == lease.metadata.uid) {
            Some(before) if before.version == *version => before.clone(),
            before => Self {
                lease: lease.metadata.uid.clone(),
                version: version.clone(),
                seen: now,
                changed: before.is_some(),
            },
        }
    }
}

/// What the device planner sees.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The Device's Lease, if there is one.
    pub lease: Option<Lease>,
    /// When it was seen to change.
    pub heartbeat: Option<Heartbeat>,
    /// When this observer began to look, on its monotonic clock.
    pub began: Duration,
    /// The time on that clock.
    pub monotonic: Duration,
}

/// Plans the `Ready` condition of a Device.
#[must_use]
pub fn plan(view: &View, device: &Device, now: Timestamp) -> Plan {
    let lease = view.lease.as_ref().filter(|lease| {
        // A Lease of an earlier device of this name says nothing about this one.
        lease.spec.holder_identity.as_deref() == Some(device.metadata.uid.as_str())
    });
    let (seen, changed) = match (lease, &view.heartbeat) {
        (Some(_), Some(heartbeat)) => (heartbeat.seen, heartbeat.changed),
        _ => (view.began, false),
    };
    let ttl = lease.map_or(DEFAULT_TTL, ttl);
    let old = device.status.conditions.iter().find(|c| c.type_ == READY);
    let age = view.monotonic.saturating_sub(seen);
    let mut plan = Plan {
        basis: Some(Basis::of(device)),
        ..Plan::default()
    };
    let verdict = if age >= ttl {
        match lease {
            Some(_) => (
                "Unknown",
                "HeartbeatStopped",
                "the device has not renewed its lease",
            ),
            None => ("Unknown", "NoHeartbeat", "the device has no lease"),
        }
    } else {
        plan.requeue = Some(ttl.saturating_sub(age));
        match (lease, old) {
            (Some(_), _) if changed => ("True", "Heartbeat", "the device renews its lease"),
            (Some(_), None) => ("True", "Heartbeat", "the device holds its lease"),
            _ => return plan,
        }
    };
    let (status, reason, message) = verdict;
    if old.is_some_and(|old| old.status == status && old.reason == reason) {
        return plan;
    }
    let mut changed = device.clone();
    set_condition(
        &mut changed.status.conditions,
        Condition {
            type_: READY.into(),
            status: status.into(),
            observed_generation: None,
            last_transition_time: Time(Timestamp::from_second(now.as_second()).unwrap_or(now)),
            reason: reason.into(),
            message: message.into(),
        },
    );
    plan.status = Some(to_value(&changed));
    let ready = status == "True";
    plan.events.push(Notice {
        severity: if ready {
            Severity::Normal
        } else {
            Severity::Warning
        },
        reason: if ready { "DeviceReady" } else { "DeviceNotReady" },
        message: message.into(),
    });
    plan
}

/// How long the Lease lasts without renewal.
pub(super) fn ttl(lease: &Lease) -> Duration {
    lease
        .spec
        .lease_duration_seconds
        .and_then(|secs| u64::try_from(secs).ok())
        .filter(|secs| *secs > 0)
        .map_or(DEFAULT_TTL, Duration::from_secs)
}
