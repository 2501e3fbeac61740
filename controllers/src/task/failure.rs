//! An attempt failed: what counts, who is next, and when.

use panda_api::meta::MicroTime;
use panda_api::{Failure, FailureReason, TaskPhase};

use super::candidates::{Candidate, further, list, not_before, soonest};
use super::deadline::{after, microseconds};
use super::plan::Planner;
use super::retry::{DEFAULT_ROUNDS, Limits, Step, Verdict, decide, pause};
use crate::framework::Severity;

impl Planner<'_> {
    /// Counts a failure of the current attempt and settles what follows. Called once an attempt.
    pub(super) fn failure(&mut self, failure: &Failure) {
        self.status.failure = Some(failure.clone());
        match failure.reason {
            FailureReason::VerifyFailed => {
                self.condition("Verified", "False", "VerifyFailed", failure.message.clone());
            }
            FailureReason::BudgetExhausted => {
                self.condition(
                    "BudgetExhausted",
                    "True",
                    "BudgetExhausted",
                    failure.message.clone(),
                );
            }
            FailureReason::SecretUnavailable => {
                let why = format!("{}; it is looked for again", failure.message);
                self.condition("Scheduled", "False", "SecretUnavailable", why);
            }
            _ => {}
        }
        let candidates = list(self.task, self.view);
        let place = self.status.candidate.unwrap_or_default() as usize;
        let rounds = self.task.spec.supervision.as_ref().and_then(|s| s.rounds);
        let (device, current) = (&self.status.device, &self.status.current_run);
        let refused_before = self.view.owned(self.task).any(|run| {
            let failure = run.status.failure.as_ref();
            run.spec.rerun == self.rerun()
                && run.metadata.name != *current
                && run.spec.device_name == *device
                && failure.is_some_and(|failure| failure.refusal.is_some())
        });
        let limits = Limits {
            retry: self.task.spec.retry.as_ref(),
            rounds: rounds.unwrap_or(DEFAULT_ROUNDS),
            last_candidate: further(&candidates, place).is_none(),
            placed: !device.is_empty(),
            refused_before,
        };
        let text = format!(
            "attempt {}: {:?}: {}",
            self.status.attempts, failure.reason, failure.message
        );
        match decide(failure, limits, &mut self.status.retries) {
            Verdict::Retry { step, pause } => {
                self.note(Severity::Warning, "AttemptFailed", text);
                self.retry(&candidates, place, step, pause);
            }
            Verdict::Review => self.review(failure.reason, failure.message.clone()),
            Verdict::Fail => self.fail(failure.reason, text),
            Verdict::Cancel => self.cancel(),
        }
    }

    fn retry(&mut self, candidates: &[Candidate], place: usize, step: Step, count: u32) {
        let (task, view, now, rerun) = (self.task, self.view, self.now, self.rerun());
        let allowed = |agent: &str| {
            let runs = view.owned(task).filter(|run| run.spec.rerun == rerun);
            not_before(agent, runs, now)
        };
        let next = match step {
            Step::Same => Some(place),
            Step::Next => soonest(candidates, place + 1, allowed),
            Step::Further => further(candidates, place),
            Step::First => Some(0),
        };
        let seed = format!("{}/{}", task.metadata.uid, self.status.attempts);
        let mut time = after(now, pause(task.spec.retry.as_ref(), count, &seed));
        if let Some(candidate) = next.and_then(|next| candidates.get(next)) {
            time = time.max(allowed(&candidate.choice.name));
        }
        self.status.candidate = next.and_then(|next| u32::try_from(next).ok());
        self.status.phase = Some(TaskPhase::Pending);
        self.status.next_attempt_time = (time > now).then(|| MicroTime(microseconds(time)));
        // Starts at once when nothing has to be waited for, and says at once when nothing can follow any more.
        self.next();
    }
}
