//! One tree of processes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::Duration;

use panda_sandbox::{FloorSpec, LaunchError, Launcher, Prepared, Started, Stdin};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, timeout};

use super::cgroup::Cgroup;
use super::scan::{self, Proc};

/// Name of the environment variable that marks every process of a tree.
const MARK: &str = "PANDA_RUN";

/// How the first process of a tree ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Exit {
    /// Exit code, when it ended by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// Signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Whether a process of the tree was killed because memory ran out.
    pub oom: bool,
}

impl Exit {
    /// Whether it ended by itself with code 0.
    #[must_use]
    pub const fn success(&self) -> bool {
        matches!(self.code, Some(0))
    }
}

/// By what the processes of a tree are known, besides their control group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Membership {
    /// Unique text, in the environment of every process of the tree.
    pub mark: String,
    /// Uid that belongs to this tree alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

/// How a tree is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StopPolicy {
    /// Number of the first signal.
    pub signal: i32,
    /// Who gets it.
    pub to: StopTarget,
    /// Time between it and KILL.
    pub grace: Duration,
}

impl Default for StopPolicy {
    fn default() -> Self {
        Self {
            signal: Signal::TERM.as_raw(),
            to: StopTarget::Group,
            grace: Duration::from_secs(5),
        }
    }
}

/// Who gets the first signal; KILL always goes to everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopTarget {
    /// Every process of the tree.
    #[default]
    Group,
    /// The first process alone.
    Process,
}

/// What a tree is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Processor time so far.
    pub cpu: Duration,
    /// Live processes.
    pub processes: u32,
    /// Whether a process came or went since the last sample.
    pub changed: bool,
}

/// A tree of processes. Not ended by being dropped: see [`end`](Self::end).
#[derive(Debug)]
pub struct ProcessTree {
    membership: Membership,
    cgroup: Option<Cgroup>,
    /// The supervisor holds one tree and adopts every orphan of it.
    subreaper: bool,
    main: Option<Main>,
    exit: Option<Exit>,
    oom_before: u64,
    peak: u32,
    last: BTreeSet<i32>,
    /// Says when a child of this process has ended.
    child_ends: Option<tokio::signal::unix::Signal>,
}

#[derive(Clone, Copy, Debug)]
struct Main {
    pid: Pid,
    starttime: u64,
}

impl ProcessTree {
    /// An empty tree, with a control group of its own where one can be made.
    #[must_use]
    pub fn new(membership: Membership, name: &str) -> Self {
        let cgroup = Cgroup::own().and_then(|own| Cgroup::create(&own, name).ok());
        Self::with(membership, cgroup, false)
    }

    /// As [`new`](Self::new), in a process that does nothing else: its descendants are the tree.
    ///
    /// # Errors
    ///
    /// When the process cannot become a subreaper.
    pub fn of_this_process(membership: Membership, name: &str) -> io::Result<Self> {
        panda_sandbox::become_subreaper()?;
        let mut tree = Self::new(membership, name);
        tree.subreaper = true;
        Ok(tree)
    }

    /// A tree that another process started and left behind. Exit status cannot be had of it.
    #[must_use]
    pub fn left_behind(membership: Membership, cgroup: Option<&Path>, main: Option<(i32, u64)>) -> Self {
        let mut tree = Self::with(membership, cgroup.and_then(Cgroup::open), false);
        tree.main = main.and_then(|(pid, starttime)| {
            let pid = Pid::from_raw(pid)?;
            Some(Main { pid, starttime })
        });
        tree
    }

    fn with(membership: Membership, cgroup: Option<Cgroup>, subreaper: bool) -> Self {
        Self {
            membership,
            oom_before: 0,
            cgroup,
            subreaper,
            main: None,
            exit: None,
            peak: 0,
            last: BTreeSet::new(),
            child_ends: None,
        }
    }

    /// The control group, where there is one.
    #[must_use]
    pub fn cgroup(&self) -> Option<&Path> {
        self.cgroup.as_ref().map(Cgroup::path)
    }

    /// Pid and start time of the first process.
    #[must_use]
    pub fn main(&self) -> Option<(i32, u64)> {
        self.main.map(|m| (m.pid.as_raw_nonzero().get(), m.starttime))
    }

    /// Most processes seen at one time.
    #[must_use]
    pub fn peak(&self) -> u32 {
        self.cgroup
            .as_ref()
            .and_then(Cgroup::peak)
            .unwrap_or(0)
            .max(self.peak)
    }

