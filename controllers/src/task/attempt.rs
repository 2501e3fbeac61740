//! The next attempt: when, by whom, and its Run.

use panda_api::meta::{Duration, ObjectMeta, TRACEPARENT};
use panda_api::{
    Agent, DriverKind, DriverSpec, FailureReason, Resource, Run, RunPhase, RunSpec, TASK_UID, Task,
    TaskPhase, TaskRef, WorkspaceSpec,
};

use super::candidates::{Candidate, first_usable, list, refusals};
use super::deadline::stamp;
use super::plan::Planner;
use super::result::{branch, publishes};
use crate::framework::{Action, cut, short_hash, since};

/// Most of what failed before that is told to the next attempt.
const HISTORY: usize = 12 * 1024;
const TAIL: usize = 3 * 1024;

/// Name of the Run that makes the given attempt at a Task.
#[must_use]
pub fn run_name(task: &str, uid: &str, attempt: u32) -> String {
    let stem: String = task.chars().take(40).collect();
    let stem = stem.trim_end_matches(['-', '.']);
    format!("{stem}-{}-{attempt}", short_hash(uid))
}

impl Planner<'_> {
    /// Starts the next attempt, or says what it waits for. No attempt is live, as far as the view shows.
    pub(super) fn next(&mut self) {
        if self.cancelled() {
            if !self.strays {
                self.cancel();
            }
            return;
        }
        let start = self
            .status
            .next_attempt_time
            .map_or(self.now, |time| time.0.max(self.now));
        let Some((place, candidate, agent)) = self.candidate() else {
            self.deadline_or_wake(None);
            return;
        };
        if self.out_of_time(start, Some(&agent)) {
            return;
        }
        if self.suspended() {
            self.status.phase = Some(TaskPhase::Paused);
            self.wake_at_latest_start(Some(&agent));
            return;
        }
        self.status.phase = Some(TaskPhase::Pending);
        if self.waits_for_secret(&candidate, &agent) {
            self.wake_at_latest_start(Some(&agent));
            return;
        }
        if start > self.now {
            self.wake_at(start);
            return;
        }
        if self.strays {
            return;
        }
        self.status.attempts += 1;
        self.status.candidate = u32::try_from(place).ok();
        self.status.next_attempt_time = None;
        self.status.current_run = run_name(
            &self.task.metadata.name,
            &self.task.metadata.uid,
            self.status.attempts,
        );
        self.status.current_run_uid.clear();
        self.create(&candidate, &agent);
    }

    /// Whether an attempt would only find out again that a Secret is not there. The watch tells when it is: then the next
    /// attempt starts at once. A key that is missing is not seen from here, so there attempts go on with their pauses.
    fn waits_for_secret(&mut self, candidate: &Candidate, agent: &Agent) -> bool {
        let failed = self.status.failure.as_ref().map(|failure| failure.reason);
        let Some(there) = self.view.secrets.as_ref() else {
            return false;
        };
        if failed != Some(FailureReason::SecretUnavailable) {
            return false;
        }
        let wanted = self.freeze(candidate, agent, Duration::from_secs(0));
        let named = panda_api::secrets::named_by(&wanted.spec);
        let Some((missing, _)) = named.into_iter().find(|(name, _)| !there.contains(name)) else {
            return false;
        };
        let message = format!("Secret {missing:?} is missing; the next attempt starts when it is there");
        self.condition("Scheduled", "False", "SecretUnavailable", message);
        self.status.next_attempt_time = None;
        true
    }

    /// The name of the current attempt was taken and its Run never seen: it was not made, or the view lags.
    pub(super) fn reserved(&mut self) {
        if self.cancelled() {
            if !self.strays {
                self.prove_absent();
                self.cancel();
            }
            return;
        }
        let Some((_, candidate, agent)) = self.candidate() else {
            self.deadline_or_wake(None);
            return;
        };
        let checks = self.plan.checks.clone();
        self.prove_absent();
        if self.out_of_time(self.now, Some(&agent)) {
            return;
        }
        self.plan.checks = checks;
        if self.suspended() {
            self.status.phase = Some(TaskPhase::Paused);
            self.wake_at_latest_start(Some(&agent));
            return;
        }
        self.status.phase = Some(TaskPhase::Pending);
        if !self.strays {
            // Made again under the same name: if the first one did reach the server, this collides with it.
            self.create(&candidate, &agent);
        }
    }

    /// The candidate that is next; without any, says so in the status.
    fn candidate(&mut self) -> Option<(usize, Candidate, std::sync::Arc<Agent>)> {
        let candidates = list(self.task, self.view);
        let from = self.status.candidate.unwrap_or_default() as usize;
        if let Some(place) = first_usable(&candidates, from, &self.task.spec.env) {
            let candidate = candidates[place].clone();
            let agent = candidate.agent.clone().ok()?;
            self.status.unschedulable.clear();
            return Some((place, candidate, agent));
        }
        let reasons = refusals(&candidates, self.task);
        self.status.phase = Some(if self.suspended() {
            TaskPhase::Paused
        } else {
            TaskPhase::Pending
        });
        if let Some(first) = reasons.first() {
            let message = first.message.clone();
            self.condition("Scheduled", "False", &format!("{:?}", first.reason), message);
        }
        self.status.unschedulable = since(reasons, &self.status.unschedulable, stamp(self.now));
        None
    }

    fn create(&mut self, candidate: &Candidate, agent: &Agent) {
        let limits = super::deadline::Limits::of(self.task, self.status.start_time, Some(agent));
        let timeout = limits.fit(self.now).unwrap_or(limits.attempt);
        let run = self.freeze(candidate, agent, timeout.into());
        self.plan.actions.push(Action::create(&run));
    }

    /// The Run of the current attempt: a frozen copy of what it needs.
    fn freeze(&self, candidate: &Candidate, agent: &Agent, timeout: Duration) -> Run {
        let task = self.task;
        let spec = &task.spec;
        let rerun = self.rerun();
        let former = self
            .view
            .owned(task)
            .filter(|run| run.spec.rerun == rerun && run.spec.attempt < self.status.attempts)
            .max_by_key(|run| run.spec.attempt);
        let mut metadata = ObjectMeta::namespaced(&task.metadata.namespace, &self.status.current_run);
        metadata.owner_references = vec![task.controller_reference()];
        metadata.labels.insert(TASK_UID.into(), task.metadata.uid.clone());
        if let Some(trace) = task.metadata.traceparent() {
            metadata.annotations.insert(TRACEPARENT.into(), trace.to_owned());
        }
        Run {
            metadata,
            spec: RunSpec {
                task_ref: TaskRef {
                    name: task.metadata.name.clone(),
                    uid: task.metadata.uid.clone(),
                    generation: task.metadata.generation,
                },
                attempt: self.status.attempts,
                agent: candidate.choice.clone(),
                agent_spec: Some(agent.spec.clone()),
                rerun,
                prompt: former.map_or_else(|| spec.prompt.clone(), |run| prompt(&spec.prompt, run)),
                resume_session: former
                    .and_then(|run| session(run, candidate, agent))
                    .unwrap_or_default(),
                requires: spec.requires.clone(),
                device: spec.device.clone(),
                workspace: spec.workspace.as_ref().map(|w| workspace(w, task)),
                outputs: spec.outputs.clone(),
                env: spec.env.clone(),
                sandbox: spec.sandbox.clone(),
                verify: spec.verify.clone(),
                supervision: spec.supervision.clone(),
                attempt_timeout: Some(timeout),
                api_access: spec.api_access,
                priority: spec.priority,
                ..RunSpec::default()
            },
            ..Run::default()
        }
    }

    /// Fails the Task when an attempt that starts at `start` cannot fit.
    pub(super) fn out_of_time(&mut self, start: jiff::Timestamp, agent: Option<&Agent>) -> bool {
        let limits = super::deadline::Limits::of(self.task, self.status.start_time, agent);
        if limits.fit(start).is_some() {
            return false;
        }
        let last = self
            .status
            .failure
            .as_ref()
            .filter(|f| f.reason != FailureReason::DeadlineExceeded)
            .map(|f| format!("; the last failure was {:?}: {}", f.reason, f.message))
            .unwrap_or_default();
        self.fail(
            FailureReason::DeadlineExceeded,
            format!(
                "no further attempt fits: spec.deadline, less the timeouts of the checks and of the stop, ends first{last}"
            ),
        );
        true
    }

    /// Fails the Task at its deadline, or sees to it that it is looked at then.
    pub(super) fn deadline_or_wake(&mut self, agent: Option<&Agent>) {
        if !self.out_of_time(self.now, agent) {
            self.wake_at_latest_start(agent);
        }
    }

    pub(super) fn wake_at_latest_start(&mut self, agent: Option<&Agent>) {
        let limits = super::deadline::Limits::of(self.task, self.status.start_time, agent);
        if let Some(latest) = limits.latest_start() {
            // One nanosecond later it is too late: that is when there is something to do.
            self.wake_at(super::deadline::after(latest, std::time::Duration::from_nanos(1)));
        }
    }
}

