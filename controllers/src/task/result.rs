//! Results: when they count, and how they are published.

use std::time::Duration;

use jiff::Timestamp;
use panda_api::meta::MicroTime;
use panda_api::{
    FailureReason, LateResult, Push, ReturnPolicy, Run, RunPhase, TaskPhase, TaskResult, VerifyResult,
    VerifySpec, WorkspaceSpec,
};
use serde_json::json;

use super::deadline::after;
use super::plan::Planner;
use super::retry::{PUBLICATION_CAP, pause};
use crate::framework::{Action, Severity};

/// How long a finished newer attempt waits for an older one's result that its device has announced.
const KEEP_OLD: Duration = Duration::from_secs(600);

/// Whether a result of this work is published once it is accepted.
pub(super) fn publishes(workspace: Option<&WorkspaceSpec>) -> bool {
    workspace.is_some_and(|w| {
        w.git.is_some()
            && w.result
                .as_ref()
                .is_some_and(|result| result.push == Push::OnSuccess)
    })
}

/// The branch that the result goes to.
pub(super) fn branch(workspace: &WorkspaceSpec, task: &str) -> String {
    let pattern = workspace
        .result
        .as_ref()
        .map(|r| r.branch.as_str())
        .filter(|b| !b.is_empty());
    pattern.unwrap_or("panda/{{name}}").replace("{{name}}", task)
}

/// Whether every check of the Run passed.
pub(super) fn passed(run: &Run) -> bool {
    all_passed(&run.spec.verify, &run.status.verify)
}

fn all_passed(wanted: &[VerifySpec], seen: &[VerifyResult]) -> bool {
    seen.iter().all(|check| check.passed)
        && wanted
            .iter()
            .all(|check| seen.iter().any(|result| result.name == check.name))
}

/// What came late of a Run that was Lost, where it can be of use. With `push: OnSuccess` it cannot: a Run that is
/// Lost does not publish, so the newer attempt goes on.
fn usable_late(run: &Run) -> Option<&LateResult> {
    let usable = run.status.phase == Some(RunPhase::Lost)
        && run.on_disconnect().on_return != ReturnPolicy::KeepNew
        && !publishes(run.spec.workspace.as_ref());
    run.status.late_result.as_deref().filter(|_| usable)
}

fn is_complete(run: &Run, late: &LateResult) -> bool {
    matches!(late.phase, Some(RunPhase::Succeeded | RunPhase::Publishing))
        && all_passed(&run.spec.verify, &late.verify)
}

