//! The supervisor's main loop.

mod failure;
mod io;
mod veil;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use panda_api::meta::{Clock, SystemClock};
use panda_api::{DriverKind, Failure, FailureReason};
use panda_sandbox::{FloorSpec, Launcher, Report, Stdin};
use rustix::process::setsid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};

use self::failure::failure;
use self::io::Io;
use super::control::{self, Command, Order, Progress, Status};
use super::folder::{Error as FolderError, Lock, RunFolder};
use super::grant::{Grant, Verdict, boot_id, boottime};
use super::journal::{Outcome, Record, Writer};
use super::proxy::Proxy;
use super::secrets::{Handover, SecretFolder};
use super::spec::JobSpec;
use super::starts::{StartEvent, StartLine, StartsJournal};
use super::watch::Watch;
use crate::driver::{self, TurnEnd};
use crate::mask::Mask;
use crate::process::{DRAIN, Exit, Membership, ProcessTree, Sample, stat};

/// Exit code of a supervisor that found nothing to do: another one is or was there.
const REFUSED: u8 = 3;

/// How long an agent has to end by itself once its turn is over, and to end its turn once it is told to.
const FAREWELL: Duration = Duration::from_secs(5);

/// `main` of `supervise RUNDIR`: starts the job of a run folder, unless it was ever started, and stays until nothing
/// of it is left.
///
/// The exit code says only whether a supervisor was needed; what became of the job stands in the journal.
#[must_use]
pub fn main(run_dir: &Path) -> ExitCode {
    // In a session of its own, neither the end of a terminal nor that of the agentlet ends it. When it leads one
    // already, there is nothing to do.
    _ = setsid();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return complain(&e),
    };
    match runtime.block_on(supervise(&RunFolder::at(run_dir))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Refused) => ExitCode::from(REFUSED),
        Err(e) => complain(&e),
    }
}

fn complain(error: &dyn std::error::Error) -> ExitCode {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    tracing::error!(error = text, "supervisor failed");
    let line = format!("supervisor failed: {text}\n");
    drop(std::io::stderr().write_all(line.as_bytes()));
    ExitCode::FAILURE
}

/// Why there was no supervision.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("another supervisor is or was there")]
    Refused,
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("supervisor")]
    Io(#[from] std::io::Error),
}

async fn supervise(folder: &RunFolder) -> Result<(), Error> {
    panda_sandbox::make_undumpable()?;
    let lock = take_lock(folder).await?;
    let mut journal = Writer::open(&folder.journal())?;
    if journal.has_started() || folder.is_forbidden() {
        return Err(Error::Refused);
    }
    let mut spec = folder.spec()?;
    journal.draw_on(spec.reserve.clone());
    let handover = match &spec.secrets {
        Some(_) => Handover::receive()?,
        None => Handover::default(),
    };
    // In memory only: the folder keeps the spec without them.
    spec.program.env.extend(handover.env.iter().cloned());
    let (progress, followed) = watch::channel(Progress::default());
    let (orders, orders_rx) = mpsc::channel(16);
    let mut server = JoinSet::new();
    server.spawn(control::serve(
        control::bind(folder)?,
        folder.key()?,
        orders,
        followed,
    ));
    let mut job = Job::new(folder, spec, &handover, lock, journal, orders_rx, progress)?;
    job.files = handover.files;
    job.token = handover.token;
    let done = job.run().await;
    // When even the journal cannot be written, the tree still ends whole; the agentlet finds a crash and says so.
    job.tree.kill().await;
    server.shutdown().await;
    done
}

/// An agentlet that looks into the folder holds the lock for a moment: what is not started yet waits for it.
async fn take_lock(folder: &RunFolder) -> Result<Lock, Error> {
    for _ in 0..100 {
        match folder.lock() {
            Err(FolderError::Locked { .. }) if folder.journal().exists() => return Err(Error::Refused),
            Err(FolderError::Locked { .. }) => sleep(Duration::from_millis(10)).await,
            other => return Ok(other?),
        }
    }
    Err(Error::Refused)
}

