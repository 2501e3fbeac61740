//! How runs end.

use panda_api::logline::Origin;
use panda_api::{FailureReason, OutputSpec, RunPhase, VerifySpec};
use std::time::Duration;

use panda_agentlet::Shutdown;

use crate::harness::*;

fn output(path: &str) -> OutputSpec {
    OutputSpec {
        name: "report".into(),
        path: path.into(),
    }
}

fn check(name: &str, script: &str) -> VerifySpec {
    VerifySpec {
        name: name.into(),
        command: vec!["/bin/sh".into(), "-c".into(), script.into()],
        ..VerifySpec::default()
    }
}

#[tokio::test]
async fn success_brings_outputs_and_log() {
    let device = Device::new().await;
    let mut run = device.a_run(&[
        "--say", "working", "--err", "hm", "--write", "out.txt", "hello", "--say", "done",
    ]);
    run.spec.outputs = vec![output("out.txt")];
    let uid = device.give(run);
    let end = device.succeeds(&uid).await;
    use RunPhase::{Preparing, Running, Succeeded};
    assert_eq!(
        device.server.state().phases(&uid),
        [Preparing, Running, Succeeded]
    );
    let result = end.result.unwrap();
    assert_eq!(result.summary, "done");
    assert_eq!(result.artifacts[0].name, "report");
    assert_eq!(device.blob(&result.artifacts[0].digest), b"hello");
    assert_eq!(end.changed_files.unwrap(), ["out.txt"]);
    assert_eq!(end.sandbox.unwrap().floor, "Full");
    assert!(end.usage.unwrap().wall_clock.is_some() && end.start_time.is_some());
    device.says(&uid, Origin::System, "run ended: succeeded").await;
    assert_eq!(device.log(&uid, Origin::Stdout), "working\nwrote out.txt\ndone\n");
    assert_eq!(device.log(&uid, Origin::Stderr), "hm\n");
    assert!(
        device
            .log(&uid, Origin::System)
            .contains("workspace is ready on laptop")
    );
    assert_eq!(device.starts(&uid), 1);
    device.server.gone(&uid);
    let folder = device.data().join("runs").join(&uid);
    until("the run's folder is gone", || !folder.exists()).await;
}

#[tokio::test]
async fn failing_agent_keeps_its_words_and_its_exit_code() {
    let device = Device::new().await;
    let uid = device.give(device.a_run(&["--say", "oh no", "--write", "half.txt", "x", "--fail", "3"]));
    let failure = device.failure_of(&uid).await;
    assert_eq!(failure.exit_code, Some(3), "{failure:?}");
    let end = device.end_of(&uid).await;
    assert_eq!(end.changed_files.unwrap(), ["half.txt"], "partial work is kept");
    device.says(&uid, Origin::Stdout, "oh no").await;
}

#[tokio::test]
async fn missing_program_is_not_a_failure_of_the_agent() {
    let device = Device::new().await;
    let mut run = device.a_run(&[]);
    run.spec.agent_spec.as_mut().unwrap().drivers[0].command = vec!["/nonexistent/agent".into()];
    let uid = device.give(run);
    device.fails(&uid, FailureReason::AgentNotFound).await;
}

#[tokio::test]
async fn missing_output_is_named() {
    let device = Device::new().await;
    let mut run = device.a_run(&["--lie"]);
    run.spec.outputs = vec![output("out/report.md")];
    let uid = device.give(run);
    let failure = device.failure_of(&uid).await;
    assert!(failure.message.contains("out/report.md"), "{failure:?}");
}

#[tokio::test]
async fn cancel_ends_the_whole_tree() {
    let device = Device::new().await;
    let uid = device.give(device.a_run(&["--fork", "3", "--ignore-term", "0ms", "--say", "up", "--hang"]));
    device.says(&uid, Origin::Stdout, "up").await;
    device.server.change(&uid, |run| run.spec.cancel = Some(true));
    let end = device.end_of(&uid).await;
    assert_eq!(end.phase, Some(RunPhase::Cancelled));
    assert_eq!(device.processes(), Vec::<String>::new());
}

#[tokio::test]
async fn a_frozen_supervisor_does_not_keep_its_run_alive() {
    for adopted in [false, true] {
        let mut device = Device::new().await;
        let uid = device.give(device.a_run(&["--say", "up", "--hang"]));
        device.says(&uid, Origin::Stdout, "up").await;
        if adopted {
            device.kill().await;
            device.start().await;
        }
        device.freeze_supervisor(&uid);
        device.server.change(&uid, |run| run.spec.cancel = Some(true));
        let end = device.end_of(&uid).await;
        assert_eq!(end.phase, Some(RunPhase::Cancelled));
        assert_eq!(device.processes(), Vec::<String>::new());
        assert_eq!(device.starts(&uid), 1);
    }
}

