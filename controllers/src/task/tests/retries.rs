//! The table of failures, one row a reason.

use panda_api::meta::{Duration, MicroTime, Time};
use panda_api::{
    AgentChoice, Backoff, Failure, FailureReason, Jitter, RefusalReason, Retries, RetrySpec, TaskPhase,
    VerifyResult,
};

use super::model::{Model, NAME, failure, task};

fn retries(device: u32, provider: u32, agent: u32, rounds: u32) -> Retries {
    Retries {
        agent,
        provider,
        device,
        rounds,
        publication: 0,
        secret: 0,
    }
}

/// What one failure of the first attempt of a Task with candidates a and b leads to.
fn after_one(reason: FailureReason) -> (TaskPhase, Retries, Option<u32>, bool) {
    let mut task = task(NAME);
    task.spec.agents.push(AgentChoice {
        name: "b".into(),
        ..AgentChoice::default()
    });
    let model = Model::new(&task);
    model.attempt(|m, run| m.fail(run, failure(reason)));
    let status = model.status();
    (
        status.phase.unwrap(),
        status.retries,
        status.candidate,
        status.next_attempt_time.is_some(),
    )
}

#[test]
fn every_reason_leads_where_its_class_says() {
    use FailureReason::*;
    use TaskPhase::{Cancelled as Ended, Failed, Pending, Queued, Review};
    let device = (Pending, retries(1, 0, 0, 0), Some(0), true);
    let provider = (Pending, retries(0, 1, 0, 0), Some(1), true);
    let candidate = (Queued, retries(0, 0, 0, 0), Some(1), false);
    let agent = (Pending, retries(0, 0, 1, 0), Some(0), true);
    let never = (Failed, retries(0, 0, 0, 0), Some(0), false);
    let person = (Review, retries(0, 0, 0, 0), Some(0), false);
    let table = [
        (DeviceLost, &device),
        (DeviceRestarted, &device),
        (DiskFull, &device),
        (WorkspaceFailed, &device),
        (SandboxUnavailable, &device),
        (OutOfSlots, &device),
        (Internal, &device),
        (Evicted, &(Queued, retries(0, 0, 0, 0), Some(0), false)),
        (RateLimited, &provider),
        (Overloaded, &provider),
        (ProviderError, &provider),
        (QuotaExceeded, &provider),
        (AuthFailed, &provider),
        (AgentNotFound, &candidate),
        (AgentNotLoggedIn, &candidate),
        (
            SecretUnavailable,
            &(
                Pending,
                Retries {
                    secret: 1,
                    ..retries(0, 0, 0, 0)
                },
                Some(0),
                true,
            ),
        ),
        (ContextLimit, &candidate),
        (Crashed, &agent),
        (Killed, &agent),
        (Stalled, &agent),
        (NoFirstOutput, &agent),
        (TimedOut, &agent),
        (OutOfMemory, &agent),
        (PidLimit, &agent),
        (LoopDetected, &agent),
        (ProtocolError, &agent),
        (EmptyTurn, &agent),
        (AgentError, &agent),
        (VerifyFailed, &(Pending, retries(0, 0, 0, 1), Some(0), true)),
        (PublishConflict, &person),
        (PublishFailed, &person),
        (ScopeViolation, &person),
        (ApprovalDenied, &never),
        (ApprovalExpired, &never),
        (BudgetExhausted, &never),
        (DeadlineExceeded, &never),
        (Cancelled, &(Ended, retries(0, 0, 0, 0), Some(0), false)),
    ];
    for (reason, expected) in table {
        assert_eq!(after_one(reason), *expected, "{reason:?}");
    }
}

#[test]
fn a_repository_is_looked_for_elsewhere_at_once_and_the_task_fails_when_nobody_is_left() {
    let refused = || Failure {
        refusal: Some(RefusalReason::RepositoryAbsent),
        ..failure(FailureReason::WorkspaceFailed)
    };
    let model = Model::new(&task(NAME));
    model.attempt(|m, run| m.fail(run, refused()));
    let status = model.status();
    assert_eq!(status.phase, Some(TaskPhase::Queued));
    assert_eq!(
        (status.retries, status.next_attempt_time),
        (Retries::default(), None)
    );
    // The scheduler gives up: the run was never on a device.
    let run = model.live().unwrap();
    model.fail(&run, refused());
    model.reconcile();
    let status = model.status();
    assert_eq!((status.phase, status.attempts), (Some(TaskPhase::Failed), 2));
    assert_eq!(
        status.failure.unwrap().refusal,
        Some(RefusalReason::RepositoryAbsent)
    );
}

