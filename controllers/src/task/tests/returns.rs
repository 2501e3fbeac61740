//! A device was given up and comes back: whose result counts.

use panda_api::meta::{Duration, Time};
use panda_api::{
    DeviceRequest, FailureReason, LateResult, OnDisconnect, PublishStatus, ReturnPolicy, Run, RunPhase, Task,
    TaskPhase, TaskResult, Usage, VerifyResult, VerifySpec,
};

use super::model::{Model, NAME, failure, task};
use super::scenarios::publishing;

fn keeping(on_return: ReturnPolicy) -> Task {
    let mut task = task(NAME);
    rule(&mut task, on_return);
    task
}

fn rule(task: &mut Task, on_return: ReturnPolicy) {
    task.spec.device = Some(DeviceRequest {
        on_disconnect: Some(OnDisconnect {
            on_return,
            ..OnDisconnect::default()
        }),
        ..DeviceRequest::default()
    });
}

/// The first attempt is lost and the second one is at work.
fn second(wanted: &Task) -> Model {
    let model = Model::new(wanted);
    model.attempt(|m, run| m.set_phase(run, RunPhase::Lost));
    model.wait();
    model.reconcile();
    let run = model.live().expect("a second attempt");
    model.bind(&run);
    model.reconcile();
    model
}

fn come_back(model: &Model, change: impl FnOnce(&mut LateResult)) {
    let mut lost = model.runs().remove(0);
    let mut late = lost.status.late_result.take().unwrap_or_default();
    change(&mut late);
    lost.status.late_result = Some(late);
    model.world.put(&lost);
}

fn complete(late: &mut LateResult) {
    late.phase = Some(RunPhase::Succeeded);
    late.result = Some(TaskResult {
        summary: "late".into(),
        ..TaskResult::default()
    });
}

fn announce(model: &Model) {
    let now = model.world.now();
    come_back(model, |late| late.announced_time = Some(Time(now)));
}

fn accepted(model: &Model) -> Option<usize> {
    let name = model.status().accepted_run;
    model.runs().iter().position(|run| run.metadata.name == name)
}

#[test]
fn whose_result_counts_is_what_on_return_says() {
    use ReturnPolicy::{KeepFirst, KeepNew, KeepOld};
    // Which attempt counts when the old result comes first, and when the new one does.
    for (on_return, old_first, new_first) in [(KeepFirst, 0, 1), (KeepOld, 0, 1), (KeepNew, 1, 1)] {
        let model = second(&keeping(on_return));
        come_back(&model, complete);
        model.reconcile();
        if let Some(run) = model.live().filter(|run| run.spec.cancel != Some(true)) {
            model.finish(&run);
        }
        model.reconcile();
        assert_eq!(accepted(&model), Some(old_first), "{on_return:?}, old first");

        let model = second(&keeping(on_return));
        model.finish(&model.live().unwrap());
        model.reconcile();
        come_back(&model, complete);
        model.reconcile();
        assert_eq!(accepted(&model), Some(new_first), "{on_return:?}, new first");
        assert_eq!(model.status().phase, Some(TaskPhase::Succeeded));
    }
}

#[test]
fn keep_old_makes_the_newer_wait_for_what_is_announced_but_not_for_ever() {
    let model = second(&keeping(ReturnPolicy::KeepOld));
    announce(&model);
    model.reconcile();
    model.secs(100);
    model.finish(&model.live().unwrap());
    let plan = model.reconcile();
    assert_eq!(model.status().phase, Some(TaskPhase::Verifying));
    assert_eq!(accepted(&model), None);
    let wait = plan.requeue.expect("it is looked at again").as_secs();
    // Stamps are whole seconds.
    assert!((498..=500).contains(&wait), "{wait}");
    model.secs(400);
    come_back(&model, complete);
    model.reconcile();
    assert_eq!(accepted(&model), Some(0));

    let model = second(&keeping(ReturnPolicy::KeepOld));
    announce(&model);
    model.finish(&model.live().unwrap());
    model.reconcile();
    assert_eq!(accepted(&model), None);
    model.secs(600);
    model.reconcile();
    assert_eq!(accepted(&model), Some(1));
    assert_eq!(model.status().phase, Some(TaskPhase::Succeeded));
}

#[test]
fn keep_old_waits_for_nothing_that_failed_and_by_no_wall_clock() {
    let model = second(&keeping(ReturnPolicy::KeepOld));
    announce(&model);
    come_back(&model, |late| late.phase = Some(RunPhase::Failed));
    model.finish(&model.live().unwrap());
    model.reconcile();
    assert_eq!(accepted(&model), Some(1));

    let model = second(&keeping(ReturnPolicy::KeepOld));
    announce(&model);
    model.reconcile();
    // The wall clock is put back by an hour, and later ahead by one.
    let hour = std::time::Duration::from_secs(3600);
    model.world.set_now(model.world.now() - hour);
    model.finish(&model.live().unwrap());
    let plan = model.reconcile();
    assert_eq!(plan.requeue, Some(std::time::Duration::from_secs(600)));
    model.world.set_now(model.world.now() + hour);
    model.secs(599);
    model.reconcile();
    assert_eq!(accepted(&model), None);
    model.secs(1);
    model.reconcile();
    assert_eq!(accepted(&model), Some(1));
}

