//! A run in a folder that any user may reach, supervised by the real program.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use panda_agentlet::driver::DriverConfig;
use panda_agentlet::process::StopPolicy;
use panda_agentlet::supervisor::log::{Caps, Chunk, LogReader, Stream};
use panda_agentlet::supervisor::{
    DisconnectRule, Entry, Grant, Handle, JobFence, JobSpec, JournalReader, Limits, Outcome, Program, Record,
    RunFolder, boot_id, boottime, grant_grace,
};
use panda_api::logline::{self, Origin};
use panda_api::meta::{IdSource, RandomIds};
use panda_sandbox::User;

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// Longest that anything here may take on a very busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A place that the agent's user can reach, with the agent's program in it.
pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) user: Option<User>,
    /// Unique; marks everything of this place.
    pub(crate) uid: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let uuid = RandomIds.uuid();
        // A uid of this test's own, so that tests at the same time do not meet.
        let number = 100_000 + u32::from_le_bytes(uuid.as_bytes()[..4].try_into().unwrap()) % 1_000_000;
        let user = is_root().then_some(User {
            uid: number,
            gid: number,
        });
        let this = Self {
            dir,
            user,
            uid: uuid.to_string(),
        };
        fs::copy(env!("CARGO_BIN_EXE_fakeagent"), this.agent()).unwrap();
        for owned in [this.home(), this.work()] {
            fs::create_dir(&owned).unwrap();
            if let Some(user) = user {
                chown(&owned, Some(user.uid), Some(user.gid)).unwrap();
            }
        }
        fs::create_dir(this.secret()).unwrap();
        fs::set_permissions(this.secret(), fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(this.secret().join("key"), "hidden words").unwrap();
        this
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn agent(&self) -> PathBuf {
        self.path().join("fakeagent")
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.path().join("home")
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.path().join("work")
    }

    /// Readable by everybody as far as permissions go, and hidden from every agent.
    pub(crate) fn secret(&self) -> PathBuf {
        self.path().join("secret")
    }

    pub(crate) fn starts(&self) -> PathBuf {
        self.secret().join("starts.jsonl")
    }

    pub(crate) fn spec(&self, args: &[&str]) -> JobSpec {
        let mut argv = vec![self.agent().to_str().unwrap().to_owned()];
        argv.extend(args.iter().map(|a| (*a).to_owned()));
        JobSpec {
            fence: JobFence {
                task_uid: "task".into(),
                run_uid: self.uid.clone(),
                attempt: 1,
                epoch: 1,
                device_uid: "device".into(),
            },
            boot_id: boot_id().unwrap(),
            program: Program {
                argv,
                env: vec![
                    ("PATH".into(), "/usr/bin:/bin".into()),
                    ("HOME".into(), self.home().to_str().unwrap().into()),
                    ("GREETING".into(), "hello".into()),
                ],
                cwd: self.work(),
                home: self.home(),
                user: self.user,
                user_is_exclusive: self.user.is_some(),
                hidden: vec![self.secret()],
                visible: vec![],
            },
            pre_run: vec![],
            driver: DriverConfig::default(),
            limits: Limits {
                first_output: PATIENCE,
                silence: PATIENCE,
                attempt: PATIENCE,
                repeat: 0,
            },
            stop: StopPolicy {
                grace: Duration::from_millis(500),
                ..StopPolicy::default()
            },
            on_disconnect: DisconnectRule::default(),
            grant_grace: grant_grace(),
            log: Caps::default(),
            secrets: None,
            reserve: None,
            starts: Some(self.starts()),
            helper: vec![],
        }
    }

    pub(crate) fn folder(&self, spec: &JobSpec, grant: Option<&Grant>) -> RunFolder {
        let path = self.secret().join(format!("run-{}", spec.fence.attempt));
        RunFolder::create(&path, spec, grant, &RandomIds).unwrap()
    }

    pub(crate) fn start(&self, spec: &JobSpec) -> Job {
        self.start_with(spec, Some(&grant(HOUR)))
    }

    pub(crate) fn start_with(&self, spec: &JobSpec, grant: Option<&Grant>) -> Job {
        let folder = self.folder(spec, grant);
        let handle = Handle::spawn(&supervise(), &folder).unwrap();
        Job { folder, handle }
    }

    /// Runs the agent with these arguments to its end.
    pub(crate) async fn run(&self, args: &[&str]) -> (Job, Outcome) {
        let job = self.start(&self.spec(args));
        let outcome = job.outcome().await;
        (job, outcome)
    }

    /// Every live process that was ever started here, by what it was started with; not the supervisor, which ends a
    /// moment after its last record.
    pub(crate) fn left(&self) -> Vec<i32> {
        let mark = self.path().to_str().unwrap().as_bytes();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else {
                continue;
            };
            let alive = panda_agentlet::process::stat(pid).is_some_and(|p| p.is_alive());
            let cmdline = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let supervisor = cmdline.split(|b| *b == 0).any(|w| w == b"supervise");
            if alive && !supervisor && cmdline.windows(mark.len()).any(|w| w == mark) {
                found.push(pid);
            }
        }
        found
    }
}