#[test]
fn the_same_refusal_of_the_same_device_counts() {
    let refused = || Failure {
        refusal: Some(RefusalReason::RepositoryAbsent),
        ..failure(FailureReason::WorkspaceFailed)
    };
    let model = Model::new(&task(NAME));
    for _ in 0..2 {
        model.attempt(|m, run| m.fail(run, refused()));
    }
    let status = model.status();
    assert_eq!(status.retries, retries(1, 0, 0, 0));
    assert!(status.next_attempt_time.is_some());
}

/// Fails every attempt for `reason` until the Task stops trying; returns how many there were.
fn exhaust(model: &Model, reason: FailureReason) -> u32 {
    for _ in 0..50 {
        model.attempt(|m, run| m.fail(run, failure(reason)));
        if model.status().phase != Some(TaskPhase::Pending) && model.live().is_none() {
            return model.status().attempts;
        }
        model.wait();
    }
    panic!("tries without end: {:#?}", model.status());
}

#[test]
fn each_class_has_its_own_bound() {
    let attempts = |reason| {
        let model = Model::new(&task(NAME));
        let n = exhaust(&model, reason);
        (n, model.status().phase.unwrap(), model.status().retries)
    };
    assert_eq!(
        attempts(FailureReason::Crashed),
        (3, TaskPhase::Failed, retries(0, 0, 2, 0))
    );
    assert_eq!(
        attempts(FailureReason::DiskFull),
        (6, TaskPhase::Failed, retries(6, 0, 0, 0))
    );
    // Eight of their own, then two of the agent's.
    assert_eq!(
        attempts(FailureReason::Overloaded),
        (11, TaskPhase::Failed, retries(0, 8, 2, 0))
    );
    // One candidate: the list is used up at once, then the agent's bound holds.
    assert_eq!(
        attempts(FailureReason::AgentNotFound),
        (3, TaskPhase::Failed, retries(0, 0, 2, 0))
    );
    assert_eq!(
        attempts(FailureReason::VerifyFailed),
        (6, TaskPhase::Review, retries(0, 0, 0, 5))
    );
}

#[test]
fn losing_devices_does_not_spend_the_agents_retries() {
    let model = Model::new(&task(NAME));
    for _ in 0..4 {
        model.attempt(|m, run| m.fail(run, failure(FailureReason::DeviceLost)));
        model.wait();
    }
    model.attempt(|m, run| m.fail(run, failure(FailureReason::Crashed)));
    assert_eq!(model.status().retries, retries(4, 0, 1, 0));
    assert_eq!(model.status().phase, Some(TaskPhase::Pending));
}

#[test]
fn an_exit_code_that_is_listed_stops_at_once() {
    let mut task = task(NAME);
    task.spec.retry = Some(RetrySpec {
        non_retryable_exit_codes: vec![42],
        ..RetrySpec::default()
    });
    let model = Model::new(&task);
    model.attempt(|m, run| {
        m.fail(
            run,
            Failure {
                exit_code: Some(42),
                ..failure(FailureReason::AgentError)
            },
        );
    });
    let status = model.status();
    assert_eq!((status.phase, status.attempts), (Some(TaskPhase::Failed), 1));
    assert_eq!(status.failure.unwrap().exit_code, Some(42));
}

#[test]
fn a_provider_that_names_a_time_is_left_alone_until_then() {
    let model = Model::new(&task(NAME));
    let later = Time(model.world.now() + std::time::Duration::from_secs(3600));
    model.attempt(|m, run| {
        m.fail(
            run,
            Failure {
                retry_after: Some(later),
                ..failure(FailureReason::RateLimited)
            },
        );
    });
    assert_eq!(model.status().next_attempt_time, Some(MicroTime(later.0)));
}

#[test]
fn another_agent_does_not_wait_for_the_first_ones_provider() {
    let mut task = task(NAME);
    task.spec.agents.push(AgentChoice {
        name: "b".into(),
        ..AgentChoice::default()
    });
    let model = Model::new(&task);
    let later = Time(model.world.now() + std::time::Duration::from_secs(3600));
    model.attempt(|m, run| {
        m.fail(
            run,
            Failure {
                retry_after: Some(later),
                ..failure(FailureReason::QuotaExceeded)
            },
        );
    });
    assert!(model.status().next_attempt_time.unwrap().0 < later.0);
    model.wait();
    model.attempt(|m, run| {
        assert_eq!(run.spec.agent.name, "b");
        m.fail(run, failure(FailureReason::Overloaded));
    });
    // b may be tried again sooner than a.
    assert_eq!(model.status().candidate, Some(1));
}