fn workspace(spec: &WorkspaceSpec, task: &Task) -> WorkspaceSpec {
    let mut spec = spec.clone();
    if publishes(Some(&spec)) {
        let name = branch(&spec, &task.metadata.name);
        if let Some(result) = &mut spec.result {
            result.branch = name;
        }
    }
    spec
}

/// The session to go on with: only the same agent and model know it.
fn session(former: &Run, candidate: &Candidate, agent: &Agent) -> Option<String> {
    // Over ACP the agent itself says whether it can.
    let resumes = |driver: &DriverSpec| driver.resume.is_some() || driver.kind == DriverKind::Acp;
    let resumable = agent.spec.drivers.iter().any(resumes);
    let class = former.status.failure.as_ref()?.reason.class();
    let useful = matches!(
        class,
        panda_api::FailureClass::Agent | panda_api::FailureClass::Result
    );
    (resumable && useful && former.spec.agent == candidate.choice && !former.status.session_id.is_empty())
        .then(|| former.status.session_id.clone())
}

/// The prompt, with what failed before.
fn prompt(prompt: &str, former: &Run) -> String {
    let Some(failure) = former
        .status
        .failure
        .as_ref()
        .filter(|_| former.status.phase == Some(RunPhase::Failed))
    else {
        return prompt.to_owned();
    };
    let mut history = format!(
        "Attempt {} at this task failed ({:?}): {}",
        former.spec.attempt,
        failure.reason,
        cut(&failure.message, TAIL)
    );
    for check in former.status.verify.iter().filter(|check| !check.passed) {
        history.push_str(&format!("\n\nThe check {:?} did not pass", check.name));
        if let Some(code) = check.exit_code {
            history.push_str(&format!(" (exit code {code})"));
        }
        for text in [&check.message, &check.tail] {
            if !text.is_empty() {
                history.push('\n');
                history.push_str(&cut(text, TAIL));
            }
        }
    }
    format!("{prompt}\n\n---\n{}", cut(&history, HISTORY))
}
