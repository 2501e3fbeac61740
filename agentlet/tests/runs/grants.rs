//! How long a run goes on when the server is out of reach. Grants are short here, so that the tests are.

use std::time::Duration;

use panda_api::logline::Origin;
use panda_api::meta::{Clock as _, SystemClock};
use panda_api::v1alpha1::Retain;
use panda_api::{DeviceRequest, DisconnectPolicy, FailureReason, OnDisconnect, Run, RunPhase, WorkspaceSpec};

use crate::harness::*;
use crate::testing::State;

/// Long enough to start a run on a busy machine.
const TTL: Duration = Duration::from_secs(6);

fn rule(run: &mut Run, policy: DisconnectPolicy, after: &str) {
    run.spec.device = Some(DeviceRequest {
        on_disconnect: Some(OnDisconnect {
            policy,
            after: after.parse().unwrap(),
            ..OnDisconnect::default()
        }),
        ..DeviceRequest::default()
    });
}

/// A device with a run under `policy` that says "up" and then stays, or takes `rest`.
async fn at_work(policy: DisconnectPolicy, after: &str, rest: &[&str]) -> (Device, String) {
    let device = Device::new().await;
    device.server.state().ttl = TTL;
    let mut run = device.a_run(&[&["--say", "up"], rest].concat());
    rule(&mut run, policy, after);
    let uid = device.give(run);
    device.says(&uid, Origin::Stdout, "up").await;
    (device, uid)
}

#[tokio::test]
async fn renewals_follow_the_length_of_grants() {
    let (device, _) = at_work(DisconnectPolicy::Stop, "0s", &["--hang"]).await;
    // Ten seconds, the time between renewals of long grants, would let it end.
    let before = device.server.state().renewals;
    device
        .server
        .until("renewals", |s| (s.renewals >= before + 8).then_some(()))
        .await;
    assert_eq!(device.processes().len(), 1);
}

#[tokio::test]
async fn the_supervisor_alone_ends_a_run_whose_grant_ended() {
    let (mut device, uid) = at_work(DisconnectPolicy::Stop, "0s", &["--hang"]).await;
    device.kill().await;
    until("nothing is left", || device.processes().is_empty()).await;
    device.start().await;
    device.fails(&uid, FailureReason::DeviceLost).await;
    assert_eq!(device.starts(&uid), 1);
}

#[tokio::test]
async fn the_agentlet_alone_ends_a_run_whose_grant_ended() {
    let (device, uid) = at_work(DisconnectPolicy::Stop, "1h", &["--hang"]).await;
    device.freeze_supervisor(&uid);
    device.server.state().grants = false;
    // `after` means nothing under Stop.
    until("nothing is left", || device.processes().is_empty()).await;
    device.fails(&uid, FailureReason::DeviceLost).await;
}

#[tokio::test]
async fn a_run_given_up_before_its_first_grant_never_starts_and_leaves_nothing() {
    let device = Device::new().await;
    device.server.state().grants = false;
    let mut run = device.a_run(&["--say", "up"]);
    run.spec.workspace = Some(WorkspaceSpec {
        retain: Some(Retain::Never),
        ..WorkspaceSpec::default()
    });
    let folder = format!("work/tasks/{}-0", run.spec.task_ref.uid);
    let workspace = device.path().join(folder);
    let uid = device.give(run);
    until("its workspace is made", || workspace.join("ws").exists()).await;
    device
        .server
        .change(&uid, |run| run.status.phase = Some(RunPhase::Lost));
    device.fails(&uid, FailureReason::DeviceLost).await;
    until("nothing is left", || !workspace.exists()).await;
    assert_eq!(device.starts(&uid), 0);
}

#[tokio::test]
async fn a_run_goes_on_when_its_grant_comes_back_in_time() {
    let (device, uid) = at_work(
        DisconnectPolicy::Pause,
        "1h",
        &["--sleep", "12s", "--say", "over"],
    )
    .await;
    device.server.state().grants = false;
    device.reported(&uid, RunPhase::Paused).await;
    device.server.state().grants = true;
    device.succeeds(&uid).await;
    device.says(&uid, Origin::Stdout, "over").await;
    assert_eq!(device.starts(&uid), 1);
}

#[tokio::test]
async fn a_result_that_is_ready_too_late_is_not_a_success() {
    let device = Device::new().await;
    device.server.state().ttl = TTL;
    let mut run = device.a_run(&["--write", "out.txt", "kept", "--say", "up"]);
    rule(&mut run, DisconnectPolicy::Continue, "1s");
    run.spec.verify = vec![panda_api::VerifySpec {
        name: "slow".into(),
        command: vec!["/bin/sleep".into(), "600".into()],
        ..panda_api::VerifySpec::default()
    }];
    let uid = device.give(run);
    device.reported(&uid, RunPhase::Verifying).await;
    device.server.state().grants = false;
    device.fails(&uid, FailureReason::DeviceLost).await;
    let end = device.end_of(&uid).await;
    assert_eq!(end.changed_files.unwrap(), ["out.txt"], "what there is is kept");
}

#[tokio::test]
async fn a_result_that_is_ready_out_of_reach_is_reported_with_its_true_time() {
    let (mut device, uid) = at_work(
        DisconnectPolicy::Continue,
        "1h",
        &["--write", "out.txt", "x", "--sleep", "1s"],
    )
    .await;
    device.kill().await;
    until("the agent ended", || device.processes().is_empty()).await;
    let ended = SystemClock.now();
    // The grant is over by now, the leave to go on is not.
    tokio::time::sleep(TTL).await;
    device.start().await;
    let end = device.succeeds(&uid).await;
    // TTL has passed since; within that, the machine may be as slow as it likes.
    let latest = ended.checked_add(Duration::from_secs(2)).unwrap();
    assert!(end.completion_time.unwrap().0 <= latest, "{end:?}");
    assert!(!end.logs.unwrap().digest.is_empty());
}

#[tokio::test]
async fn pause_is_lifted_by_an_agentlet_that_did_not_set_it() {
    let mut device = Device::new().await;
    let uid = device.give(device.a_run(&["--say", "up", "--sleep", "2s", "--say", "over"]));
    device.says(&uid, Origin::Stdout, "up").await;
    device.server.change(&uid, |run| run.spec.pause = Some(true));
    device.reported(&uid, RunPhase::Paused).await;
    device.kill().await;
    device.server.change(&uid, |run| run.spec.pause = None);
    device.start().await;
    device.succeeds(&uid).await;
    let phases = |s: &State| s.phases(&uid);
    assert!(phases(&device.server.state()).contains(&RunPhase::Paused));
    assert_eq!(device.starts(&uid), 1);
}

#[tokio::test]
async fn cancel_is_carried_out_once_although_the_agentlet_is_killed_meanwhile() {
    let mut device = Device::new().await;
    let uid = device.give(device.a_run(&["--ignore-term", "0ms", "--say", "up", "--hang"]));
    device.says(&uid, Origin::Stdout, "up").await;
    device.server.change(&uid, |run| run.spec.cancel = Some(true));
    let journal = device.data().join("runs").join(&uid).join("agent/journal.jsonl");
    until("the stop was asked for", || {
        std::fs::read_to_string(&journal)
            .unwrap()
            .contains("stopRequested")
    })
    .await;
    device.kill().await;
    // The server forgot the wish: what was begun is what counts.
    device.server.state().runs.get_mut(&uid).unwrap().spec.cancel = None;
    device.start().await;
    assert_eq!(device.end_of(&uid).await.phase, Some(RunPhase::Cancelled));
}
