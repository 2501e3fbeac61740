//! Whether a device's report still counts, and what it changes. Pure: the caller reads and commits.
//!
//! 1. A report counts only while its [`Fence`] equals the server's record of the attempt, field by field, and the
//!    device still holds the Run's Lease at that epoch.
//! 2. A terminal phase never changes again.
//! 3. Whatever does not count is *stale*: acknowledged so that the outbox moves on, counted, and without effect.

use panda_api::meta::{Condition, Time, set_condition};
use panda_api::{Lease, Run, RunPhase, RunStatus};
use panda_rpc::report::RunReport;
use panda_rpc::v1::Fence;

/// Why a report does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stale {
    /// The Run is gone, or was never this device's.
    #[error("no such run on this device")]
    UnknownRun,
    /// The fence names another task, attempt or device.
    #[error("the fence names another attempt")]
    OtherAttempt,
    /// The Lease was taken away.
    #[error("the lease of the run was taken away")]
    LeaseLost,
    /// The Run has ended.
    #[error("the run has already ended")]
    AlreadyEnded,
}

/// The fence that the server's record of a bound Run calls for.
pub(crate) fn fence_of(run: &Run) -> Fence {
    Fence {
        task_uid: run.spec.task_ref.uid.clone(),
        run_uid: run.metadata.uid.clone(),
        attempt: run.spec.attempt,
        epoch: run.spec.lease_epoch.unwrap_or(0),
        device_uid: run.spec.device_uid.clone(),
    }
}

/// Whether `fence`, sent by the device `device_uid`, is the one of `run`.
pub(crate) fn check_fence(run: &Run, fence: &Fence, device_uid: &str) -> Result<(), Stale> {
    if run.spec.device_uid != device_uid || run.metadata.uid != fence.run_uid {
        return Err(Stale::UnknownRun);
    }
    if *fence == fence_of(run) {
        Ok(())
    } else {
        Err(Stale::OtherAttempt)
    }
}

/// Whether the device holds the Run's Lease at the epoch of the fence.
pub(crate) fn check_lease(lease: Option<&Lease>, fence: &Fence) -> Result<(), Stale> {
    let held = lease.is_some_and(|lease| {
        lease.spec.holder_identity.as_deref() == Some(fence.device_uid.as_str())
            && lease.spec.lease_transitions == Some(fence.epoch)
    });
    if held { Ok(()) } else { Err(Stale::LeaseLost) }
}

/// The status of `run` after `report`.
pub(crate) fn apply(run: &Run, report: &RunReport, seq: u64, now: Time) -> Result<RunStatus, Stale> {
    if run.status.phase.is_some_and(RunPhase::is_terminal) {
        return Err(Stale::AlreadyEnded);
    }
    let mut status = run.status.clone();
    let report = report.clone();
    macro_rules! take {
        ($($field:ident),*) => { $( if let Some(value) = report.$field { status.$field = value; } )* };
        (optional $($field:ident),*) => { $( if report.$field.is_some() { status.$field = report.$field; } )* };
    }
    take!(session_id, usage, verify, changed_files, diffstat);
    take!(optional phase, start_time, completion_time, failure, sandbox, processes, logs, result, publish);
    status.outbox_seq = Some(seq);
    status.observed_generation = Some(run.metadata.generation);
    if status.phase.is_some_and(RunPhase::is_terminal) && status.completion_time.is_none() {
        status.completion_time = Some(now);
    }
    conditions(run, &mut status, now);
    Ok(status)
}

fn conditions(run: &Run, status: &mut RunStatus, now: Time) {
    let Some(phase) = status.phase else { return };
    let mut set = |type_: &str, value: bool, reason: &str, message: String| {
        let condition = Condition {
            type_: type_.into(),
            status: if value { "True" } else { "False" }.into(),
            observed_generation: Some(run.metadata.generation),
            last_transition_time: now,
            reason: reason.into(),
            message,
        };
        set_condition(&mut status.conditions, condition);
    };
    if status.start_time.is_some() {
        set(
            "Started",
            true,
            "ProcessStarted",
            "the agent's process was started".into(),
        );
    }
    if !status.verify.is_empty() {
        let failed: Vec<&str> = status
            .verify
            .iter()
            .filter(|check| !check.passed)
            .map(|check| check.name.as_str())
            .collect();
        if failed.is_empty() {
            set("Verified", true, "ChecksPassed", "every check passed".into());
        } else {
            set(
                "Verified",
                false,
                "ChecksFailed",
                format!("failed: {}", failed.join(", ")),
            );
        }
    }
    if phase.is_terminal() {
        let succeeded = phase == RunPhase::Succeeded;
        let message = status
            .failure
            .as_ref()
            .map(|failure| failure.message.clone())
            .unwrap_or_default();
        set(
            "Complete",
            succeeded,
            if succeeded { "Succeeded" } else { "DidNotSucceed" },
            message,
        );
    }
}

