//! The planner: what one look at a Task leads to.

use jiff::Timestamp;
use panda_api::meta::Condition;
use panda_api::{Failure, FailureReason, Run, RunPhase, Task, TaskPhase, TaskStatus};
use serde_json::json;

use super::deadline::{Limits, stamp, until};
use super::usage::{book, book_late, is_booked, mark};
use super::view::{Current, View, is_terminal};
use crate::framework::{Action, Basis, Check, Notice, Plan, Severity, Target, cut, to_value};

/// How often it is looked whether a taken name is free again.
const FOREIGN_CHECK: std::time::Duration = std::time::Duration::from_secs(30);

/// Plans the next step of `task`.
#[must_use]
pub fn plan(view: &View, task: &Task, now: Timestamp) -> Plan {
    let mut planner = Planner {
        task,
        view,
        now,
        status: task.status.clone(),
        plan: Plan::default(),
        wake: None,
        strays: false,
    };
    // A Task that is being deleted takes its Runs with it: that is the garbage collector's work.
    if task.metadata.deletion_timestamp.is_none() {
        planner.step();
    }
    planner.finish()
}

/// A plan in the making.
pub(super) struct Planner<'a> {
    pub(super) task: &'a Task,
    pub(super) view: &'a View,
    pub(super) now: Timestamp,
    pub(super) status: TaskStatus,
    pub(super) plan: Plan,
    pub(super) wake: Option<Timestamp>,
    /// Whether Runs other than the current attempt are still alive: nothing new starts until they have ended.
    pub(super) strays: bool,
}

impl<'a> Planner<'a> {
    fn step(&mut self) {
        let wanted = self.rerun();
        if self.view.owned(self.task).any(|run| run.spec.rerun > wanted) {
            // The Task is older than its Runs: whatever would be planned from it is past. The watch brings it.
            return;
        }
        self.status.observed_generation = Some(self.task.metadata.generation);
        self.adopt();
        if self.status.phase.is_some() && self.status.rerun.unwrap_or_default() < wanted && !self.restart() {
            return;
        }
        if self.status.phase.is_none() {
            self.begin();
        }
        self.strays = self.end_strays();
        match self.status.phase {
            Some(phase) if phase.is_terminal() => self.finished(),
            Some(TaskPhase::Review) => {
                if self.cancelled() {
                    if !self.strays {
                        self.cancel();
                    }
                } else {
                    self.published_late();
                }
            }
            _ => {
                if !self.accept_late() {
                    self.attempt();
                }
            }
        }
        let over = self.is_over();
        for run in self.view.owned(self.task) {
            // An attempt that was ended because another's late result counts is nobody's current one any more.
            let of_this = run.spec.rerun == self.rerun() && is_terminal(run);
            if over && of_this && !self.is_booked(run) {
                book(&mut self.status, run);
            }
            book_late(&mut self.status, run);
        }
    }

    /// Whether nothing works for the Task any more.
    fn is_over(&self) -> bool {
        self.status
            .phase
            .is_some_and(|phase| phase.is_terminal() || phase == TaskPhase::Review)
    }

    fn attempt(&mut self) {
        let current = self.view.current(self.task, &self.status);
        if let Current::Seen(run) = &current {
            self.status.agent.clone_from(&run.spec.agent.name);
            self.status.device.clone_from(&run.spec.device_name);
        }
        match current {
            // Its end was taken into account already, so a cache that shows it alive lags: nothing follows from that.
            Current::Seen(run) if !is_terminal(run) && self.is_booked(run) => {}
            Current::Seen(run) if !is_terminal(run) => self.live(run),
            Current::Seen(run) => self.ended(run),
            Current::Gone => self.gone(),
            Current::Foreign => self.foreign(),
            Current::Reserved => self.reserved(),
            Current::None => self.next(),
        }
    }

    /// Whether the Run's end was taken into account.
    pub(super) fn is_booked(&self, run: &Run) -> bool {
        is_booked(&self.status, &run.metadata.name, run.spec.attempt)
    }

    /// The Task's `spec.rerun`.
    pub(super) fn rerun(&self) -> i64 {
        self.task.spec.rerun.unwrap_or_default()
    }

    pub(super) fn cancelled(&self) -> bool {
        self.task.spec.cancel == Some(true)
    }

    pub(super) fn suspended(&self) -> bool {
        self.task.spec.suspend == Some(true)
    }

    /// Time limits, for attempts of the agent that made or will make the current one.
    pub(super) fn limits(&self, run: Option<&Run>) -> Limits {
        let agent = run.and_then(|run| self.view.agents.get(&run.spec.agent.name));
        Limits::of(self.task, self.status.start_time, agent.map(|agent| &**agent))
    }