struct Job {
    folder: RunFolder,
    spec: JobSpec,
    /// Held until the last record is written.
    _lock: Lock,
    clock: SystemClock,
    boot_id: String,
    grant: Option<Grant>,
    launcher: Launcher,
    tree: ProcessTree,
    io: Io,
    orders: mpsc::Receiver<Order>,
    watch: Watch,
    started: Instant,
    /// What a person asked for, and what the grant asks for: either freezes.
    pause_asked: bool,
    pause_grant: bool,
    /// Why we end the tree, once we do.
    ours: Option<Failure>,
    /// Whether that is the end of the grant.
    by_grant: bool,
    report: Report,
    has_run: bool,
    /// Files that hold values of Secrets.
    files: Vec<(PathBuf, u32, String)>,
    /// The run's own token for the API.
    token: String,
}

impl Job {
    fn new(
        folder: &RunFolder,
        spec: JobSpec,
        handover: &Handover,
        lock: Lock,
        journal: Writer,
        orders: mpsc::Receiver<Order>,
        progress: watch::Sender<Progress>,
    ) -> Result<Self, Error> {
        let membership = membership(&spec);
        let tree = ProcessTree::of_this_process(membership, &group_name(&spec))?;
        let helper = if spec.helper.is_empty() {
            vec!["/proc/self/exe".into(), "exec-floor".into()]
        } else {
            spec.helper.iter().map(OsString::from).collect()
        };
        Ok(Self {
            folder: folder.clone(),
            _lock: lock,
            clock: SystemClock,
            boot_id: boot_id()?,
            grant: folder.grant()?,
            launcher: Launcher::new(helper),
            tree,
            io: Io::new(
                &folder.logs(),
                spec.log,
                spec.limits.repeat,
                journal,
                progress,
                Mask::new(handover.masked.iter().map(Vec::as_slice)),
                spec.driver.kind == DriverKind::Exec,
            ),
            files: Vec::new(),
            token: String::new(),
            orders,
            watch: Watch::new(spec.limits, Duration::ZERO),
            started: Instant::now(),
            pause_asked: false,
            pause_grant: false,
            ours: None,
            by_grant: false,
            report: Report::default(),
            has_run: false,
            spec,
        })
    }

    async fn run(&mut self) -> Result<(), Error> {
        let mut driver = match driver::build(&self.spec.driver) {
            Ok(driver) => driver,
            Err(e) => {
                let failed = failure(FailureReason::Internal, e.to_string());
                return self.finish(Some(failed), None, false).await;
            }
        };
        self.io.record(Record::Started {
            cgroup: self.tree.cgroup().map(Path::to_owned),
        })?;
        let mut signals = [
            SignalKind::terminate(),
            SignalKind::interrupt(),
            SignalKind::hangup(),
        ]
        .into_iter()
        .map(signal)
        .collect::<Result<Vec<_>, _>>()?;
        // Nothing but Stop ends a run: a service manager that stops the agentlet must not.
        let mut deaf = JoinSet::new();
        for mut signal in signals.drain(..) {
            deaf.spawn(async move { while signal.recv().await.is_some() {} });
        }

        // Until the end of the run.
        let _api = match self.open_api().await {
            Ok(opened) => opened,
            Err(failed) => return self.finish(Some(failed), None, false).await,
        };
        let _in_memory = match self.secret_files() {
            Ok(made) => made,
            Err(failed) => return self.finish(Some(failed), None, false).await,
        };
        for argv in self.spec.pre_run.clone() {
            let cwd = self.spec.program.home.clone();
            if let Err(failed) = self.start(argv.clone(), &cwd, Stdin::Null, false).await? {
                return self.finish(Some(failed), None, false).await;
            }
            let (exit, killed) = self.attend().await?;
            if self.ours.is_none() && !exit.success() {
                let name = argv.first().map_or("", String::as_str);
                let words = self.io.last_stderr();
                self.ours = Some(failure(
                    FailureReason::AgentError,
                    format!("the command {name:?} before the run failed: {words}"),
                ));
            }
            if self.ours.is_some() {
                return self.finish(None, Some(exit), killed).await;
            }
        }

        let (stdin, feed) = if driver.launch().stdin {
            let (read, write) = std::io::pipe()?;
            (Stdin::From(read.into()), Some(write))
        } else {
            (Stdin::Null, None)
        };
        let (argv, cwd) = (self.spec.program.argv.clone(), self.spec.program.cwd.clone());
        if let Err(failed) = self.start(argv, &cwd, stdin, true).await? {
            return self.finish(Some(failed), None, false).await;
        }
        self.io.feed(feed)?;
        let first = driver.start();
        self.io.attach(driver);
        self.io.apply(first);
        let (exit, killed) = self.attend().await?;
        self.finish(None, Some(exit), killed).await
    }

