//! Runs whose repository no device has: a mistyped path should fail in seconds, not wait for a deadline.
//!
//! 1. What a device told another Task is a hint. While another device may yet take the Run, it waits for that one;
//!    otherwise the device is asked again, since a person may have put the repository there.
//! 2. What a device told the same Task, in the same rerun, is an answer. When all that could take the Run have given it,
//!    and no device is merely away, busy or closed for now, the Run fails.

use std::time::Duration;

use jiff::Timestamp;
use panda_api::{Failure, FailureReason, Refusal, RefusalReason, Run, RunPhase};

use super::memory::BELIEVED;
use super::plan::stamp;

/// Most devices that the message names.
const NAMED: usize = 3;

/// Whether a device that refuses for this reason may take the Run later, with nothing changed in its Task.
const fn passes(reason: RefusalReason) -> bool {
    match reason {
        RefusalReason::DeviceNotReady
        | RefusalReason::Cordoned
        | RefusalReason::TaintNotTolerated
        | RefusalReason::AgentNotLoggedIn
        | RefusalReason::InsufficientResources
        | RefusalReason::NoFreeSlot
        | RefusalReason::AgentBusy
        | RefusalReason::CircuitOpen
        | RefusalReason::DiskPressure => true,
        RefusalReason::SelectorMismatch
        | RefusalReason::MissingCapability
        | RefusalReason::AgentNotFound
        | RefusalReason::SandboxUnavailable
        | RefusalReason::NamespaceNotServed
        | RefusalReason::WorkspaceRootDenied
        | RefusalReason::RepositoryAbsent => false,
    }
}

/// Whether a device may take the Run later.
pub(super) fn is_hope_left(refusals: &[Refusal]) -> bool {
    refusals.iter().any(|refusal| passes(refusal.reason))
}

/// Whether the device answered another attempt of the same rerun that it cannot have the repository.
pub(super) fn answered(former: Option<&Vec<&Run>>, run: &Run, device: &str, now: Timestamp) -> bool {
    former.into_iter().flatten().any(|other| {
        let failure = other.status.failure.as_ref();
        let told = failure.is_some_and(|failure| failure.refusal.is_some());
        let age = other.status.bind_time.map(|at| now.duration_since(at.0));
        let is_fresh = age.is_some_and(|age| Duration::try_from(age).unwrap_or_default() < BELIEVED);
        other.spec.rerun == run.spec.rerun && other.spec.device_name == device && told && is_fresh
    })
}

/// The Run as it fails, when every device that could take it has answered that it lacks the repository.
pub(super) fn hopeless(run: &Run, refusals: &[Refusal], now: Timestamp) -> Option<Run> {
    let lack: Vec<&Refusal> = refusals
        .iter()
        .filter(|refusal| refusal.reason == RefusalReason::RepositoryAbsent)
        .collect();
    let first = lack.first()?;
    if is_hope_left(refusals) {
        return None;
    }
    let names: Vec<&str> = lack.iter().take(NAMED).map(|r| r.device.as_str()).collect();
    let more = match lack.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let mut run = run.clone();
    run.status.phase = Some(RunPhase::Failed);
    run.status.completion_time = Some(stamp(now));
    run.status.unschedulable.clear();
    run.status.failure = Some(Failure {
        reason: FailureReason::WorkspaceFailed,
        message: format!(
            "no device that could run it has the repository (asked {}{more}: {}); correct spec.workspace.git, or put \
             the repository there, and retry",
            names.join(", "),
            first.message
        ),
        refusal: Some(RefusalReason::RepositoryAbsent),
        ..Failure::default()
    });
    Some(run)
}