#[test]
fn an_incomplete_late_result_counts_for_nothing() {
    let mut wanted = keeping(ReturnPolicy::KeepFirst);
    wanted.spec.verify = vec![VerifySpec {
        name: "tests".into(),
        ..VerifySpec::default()
    }];
    let model = second(&wanted);
    come_back(&model, complete);
    model.reconcile();
    assert_eq!(accepted(&model), None, "no check was run");
    come_back(&model, |late| {
        late.verify = vec![VerifyResult {
            name: "tests".into(),
            passed: true,
            ..VerifyResult::default()
        }];
    });
    model.reconcile();
    assert_eq!(accepted(&model), Some(0));
}

#[test]
fn nothing_late_counts_after_cancel_or_for_another_rerun() {
    let model = second(&keeping(ReturnPolicy::KeepFirst));
    model.edit(|task| task.spec.cancel = Some(true));
    come_back(&model, complete);
    model.reconcile();
    assert_eq!(accepted(&model), None);

    let model = second(&keeping(ReturnPolicy::KeepFirst));
    model.edit(|task| task.spec.rerun = Some(1));
    come_back(&model, complete);
    model.reconcile();
    assert_eq!(accepted(&model), None);
}

#[test]
fn what_the_lost_attempt_cost_is_counted_once() {
    let model = Model::new(&keeping(ReturnPolicy::KeepFirst));
    model.attempt(|m, run| {
        m.edit_run(run, |run| run.status.usage.input_tokens = 10);
        m.set_phase(run, RunPhase::Lost);
    });
    assert_eq!(model.status().usage.input_tokens, 10);
    model.wait();
    model.attempt(|m, run| {
        m.edit_run(run, |run| run.status.usage.input_tokens = 5);
        m.finish(run);
    });
    come_back(&model, |late| {
        complete(late);
        late.usage = Some(Usage {
            input_tokens: 40,
            ..Usage::default()
        });
    });
    model.reconcile();
    model.reconcile();
    assert_eq!(
        model.status().usage.input_tokens,
        45,
        "also after the Task has ended"
    );
    assert_eq!(accepted(&model), Some(1));
}

#[test]
fn a_device_lost_while_it_publishes_brings_review_and_its_word_ends_it() {
    let model = Model::new(&publishing());
    model.attempt(|m, run| {
        m.finish(run);
        m.reconcile();
        m.edit_run(run, |run| {
            run.status.phase = Some(RunPhase::Lost);
            run.status.failure = Some(failure(FailureReason::DeviceLost));
        });
    });
    let status = model.status();
    assert_eq!(status.phase, Some(TaskPhase::Review));
    assert_eq!(status.failure.unwrap().reason, FailureReason::PublishFailed);
    assert!(
        model.live().is_none(),
        "nobody else moves a branch of that device"
    );
    come_back(&model, |late| {
        late.phase = Some(RunPhase::Succeeded);
        late.publish = Some(PublishStatus {
            state: "Published".into(),
            commit: "c0ffee".into(),
            try_number: 1,
            ..PublishStatus::default()
        });
    });
    model.reconcile();
    let status = model.status();
    assert_eq!(status.phase, Some(TaskPhase::Succeeded));
    assert_eq!(status.result.unwrap().commit, "c0ffee");
}

// B17 with the vanished device: devices have a budget of their own, and it ends.
#[test]
fn lost_devices_spend_no_retries_of_the_agent_and_end_at_their_cap() {
    let mut wanted = keeping(ReturnPolicy::KeepFirst);
    wanted.spec.retry = Some(panda_api::RetrySpec {
        limit: Some(0),
        ..panda_api::RetrySpec::default()
    });
    let model = Model::new(&wanted);
    for lost in 1..=5 {
        model.attempt(|m, run| m.set_phase(run, RunPhase::Lost));
        let status = model.status();
        assert_eq!((status.retries.device, status.retries.agent), (lost, 0));
        assert!(!status.phase.unwrap().is_terminal());
        model.wait();
    }
    model.attempt(|m, run| m.set_phase(run, RunPhase::Lost));
    let status = model.status();
    assert_eq!(status.phase, Some(TaskPhase::Failed));
    assert_eq!(status.failure.unwrap().reason, FailureReason::DeviceLost);
}

#[test]
fn no_attempt_that_cannot_fit_follows_a_vanished_device() {
    let mut wanted = keeping(ReturnPolicy::KeepFirst);
    wanted.spec.attempt_timeout = Some(Duration::from_secs(10));
    wanted.spec.deadline = Some(Duration::from_secs(60));
    let model = Model::new(&wanted);
    model.attempt(|m, run| {
        m.secs(50);
        m.set_phase(run, RunPhase::Lost);
    });
    let status = model.status();
    assert_eq!(status.phase, Some(TaskPhase::Failed));
    assert_eq!(status.failure.unwrap().reason, FailureReason::DeadlineExceeded);
    let made: Vec<Run> = model.runs();
    assert_eq!(made.len(), 1);
}

#[test]
fn what_the_attempt_used_that_lost_against_a_late_result_is_booked_once_it_has_ended() {
    let model = second(&keeping(ReturnPolicy::KeepFirst));
    come_back(&model, complete);
    model.reconcile();
    assert_eq!(accepted(&model), Some(0));
    let loser = model.live().expect("it has still to end");
    model.edit_run(&loser, |run| {
        run.status.phase = Some(RunPhase::Cancelled);
        run.status.usage.input_tokens = 7;
    });
    for _ in 0..3 {
        model.reconcile();
        assert_eq!(model.status().usage.input_tokens, 7);
        assert_eq!(model.status().phase, Some(TaskPhase::Succeeded));
    }
}
