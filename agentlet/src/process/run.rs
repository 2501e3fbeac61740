//! One command on the floor, from start to empty tree, with its output kept within a bound.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use panda_sandbox::{FloorSpec, LaunchError, Launcher, Report, Stdin};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::tree::{Exit, Membership, ProcessTree, StopPolicy};

/// How long output is read after the tree is gone, when a process that escaped still holds the pipe.
pub(crate) const DRAIN: Duration = Duration::from_secs(2);

/// A command to run.
#[derive(Clone, Debug)]
pub struct Request {
    /// Program, environment, user, what is hidden.
    pub floor: FloorSpec,
    /// Its standard input, then the end of it. Empty: the null device.
    pub stdin: Vec<u8>,
    /// How long it may take.
    pub timeout: Duration,
    /// How it is ended.
    pub stop: StopPolicy,
    /// Most bytes kept of each of its outputs: the first half and the newest half.
    pub max_output: usize,
    /// Unique name: marks its processes, names its control group.
    pub name: String,
}

/// What became of it.
#[derive(Clone, Debug)]
pub struct Finished {
    /// How it ended.
    pub exit: Exit,
    /// Whether it ran out of time, or was cancelled.
    pub cut_short: bool,
    /// Standard output, within the bound.
    pub stdout: Vec<u8>,
    /// Standard error, within the bound.
    pub stderr: Vec<u8>,
    /// Bytes of both outputs that were not kept.
    pub dropped: u64,
    /// What was enforced.
    pub report: Report,
}

/// Why it did not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The floor or the program.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Pipes or threads.
    #[error("cannot run a command")]
    Io(#[from] io::Error),
    /// The thread that starts processes is gone.
    #[error("cannot run a command")]
    Join(#[from] JoinError),
}

impl RunError {
    /// Whether the same request may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        !matches!(self, Self::Launch(LaunchError::Floor(_)))
    }
}

/// Runs a command on the floor and returns when nothing of it is left.
///
/// # Errors
///
/// When it could not be started.
pub async fn run(
    launcher: &Launcher,
    request: Request,
    cancel: &CancellationToken,
) -> Result<Finished, RunError> {
    let membership = Membership {
        mark: request.name.clone(),
        uid: None,
    };
    let (stdin, feed) = if request.stdin.is_empty() {
        (Stdin::Null, None)
    } else {
        let (read, write) = io::pipe()?;
        (Stdin::From(read.into()), Some(OwnedFd::from(write)))
    };
    let (launcher, floor, name) = (launcher.clone(), request.floor, request.name);
    let (mut tree, started) = tokio::task::spawn_blocking(move || {
        let mut tree = ProcessTree::new(membership, &format!("panda-{name}"));
        let started = tree.prepare(&launcher, floor, stdin).and_then(|prepared| {
            let report = prepared.report().clone();
            Ok((report, tree.go(prepared)?))
        });
        (tree, started)
    })
    .await?;
    let (report, started) = match started {
        Ok(started) => started,
        Err(e) => {
            tree.kill().await;
            return Err(e.into());
        }
    };

    let kept = [Kept::new(request.max_output), Kept::new(request.max_output)];
    let mut workers = JoinSet::new();
    for (fd, kept) in [started.stdout, started.stderr].into_iter().zip(&kept) {
        workers.spawn(read(pipe::Receiver::from_owned_fd(fd)?, kept.clone()));
    }
    let mut feeder = JoinSet::new();
    if let Some(fd) = feed {
        feeder.spawn(write(pipe::Sender::from_owned_fd(fd)?, request.stdin));
    }
    let finished = tokio::select! {
        exit = tree.exited() => Some(exit),
        () = tokio::time::sleep(request.timeout) => None,
        () = cancel.cancelled() => None,
    };
    tree.end(request.stop).await;
    // Killed by us, its status is still there to be had.
    let exit = finished.or_else(|| tree.reap()).unwrap_or_default();
    feeder.shutdown().await;
    _ = timeout(DRAIN, async { while workers.join_next().await.is_some() {} }).await;
    workers.shutdown().await;
    let [stdout, stderr] = kept.map(|k| k.take());
    Ok(Finished {
        exit,
        cut_short: finished.is_none(),
        stdout: stdout.0,
        stderr: stderr.0,
        dropped: stdout.1 + stderr.1,
        report,
    })
}

/// The first and the newest bytes of an output.
#[derive(Clone)]
struct Kept(Arc<Mutex<Output>>);

struct Output {
    limit: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    dropped: u64,
}

impl Kept {
    fn new(limit: usize) -> Self {
        Self(Arc::new(Mutex::new(Output {
            limit,
            head: Vec::new(),
            tail: VecDeque::new(),
            dropped: 0,
        })))
    }

    fn push(&self, mut bytes: &[u8]) {
        let mut output = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = output.limit / 2;
        let room = first.saturating_sub(output.head.len()).min(bytes.len());
        output.head.extend_from_slice(&bytes[..room]);
        bytes = &bytes[room..];
        output.tail.extend(bytes);
        let excess = output.tail.len().saturating_sub(output.limit - first);
        output.tail.drain(..excess);
        output.dropped += excess as u64;
    }

    fn take(&self) -> (Vec<u8>, u64) {
        let mut output = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = std::mem::take(&mut output.head);
        bytes.extend(std::mem::take(&mut output.tail));
        (bytes, output.dropped)
    }
}

async fn read(mut pipe: pipe::Receiver, kept: Kept) {
    let mut buffer = vec![0_u8; 16 << 10];
    while let Ok(n @ 1..) = pipe.read(&mut buffer).await {
        kept.push(&buffer[..n]);
    }
}

async fn write(mut pipe: pipe::Sender, bytes: Vec<u8>) {
    // A program that does not read its input is no error of ours.
    drop(pipe.write_all(&bytes).await);
}
