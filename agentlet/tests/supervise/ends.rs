//! Trees end whole.

use std::time::Duration;

use panda_api::FailureReason;

use super::harness::*;

async fn stopped(place: &Place, args: &[&str], ready: &str) -> panda_agentlet::supervisor::Outcome {
    let job = place.start(&place.spec(args));
    job.says(ready).await;
    job.handle.stop(FailureReason::Cancelled, "enough").await.unwrap();
    let outcome = job.outcome().await;
    assert_eq!(outcome.failure.as_ref().unwrap().reason, FailureReason::Cancelled);
    assert_eq!(outcome.failure.as_ref().unwrap().message, "enough");
    assert_eq!(place.left(), Vec::<i32>::new());
    outcome
}

#[tokio::test]
async fn a_stop_ends_a_hanging_agent_by_its_first_signal() {
    let place = Place::new();
    let outcome = stopped(&place, &["--say", "up", "--hang"], "up").await;
    assert_eq!(outcome.exit.unwrap().signal, Some(15));
    assert!(!outcome.killed);
}

#[tokio::test]
async fn an_agent_that_ignores_the_signal_is_killed() {
    let place = Place::new();
    let outcome = stopped(&place, &["--ignore-term", "1h"], "ignoring TERM").await;
    assert_eq!(outcome.exit.unwrap().signal, Some(9));
    assert!(outcome.killed);
}

#[tokio::test]
async fn children_and_orphans_in_sessions_of_their_own_end_too() {
    let place = Place::new();
    let outcome = stopped(
        &place,
        &["--fork", "5", "--orphan", "1h", "--say", "up", "--hang"],
        "ignoring TERM",
    )
    .await;
    assert!(outcome.killed);
    assert!(outcome.processes >= 6, "{}", outcome.processes);
}

#[tokio::test]
async fn an_orphan_that_holds_the_output_does_not_outlive_the_agent_or_keep_the_run_open() {
    let place = Place::new();
    let (job, outcome) = place.run(&["--orphan", "1h", "--say", "done"]).await;
    assert_eq!(outcome.failure, None, "{outcome:?}");
    assert_eq!(outcome.exit.unwrap().code, Some(0));
    assert!(job.stdout().contains("orphan "));
    assert_eq!(place.left(), Vec::<i32>::new());
}

#[tokio::test]
async fn without_a_control_group_the_tree_is_found_by_descent() {
    // What an ordinary user without a delegated group has, in this process: a subreaper is not even needed.
    let place = Place::new();
    let membership = panda_agentlet::process::Membership {
        mark: place.uid.clone(),
        uid: None,
    };
    let mut tree = panda_agentlet::process::ProcessTree::left_behind(membership, None, None);
    let launcher = panda_sandbox::Launcher::new(vec![
        env!("CARGO_BIN_EXE_agentlet-run").into(),
        "exec-floor".into(),
    ]);
    let floor = panda_sandbox::FloorSpec {
        argv: vec![
            place.agent().to_str().unwrap().into(),
            "--fork".into(),
            "3".into(),
            "--orphan".into(),
            "1h".into(),
        ],
        cwd: place.work(),
        user: place.user,
        ..panda_sandbox::FloorSpec::default()
    };
    let prepared = tree
        .prepare(&launcher, floor, panda_sandbox::Stdin::Null)
        .unwrap();
    let started = tree.go(prepared).unwrap();
    assert!(tree.cgroup().is_none());
    assert!(tree.exited().await.success());
    until("the children and the orphan run", || place.left().len() == 4).await;
    assert_eq!(tree.members().len(), 4);
    tree.freeze(true);
    // One that runs at this moment takes the signal a moment later.
    until("all are stopped", || {
        tree.members().iter().all(|p| p.state == b'T')
    })
    .await;
    tree.freeze(false);
    assert!(
        tree.end(panda_agentlet::process::StopPolicy {
            grace: Duration::from_millis(200),
            ..Default::default()
        })
        .await
    );
    assert_eq!(place.left(), Vec::<i32>::new());
    drop(started);
}

#[tokio::test]
async fn a_signal_from_outside_and_one_of_its_own_are_told_apart() {
    let place = Place::new();
    let job = place.start(&place.spec(&["--say", "up", "--hang"]));
    job.says("up").await;
    let pid = rustix::process::Pid::from_raw(job.running().await).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    assert_eq!(job.outcome().await.failure.unwrap().reason, FailureReason::Killed);

    let place = Place::new();
    let (_, outcome) = place.run(&["--die", "6"]).await;
    assert_eq!(outcome.failure.unwrap().reason, FailureReason::Crashed);
    assert_eq!(outcome.exit.unwrap().signal, Some(6));
}

#[tokio::test]
async fn a_stop_that_comes_while_the_run_starts_ends_it() {
    let place = Place::new();
    let job = place.start(&place.spec(&["--hang"]));
    job.handle
        .stop(FailureReason::Cancelled, "changed my mind")
        .await
        .unwrap();
    let outcome = job.outcome().await;
    assert_eq!(outcome.failure.unwrap().reason, FailureReason::Cancelled);
    assert_eq!(place.left(), Vec::<i32>::new());
}
