//! What people saw go wrong, and the life of a Task from end to end.

use panda_api::meta::{Duration, ObjectMeta, OwnerReference, TRACEPARENT, Time};
use panda_api::{
    FailureReason, GitSpec, LateResult, Push, ResultSpec, Run, RunPhase, Task, TaskPhase, TaskResult,
    VerifySpec, WorkspaceSpec,
};

use super::deadlines::hurried;
use super::model::{Model, NAME, NS, failure, task};
use crate::framework::execute::Outcome;
use crate::task::run_name;
use crate::testing::Faults;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(super) fn publishing() -> Task {
    let mut task = task(NAME);
    task.spec.workspace = Some(WorkspaceSpec {
        git: Some(GitSpec {
            path: "/repos/web".into(),
            ..GitSpec::default()
        }),
        result: Some(ResultSpec {
            push: Push::OnSuccess,
            ..ResultSpec::default()
        }),
        ..WorkspaceSpec::default()
    });
    task
}

fn phase(model: &Model) -> TaskPhase {
    model.status().phase.unwrap()
}

#[test]
fn names_derive_from_uid_and_attempt() {
    assert_eq!(run_name("fix-login", "u", 1), run_name("fix-login", "u", 1));
    let long = format!("{}-.b", "a".repeat(39));
    let name = run_name(&long, "u", 7);
    assert_eq!(name, format!("{}-0bfe935e70-7", "a".repeat(39)));
}

#[test]
fn a_task_runs_once_and_succeeds() {
    let mut wanted = task(NAME);
    wanted
        .metadata
        .annotations
        .insert(TRACEPARENT.into(), TRACE.into());
    wanted.spec.verify = vec![VerifySpec {
        name: "tests".into(),
        ..VerifySpec::default()
    }];
    let model = Model::new(&wanted);
    model.reconcile();
    let run = model.live().unwrap();
    assert_eq!(phase(&model), TaskPhase::Queued);
    assert_eq!(run.metadata.annotations[TRACEPARENT], TRACE);
    assert_eq!(run.metadata.controller().unwrap().uid, model.task().metadata.uid);
    assert_eq!(run.spec.agent_spec.as_ref().unwrap().capabilities, ["code.edit"]);
    model.bind(&run);
    model.set_phase(&run, RunPhase::Running);
    model.reconcile();
    assert_eq!(phase(&model), TaskPhase::Running);
    model.finish(&run);
    model.reconcile();
    let status = model.status();
    assert_eq!(status.phase, Some(TaskPhase::Succeeded));
    assert_eq!(status.accepted_run, run.metadata.name);
    assert_eq!(status.attempts, 1);
    assert!(model.plan().is_idle());
}

#[test]
fn success_without_the_checks_is_no_success() {
    let mut wanted = task(NAME);
    wanted.spec.verify = vec![VerifySpec {
        name: "tests".into(),
        ..VerifySpec::default()
    }];
    let model = Model::new(&wanted);
    model.attempt(|m, run| m.set_phase(run, RunPhase::Succeeded));
    let status = model.status();
    assert_eq!(status.accepted_run, "");
    assert_eq!(status.failure.unwrap().reason, FailureReason::VerifyFailed);
    assert_eq!(status.retries.rounds, 1);
}

// B11: the watch lags five seconds, the controller dies after each create, one create's answer is lost.
#[test]
fn a_lagging_watch_and_crashes_make_one_run_an_attempt() {
    let model = Model::new(&task(NAME));
    let old = model.world.revision();
    let first = model.plan();
    // The status is written, then the controller dies.
    let crash = Faults {
        crash_after: Some(1),
        ..Faults::default()
    };
    assert_eq!(model.outcome(&first, crash), None);
    assert_eq!((model.runs().len(), model.status().attempts), (0, 1));
    // The create reaches the server, its answer does not come back.
    let lost = Faults {
        lose_answer: Some(0),
        ..Faults::default()
    };
    assert_eq!(model.outcome(&model.plan(), lost), None);
    assert_eq!(model.runs().len(), 1);
    // The watch of Runs lags: the same attempt is made again, and collides with itself.
    let now = model.world.revision();
    let again = model.plan_at(now, old, now).unwrap();
    assert_eq!(again.actions.len(), 1);
    assert_eq!(model.outcome(&again, Faults::default()), Some(Outcome::Done));
    // The watch of Tasks lags: the plan is for a version that is past.
    let stale = model.plan_at(old, old, old).unwrap();
    assert!(matches!(
        model.outcome(&stale, Faults::default()),
        Some(Outcome::Stale(_))
    ));
    let runs = model.runs();
    assert_eq!((runs.len(), runs[0].spec.attempt), (1, 1));
    model.attempt(|m, run| m.finish(run));
    assert_eq!((phase(&model), model.runs().len()), (TaskPhase::Succeeded, 1));
}

