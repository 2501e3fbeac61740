//! An agentlet with a scripted server, real supervisors and a real agent program.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use panda_agentlet::boot::{Boot, SystemBoot};
use panda_agentlet::supervisor::{StartEvent, StartLine};
use panda_agentlet::{Agentlet, BuildError, Config, Deps, Error, Shutdown, build};
use panda_api::logline::{self, Origin};
use panda_api::meta::{IdSource as _, ObjectMeta, RandomIds, SystemClock};
use panda_api::{AgentSpec, DriverSpec, Failure, FailureReason, Run, RunPhase, TaskRef};
use panda_rpc::report::RunReport;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::testing::{FakeServer, State};

pub(crate) const DEVICE: &str = "device-1";
/// Longest that anything here may take on a very busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The machine's clock under a boot of the test's choice.
#[derive(Debug)]
struct NamedBoot(String, SystemBoot);

impl Boot for NamedBoot {
    fn boottime(&self) -> Duration {
        self.1.boottime()
    }

    fn boot_id(&self) -> String {
        self.0.clone()
    }
}

/// A device: its disk, its server, and the agentlet that runs now.
pub(crate) struct Device {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) server: FakeServer,
    pub(crate) shutdown: Shutdown,
    boot: Option<String>,
    token: CancellationToken,
    task: Option<JoinHandle<Result<(), Error>>>,
}

impl Device {
    /// With an agentlet at work.
    pub(crate) async fn new() -> Self {
        let mut this = Self::off().await;
        this.start().await;
        this
    }

    /// Without one.
    pub(crate) async fn off() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::copy(env!("CARGO_BIN_EXE_fakeagent"), dir.path().join("fakeagent")).unwrap();
        Self {
            dir,
            server: FakeServer::start().await,
            shutdown: Shutdown::KeepRuns,
            boot: None,
            token: CancellationToken::new(),
            task: None,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    fn config(&self) -> Config {
        let mut config = Config::new("laptop", DEVICE, self.data());
        config.work_dir = self.path().join("work");
        config.shutdown = self.shutdown;
        config.reserve_bytes = 4 << 20;
        config.owner.workspace_roots = vec![self.path().display().to_string()];
        if rustix::process::geteuid().is_root() {
            config.agent_uid = 64_001;
        }
        config
    }

    pub(crate) async fn try_build(&self) -> Result<Agentlet, BuildError> {
        let system = SystemBoot::read().unwrap();
        let boot: Arc<dyn Boot> = match &self.boot {
            Some(id) => Arc::new(NamedBoot(id.clone(), system)),
            None => Arc::new(system),
        };
        let deps = Deps {
            clock: Arc::new(SystemClock),
            ids: Arc::new(RandomIds),
            boot,
            connector: Arc::new(self.server.clone()),
            exe: env!("CARGO_BIN_EXE_agentlet-run").into(),
        };
        build(self.config(), deps).await
    }

    /// Starts an agentlet on the device's disk.
    pub(crate) async fn start(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        let agentlet = loop {
            match self.try_build().await {
                Ok(agentlet) => break agentlet,
                // The former one's tasks are still being dropped.
                Err(BuildError::Workspaces(_)) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => panic!("{error}"),
            }
        };
        self.token = CancellationToken::new();
        self.task = Some(tokio::spawn(agentlet.run(self.token.clone())));
    }

    /// Ends the agentlet as `kill -9` does: nothing of it gets to run any more.
    pub(crate) async fn kill(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            drop(task.await);
        }
    }

    /// Ends it in good order.
    pub(crate) async fn stop(&mut self) {
        self.token.cancel();
        if let Some(task) = self.task.take() {
            task.await.unwrap().unwrap();
        }
    }

    /// Why the agentlet ended.
    pub(crate) async fn task_error(&mut self) -> String {
        let task = self.task.take().expect("an agentlet was started");
        let error = task.await.unwrap().unwrap_err();
        panda_api::component::chain(&error)
    }

    pub(crate) fn reboot_as(&mut self, id: &str) {
        self.boot = Some(id.to_owned());
    }

    /// A run of the test agent, bound to the device.
    pub(crate) fn a_run(&self, args: &[&str]) -> Run {
        let uid = RandomIds.uuid().to_string();
        let mut command = vec![self.path().join("fakeagent").display().to_string()];
        command.extend(args.iter().map(|arg| (*arg).to_owned()));
        let mut run = Run {
            metadata: ObjectMeta {
                uid: uid.clone(),
                ..ObjectMeta::namespaced("default", format!("task-{}", &uid[..8]))
            },
            ..Run::default()
        };
        run.spec.task_ref = TaskRef {
            name: "the-task".into(),
            uid: RandomIds.uuid().to_string(),
            generation: 1,
        };
        run.spec.prompt = "do it".into();
        run.spec.attempt = 1;
        run.spec.device_uid = DEVICE.into();
        run.spec.device_name = "laptop".into();
        run.spec.lease_epoch = Some(1);
        run.spec.agent.name = "fake".into();
        run.spec.agent_spec = Some(AgentSpec {
            drivers: vec![DriverSpec {
                command,
                ..DriverSpec::default()
            }],
            ..AgentSpec::default()
        });
        run.status.phase = Some(RunPhase::Pending);
        run
    }

