//! The agentlet as a service: its program is replaced, it is told to stop, it is started again.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

use panda_api::logline::Origin;
use panda_api::{FailureReason, RunPhase, VerifySpec};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::*;
use crate::testing::{Answer, State};

/// The program on the disk, and the process of it that runs now.
struct Service {
    program: PathBuf,
    address: String,
    dir: PathBuf,
    child: Option<Child>,
}

impl Service {
    fn on(device: &Device) -> Self {
        let mut this = Self {
            program: device.path().join("agentlet"),
            address: device.server.address.to_string(),
            dir: device.path().to_owned(),
            child: None,
        };
        this.install(&fs::read(env!("CARGO_BIN_EXE_testdevice")).unwrap());
        this.start();
        this
    }

    /// Puts another program in its place, as packages are updated.
    fn install(&self, bytes: &[u8]) {
        let new = self.program.with_extension("new");
        fs::write(&new, bytes).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&new, mode).unwrap();
        fs::rename(&new, &self.program).unwrap();
    }

    fn start(&mut self) {
        let child = Command::new(&self.program)
            .arg(&self.address)
            .arg(&self.dir)
            .spawn();
        self.child = Some(child.unwrap());
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.as_ref().unwrap().id()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    async fn ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().unwrap();
        tokio::task::spawn_blocking(move || child.wait())
            .await
            .unwrap()
            .unwrap()
    }

    /// As a service manager does.
    async fn stop(&mut self) {
        self.signal(Signal::TERM);
        let status = self.ended().await;
        assert!(status.success(), "{status}");
    }
}

fn ends(state: &State, uid: &str) -> usize {
    state.phases(uid).iter().filter(|p| p.is_terminal()).count()
}

/// Says "up", waits for a file and says "over"; a check looks for what it wrote.
fn waiting(device: &Device, go: &str) -> panda_api::Run {
    let script = format!(
        "echo hello > out.txt; echo up; while ! test -e {}; do sleep 0.02; done; echo over",
        device.path().join(go).display()
    );
    let mut run = device.a_run(&[]);
    run.spec.agent_spec.as_mut().unwrap().drivers[0].command = vec!["/bin/sh".into(), "-c".into(), script];
    run.spec.verify = vec![VerifySpec {
        name: "there".into(),
        command: vec!["grep".into(), "-q".into(), "hello".into(), "out.txt".into()],
        ..VerifySpec::default()
    }];
    run
}

#[tokio::test]
async fn program_that_is_replaced_under_a_running_agentlet_harms_no_run() {
    let device = Device::off().await;
    let mut service = Service::on(&device);
    let first = device.give(waiting(&device, "go-first"));
    device.says(&first, Origin::Stdout, "up").await;
    // Half of an update: what lies at the path is no program at all.
    service.install(b"not a program");
    let second = device.give(waiting(&device, "go-second"));
    device.says(&second, Origin::Stdout, "up").await;
    fs::write(device.path().join("go-second"), "").unwrap();
    device.succeeds(&second).await;
    // The other half, and the restart.
    service.install(&fs::read(env!("CARGO_BIN_EXE_testdevice")).unwrap());
    service.stop().await;
    assert_eq!(ends(&device.server.state(), &first), 0, "it goes on");
    service.start();
    let sessions = |s: &State| (s.hellos.len() == 2).then(|| s.hellos[1].live_runs.len());
    assert_eq!(device.server.until("a second session", sessions).await, 1);
    fs::write(device.path().join("go-first"), "").unwrap();
    device.succeeds(&first).await;
    device.says(&first, Origin::Stdout, "over").await;
    for uid in [&first, &second] {
        assert_eq!((device.starts(uid), ends(&device.server.state(), uid)), (1, 1));
    }
    service.stop().await;
}

#[tokio::test]
async fn agentlet_that_is_killed_and_replaced_adopts_what_the_older_one_began() {
    let device = Device::off().await;
    let mut service = Service::on(&device);
    let uid = device.give(waiting(&device, "go"));
    device.says(&uid, Origin::Stdout, "up").await;
    service.signal(Signal::KILL);
    service.ended().await;
    fs::write(device.path().join("go"), "").unwrap();
    service.install(&fs::read(env!("CARGO_BIN_EXE_testdevice")).unwrap());
    service.start();
    device.succeeds(&uid).await;
    assert_eq!((device.starts(&uid), ends(&device.server.state(), &uid)), (1, 1));
    service.stop().await;
}

#[tokio::test]
async fn end_of_a_run_at_the_moment_of_a_stop_is_told_once() {
    let device = Device::off().await;
    let mut service = Service::on(&device);
    for _ in 0..3 {
        let uid = device.give(device.a_run(&["--say", "over"]));
        device.says(&uid, Origin::Stdout, "over").await;
        service.stop().await;
        let before = device.server.state().hellos.len();
        service.start();
        // Before that it may not yet be prepared for signals.
        let session = |s: &State| (s.hellos.len() > before).then_some(());
        device.server.until("a new session", session).await;
        device.succeeds(&uid).await;
        assert_eq!((device.starts(&uid), ends(&device.server.state(), &uid)), (1, 1));
    }
    service.stop().await;
}

#[tokio::test]
async fn report_that_the_server_did_not_acknowledge_before_the_stop_follows_after_it() {
    let device = Device::off().await;
    let mut service = Service::on(&device);
    let uid = device.give(waiting(&device, "go"));
    device.says(&uid, Origin::Stdout, "up").await;
    device.reported(&uid, RunPhase::Running).await;
    device.server.state().answer = Answer::Silent;
    fs::write(device.path().join("go"), "").unwrap();
    device.succeeds(&uid).await;
    service.stop().await;
    device.server.state().answer = Answer::Ack;
    let seq = device.server.state().last_seq;
    service.start();
    let again = |s: &State| (s.arrived.iter().filter(|a| a.0 == seq).count() >= 2).then_some(());
    device.server.until("the last report once more", again).await;
    assert_eq!(ends(&device.server.state(), &uid), 1);
    service.stop().await;
}

#[tokio::test]
async fn folder_of_a_newer_version_is_left_alone_and_said() {
    let mut device = Device::new().await;
    let uid = device.give(device.a_run(&["--say", "up", "--hang"]));
    device.says(&uid, Origin::Stdout, "up").await;
    device.kill().await;
    let path = device.data().join("runs").join(&uid).join("run.json");
    let kept = fs::read(&path).unwrap();
    fs::write(&path, br#"{"format": 1000}"#).unwrap();
    device.start().await;
    let error = device.task_error().await;
    assert!(
        error.contains("format 1000") && error.contains("newer agentlet"),
        "{error}"
    );
    assert_eq!(device.processes().len(), 1, "it goes on under its supervisor");
    fs::write(&path, kept).unwrap();
    device.start().await;
    device.server.change(&uid, |run| run.spec.cancel = Some(true));
    let end = device.end_of(&uid).await;
    assert_eq!(end.failure.unwrap().reason, FailureReason::Cancelled);
    assert_eq!(device.starts(&uid), 1);
}
