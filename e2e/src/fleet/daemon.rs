//! One process of a fleet: started, killed, frozen and started again, with one log over all its lives.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::Signal;

use crate::processes;

/// See the module.
#[derive(Debug)]
pub struct Daemon {
    argv: Vec<String>,
    env: Vec<(String, String)>,
    folder: PathBuf,
    log: PathBuf,
    child: Mutex<Option<Child>>,
}

impl Daemon {
    /// A process that is not started yet. `folder` is its working directory.
    #[must_use]
    pub fn new(argv: Vec<String>, env: Vec<(String, String)>, folder: &Path, name: &str) -> Self {
        Self {
            argv,
            env,
            folder: folder.to_owned(),
            log: folder.join(format!("{name}.log")),
            child: Mutex::default(),
        }
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts it; one that runs is left alone.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self) -> anyhow::Result<()> {
        let mut running = self.child();
        if running
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
        {
            return Ok(());
        }
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&self.log)?;
        let (program, arguments) = self.argv.split_first().context("a program")?;
        let child = Command::new(program)
            .args(arguments)
            .env_clear()
            .envs(self.env.iter().cloned())
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {program}"))?;
        *running = Some(child);
        Ok(())
    }

    /// Starts it again if it gave up by itself, as whoever looks after services does. One that was killed stays dead.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn revive(&self) -> anyhow::Result<()> {
        if self.ended().is_some() {
            self.start()?;
        }
        Ok(())
    }

    /// Its process, while there is one.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            processes::signal(pid, signal);
        }
    }

    /// Kills it with -9, frozen or not, and waits until it is gone.
    pub fn kill(&self) {
        let child = self.child().take();
        if let Some(mut child) = child {
            let _: Result<_, _> = child.kill();
            let _: Result<_, _> = child.wait();
        }
    }

    /// Whether it ended by itself, and how.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.child()
            .as_mut()
            .and_then(|child| child.try_wait().ok())
            .flatten()
    }

    /// Asks it to stop and waits until it has.
    ///
    /// # Errors
    /// When it does not within `patience`.
    pub async fn stop(&self, patience: Duration) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::TERM);
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.ended() {
                *self.child() = None;
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("{} does not stop:\n{}", self.argv[0], self.tail());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What it wrote, over all its lives.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The end of that.
    #[must_use]
    pub fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}