    /// Hands a run to the device. Its uid.
    pub(crate) fn give(&self, run: Run) -> String {
        let uid = run.metadata.uid.clone();
        self.server.upsert(run);
        uid
    }

    pub(crate) async fn reported(&self, uid: &str, phase: RunPhase) {
        let done = |s: &State| s.phases(uid).contains(&phase).then_some(());
        self.server.until(&format!("{phase:?} of {uid}"), done).await;
    }

    /// The terminal report of a run.
    pub(crate) async fn end_of(&self, uid: &str) -> RunReport {
        let terminal = |s: &State| {
            let is =
                |r: &&(u64, String, RunReport)| r.1 == uid && r.2.phase.is_some_and(RunPhase::is_terminal);
            s.reports.iter().find(is).map(|r| r.2.clone())
        };
        self.server.until(&format!("the end of {uid}"), terminal).await
    }

    pub(crate) async fn failure_of(&self, uid: &str) -> Failure {
        let end = self.end_of(uid).await;
        assert_eq!(end.phase, Some(RunPhase::Failed), "{end:?}");
        end.failure.unwrap()
    }

    pub(crate) async fn succeeds(&self, uid: &str) -> RunReport {
        let end = self.end_of(uid).await;
        assert_eq!((end.phase, &end.failure), (Some(RunPhase::Succeeded), &None));
        end
    }

    pub(crate) async fn fails(&self, uid: &str, reason: FailureReason) -> Failure {
        let failure = self.failure_of(uid).await;
        assert_eq!(failure.reason, reason, "{failure:?}");
        failure
    }

    /// What the server has of a run's log, of one origin.
    pub(crate) fn log(&self, uid: &str, origin: Origin) -> String {
        let state = self.server.state();
        let log = state.logs.get(&(uid.to_owned(), "log".to_owned()));
        let mut out = Vec::new();
        for line in log
            .map(Vec::as_slice)
            .unwrap_or_default()
            .split_inclusive(|b| *b == b'\n')
        {
            let record = logline::parse(line).expect("every line is a record");
            if record.origin == origin {
                out.extend_from_slice(record.bytes);
                out.extend_from_slice(if record.partial { b"" } else { b"\n" });
            }
        }
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Waits until the server has a text in a run's log.
    pub(crate) async fn says(&self, uid: &str, origin: Origin, text: &str) {
        until(&format!("{text:?} in the log"), || {
            self.log(uid, origin).contains(text)
        })
        .await;
    }

    pub(crate) fn blob(&self, digest: &str) -> Vec<u8> {
        self.server
            .state()
            .blobs
            .get(digest)
            .cloned()
            .unwrap_or_else(|| panic!("no blob {digest}"))
    }

    /// How often agents of a run were started.
    pub(crate) fn starts(&self, uid: &str) -> usize {
        let text = fs::read_to_string(self.data().join("starts.jsonl")).unwrap_or_default();
        let lines = text
            .lines()
            .map(|line| serde_json::from_str::<StartLine>(line).unwrap());
        lines
            .filter(|line| line.run_uid == uid && line.event == StartEvent::Start)
            .count()
    }

    /// Stops the supervisor of a run with a signal that it cannot see.
    pub(crate) fn freeze_supervisor(&self, uid: &str) {
        self.signal_supervisor(uid, rustix::process::Signal::STOP);
    }

    /// Sends a signal to the supervisor of a run.
    pub(crate) fn signal_supervisor(&self, uid: &str, signal: rustix::process::Signal) {
        let folder = self.data().join("runs").join(uid).display().to_string();
        let mut frozen = 0;
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if line.contains("supervise") && line.contains(&folder) {
                let pid = rustix::process::Pid::from_raw(pid.unwrap()).unwrap();
                rustix::process::kill_process(pid, signal).unwrap();
                frozen += 1;
            }
        }
        assert_eq!(frozen, 1, "one supervisor of {uid}");
    }

    /// Processes of the test agent of this device.
    pub(crate) fn processes(&self) -> Vec<String> {
        let program = self.path().join("fakeagent").display().to_string();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if line.starts_with(&program) {
                found.push(line);
            }
        }
        found
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Supervisors outlive the agentlet by design, a failed test must not leave them.
        let mine = self.path().display().to_string();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let pid = entry.file_name().to_str().and_then(|n| n.parse().ok());
            if String::from_utf8_lossy(&line).contains(&mine)
                && let Some(pid) = pid.and_then(rustix::process::Pid::from_raw)
                && pid != rustix::process::getpid()
            {
                // It may have ended by itself.
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
            }
        }
    }
}

/// Waits for a condition.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