#[test]
fn a_run_of_another_owner_is_never_taken_for_ours() {
    let model = Model::new(&task(NAME));
    let target = model.run_target(1);
    let mut foreign = Run {
        metadata: ObjectMeta::namespaced(NS, target.name.clone()),
        ..Run::default()
    };
    foreign.metadata.owner_references = vec![OwnerReference {
        uid: "another".into(),
        controller: Some(true),
        ..OwnerReference::default()
    }];
    let old = model.world.revision();
    model.world.put(&foreign);
    // The cache does not show it yet.
    let plan = model.plan_at(old, old, old).unwrap();
    assert_eq!(
        model.outcome(&plan, Faults::default()),
        Some(Outcome::Taken(target.clone()))
    );
    model.reconcile();
    let status = model.status();
    let scheduled = status.conditions.iter().find(|c| c.type_ == "Scheduled").unwrap();
    assert_eq!(
        (scheduled.status.as_str(), scheduled.reason.as_str()),
        ("False", "RunNameTaken")
    );
    assert_ne!(status.phase, Some(TaskPhase::Failed));
    model.world.remove(&target);
    model.attempt(|m, run| m.finish(run));
    assert_eq!(phase(&model), TaskPhase::Succeeded);
}

#[test]
fn cancel_means_no_further_attempt_until_rerun_is_raised() {
    let model = Model::new(&hurried());
    model.attempt(|m, run| {
        m.secs(12);
        m.edit(|task| task.spec.cancel = Some(true));
        m.reconcile();
        assert_eq!(m.live().unwrap().spec.cancel, Some(true));
        m.set_phase(run, RunPhase::Cancelled);
    });
    assert_eq!((phase(&model), model.runs().len()), (TaskPhase::Cancelled, 1));
    model.secs(60);
    model.edit(|task| task.spec.cancel = None);
    assert!(model.reconcile().is_idle() && model.live().is_none());
    model.edit(|task| task.spec.rerun = Some(1));
    model.attempt(|m, run| {
        assert_eq!((run.spec.attempt, run.spec.rerun), (2, 1));
        m.finish(run);
    });
    let status = model.status();
    assert_eq!((status.phase, status.attempts), (Some(TaskPhase::Succeeded), 2));
}

#[test]
fn a_run_that_no_device_took_is_cancelled_at_once() {
    let model = Model::new(&task(NAME));
    model.reconcile();
    model.edit(|task| task.spec.cancel = Some(true));
    model.reconcile();
    assert_eq!(model.runs()[0].status.phase, Some(RunPhase::Cancelled));
    assert_eq!(phase(&model), TaskPhase::Cancelled);
}

#[test]
fn rerun_ends_the_live_run_first_and_counts_afresh() {
    let model = Model::new(&task(NAME));
    model.attempt(|m, run| m.fail(run, failure(FailureReason::Crashed)));
    model.wait();
    model.attempt(|m, run| {
        m.edit(|task| task.spec.rerun = Some(1));
        m.reconcile();
        assert_eq!(m.runs().len(), 2, "the next one waits for this one's end");
        assert_eq!(m.live().unwrap().spec.cancel, Some(true));
        m.set_phase(run, RunPhase::Cancelled);
    });
    let status = model.status();
    assert_eq!(
        (status.attempts, status.rerun, status.retries.agent),
        (3, Some(1), 0)
    );
    assert_eq!(model.live().unwrap().spec.rerun, 1);
}

#[test]
fn suspend_freezes_the_live_run_and_starts_nothing() {
    let model = Model::new(&task(NAME));
    model.edit(|task| task.spec.suspend = Some(true));
    model.reconcile();
    assert_eq!((phase(&model), model.runs().len()), (TaskPhase::Paused, 0));
    model.edit(|task| task.spec.suspend = Some(false));
    model.attempt(|m, run| {
        m.edit(|task| task.spec.suspend = Some(true));
        m.reconcile();
        assert_eq!(m.live().unwrap().spec.pause, Some(true));
        m.edit(|task| task.spec.suspend = None);
        m.reconcile();
        assert_eq!(m.live().unwrap().spec.pause, Some(false));
        m.finish(run);
    });
    assert_eq!(phase(&model), TaskPhase::Succeeded);
}

#[test]
fn an_agent_that_is_missing_is_waited_for() {
    let mut wanted = task(NAME);
    wanted.spec.agents[0].name = "nobody".into();
    let model = Model::new(&wanted);
    model.reconcile();
    let status = model.status();
    assert_eq!(status.phase, Some(TaskPhase::Pending));
    assert_eq!(
        status.unschedulable[0].reason,
        panda_api::RefusalReason::AgentNotFound
    );
    model.secs(100);
    assert!(model.plan().is_idle(), "nothing changed, so nothing is written");
    model.world.put(&super::model::agent("nobody"));
    model.attempt(|m, run| m.finish(run));
    assert_eq!(phase(&model), TaskPhase::Succeeded);
}

