//! What devices said about repositories; and how many refusals a status holds.

use panda_api::meta::Time;
use panda_api::{Failure, FailureReason, GitSpec, RefusalReason, Run, RunPhase, WorkspaceSpec};

use super::{Model, condition, device, run};

const ABSENT: RefusalReason = RefusalReason::RepositoryAbsent;

fn on(name: &str, url: &str) -> Run {
    let mut run = run(name);
    run.spec.workspace = Some(WorkspaceSpec {
        git: Some(GitSpec {
            url: url.into(),
            ..GitSpec::default()
        }),
        ..WorkspaceSpec::default()
    });
    run
}

/// A former Run of another Task on `device`, which found the repository or not.
fn former(model: &Model, name: &str, device: &str, refusal: Option<RefusalReason>) {
    let now = Time(model.world.now());
    model.world.put(&on(name, "https://x/web"));
    model.edit_run(name, |run| {
        run.spec.device_name = device.into();
        run.status.bind_time = Some(now);
        run.status.phase = Some(RunPhase::Failed);
        run.status.start_time = refusal.is_none().then_some(now);
        run.status.failure = Some(Failure {
            reason: FailureReason::WorkspaceFailed,
            message: "there is no repository".into(),
            refusal,
            ..Failure::default()
        });
    });
}

/// Two devices, of which one was told to lack the repository and the other is away.
fn one_lacks_and_one_is_away() -> Model {
    let mut away = device("b");
    away.status.conditions = vec![condition("Ready", "Unknown")];
    let model = Model::new(&[device("a"), away], &[]);
    former(&model, "f", "a", Some(ABSENT));
    model
}

#[test]
fn a_device_that_lacks_the_repository_is_passed_over_for_a_while() {
    let mut model = one_lacks_and_one_is_away();
    model.world.put(&on("r", "https://x/web"));
    model.world.put(&on("other", "https://x/other"));
    model.settle();
    assert_eq!(model.device_of("other"), "a");
    let refusals = model.refusals("r");
    assert_eq!((refusals[0].device.as_str(), refusals[0].reason), ("a", ABSENT));
    assert_eq!(refusals[0].message, "there is no repository");
    // Somebody may have put it there.
    model.secs(300);
    model.settle();
    assert_eq!(model.device_of("r"), "a");
}

#[test]
fn a_device_is_asked_for_each_task_when_no_other_can_have_the_repository() {
    let mut other = device("b");
    other.status.agents.clear();
    let mut model = Model::new(&[device("a"), other], &[]);
    former(&model, "f", "a", Some(ABSENT));
    model.world.put(&on("r", "https://x/web"));
    model.settle();
    assert_eq!(model.device_of("r"), "a", "what it told another task is a hint");
}

/// The second attempt of the Task whose first one was told that the device lacks the repository.
fn second_attempt(model: &mut Model) -> Run {
    let mut second = on("g", "https://x/web");
    second.spec.task_ref.uid = "task-of-f".into();
    second.spec.attempt = 2;
    model.world.put(&second);
    model.settle();
    model.run("g")
}

#[test]
fn a_run_fails_at_once_when_every_device_that_could_take_it_has_said_no() {
    let mut without_agent = device("b");
    without_agent.status.agents.clear();
    let mut model = Model::new(&[device("a"), without_agent], &[]);
    former(&model, "f", "a", Some(ABSENT));
    let run = second_attempt(&mut model);
    assert_eq!(run.status.phase, Some(RunPhase::Failed));
    let failure = run.status.failure.unwrap();
    assert_eq!(failure.refusal, Some(ABSENT));
    assert!(
        failure.message.contains("asked a: there is no repository"),
        "{}",
        failure.message
    );
    assert!(run.spec.device_name.is_empty() && run.status.unschedulable.is_empty());
    // Another rerun asks again.
    let mut again = on("h", "https://x/web");
    again.spec.task_ref.uid = "task-of-f".into();
    again.spec.rerun = 1;
    model.world.put(&again);
    model.settle();
    assert_eq!(model.device_of("h"), "a");
}

#[test]
fn a_run_waits_while_a_device_that_may_have_the_repository_is_away_or_busy() {
    let mut model = one_lacks_and_one_is_away();
    let run = second_attempt(&mut model);
    assert_eq!(run.status.phase, Some(RunPhase::Pending));
    let mut full = device("b");
    full.status.max_runs = Some(0);
    let mut model = Model::new(&[device("a"), full], &[]);
    former(&model, "f", "a", Some(ABSENT));
    assert_eq!(second_attempt(&mut model).status.phase, Some(RunPhase::Pending));
}

#[test]
fn the_newest_word_counts() {
    let mut model = Model::new(&[device("a")], &[]);
    former(&model, "f", "a", Some(ABSENT));
    model.secs(1);
    former(&model, "g", "a", None);
    model.world.put(&on("r", "https://x/web"));
    model.settle();
    assert_eq!(model.device_of("r"), "a");
}

#[test]
fn a_device_that_worked_with_the_repository_is_preferred() {
    let mut model = Model::new(&[device("a"), device("b")], &[]);
    former(&model, "f", "b", None);
    model.world.put(&on("r", "https://x/web"));
    model.world.put(&on("s", "https://x/other"));
    model.settle();
    assert_eq!(
        (model.device_of("r").as_str(), model.device_of("s").as_str()),
        ("b", "a")
    );
}

#[test]
fn a_thousand_devices_leave_a_bounded_status_that_shows_every_reason() {
    let devices: Vec<_> = (0..1000)
        .map(|i| {
            let mut device = device(&format!("d{i:04}"));
            device.spec.unschedulable = Some(i != 700);
            device.status.max_runs = Some(0);
            device
        })
        .collect();
    let mut model = Model::new(&devices, &[run("r")]);
    model.settle();
    let refusals = model.refusals("r");
    assert_eq!(refusals.len(), 64);
    assert_eq!(refusals[0].device, "d0700");
    assert_eq!(refusals[0].reason, RefusalReason::NoFreeSlot);
    assert_eq!(refusals[63].message, "and 937 devices more");
    assert_eq!(refusals[63].reason, RefusalReason::Cordoned);
}