impl Planner<'_> {
    /// Whether the Run's result may become the Task's.
    pub(super) fn may_accept(&self, run: &Run) -> bool {
        self.status.accepted_run.is_empty() && run.spec.rerun == self.rerun() && !self.cancelled()
    }

    /// Makes the result count. The write is a compare-and-swap on the Task, which holds all of `may_accept`.
    pub(super) fn accept(&mut self, run: &Run, result: Option<TaskResult>) {
        self.status.accepted_run.clone_from(&run.metadata.name);
        self.status.result = result;
        self.status.failure = None;
        self.status.unschedulable.clear();
        self.status.next_attempt_time = None;
        let checks = run.spec.verify.len();
        let (reason, message) = match checks {
            0 => ("NoChecks", "the Task names no checks".to_owned()),
            _ => (
                "Passed",
                format!("all checks passed in attempt {}", run.spec.attempt),
            ),
        };
        self.condition("Verified", "True", reason, message);
        self.note(
            Severity::Normal,
            "Accepted",
            format!("the result of Run {} was accepted", run.metadata.name),
        );
    }

    /// The accepted Run is done.
    pub(super) fn succeed(&mut self, run: &Run) {
        if let Some(mut result) = run.status.result.clone() {
            if let Some(published) = run.status.publish.as_ref().filter(|p| !p.commit.is_empty()) {
                result.commit.clone_from(&published.commit);
            }
            self.status.result = Some(result);
        }
        // The device says when it ended; its clock may be wrong, so only within what is possible.
        let done = run.status.completion_time.map(|time| {
            let start = self.status.start_time.map_or(Timestamp::MIN, |start| start.0);
            time.0.max(start).min(self.now)
        });
        self.finish_well(done);
    }

    fn finish_well(&mut self, done: Option<Timestamp>) {
        self.status.failure = None;
        self.complete(TaskPhase::Succeeded, done);
        self.condition("Complete", "True", "Succeeded", "the result was accepted".into());
        self.note(Severity::Normal, "Succeeded", "the Task succeeded".into());
    }

    /// Accepts the complete result of a Run that was taken from its device, when it is the first to arrive and
    /// `onReturn` is not `KeepNew`.
    pub(super) fn accept_late(&mut self) -> bool {
        let view = self.view;
        let found = view
            .owned(self.task)
            .filter(|run| self.may_accept(run))
            .filter_map(|run| Some((run, usable_late(run)?)))
            .filter(|(run, late)| is_complete(run, late))
            .min_by_key(|(run, _)| run.spec.attempt);
        let Some((run, late)) = found else { return false };
        self.accept(run, late.result.clone());
        self.finish_well(None);
        // The other attempt, if there is one, ends as a stray from the next look on.
        true
    }

    /// Until when the result of `run` waits for that of an older attempt, which `onReturn: KeepOld` prefers and whose
    /// device says that it holds it. Counted on this observer's monotonic clock, whatever the stamps say.
    pub(super) fn waits_for_old(&self, run: &Run) -> Option<Timestamp> {
        self.view
            .owned(self.task)
            .filter(|old| old.spec.attempt < run.spec.attempt && self.may_accept(old))
            .filter(|old| old.on_disconnect().on_return == ReturnPolicy::KeepOld)
            .filter(|old| usable_late(old).is_some_and(|late| late.phase.is_none()))
            .filter_map(|old| self.view.announced.get(&old.metadata.uid))
            .filter_map(|waited| KEEP_OLD.checked_sub(*waited))
            .filter(|left| !left.is_zero())
            .map(|left| after(self.now, left))
            .max()
    }

    /// The accepted Run was Lost while it published, and its device says now that it had published.
    pub(super) fn published_late(&mut self) -> bool {
        let view = self.view;
        let rerun = self.rerun();
        let found = view.owned(self.task).find_map(|run| {
            let late = run.status.late_result.as_ref()?;
            let publish = late
                .publish
                .as_ref()
                .filter(|publish| publish.state == "Published")?;
            let ours = run.metadata.name == self.status.accepted_run && run.spec.rerun == rerun;
            (ours && run.status.phase == Some(RunPhase::Lost)).then(|| publish.commit.clone())
        });
        let Some(commit) = found.filter(|_| !self.cancelled()) else {
            return false;
        };
        if let Some(result) = self.status.result.as_mut().filter(|_| !commit.is_empty()) {
            result.commit = commit;
        }
        self.finish_well(None);
        true
    }

    /// The accepted Run is alive: brings its result to where it belongs.
    pub(super) fn publication(&mut self, run: &Run) {
        self.status.phase = Some(TaskPhase::Publishing);
        let Some(wanted) = &run.spec.publish else {
            self.publish(run, 1);
            return;
        };
        let Some(seen) = run
            .status
            .publish
            .as_ref()
            .filter(|seen| seen.try_number >= wanted.try_number)
        else {
            // The device is at it.
            self.status.next_attempt_time = None;
            return;
        };
        match seen.state.as_str() {
            "Published" => self.status.next_attempt_time = None,
            "Conflict" => {
                self.end(run);
                self.review(
                    FailureReason::PublishConflict,
                    format!("the branch has moved since the work began: {}", seen.reason),
                );
            }
            _ => self.publish_failed(run, seen.try_number, &seen.reason),
        }
    }

    fn publish_failed(&mut self, run: &Run, tried: u32, reason: &str) {
        if tried > PUBLICATION_CAP {
            self.end(run);
            self.review(
                FailureReason::PublishFailed,
                format!("the result could not be published in {tried} tries: {reason}"),
            );
        } else if self.status.retries.publication < tried {
            self.status.retries.publication = tried;
            let seed = format!("{}/publish/{tried}", run.metadata.uid);
            let time = after(self.now, pause(self.task.spec.retry.as_ref(), tried, &seed));
            self.status.next_attempt_time = Some(MicroTime(super::deadline::microseconds(time)));
            self.wake_at(time);
            self.note(
                Severity::Warning,
                "PublishFailed",
                format!("publication failed: {reason}"),
            );
        } else if let Some(time) = self.status.next_attempt_time.filter(|time| time.0 > self.now) {
            self.wake_at(time.0);
        } else {
            self.publish(run, tried + 1);
        }
    }

    fn publish(&mut self, run: &Run, try_number: u32) {
        let publish = json!({
            "epoch": run.spec.lease_epoch.unwrap_or_default(),
            "expectedOldCommit": self.expected_old_commit(run),
            "tryNumber": try_number,
        });
        self.plan
            .actions
            .push(Action::patch_spec(run, &json!({"publish": publish})));
    }

    /// What the branch must point to before the result is published: where this Task put it last, the commit that
    /// the work began from when the branch is that one, otherwise nothing.
    fn expected_old_commit(&self, run: &Run) -> String {
        let Some(workspace) = &run.spec.workspace else {
            return String::new();
        };
        let name = branch(workspace, &run.spec.task_ref.name);
        let earlier = self
            .view
            .owned(self.task)
            .filter(|other| other.metadata.uid != run.metadata.uid)
            .filter(|other| {
                other
                    .spec
                    .workspace
                    .as_ref()
                    .map(|w| branch(w, &run.spec.task_ref.name))
                    == Some(name.clone())
            })
            .filter_map(|other| Some((other.spec.attempt, other.status.publish.as_ref()?)))
            .filter(|(_, publish)| publish.state == "Published")
            .max_by_key(|(attempt, _)| *attempt);
        let base = run.status.result.as_ref().map(|r| r.base_commit.clone());
        let started_there = workspace
            .git
            .as_ref()
            .is_some_and(|git| git.ref_.trim_start_matches("refs/heads/") == name);
        match earlier {
            _ if started_there => base.unwrap_or_default(),
            Some((_, publish)) => publish.commit.clone(),
            None => String::new(),
        }
    }

    /// The accepted Run ended without having published.
    pub(super) fn unpublished(&mut self, run: &Run) {
        let (reason, why) = match &run.status.failure {
            Some(failure) => (failure.reason, failure.message.clone()),
            None => (FailureReason::PublishFailed, String::new()),
        };
        let reason = match reason {
            FailureReason::PublishConflict => reason,
            _ => FailureReason::PublishFailed,
        };
        self.review(reason, format!("the accepted result was not published: {why}"));
    }
}