#[test]
fn acceptance_comes_before_publication_and_success_after_it() {
    let model = Model::new(&publishing());
    model.attempt(|m, run| {
        m.finish(run);
        m.reconcile();
        let live = m.live().unwrap();
        assert_eq!(m.status().accepted_run, live.metadata.name);
        assert_eq!(phase(m), TaskPhase::Publishing);
        let publish = live.spec.publish.as_ref().unwrap();
        assert_eq!(
            (
                publish.epoch,
                publish.try_number,
                publish.expected_old_commit.as_str()
            ),
            (1, 1, "")
        );
        m.publish(&live, "Published");
    });
    let status = model.status();
    assert_eq!(status.phase, Some(TaskPhase::Succeeded));
    assert_eq!(status.result.unwrap().commit, "c0ffee");
    // The next time the branch must be where this Task put it.
    model.edit(|task| task.spec.rerun = Some(1));
    model.attempt(|m, run| {
        m.finish(run);
        m.reconcile();
        let live = m.live().unwrap();
        assert_eq!(live.spec.publish.as_ref().unwrap().expected_old_commit, "c0ffee");
        m.publish(&live, "Published");
    });
    assert_eq!(phase(&model), TaskPhase::Succeeded);
}

#[test]
fn a_conflict_of_publication_goes_to_review_and_frees_the_device() {
    let model = Model::new(&publishing());
    model.attempt(|m, run| {
        m.finish(run);
        m.reconcile();
        m.publish(run, "Conflict");
    });
    assert_eq!(phase(&model), TaskPhase::Review);
    assert_eq!(
        model.status().failure.unwrap().reason,
        FailureReason::PublishConflict
    );
    assert_eq!(model.live().unwrap().spec.cancel, Some(true));
}

#[test]
fn a_failed_publication_is_tried_alone_with_pauses_and_a_bound() {
    let model = Model::new(&publishing());
    model.attempt(|m, run| {
        m.finish(run);
        for tried in 1..=6 {
            m.reconcile();
            assert_eq!(m.live().unwrap().spec.publish.unwrap().try_number, tried);
            m.publish(run, "Failed");
            m.reconcile();
            m.wait();
        }
    });
    let status = model.status();
    assert_eq!((status.phase, status.attempts), (Some(TaskPhase::Review), 1));
    assert_eq!(status.failure.unwrap().reason, FailureReason::PublishFailed);
}

#[test]
fn a_late_result_counts_when_it_is_the_first_and_ends_the_other() {
    let model = Model::new(&task(NAME));
    model.attempt(|m, run| m.set_phase(run, RunPhase::Lost));
    model.wait();
    model.attempt(|m, _| {
        let mut lost = m.runs().remove(0);
        lost.status.late_result = Some(Box::new(LateResult {
            phase: Some(RunPhase::Succeeded),
            result: Some(TaskResult {
                summary: "late".into(),
                ..TaskResult::default()
            }),
            ..LateResult::default()
        }));
        m.world.put(&lost);
    });
    let status = model.status();
    assert_eq!(status.phase, Some(TaskPhase::Succeeded));
    assert_eq!(status.accepted_run, model.runs()[0].metadata.name);
    assert_eq!(status.result.unwrap().summary, "late");
    assert_eq!(model.live().unwrap().spec.cancel, Some(true));
}

#[test]
fn a_finished_task_that_is_edited_only_says_so() {
    let model = Model::new(&task(NAME));
    model.attempt(|m, run| m.finish(run));
    model.edit(|task| task.spec.prompt = "something else".into());
    model.reconcile();
    let status = model.status();
    assert!(
        status
            .conditions
            .iter()
            .any(|c| c.type_ == "SpecChanged" && c.status == "True")
    );
    assert_eq!(
        (status.phase, model.runs().len()),
        (Some(TaskPhase::Succeeded), 1)
    );
}

#[test]
fn a_finished_task_goes_when_its_time_is_over_unless_its_result_is_unpublished() {
    let mut wanted = publishing();
    wanted.spec.ttl_after_finished = Some(secs(60));
    let done = Model::new(&wanted);
    done.attempt(|m, run| {
        m.finish(run);
        m.reconcile();
        m.publish(run, "Published");
    });
    assert_eq!(done.plan().requeue, Some(secs(60).get()));
    done.secs(60);
    done.outcome(&done.plan(), Faults::default());
    assert!(done.world.list::<Task>().is_empty());

    let kept = Model::new(&wanted);
    kept.attempt(|m, run| {
        m.finish(run);
        m.reconcile();
        m.edit(|task| task.spec.cancel = Some(true));
        m.reconcile();
        m.set_phase(run, RunPhase::Cancelled);
    });
    assert_eq!(phase(&kept), TaskPhase::Cancelled);
    kept.secs(600);
    assert!(kept.plan().is_idle(), "the accepted result is not published");
}