#[tokio::test]
async fn a_frozen_supervisor_does_not_let_a_paused_run_go_on() {
    let device = Device::new().await;
    let uid = device.give(device.a_run(&["--say", "up", "--hang"]));
    device.says(&uid, Origin::Stdout, "up").await;
    device.freeze_supervisor(&uid);
    device.server.change(&uid, |run| run.spec.pause = Some(true));
    let failure = device.fails(&uid, FailureReason::Crashed).await;
    assert!(failure.message.contains("did not pause"), "{failure:?}");
    assert_eq!(device.processes(), Vec::<String>::new());
    assert_eq!(device.starts(&uid), 1);
}

#[tokio::test]
async fn cancel_before_the_start_starts_nothing() {
    let device = Device::new().await;
    device.server.state().grants = false;
    let uid = device.give(device.a_run(&["--hang"]));
    device.reported(&uid, RunPhase::Preparing).await;
    device.server.change(&uid, |run| run.spec.cancel = Some(true));
    let end = device.end_of(&uid).await;
    assert_eq!(end.phase, Some(RunPhase::Cancelled));
    assert_eq!(device.starts(&uid), 0);
}

#[tokio::test]
async fn pause_freezes_and_thaws() {
    let device = Device::new().await;
    let uid = device.give(device.a_run(&["--say", "up", "--hang"]));
    device.says(&uid, Origin::Stdout, "up").await;
    device.server.change(&uid, |run| run.spec.pause = Some(true));
    use RunPhase::{Paused, Preparing, Running};
    device.reported(&uid, Paused).await;
    device.server.change(&uid, |run| run.spec.pause = None);
    let phases = [Preparing, Running, Paused, Running];
    device
        .server
        .until("running again", |s| (s.phases(&uid) == phases).then_some(()))
        .await;
    device.server.change(&uid, |run| run.spec.cancel = Some(true));
    assert_eq!(device.end_of(&uid).await.phase, Some(RunPhase::Cancelled));
}

#[tokio::test]
async fn run_that_is_gone_ends_without_a_word() {
    let device = Device::new().await;
    let uid = device.give(device.a_run(&["--say", "up", "--hang"]));
    device.says(&uid, Origin::Stdout, "up").await;
    device.server.gone(&uid);
    let folder = device.data().join("runs").join(&uid);
    until("the run's folder is gone", || !folder.exists()).await;
    assert_eq!(device.processes(), Vec::<String>::new());
    assert_eq!(device.server.state().last_phase(&uid), Some(RunPhase::Running));
}

#[tokio::test]
async fn checks_decide_and_say_why() {
    let device = Device::new().await;
    let mut run = device.a_run(&["--write", "out.txt", "hello"]);
    run.spec.verify = vec![
        check("good", "grep hello out.txt"),
        check("bad", "echo looked; echo broken >&2; exit 7"),
    ];
    let uid = device.give(run);
    device.fails(&uid, FailureReason::VerifyFailed).await;
    assert!(device.server.state().phases(&uid).contains(&RunPhase::Verifying));
    let verify = device.end_of(&uid).await.verify.unwrap();
    assert_eq!(verify.len(), 2);
    assert!(verify[0].passed && verify[0].exit_code == Some(0) && verify[0].tail == "hello\n");
    assert!(!verify[1].passed && verify[1].exit_code == Some(7));
    assert!(
        verify
            .iter()
            .all(|v| !v.trusted && v.where_ == "laptop" && v.duration.is_some())
    );
    let log = device.blob(&verify[1].log.as_ref().unwrap().digest);
    let log = String::from_utf8(log).unwrap();
    assert!(log.contains("looked\n") && log.contains("broken\n"), "{log}");
}

#[tokio::test]
async fn check_sees_the_snapshot_and_not_the_workspace() {
    let device = Device::new().await;
    let mut run = device.a_run(&["--write", "out.txt", "hello"]);
    run.spec.verify = vec![
        check("spoils", "grep -q hello out.txt && echo spoiled > out.txt"),
        check("fresh", "grep -q hello out.txt"),
    ];
    let uid = device.give(run);
    let verify = device.succeeds(&uid).await.verify.unwrap();
    assert!(verify.iter().all(|v| v.passed), "{verify:?}");
}

#[tokio::test]
async fn check_that_takes_too_long_fails() {
    let device = Device::new().await;
    let mut run = device.a_run(&["--say", "x"]);
    let mut slow = check("slow", "sleep 600");
    slow.timeout = Some("300ms".parse().unwrap());
    run.spec.verify = vec![slow];
    let uid = device.give(run);
    device.fails(&uid, FailureReason::VerifyFailed).await;
    let verify = device.end_of(&uid).await.verify.unwrap();
    assert!(!verify[0].passed && !verify[0].message.is_empty(), "{verify:?}");
}

#[tokio::test]
async fn stopping_runs_reports_them_before_the_agentlet_ends() {
    let mut device = Device::off().await;
    device.shutdown = Shutdown::StopRuns {
        within: Duration::from_secs(60),
    };
    device.start().await;
    let uid = device.give(device.a_run(&["--say", "up", "--hang"]));
    device.says(&uid, Origin::Stdout, "up").await;
    device.stop().await;
    device.fails(&uid, FailureReason::DeviceRestarted).await;
    assert_eq!(device.processes(), Vec::<String>::new());
}
