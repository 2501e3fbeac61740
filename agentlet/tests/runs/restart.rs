//! The agentlet is killed and comes back.

use panda_api::logline::Origin;
use panda_api::{FailureReason, RunPhase, VerifySpec};

use crate::harness::*;

#[tokio::test]
async fn run_is_adopted_and_its_agent_started_once() {
    let mut device = Device::new().await;
    let go = device.path().join("go");
    let script = format!(
        "echo one; while ! test -e {}; do sleep 0.02; done; echo two",
        go.display()
    );
    let mut run = device.a_run(&[]);
    run.spec.agent_spec.as_mut().unwrap().drivers[0].command = vec!["/bin/sh".into(), "-c".into(), script];
    let uid = device.give(run);
    device.says(&uid, Origin::Stdout, "one").await;
    device.kill().await;
    device.start().await;
    device
        .server
        .until("a second session", |s| (s.hellos.len() == 2).then_some(()))
        .await;
    assert_eq!(device.server.state().hellos[1].live_runs[0].run_uid, uid);
    std::fs::write(&go, "").unwrap();
    device.succeeds(&uid).await;
    device.says(&uid, Origin::System, "run ended: succeeded").await;
    assert_eq!(device.log(&uid, Origin::Stdout), "one\ntwo\n");
    assert_eq!(device.starts(&uid), 1);
}

#[tokio::test]
async fn run_that_ended_while_nobody_watched_is_reported() {
    let mut device = Device::new().await;
    let uid = device.give(device.a_run(&["--say", "up", "--sleep", "300ms", "--say", "over"]));
    device.says(&uid, Origin::Stdout, "up").await;
    device.kill().await;
    until("the agent ended", || device.processes().is_empty()).await;
    device.start().await;
    device.succeeds(&uid).await;
    device.says(&uid, Origin::Stdout, "over").await;
    assert_eq!(device.starts(&uid), 1);
}

#[tokio::test]
async fn kill_at_any_moment_loses_and_repeats_nothing() {
    let mut device = Device::new().await;
    for n in 0..6_u64 {
        let mut run = device.a_run(&["--say", "up", "--write", "out.txt", "hello"]);
        run.spec.verify = vec![VerifySpec {
            name: "there".into(),
            command: vec![
                "/bin/sh".into(),
                "-c".into(),
                "sleep 0.1; grep -q hello out.txt".into(),
            ],
            ..VerifySpec::default()
        }];
        let uid = device.give(run);
        // The moment is not waited for: any is as good as another, and each must be survived.
        tokio::time::sleep(std::time::Duration::from_millis(25 * n)).await;
        device.kill().await;
        device.start().await;
        let end = device.succeeds(&uid).await;
        assert_eq!(end.verify.unwrap().len(), 1);
        assert_eq!(device.starts(&uid), 1, "killed after {} ms", 25 * n);
        let ends = device
            .server
            .state()
            .phases(&uid)
            .into_iter()
            .filter(|p| p.is_terminal())
            .count();
        assert_eq!(ends, 1);
    }
}

#[tokio::test]
async fn reboot_fails_runs_and_keeps_what_they_did() {
    let mut device = Device::new().await;
    let uid = device.give(device.a_run(&["--write", "half.txt", "x", "--say", "up", "--hang"]));
    device.says(&uid, Origin::Stdout, "up").await;
    device.kill().await;
    device.reboot_as("another-boot");
    device.start().await;
    device.fails(&uid, FailureReason::DeviceRestarted).await;
    assert_eq!(device.end_of(&uid).await.changed_files.unwrap(), ["half.txt"]);
    assert_eq!(device.server.state().last_phase(&uid), Some(RunPhase::Failed));
    until("nothing is left", || device.processes().is_empty()).await;
}

#[tokio::test]
async fn second_agentlet_on_the_same_disk_is_refused() {
    let device = Device::new().await;
    let error = device.try_build().await.unwrap_err();
    assert!(error.to_string().contains("another agentlet"), "{error}");
}
