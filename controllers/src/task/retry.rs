//! What follows from a failure: the table of `FailureClass`, and pauses.

use std::time::Duration;

use panda_api::{Failure, FailureClass, FailureReason, Jitter, RefusalReason, Retries, RetrySpec};

use crate::framework::fraction;

/// Attempts that devices may cost a Task.
pub(super) const DEVICE_CAP: u32 = 5;
/// Failures of providers that do not count as the agent's.
pub(super) const PROVIDER_CAP: u32 = 8;
/// Tries of publication after the first.
pub(super) const PUBLICATION_CAP: u32 = 5;
const DEFAULT_LIMIT: u32 = 2;
pub(super) const DEFAULT_ROUNDS: u32 = 5;

/// Which candidate the next attempt uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The same.
    Same,
    /// Another one of the list, round and round; the same only if it is the soonest.
    Next,
    /// The next usable one further down the list.
    Further,
    /// The first of the list again.
    First,
}

/// What follows from a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Another attempt.
    Retry {
        /// Who makes it.
        step: Step,
        /// How many failures the pause before it counts; 0 for no pause.
        pause: u32,
    },
    /// A person decides.
    Review,
    /// No more.
    Fail,
    /// It was ended on request.
    Cancel,
}

/// What a Task says about retries, with defaults.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits<'a> {
    pub(super) retry: Option<&'a RetrySpec>,
    pub(super) rounds: u32,
    /// Whether no usable candidate comes after the failed one.
    pub(super) last_candidate: bool,
    /// Whether a device took the Run at all.
    pub(super) placed: bool,
    /// Whether that device refused another attempt of the same rerun, too.
    pub(super) refused_before: bool,
}

/// Counts a failure and says what follows from it.
pub(super) fn decide(failure: &Failure, limits: Limits<'_>, retries: &mut Retries) -> Verdict {
    let class = failure.reason.class();
    let agents_fault = matches!(
        class,
        FailureClass::Agent | FailureClass::Provider | FailureClass::Candidate
    );
    if agents_fault
        && let (Some(code), Some(retry)) = (failure.exit_code, limits.retry)
        && retry.non_retryable_exit_codes.contains(&code)
    {
        return Verdict::Fail;
    }
    match class {
        // The scheduler has found nobody left to ask: see its module `absent`.
        FailureClass::Device
            if failure.refusal == Some(RefusalReason::RepositoryAbsent) && !limits.placed =>
        {
            if limits.last_candidate {
                Verdict::Fail
            } else {
                Verdict::Retry {
                    step: Step::Further,
                    pause: 0,
                }
            }
        }
        // The next attempt goes elsewhere. That is a search, which ends when all were asked once, and no failure.
        FailureClass::Device if failure.refusal.is_some() && !limits.refused_before => Verdict::Retry {
            step: Step::Same,
            pause: 0,
        },
        // Somebody wants the device free; that is no failure of anything.
        FailureClass::Device if failure.reason == FailureReason::Evicted => Verdict::Retry {
            step: Step::Same,
            pause: 0,
        },
        FailureClass::Device => {
            retries.device += 1;
            if retries.device > DEVICE_CAP {
                return Verdict::Fail;
            }
            Verdict::Retry {
                step: Step::Same,
                pause: retries.device,
            }
        }
        FailureClass::Provider if retries.provider < PROVIDER_CAP => {
            retries.provider += 1;
            Verdict::Retry {
                step: Step::Next,
                pause: retries.provider,
            }
        }
        FailureClass::Provider => agent(limits, retries, Step::Next),
        // What is missing is a person's to give, and no other candidate would have it: the deadline bounds the waiting.
        FailureClass::Candidate if failure.reason == FailureReason::SecretUnavailable => {
            retries.secret = retries.secret.saturating_add(1);
            Verdict::Retry {
                step: Step::Same,
                pause: retries.secret,
            }
        }
        FailureClass::Candidate if !limits.last_candidate => Verdict::Retry {
            step: Step::Further,
            pause: 0,
        },
        // The whole list was tried: going round it again without a bound would never end.
        FailureClass::Candidate => agent(limits, retries, Step::First),
        FailureClass::Agent => agent(limits, retries, Step::Same),
        FailureClass::Result if retries.rounds < limits.rounds => {
            retries.rounds += 1;
            Verdict::Retry {
                step: Step::Same,
                pause: retries.rounds,
            }
        }
        FailureClass::Result | FailureClass::Publication => Verdict::Review,
        FailureClass::Task => match failure.reason {
            FailureReason::ScopeViolation => Verdict::Review,
            FailureReason::Cancelled => Verdict::Cancel,
            _ => Verdict::Fail,
        },
    }
}

fn agent(limits: Limits<'_>, retries: &mut Retries, step: Step) -> Verdict {
    let limit = limits.retry.and_then(|r| r.limit).unwrap_or(DEFAULT_LIMIT);
    if retries.agent >= limit {
        return Verdict::Fail;
    }
    retries.agent += 1;
    Verdict::Retry {
        step,
        pause: retries.agent,
    }
}

/// The pause after the `count`th failure of a class. `seed` stands for randomness.
pub(super) fn pause(retry: Option<&RetrySpec>, count: u32, seed: &str) -> Duration {
    if count == 0 {
        return Duration::ZERO;
    }
    let backoff = retry.and_then(|r| r.backoff.clone()).unwrap_or_default();
    let cap = backoff.cap.get();
    let mut whole = backoff.base.get().min(cap);
    for _ in 1..count {
        if whole >= cap {
            break;
        }
        whole = whole.saturating_mul(backoff.factor.max(1)).min(cap);
    }
    match backoff.jitter {
        Jitter::Full => fraction(whole, seed),
        Jitter::None => whole,
    }
}