    /// Goes on from Runs that the status does not know: it was lost, or is older than they are.
    fn adopt(&mut self) {
        let rerun = self.rerun();
        let newest = self.view.owned(self.task).max_by_key(|run| run.spec.attempt);
        if let Some(run) = newest.filter(|run| run.spec.attempt > self.status.attempts) {
            self.status.attempts = run.spec.attempt;
            if run.spec.rerun == rerun {
                self.status.current_run.clone_from(&run.metadata.name);
                self.status.current_run_uid.clone_from(&run.metadata.uid);
            }
        }
    }

    fn begin(&mut self) {
        self.status.phase = Some(TaskPhase::Pending);
        self.status.rerun = Some(self.rerun());
        self.status.start_time.get_or_insert(stamp(self.now));
    }

    /// Ends what is left of the former rerun, then starts afresh. False while something of it is still alive.
    fn restart(&mut self) -> bool {
        if self.end_where(|run, wanted| run.spec.rerun < wanted) {
            return false;
        }
        match self.view.current(self.task, &self.status) {
            Current::Seen(run) if !self.is_booked(run) => {
                self.prove_newest(run);
                book(&mut self.status, run);
            }
            Current::Reserved | Current::Gone => self.prove_absent(),
            _ => {}
        }
        let old = std::mem::take(&mut self.status);
        self.status = TaskStatus {
            observed_generation: old.observed_generation,
            attempts: old.attempts,
            usage: old.usage,
            booked_runs: old.booked_runs,
            ..TaskStatus::default()
        };
        self.note(
            Severity::Normal,
            "Restarted",
            format!("rerun {} starts", self.rerun()),
        );
        true
    }

    /// Ends live Runs that are no attempt any more: nothing works for a Task that is finished or in Review, and only
    /// the current attempt for any other. True while there are any.
    fn end_strays(&mut self) -> bool {
        let current = self.status.current_run.clone();
        let over = self.is_over();
        let status = self.status.clone();
        self.end_where(|run, _| {
            let name = &run.metadata.name;
            over || *name != current || is_booked(&status, name, run.spec.attempt)
        })
    }

    fn end_where(&mut self, which: impl Fn(&Run, i64) -> bool) -> bool {
        let rerun = self.rerun();
        let view = self.view;
        let live: Vec<&Run> = view
            .owned(self.task)
            .filter(|run| !is_terminal(run) && which(run, rerun))
            .collect();
        for run in &live {
            self.end(run);
        }
        !live.is_empty()
    }

    /// Makes a live Run end: through its device when it has one, by its status when it was never bound.
    pub(super) fn end(&mut self, run: &Run) {
        if run.spec.device_name.is_empty() {
            let mut run = run.clone();
            run.status.phase = Some(RunPhase::Cancelled);
            run.status.completion_time = Some(stamp(self.now));
            run.status.unschedulable.clear();
            run.status.failure = Some(Failure {
                reason: FailureReason::Cancelled,
                message: "ended before a device took it".into(),
                ..Failure::default()
            });
            self.plan.actions.push(Action::status(&run));
        } else if run.spec.cancel != Some(true) {
            self.plan
                .actions
                .push(Action::patch_spec(run, &json!({"cancel": true})));
        }
    }

    fn gone(&mut self) {
        let name = self.status.current_run.clone();
        if is_booked(&self.status, &name, self.status.attempts) {
            // Its end was taken into account before it was removed.
            self.next();
            return;
        }
        self.prove_absent();
        mark(&mut self.status, &name);
        if self.cancelled() {
            self.cancel();
        } else if self.status.accepted_run == name {
            self.review(
                FailureReason::PublishFailed,
                format!("Run {name} was deleted before its result was published"),
            );
        } else {
            self.failure(&Failure {
                reason: FailureReason::Internal,
                message: format!("Run {name} was deleted"),
                ..Failure::default()
            });
        }
    }

    fn foreign(&mut self) {
        if self.cancelled() {
            self.cancel();
            return;
        }
        let name = self.status.current_run.clone();
        self.condition(
            "Scheduled",
            "False",
            "RunNameTaken",
            format!("a Run called {name} exists and does not belong to this Task; delete or rename it"),
        );
        self.deadline_or_wake(None);
        // Nothing tells when a Run that is not ours goes.
        self.wake_at(super::deadline::after(self.now, FOREIGN_CHECK));
    }

    fn finished(&mut self) {
        let settled = self
            .status
            .conditions
            .iter()
            .find(|c| c.type_ == "Complete")
            .and_then(|c| c.observed_generation);
        if settled.is_some_and(|settled| settled < self.task.metadata.generation) {
            self.condition(
                "SpecChanged",
                "True",
                "EditedAfterFinish",
                "the spec was changed after the Task finished; raise spec.rerun to use it".into(),
            );
        }
        self.expire();
    }