    /// Opens the way to the API, for a run with a token, and tells the agent of it.
    async fn open_api(&mut self) -> Result<Option<Proxy>, Failure> {
        let secrets = self.spec.secrets.as_ref();
        let Some((access, folder)) = secrets.and_then(|s| s.api.as_ref().zip(s.folder.as_ref())) else {
            return Ok(None);
        };
        let token = std::mem::take(&mut self.token);
        let proxy = Proxy::open(access, &token).await.map_err(|error| {
            let why = format!("no way to the API for the run: {}", crate::runner::chain(&error));
            failure(FailureReason::SandboxUnavailable, why)
        })?;
        let (env, files) = proxy.equip(access, &token, folder);
        self.files.extend(files);
        let program = &mut self.spec.program.env;
        program.retain(|(name, _)| env.iter().all(|(ours, _)| ours != name));
        program.extend(env);
        Ok(Some(proxy))
    }

    /// Writes the files that hold values of Secrets; they are gone when what it returns is dropped.
    fn secret_files(&mut self) -> Result<Option<SecretFolder>, Failure> {
        let files = std::mem::take(&mut self.files);
        let folder = self.spec.secrets.as_ref().and_then(|s| s.folder.as_deref());
        let Some(folder) = folder.filter(|_| !files.is_empty()) else {
            return Ok(None);
        };
        let made = SecretFolder::make(folder, &files, self.spec.program.user);
        made.map(Some).map_err(|error| {
            let why = format!(
                "cannot keep files with values of Secrets in memory: {}: {error}",
                folder.display()
            );
            failure(FailureReason::SandboxUnavailable, why)
        })
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Makes the floor, asks the grant once more, writes the start down, lets go.
    async fn start(
        &mut self,
        argv: Vec<String>,
        cwd: &Path,
        stdin: Stdin,
        agent: bool,
    ) -> Result<Result<(), Failure>, Error> {
        let program = &self.spec.program;
        let floor = FloorSpec {
            argv,
            env: program.env.clone(),
            cwd: cwd.into(),
            user: program.user,
            hidden: program.hidden.clone(),
            visible: program.visible.clone(),
            ..FloorSpec::default()
        };
        let prepared = match self.tree.prepare(&self.launcher, floor, stdin) {
            Ok(prepared) => prepared,
            Err(e) => return Ok(Err(failure::of_launch(&e))),
        };
        self.report = prepared.report().clone();
        // Orders that came meanwhile: a stop before the start is no start.
        yield_now().await;
        while let Ok(order) = self.orders.try_recv() {
            self.obey(order);
        }
        let first = !self.has_run;
        self.ask_to_start(first);
        if let Some(ours) = self.ours.clone() {
            return Ok(Err(ours));
        }
        let main = identity(prepared.pid());
        self.io.record(Record::Spawned {
            pid: main.0,
            starttime: main.1,
            agent,
            sandbox: self.report.clone(),
        })?;
        if first {
            self.note_start(StartEvent::Start, main)?;
        }
        self.has_run = true;
        // Writing may have taken long: the last look comes right before the program runs.
        self.ask_to_start(first);
        if let Some(ours) = self.ours.clone() {
            if first {
                self.note_start(StartEvent::End, main)?;
            }
            return Ok(Err(ours));
        }
        if agent {
            self.started = Instant::now();
            self.watch = Watch::new(self.spec.limits, Duration::ZERO);
        }
        match self.tree.go(prepared) {
            Ok(started) => {
                self.io.watch(started.stdout, started.stderr)?;
                Ok(Ok(()))
            }
            Err(e) => Ok(Err(failure::of_launch(&e))),
        }
    }

    fn note_start(&self, event: StartEvent, main: (i32, u64)) -> Result<(), Error> {
        if let Some(path) = &self.spec.starts {
            let line = StartLine::new(event, &self.spec.fence, main, &self.boot_id, boottime());
            StartsJournal::open(path)?.append(&line)?;
        }
        Ok(())
    }

    /// Follows a process until it ended or must end, then ends what is left of the tree. Says how the process ended
    /// and whether KILL was needed.
    async fn attend(&mut self) -> Result<(Exit, bool), Error> {
        let mut tick = interval(self.watch.interval());
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut exit = None;
        self.settle_freeze();
        // An agent whose turn is over ends by itself, or is ended as after any turn.
        while self.ours.is_none() && exit.is_none() && self.io.over().is_none_or(|t| t < FAREWELL) {
            tokio::select! {
                ended = self.tree.exited() => exit = Some(ended),
                () = self.io.step() => {
                    if self.io.heard() && self.watch.output(self.now()) {
                        self.io.note(Record::FirstOutput);
                    }
                    self.judge_conduct();
                }
                Some(order) = self.orders.recv() => self.obey(order),
                _ = tick.tick() => self.look(),
            }
        }
        let killed = self.end().await?;
        let exit = exit.or_else(|| self.tree.reap()).unwrap_or_default();
        Ok((exit, killed))
    }

    /// Ends the tree, while output is still read and questions are answered.
    async fn end(&mut self) -> Result<bool, Error> {
        if let Some(ours) = self.ours.as_ref().map(|failed| failed.reason)
            && self.io.cancel()
            && may_linger(ours)
        {
            self.linger().await;
        }
        let status = Status {
            ending: true,
            ..self.status()
        };
        let Self {
            tree,
            io,
            orders,
            spec,
            by_grant,
            ..
        } = self;
        let mut stop = spec.stop;
        if *by_grant {
            stop.grace = stop.grace.min(spec.grant_grace);
        }
        let ending = tree.end(stop);
        tokio::pin!(ending);
        let killed = loop {
            tokio::select! {
                killed = &mut ending => break killed,
                () = io.step() => {}
                Some((_, answer)) = orders.recv() => drop(answer.send(status.clone())),
            }
        };
        // A process that escaped everything may hold the pipes for ever: that is no reason to wait for ever.
        _ = timeout(DRAIN, io.drain()).await;
        io.close();
        Ok(killed)
    }

    /// Ends an agent that behaves badly, at once: by itself it might end as a success.
    fn judge_conduct(&mut self) {
        if let Some((reason, why)) = self.io.trouble() {
            let message = failure::trouble(reason, &why, &self.spec.limits);
            self.stop(failure(reason, message));
        }
    }

    /// Gives an agent that was told to stop a moment to say so, so that its session is whole when it is resumed.
    async fn linger(&mut self) {
        let status = Status {
            ending: true,
            ..self.status()
        };
        let until = Instant::now() + self.spec.stop.grace.min(FAREWELL);
        while self.io.over().is_none() && !self.watch.is_frozen() {
            tokio::select! {
                _ = self.tree.exited() => return,
                () = self.io.step() => {}
                Some((_, answer)) = self.orders.recv() => drop(answer.send(status.clone())),
                () = sleep_until(until) => return,
            }
        }
    }

    /// One look at the tree, the watchdogs and the grant.
    fn look(&mut self) {
        let now = self.now();
        if !self.watch.is_frozen() {
            let sample: Sample = self.tree.sample();
            self.watch.sample(now, sample);
        }
        if let Some(expired) = self.watch.expired(now) {
            let failed = failure::of_watchdog(expired, &self.spec.limits, &self.io);
            self.stop(failed);
        }
        self.ask_grant()
    }

    /// Nothing starts without a grant, and the first program of a job only under one that has not ended.
    fn ask_to_start(&mut self, first: bool) {
        self.ask_grant();
        let live = self
            .grant
            .as_ref()
            .is_some_and(|grant| boottime() < grant.deadline);
        if first && !live {
            self.stop(failure(
                FailureReason::DeviceLost,
                "the grant of the control plane ended before the start".into(),
            ));
        }
    }

    fn ask_grant(&mut self) {
        let Some(grant) = &self.grant else {
            return self.stop(failure(
                FailureReason::DeviceLost,
                "the control plane gave no grant for this run".into(),
            ));
        };
        match grant.verdict(self.spec.on_disconnect, boottime(), &self.boot_id) {
            Verdict::Go => self.set_pause(None, Some(false)),
            Verdict::Freeze => self.set_pause(None, Some(true)),
            Verdict::End => {
                self.by_grant |= self.ours.is_none();
                self.stop(failure(
                    FailureReason::DeviceLost,
                    "the control plane was out of reach for longer than the run may go on without it".into(),
                ));
            }
            Verdict::OtherBoot => self.stop(failure(
                FailureReason::DeviceRestarted,
                "the grant was given before the device was restarted".into(),
            )),
        }
    }

    fn obey(&mut self, (command, answer): Order) {
        match command {
            Command::Stop { reason, message } => self.stop(failure(reason, message)),
            Command::Pause => self.set_pause(Some(true), None),
            Command::Resume => self.set_pause(Some(false), None),
            Command::Grant(grant) => {
                // An agentlet that came back may know only an older one: a grant is never cut short.
                if self.grant.as_ref().is_none_or(|held| grant.is_newer_than(held)) {
                    // Enforced from memory; the file is for an agentlet that starts anew.
                    if let Err(e) = self.folder.write_grant(&grant) {
                        tracing::warn!(error = %e, "grant not written");
                    }
                    self.grant = Some(grant);
                }
                self.ask_grant();
            }
            Command::Status => {}
        }
        // Whoever asked may have gone.
        drop(answer.send(self.status()));
    }

    fn status(&self) -> Status {
        Status {
            supervisor: std::process::id(),
            pid: self.tree.main().map(|(pid, _)| pid),
            frozen: self.pause_asked || self.pause_grant,
            ending: self.ours.is_some(),
        }
    }

    fn set_pause(&mut self, asked: Option<bool>, grant: Option<bool>) {
        self.pause_asked = asked.unwrap_or(self.pause_asked);
        self.pause_grant = grant.unwrap_or(self.pause_grant);
        self.settle_freeze();
    }

    /// Makes the tree what it should be, once there is one.
    fn settle_freeze(&mut self) {
        let wanted = self.pause_asked || self.pause_grant;
        if wanted == self.watch.is_frozen() || self.tree.main().is_none() {
            return;
        }
        self.tree.freeze(wanted);
        let now = self.now();
        if wanted {
            self.watch.freeze(now);
            let why = if self.pause_asked {
                "asked"
            } else {
                "the grant ended"
            };
            self.io.note(Record::Paused { why: why.into() });
        } else {
            self.watch.thaw(now);
            self.io.note(Record::Resumed);
        }
    }

    /// The first reason counts.
    fn stop(&mut self, failed: Failure) {
        if self.ours.is_some() {
            return;
        }
        self.io.note(Record::StopRequested {
            reason: failed.reason,
            message: failed.message.clone(),
        });
        self.ours = Some(failed);
    }

    /// Nothing is left: judges, writes the last record.
    async fn finish(
        &mut self,
        failed: Option<Failure>,
        exit: Option<Exit>,
        killed: bool,
    ) -> Result<(), Error> {
        // Also after a failed start: an empty tree ends at once, and its control group with it.
        self.tree.kill().await;
        let worked = self.watch.worked(self.now());
        if let Some(exit) = exit {
            self.io.note(Record::Exited { exit });
        }
        let end = TurnEnd {
            exit: exit.unwrap_or_default(),
            ours: failed.or_else(|| self.ours.clone()),
            now: Some(self.clock.now().into()),
        };
        let turn = self.io.finish(&end);
        if let (true, Some(main)) = (self.has_run, self.tree.main()) {
            self.note_start(StartEvent::End, main)?;
        }
        let mut usage = turn.usage;
        usage.wall_clock = Some(worked.into());
        let outcome = Outcome {
            failure: turn.failure,
            exit,
            summary: turn.summary,
            session_id: turn.session,
            usage,
            processes: self.tree.peak(),
            worked,
            sandbox: self.report.clone(),
            killed,
        };
        self.io.record(Record::Ended {
            outcome: Box::new(outcome),
        })?;
        Ok(())
    }
}

/// Whether there is time for a farewell: not when the work may be somebody else's already.
const fn may_linger(reason: FailureReason) -> bool {
    !matches!(reason, FailureReason::DeviceLost | FailureReason::DeviceRestarted)
}

/// By what the processes of a job are known.
pub(super) fn membership(spec: &JobSpec) -> Membership {
    let program = &spec.program;
    Membership {
        mark: format!("{}-{}", spec.fence.run_uid, spec.fence.attempt),
        uid: program.user.filter(|_| program.user_is_exclusive).map(|u| u.uid),
    }
}

fn group_name(spec: &JobSpec) -> String {
    let mark: String = membership(spec)
        .mark
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '_'
            }
        })
        .collect();
    format!("panda-{mark}")
}

/// Pid and start time of a process that is ours and not waited for.
fn identity(pid: u32) -> (i32, u64) {
    let pid = i32::try_from(pid).unwrap_or(0);
    (pid, stat(pid).map_or(0, |p| p.starttime))
}