#[test]
fn the_next_attempt_is_told_what_failed_within_bounds() {
    let model = Model::new(&task(NAME));
    model.attempt(|m, run| {
        m.edit_run(run, |run| {
            run.status.verify = vec![VerifyResult {
                name: "tests".into(),
                exit_code: Some(101),
                tail: format!("assertion failed {}", "x".repeat(1 << 20)),
                ..VerifyResult::default()
            }];
        });
        m.fail(run, failure(FailureReason::VerifyFailed));
    });
    model.wait();
    model.reconcile();
    let run = model.live().unwrap();
    assert!(run.spec.prompt.starts_with("mend it\n"), "{}", run.spec.prompt);
    assert!(run.spec.prompt.contains("\"tests\" did not pass (exit code 101)"));
    assert!(run.spec.prompt.contains("assertion failed"));
    assert!(run.spec.prompt.len() < 16 << 10);
}

#[test]
fn tasks_that_fail_together_do_not_return_together() {
    let mut task = task(NAME);
    task.spec.retry = Some(RetrySpec {
        backoff: Some(Backoff {
            base: Duration::from_secs(2),
            factor: 2,
            cap: Duration::from_secs(20),
            jitter: Jitter::Full,
        }),
        ..RetrySpec::default()
    });
    let mut times: Vec<_> = (0..200)
        .map(|seed| {
            let model = Model::seeded(&task, seed);
            model.attempt(|m, run| m.fail(run, failure(FailureReason::Crashed)));
            model.status().next_attempt_time.unwrap()
        })
        .collect();
    times.sort_unstable();
    let spread = times[199].0.duration_since(times[0].0).as_secs_f64();
    assert!(spread > 1.5, "{spread}");
    // In no tenth of a second of the two does more than a tenth of them return.
    for (i, time) in times.iter().enumerate() {
        let end = time.0 + std::time::Duration::from_millis(100);
        let together = times[i..].iter().filter(|t| t.0 < end).count();
        assert!(together <= 24, "{together}");
    }
}

#[test]
fn a_secret_that_is_known_to_be_missing_is_waited_for_without_attempts() {
    let mut task = task(NAME);
    task.spec.env = serde_json::from_value(serde_json::json!([
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "gh", "key": "token"}}},
    ]))
    .unwrap();
    let model = Model::new(&task);
    let there = |names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned());
        *model.secrets.borrow_mut() = Some(names.collect());
    };
    there(&["other"]);
    model.attempt(|m, run| m.fail(run, failure(FailureReason::SecretUnavailable)));
    let waiting = |model: &Model| {
        let status = model.status();
        let scheduled = status.conditions.iter().find(|c| c.type_ == "Scheduled").unwrap();
        assert_eq!(scheduled.reason, "SecretUnavailable");
        assert!(
            scheduled.message.contains("\"gh\" is missing"),
            "{}",
            scheduled.message
        );
        assert_eq!((status.phase, status.attempts), (Some(TaskPhase::Pending), 1));
    };
    waiting(&model);
    for _ in 0..5 {
        model.secs(3600);
        model.reconcile();
        waiting(&model);
    }
    // It is made: the next attempt starts at once.
    there(&["gh", "other"]);
    model.reconcile();
    assert_eq!(model.runs().len(), 2);
    // Its key is missing: nobody sees that from here, so there are attempts, with pauses.
    model.attempt(|m, run| m.fail(run, failure(FailureReason::SecretUnavailable)));
    let status = model.status();
    assert!(status.next_attempt_time.is_some(), "{status:#?}");
    model.wait();
    model.reconcile();
    assert_eq!(model.runs().len(), 3);
}

#[test]
fn a_task_that_waits_for_a_secret_ends_at_its_deadline_and_can_be_cancelled() {
    let mut waits = task(NAME);
    waits.spec.env = serde_json::from_value(serde_json::json!([
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "gh", "key": "token"}}},
    ]))
    .unwrap();
    waits.spec.deadline = Some(Duration::from(std::time::Duration::from_secs(7200)));
    for cancels in [true, false] {
        let model = Model::new(&waits);
        *model.secrets.borrow_mut() = Some(std::collections::BTreeSet::new());
        model.attempt(|m, run| m.fail(run, failure(FailureReason::SecretUnavailable)));
        let plan = model.reconcile();
        assert!(plan.requeue.is_some(), "it is looked at again at the deadline");
        if cancels {
            model.edit(|task| task.spec.cancel = Some(true));
        } else {
            model.secs(7201);
        }
        model.reconcile();
        let status = model.status();
        let phase = if cancels {
            TaskPhase::Cancelled
        } else {
            TaskPhase::Failed
        };
        assert_eq!(status.phase, Some(phase), "{status:#?}");
        assert_eq!(model.runs().len(), 1);
    }
}