    /// Deletes a finished Task once its time is over.
    fn expire(&mut self) {
        let (Some(ttl), Some(done)) = (&self.task.spec.ttl_after_finished, self.status.completion_time)
        else {
            return;
        };
        let unpublished = super::result::publishes(self.task.spec.workspace.as_ref())
            && !self.status.accepted_run.is_empty()
            && self.status.phase != Some(TaskPhase::Succeeded);
        let owned_by_source = self
            .task
            .metadata
            .owner_references
            .iter()
            .any(|r| r.kind == "GitSource");
        if unpublished || owned_by_source {
            return;
        }
        let end = super::deadline::after(done.0, ttl.get());
        if end > self.now {
            self.wake_at(end);
        } else if self.status == self.task.status {
            // A status write would change the version that the deletion names.
            self.plan.actions.push(Action::delete(self.task));
        } else {
            self.wake_at(self.now);
        }
    }

    /// Ends the Task because a person wants it to end. Nothing of it is alive.
    pub(super) fn cancel(&mut self) {
        self.complete(TaskPhase::Cancelled, None);
        self.condition("Complete", "False", "Cancelled", "cancelled".into());
        self.note(Severity::Normal, "Cancelled", "the Task was cancelled".into());
    }

    /// Ends the Task without a result.
    pub(super) fn fail(&mut self, reason: FailureReason, message: String) {
        self.status.failure = Some(Failure {
            reason,
            message: message.clone(),
            ..self.status.failure.take().unwrap_or_default()
        });
        self.complete(TaskPhase::Failed, None);
        let word = format!("{reason:?}");
        self.condition("Failed", "True", &word, message.clone());
        self.condition("Complete", "False", &word, message.clone());
        self.note(Severity::Warning, "Failed", message);
    }

    /// Puts the Task before a person.
    pub(super) fn review(&mut self, reason: FailureReason, message: String) {
        self.status.phase = Some(TaskPhase::Review);
        self.status.next_attempt_time = None;
        self.status.unschedulable.clear();
        self.status.failure = Some(Failure {
            reason,
            message: message.clone(),
            ..self.status.failure.take().unwrap_or_default()
        });
        self.condition("Complete", "False", "Review", message.clone());
        self.note(Severity::Warning, "Review", message);
    }

    pub(super) fn complete(&mut self, phase: TaskPhase, at: Option<Timestamp>) {
        self.status.phase = Some(phase);
        self.status.next_attempt_time = None;
        self.status.unschedulable.clear();
        self.status.completion_time = Some(stamp(at.unwrap_or(self.now)));
    }

    /// Requires live proof that the current Run does not exist, before anything of this plan is written.
    pub(super) fn prove_absent(&mut self) {
        self.plan.checks.push(Check::Absent {
            target: Target::new::<Run>(&self.task.metadata.namespace, &self.status.current_run),
            uid: None,
        });
    }

    /// Requires live proof that an ended Run was not deleted and made again since: a cache that lags would show the
    /// end of the former one while the new one is alive.
    pub(super) fn prove_newest(&mut self, run: &Run) {
        self.plan.checks.push(Check::NotReplaced {
            target: Target::of(run),
            uid: run.metadata.uid.clone(),
        });
    }

    pub(super) fn condition(&mut self, type_: &str, status: &str, reason: &str, message: String) {
        panda_api::meta::set_condition(
            &mut self.status.conditions,
            Condition {
                type_: type_.into(),
                status: status.into(),
                observed_generation: Some(self.task.metadata.generation),
                last_transition_time: stamp(self.now),
                reason: reason.into(),
                message: cut(&message, 1024),
            },
        );
    }

    pub(super) fn note(&mut self, severity: Severity, reason: &'static str, message: String) {
        self.plan.events.push(Notice {
            severity,
            reason,
            message: cut(&message, 1024),
        });
    }

    pub(super) fn wake_at(&mut self, time: Timestamp) {
        self.wake = Some(self.wake.map_or(time, |wake| wake.min(time)));
    }

    fn finish(mut self) -> Plan {
        if self.status != self.task.status {
            let mut object = self.task.clone();
            object.status = self.status;
            self.plan.status = Some(to_value(&object));
        }
        if self.plan.status.is_none() {
            // What happened is told with the write that makes it true.
            self.plan.events.clear();
        }
        self.plan.basis = Some(Basis::of(self.task));
        self.plan.requeue = self.wake.map(|wake| until(wake, self.now));
        self.plan
    }
}
