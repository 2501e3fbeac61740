//! Retry does not outlive the deadline.

use panda_api::meta::Duration;
use panda_api::{Backoff, FailureReason, Jitter, RetrySpec, RunPhase, Task, TaskPhase, VerifySpec};

use super::model::{Model, NAME, failure, task};

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn phase(model: &Model) -> TaskPhase {
    model.status().phase.unwrap()
}

/// B17: five retries with pauses of 2 s and more, 10 s an attempt, 25 s for everything.
pub(super) fn hurried() -> Task {
    let mut task = task(NAME);
    task.spec.retry = Some(RetrySpec {
        limit: Some(5),
        backoff: Some(Backoff {
            base: secs(2),
            factor: 2,
            cap: secs(20),
            jitter: Jitter::Full,
        }),
        non_retryable_exit_codes: vec![3],
    });
    task.spec.attempt_timeout = Some(secs(10));
    task.spec.deadline = Some(secs(25));
    task.spec.verify = vec![VerifySpec {
        name: "tests".into(),
        timeout: Some(secs(5)),
        ..VerifySpec::default()
    }];
    task
}

#[test]
fn no_attempt_starts_that_cannot_fit_the_deadline() {
    let model = Model::new(&hurried());
    // Ten seconds of work, and it ignores SIGTERM for eight more.
    model.attempt(|m, run| {
        m.secs(18);
        m.fail(run, failure(FailureReason::TimedOut));
    });
    let status = model.status();
    assert_eq!((status.phase, status.attempts), (Some(TaskPhase::Failed), 1));
    let failure = status.failure.unwrap();
    assert_eq!(failure.reason, FailureReason::DeadlineExceeded);
    assert!(failure.message.contains("TimedOut"), "{}", failure.message);
}

#[test]
fn a_short_attempt_leaves_time_for_another() {
    let model = Model::new(&hurried());
    model.attempt(|m, run| m.fail(run, failure(FailureReason::Crashed)));
    let next = model.status().next_attempt_time.unwrap().0;
    assert!(next < model.world.now() + std::time::Duration::from_secs(2));
    model.wait();
    // Another controller goes on from what is written.
    model.attempt(|m, run| {
        assert_eq!(run.spec.attempt_timeout, Some(secs(10)));
        m.finish(run);
    });
    assert_eq!(phase(&model), TaskPhase::Succeeded);
}

#[test]
fn a_run_that_waits_too_long_for_a_device_is_withdrawn() {
    let model = Model::new(&hurried());
    let plan = model.reconcile();
    // 25 s less 10 s of work, 5 s of checks and 5 s of stopping.
    assert_eq!(plan.requeue.unwrap().as_secs(), 5);
    model.secs(6);
    model.reconcile();
    assert_eq!(model.live(), None);
    assert_eq!(
        model.status().failure.unwrap().reason,
        FailureReason::DeadlineExceeded
    );
    assert_eq!(phase(&model), TaskPhase::Failed);
}

#[test]
fn at_the_deadline_a_live_run_is_ended() {
    let model = Model::new(&hurried());
    model.attempt(|m, run| {
        m.secs(25);
        m.reconcile();
        let live = m.live().unwrap();
        assert_eq!(live.spec.cancel, Some(true));
        assert_eq!(phase(m), TaskPhase::Running);
        m.set_phase(run, RunPhase::Cancelled);
    });
    assert_eq!(phase(&model), TaskPhase::Failed);
    assert_eq!(
        model.status().failure.unwrap().reason,
        FailureReason::DeadlineExceeded
    );
}