pub(crate) struct Job {
    pub(crate) folder: RunFolder,
    pub(crate) handle: Handle,
}

impl Job {
    pub(crate) async fn outcome(&self) -> Outcome {
        self.record(|r| match r {
            Record::Ended { outcome } => Some(*outcome),
            _ => None,
        })
        .await
    }

    /// Waits for a record.
    pub(crate) async fn record<T>(&self, wanted: impl Fn(Record) -> Option<T>) -> T {
        let mut tail = self.handle.tail(0);
        let search = async {
            while let Some(entry) = tail.next().await.unwrap() {
                if let Some(found) = wanted(entry.record) {
                    return found;
                }
            }
            panic!(
                "the journal ended without it: {:?}; {}",
                self.entries(),
                fs::read_to_string(self.folder.supervisor_log()).unwrap_or_default()
            );
        };
        tokio::time::timeout(PATIENCE, search).await.expect("in time")
    }

    pub(crate) async fn running(&self) -> i32 {
        self.record(|r| match r {
            Record::Spawned { pid, agent: true, .. } => Some(pid),
            _ => None,
        })
        .await
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        JournalReader::open(&self.folder.journal()).read().unwrap()
    }

    pub(crate) fn log(&self, stream: Stream) -> Vec<u8> {
        let reader = LogReader::new(&self.folder.logs(), stream);
        let mut all = Vec::new();
        let mut offset = 0;
        loop {
            match reader.read(offset, 1 << 20).unwrap() {
                Chunk::Data(bytes) => {
                    offset += bytes.len() as u64;
                    all.extend(bytes);
                }
                Chunk::Gap { to } => offset = to,
                Chunk::End => return all,
            }
        }
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout_bytes()).into_owned()
    }

    pub(crate) fn stdout_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for line in self.log(Stream::Log).split_inclusive(|b| *b == b'\n') {
            if let Some(record) = logline::parse(line)
                && record.origin == Origin::Stdout
            {
                out.extend_from_slice(record.bytes);
                out.extend_from_slice(if record.partial { b"" } else { b"\n" });
            }
        }
        out
    }

    /// Waits until standard output holds a text.
    pub(crate) async fn says(&self, text: &str) {
        until(&format!("{text:?} on standard output"), || {
            self.stdout().contains(text)
        })
        .await;
    }
}

pub(crate) fn supervise() -> Vec<OsString> {
    vec![env!("CARGO_BIN_EXE_agentlet-run").into(), "supervise".into()]
}

pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what} did not come true");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A grant that ends so long from now.
pub(crate) fn grant(from_now: Duration) -> Grant {
    Grant {
        deadline: boottime() + from_now,
        boot_id: boot_id().unwrap(),
    }
}