#[test]
fn usage_is_booked_once() {
    let model = Model::new(&task(NAME));
    model.attempt(|m, run| {
        m.edit_run(run, |run| run.status.usage.input_tokens = 10);
        m.fail(run, failure(FailureReason::Crashed));
    });
    model.wait();
    model.attempt(|m, run| {
        m.edit_run(run, |run| run.status.usage.input_tokens = 5);
        m.finish(run);
    });
    model.reconcile();
    assert_eq!(model.status().usage.input_tokens, 15);
    assert_eq!(model.status().booked_runs.len(), 2);
}

#[test]
fn the_true_time_of_the_end_is_kept_within_what_is_possible() {
    for (said, stamped) in [(5, 5), (-3600, 0), (7200, 30)] {
        let model = Model::new(&task(NAME));
        let start = model.world.now();
        model.attempt(|m, run| {
            m.edit_run(run, |run| {
                let time = start.checked_add(jiff::SignedDuration::from_secs(said)).unwrap();
                run.status.completion_time = Some(Time(time));
            });
            m.secs(30);
            m.finish(run);
        });
        let done = model.status().completion_time.unwrap().0;
        assert_eq!(done.duration_since(start).as_secs(), stamped);
    }
}

#[test]
fn an_older_run_that_is_still_alive_ends_before_the_next_attempt() {
    let model = Model::new(&task(NAME));
    model.attempt(|m, run| m.fail(run, failure(FailureReason::Crashed)));
    // A restored backup: the first Run is alive again, the status knows of its failure.
    let mut revived = model.runs().remove(0);
    revived.status.phase = Some(RunPhase::Running);
    model.world.put(&revived);
    let mut known = model.task();
    known.status.attempts = 2;
    known.status.current_run = model.run_target(2).name;
    known.status.booked_runs.push(model.run_target(2).name);
    known.status.current_run_uid = "gone".into();
    model.world.put(&known);
    model.wait();
    model.reconcile();
    assert_eq!(model.runs().len(), 1);
    assert_eq!(model.live().unwrap().spec.cancel, Some(true));
    model.set_phase(&revived, RunPhase::Cancelled);
    model.reconcile();
    assert_eq!(model.live().unwrap().spec.attempt, 3);
}

#[test]
fn a_run_that_was_made_again_is_not_taken_for_the_one_before_it() {
    let model = Model::new(&task(NAME));
    model.outcome(&model.plan(), Faults::default());
    let first = model.live().unwrap();
    model.bind(&first);
    model.fail(&first, failure(FailureReason::Crashed));
    let then = model.world.revision();
    // Deleted before it was ever seen, so it is made again.
    model.world.remove(&model.run_target(1));
    model.outcome(&model.plan(), Faults::default());
    assert_ne!(model.live().unwrap().metadata.uid, first.metadata.uid);
    // The cache shows the end of the first one still.
    let now = model.world.revision();
    let stale = model.plan_at(now, then, now).unwrap();
    assert!(matches!(
        model.outcome(&stale, Faults::default()),
        Some(Outcome::Stale(_))
    ));
    assert_eq!((model.runs().len(), model.status().attempts), (1, 1));
}

#[test]
fn a_run_that_is_being_deleted_is_alive_until_it_has_ended() {
    let model = Model::new(&task(NAME));
    model.reconcile();
    let run = model.live().unwrap();
    model.bind(&run);
    model.reconcile();
    model.edit_run(&run, |run| {
        run.metadata.deletion_timestamp = Some(Time(model.world.now()));
        run.metadata.finalizers = vec![panda_api::DEVICE_FINALIZER.into()];
    });
    model.secs(600);
    model.reconcile();
    assert_eq!(model.runs().len(), 1, "no other attempt is made");
    assert_eq!(model.status().phase, Some(TaskPhase::Running));
    // Nor does another rerun begin.
    model.edit(|task| task.spec.rerun = Some(1));
    model.reconcile();
    assert_eq!(model.runs().len(), 1);
    model.set_phase(&run, RunPhase::Cancelled);
    model.world.remove(&crate::framework::Target::of(&run));
    model.reconcile();
    model.wait();
    model.reconcile();
    assert_eq!(model.live().map(|run| run.spec.rerun), Some(1));
}