#[cfg(test)]
mod tests {
    use panda_api::meta::ObjectMeta;
    use panda_api::{LeaseSpec, RunSpec, TaskRef};

    use super::*;

    fn run() -> Run {
        Run {
            metadata: ObjectMeta {
                uid: "run-1".into(),
                ..ObjectMeta::namespaced("default", "a-1")
            },
            spec: RunSpec {
                task_ref: TaskRef {
                    name: "a".into(),
                    uid: "task-1".into(),
                    generation: 1,
                },
                attempt: 2,
                device_uid: "dev-1".into(),
                lease_epoch: Some(3),
                ..RunSpec::default()
            },
            ..Run::default()
        }
    }

    fn now() -> Time {
        "2026-01-02T03:04:05Z"
            .parse::<jiff::Timestamp>()
            .map(Time)
            .unwrap()
    }

    #[test]
    fn every_field_of_the_fence_counts() {
        let run = run();
        let good = fence_of(&run);
        assert_eq!(check_fence(&run, &good, "dev-1"), Ok(()));
        assert_eq!(check_fence(&run, &good, "dev-2"), Err(Stale::UnknownRun));
        let change: [fn(&mut Fence); 5] = [
            |f| f.task_uid = "task-2".into(),
            |f| f.run_uid = "run-2".into(),
            |f| f.attempt = 1,
            |f| f.epoch = 2,
            |f| f.device_uid = "dev-2".into(),
        ];
        for change in change {
            let mut fence = good.clone();
            change(&mut fence);
            assert!(check_fence(&run, &fence, "dev-1").is_err(), "{fence:?}");
        }
    }

    #[test]
    fn a_taken_lease_makes_reports_stale() {
        let fence = fence_of(&run());
        let held = Lease {
            spec: LeaseSpec {
                holder_identity: Some("dev-1".into()),
                lease_transitions: Some(3),
                ..LeaseSpec::default()
            },
            ..Lease::default()
        };
        assert_eq!(check_lease(Some(&held), &fence), Ok(()));
        assert_eq!(check_lease(None, &fence), Err(Stale::LeaseLost));
        let mut taken = held.clone();
        taken.spec.holder_identity = None;
        assert_eq!(check_lease(Some(&taken), &fence), Err(Stale::LeaseLost));
        let mut newer = held;
        newer.spec.lease_transitions = Some(4);
        assert_eq!(check_lease(Some(&newer), &fence), Err(Stale::LeaseLost));
    }

    #[test]
    fn terminal_phases_never_change() {
        for phase in [
            RunPhase::Succeeded,
            RunPhase::Failed,
            RunPhase::Lost,
            RunPhase::Cancelled,
        ] {
            let mut run = run();
            run.status.phase = Some(phase);
            let report = RunReport {
                phase: Some(RunPhase::Running),
                ..RunReport::default()
            };
            assert_eq!(apply(&run, &report, 9, now()), Err(Stale::AlreadyEnded));
        }
    }

    #[test]
    fn absent_fields_change_nothing() {
        let mut run = run();
        run.status.session_id = "s".into();
        run.status.phase = Some(RunPhase::Running);
        let status = apply(
            &run,
            &RunReport {
                processes: Some(4),
                ..RunReport::default()
            },
            7,
            now(),
        )
        .unwrap();
        assert_eq!(status.session_id, "s");
        assert_eq!(status.phase, Some(RunPhase::Running));
        assert_eq!(status.processes, Some(4));
        assert_eq!(status.outbox_seq, Some(7));
    }
}