    /// Makes the floor for a process of this tree; blocks for some milliseconds. See [`Launcher::prepare`].
    ///
    /// # Errors
    ///
    /// When the floor cannot be made.
    pub fn prepare(
        &mut self,
        launcher: &Launcher,
        mut floor: FloorSpec,
        stdin: Stdin,
    ) -> Result<Prepared, LaunchError> {
        floor.cgroup = self.cgroup().map(Path::to_owned);
        floor.die_with_parent = self.subreaper;
        floor.env.retain(|(name, _)| name != MARK);
        floor.env.push((MARK.into(), self.membership.mark.clone()));
        launcher.prepare(&floor, stdin)
    }

    /// Lets a prepared process run; it is the first of the tree from now on.
    ///
    /// # Errors
    ///
    /// When the program cannot be run.
    pub fn go(&mut self, prepared: Prepared) -> Result<Started, LaunchError> {
        let started = prepared.go()?;
        let pid = i32::try_from(started.pid).ok().and_then(Pid::from_raw);
        self.main = pid.map(|pid| Main {
            pid,
            starttime: scan::stat(pid.as_raw_nonzero().get()).map_or(0, |p| p.starttime),
        });
        self.exit = None;
        self.oom_before = self.oom_kills();
        self.peak = self.peak.max(1);
        Ok(started)
    }

