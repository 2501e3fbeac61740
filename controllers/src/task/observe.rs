//! What the current Run's state means for the Task.

use panda_api::{Failure, FailureReason, Run, RunPhase, TaskPhase};
use serde_json::json;

use super::plan::Planner;
use super::result::passed;
use super::usage::book;

impl Planner<'_> {
    /// The current attempt is alive.
    pub(super) fn live(&mut self, run: &Run) {
        self.see(run);
        self.status.next_attempt_time = self
            .status
            .next_attempt_time
            .filter(|_| self.status.accepted_run == run.metadata.name);
        if self.cancelled() {
            self.end(run);
            self.mirror(run);
            return;
        }
        if self.status.accepted_run == run.metadata.name {
            self.publication(run);
            return;
        }
        if run.status.phase == Some(RunPhase::Publishing) && passed(run) && self.may_accept(run) {
            self.accept(run, run.status.result.clone());
            self.publication(run);
            return;
        }
        self.mirror(run);
        let limits = self.limits(Some(run));
        let bound = !run.spec.device_name.is_empty();
        // Before it is bound an attempt has not started, so it must still fit.
        let end = if bound { limits.end } else { limits.latest_start() };
        if let Some(end) = end {
            if self.now > end || (bound && self.now == end) {
                self.end(run);
                return;
            }
            self.wake_at(if bound {
                end
            } else {
                super::deadline::after(end, std::time::Duration::from_nanos(1))
            });
        }
        let pause = self.suspended();
        if run.spec.pause.unwrap_or_default() != pause {
            self.plan.actions.push(crate::framework::Action::patch_spec(
                run,
                &json!({"pause": pause}),
            ));
        }
    }

    /// The current attempt has ended.
    pub(super) fn ended(&mut self, run: &Run) {
        self.see(run);
        let name = &run.metadata.name;
        let accepted = self.status.accepted_run == *name;
        if self.is_booked(run) {
            self.next();
            return;
        }
        if run.status.phase == Some(RunPhase::Succeeded)
            && passed(run)
            && self.may_accept(run)
            && let Some(end) = self.waits_for_old(run)
        {
            self.status.phase = Some(TaskPhase::Verifying);
            self.condition(
                "Complete",
                "False",
                "WaitsForOlderResult",
                "an older attempt finished on a device that has come back; onReturn is KeepOld".into(),
            );
            self.wake_at(end);
            return;
        }
        self.prove_newest(run);
        book(&mut self.status, run);
        let message = run.status.failure.as_ref().map(|f| f.message.clone());
        match run.status.phase {
            Some(RunPhase::Succeeded) if accepted => self.succeed(run),
            _ if self.cancelled() => self.cancel(),
            Some(RunPhase::Succeeded) if !passed(run) => self.failure(&Failure {
                reason: FailureReason::VerifyFailed,
                message: "the Run says that it succeeded, but not every check passed".into(),
                ..Failure::default()
            }),
            Some(RunPhase::Succeeded) if self.may_accept(run) => {
                self.accept(run, run.status.result.clone());
                self.succeed(run);
            }
            _ if accepted => self.unpublished(run),
            Some(RunPhase::Lost) => self.failure(&run.status.failure.clone().unwrap_or(Failure {
                reason: FailureReason::DeviceLost,
                message: format!("device {} was out of reach for too long", run.spec.device_name),
                ..Failure::default()
            })),
            Some(RunPhase::Cancelled) => {
                let limits = self.limits(Some(run));
                let end = if run.spec.device_name.is_empty() {
                    limits.latest_start()
                } else {
                    limits.end
                };
                if end.is_some_and(|end| self.now >= end) {
                    self.fail(
                        FailureReason::DeadlineExceeded,
                        format!("spec.deadline passed during attempt {}", run.spec.attempt),
                    );
                } else if run.spec.evict == Some(true) {
                    self.failure(&Failure {
                        reason: FailureReason::Evicted,
                        message: format!("device {} was to be free of it", run.spec.device_name),
                        ..Failure::default()
                    });
                } else {
                    self.failure(&Failure {
                        reason: FailureReason::Cancelled,
                        message: message.unwrap_or_else(|| format!("Run {name} was cancelled")),
                        ..Failure::default()
                    });
                }
            }
            _ => self.failure(&run.status.failure.clone().unwrap_or(Failure {
                reason: FailureReason::AgentError,
                message: format!("Run {name} failed without saying why"),
                ..Failure::default()
            })),
        }
    }

    fn see(&mut self, run: &Run) {
        self.status.current_run_uid.clone_from(&run.metadata.uid);
        self.status.attempts = self.status.attempts.max(run.spec.attempt);
    }

    /// Shows the Run's state as the Task's.
    fn mirror(&mut self, run: &Run) {
        let bound = !run.spec.device_name.is_empty();
        self.status.phase = Some(match run.status.phase {
            _ if self.suspended() && !bound => TaskPhase::Paused,
            None | Some(RunPhase::Pending) => TaskPhase::Queued,
            Some(RunPhase::WaitingForApproval) => TaskPhase::WaitingForApproval,
            Some(RunPhase::Paused) => TaskPhase::Paused,
            Some(RunPhase::Verifying | RunPhase::Publishing) => TaskPhase::Verifying,
            Some(_) => TaskPhase::Running,
        });
        if bound {
            self.status.unschedulable.clear();
            let device = &run.spec.device_name;
            self.condition("Scheduled", "True", "Bound", format!("bound to device {device}"));
        } else {
            self.status.unschedulable.clone_from(&run.status.unschedulable);
            if let Some(first) = run.status.unschedulable.first() {
                let message = if first.device.is_empty() {
                    first.message.clone()
                } else {
                    format!("{}: {}", first.device, first.message)
                };
                self.condition("Scheduled", "False", "Unschedulable", message);
            }
        }
        if run.status.start_time.is_some() {
            self.condition(
                "Started",
                "True",
                "Started",
                format!("attempt {} started", run.spec.attempt),
            );
        }
    }
}