    /// Waits for everything that has ended; the exit of the first process, once it has.
    pub fn reap(&mut self) -> Option<Exit> {
        let Some(main) = self.main else {
            return self.exit;
        };
        loop {
            let ended = if self.subreaper {
                rustix::process::wait(WaitOptions::NOHANG)
            } else if self.exit.is_none() {
                rustix::process::waitpid(Some(main.pid), WaitOptions::NOHANG)
            } else {
                break;
            };
            match ended {
                Ok(Some((pid, status))) if pid == main.pid => self.exit = Some(self.exit_of(status)),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        self.exit
    }

    fn exit_of(&self, status: WaitStatus) -> Exit {
        Exit {
            code: status.exit_status(),
            signal: status.terminating_signal(),
            oom: self.oom_kills() > self.oom_before,
        }
    }

    fn oom_kills(&self) -> u64 {
        self.cgroup.as_ref().and_then(Cgroup::oom_kills).unwrap_or(0)
    }

    /// Waits until the first process has ended. Can be dropped and called again.
    pub async fn exited(&mut self) -> Exit {
        if self.child_ends.is_none() {
            self.child_ends = signal(SignalKind::child()).ok();
        }
        loop {
            if let Some(exit) = self.reap() {
                return exit;
            }
            // The signal says when to look; the pause is for a process that cannot have it.
            match &mut self.child_ends {
                Some(ends) => drop(timeout(Duration::from_secs(1), ends.recv()).await),
                None => sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// All live processes of the tree.
    #[must_use]
    pub fn members(&self) -> Vec<Proc> {
        self.find(false)
    }

    fn find(&self, thorough: bool) -> Vec<Proc> {
        let all = scan::all();
        let me = rustix::process::getpid().as_raw_nonzero().get();
        let mut found = BTreeSet::new();
        if self.subreaper {
            found.extend(scan::descendants(&all, me));
        }
        if let Some(main) = self.main {
            let pid = main.pid.as_raw_nonzero().get();
            // A pid is used again only after its process was waited for.
            let same = all.iter().find(|p| p.pid == pid);
            if same.is_none_or(|p| p.starttime == main.starttime) {
                found.extend(scan::descendants(&all, pid));
                found.extend(
                    all.iter()
                        .filter(|p| p.session == pid && p.starttime >= main.starttime)
                        .map(|p| p.pid),
                );
            }
        }
        if let Some(group) = &self.cgroup {
            found.extend(group.pids());
        }
        let search = thorough || self.cgroup.is_none() && !self.subreaper;
        if search && !self.membership.mark.is_empty() {
            let entry = format!("{MARK}={}", self.membership.mark);
            found.extend(
                all.iter()
                    .map(|p| p.pid)
                    .filter(|pid| scan::has_mark(*pid, &entry)),
            );
        }
        if let Some(own) = self.membership.uid {
            found.extend(
                all.iter()
                    .map(|p| p.pid)
                    .filter(|pid| scan::uid(*pid) == Some(own)),
            );
        }
        found.remove(&me);
        let by_pid: BTreeMap<i32, Proc> = all.into_iter().map(|p| (p.pid, p)).collect();
        found
            .into_iter()
            .filter_map(|pid| by_pid.get(&pid).copied().or_else(|| scan::stat(pid)))
            .filter(Proc::is_alive)
            .collect()
    }

    /// What the tree is doing; cheap where there is a control group.
    pub fn sample(&mut self) -> Sample {
        let (cpu, pids): (Duration, BTreeSet<i32>) = match &self.cgroup {
            Some(group) if group.cpu().is_some() => (
                group.cpu().unwrap_or_default(),
                group.pids().into_iter().collect(),
            ),
            _ => {
                let members = self.find(false);
                (
                    members.iter().map(|p| p.cpu).sum(),
                    members.iter().map(|p| p.pid).collect(),
                )
            }
        };
        let processes = u32::try_from(pids.len()).unwrap_or(u32::MAX);
        self.peak = self.peak.max(processes);
        let changed = pids != self.last;
        self.last = pids;
        Sample {
            cpu,
            processes,
            changed,
        }
    }

    /// Stops or continues every process.
    pub fn freeze(&self, frozen: bool) {
        let grouped = self.cgroup.as_ref().is_some_and(|g| g.freeze(frozen).is_ok());
        let signal = if frozen { Signal::STOP } else { Signal::CONT };
        // What is stopped cannot fork, so this ends; a bound all the same, against what cannot be signalled.
        let mut done = BTreeSet::new();
        for _ in 0..50 {
            let members = self.find(!grouped);
            let in_group: BTreeSet<i32> = match &self.cgroup {
                Some(group) if grouped => group.pids().into_iter().collect(),
                _ => BTreeSet::new(),
            };
            let fresh: Vec<_> = members
                .iter()
                .filter(|p| !in_group.contains(&p.pid) && !done.contains(&p.pid))
                .map(|p| p.pid)
                .collect();
            if fresh.is_empty() {
                break;
            }
            for pid in fresh {
                done.insert(pid);
                send(pid, signal);
            }
        }
    }

    /// Sends a signal to every process; says to how many.
    pub fn signal(&self, signal: Signal, to: StopTarget) -> usize {
        match (to, self.main) {
            (StopTarget::Process, Some(main)) if self.exit.is_none() => {
                send(main.pid.as_raw_nonzero().get(), signal);
                1
            }
            _ => {
                let members = self.find(false);
                for process in &members {
                    send(process.pid, signal);
                }
                members.len()
            }
        }
    }

    /// Ends the tree: the first signal, the grace, then KILL until nothing is left. Says whether KILL was needed.
    ///
    /// Returns only when the tree is empty. The control group is removed then.
    pub async fn end(&mut self, policy: StopPolicy) -> bool {
        let signal = Signal::from_named_raw(policy.signal).unwrap_or(Signal::TERM);
        let mut left = self.find(true).len();
        self.peak = self.peak.max(u32::try_from(left).unwrap_or(u32::MAX));
        if left > 0 && signal != Signal::KILL {
            self.signal(signal, policy.to);
            // A frozen tree takes the signal when it thaws.
            self.freeze(false);
            let until = Instant::now() + policy.grace;
            while Instant::now() < until {
                self.reap();
                left = self.find(false).len();
                if left == 0 {
                    left = self.find(true).len();
                    break;
                }
                sleep(Duration::from_millis(20)).await;
            }
        }
        let forced = left > 0;
        self.kill().await;
        forced
    }

    /// Kills everything and waits until nothing is left.
    pub async fn kill(&mut self) {
        let mut pause = Duration::from_millis(2);
        loop {
            self.reap();
            let members = self.find(true);
            if members.is_empty() {
                break;
            }
            let killed = self.cgroup.as_ref().is_some_and(|g| g.kill().is_ok());
            if !killed {
                // What is stopped cannot outrun the next look.
                for process in &members {
                    send(process.pid, Signal::STOP);
                }
            }
            for process in self.find(true) {
                send(process.pid, Signal::KILL);
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
        self.reap();
        self.close_group().await;
    }

    /// The kernel empties a group a moment after its last process was waited for.
    async fn close_group(&mut self) {
        if let Some(group) = &self.cgroup {
            self.peak = self.peak.max(group.peak().unwrap_or(0));
            for _ in 0..50 {
                if group.remove().is_ok() || !group.path().exists() {
                    break;
                }
                sleep(Duration::from_millis(10)).await;
            }
        }
        self.cgroup = None;
    }
}

/// A process that has gone meanwhile needs no signal.
fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        _ = rustix::process::kill_process(pid, signal);
    }
}
