//! Calls under way: what they say, and how those that are given up end.

use std::fs::File;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Child;
use tokio::sync::watch;

use super::{Error, Git};

/// How much of what git says about a failure is kept.
const STDERR_TAIL: usize = 4096;

/// A call under way. One that is given up is told to end, so that git removes its lock files, and killed if it does not;
/// [`Git::settle`] waits for that.
pub(super) struct Running {
    pub(super) child: Option<Child>,
    abandoned: Abandoned,
    pub(super) ended: bool,
}

impl Running {
    pub(super) fn new(child: Child, git: &Git) -> Self {
        Self {
            child: Some(child),
            abandoned: git.abandoned.clone(),
            ended: false,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take().filter(|_| !self.ended) else {
            return;
        };
        // Not waited for yet, so the number is still this process's.
        let Some(group) = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw)
        else {
            return;
        };
        // A group that is gone already is as good as told.
        let tell = move |signal| {
            let _gone = rustix::process::kill_process_group(group, signal);
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return tell(Signal::KILL);
        };
        tell(Signal::TERM);
        let entry = self.abandoned.enter();
        runtime.spawn(async move {
            if tokio::time::timeout(GRACE, child.wait()).await.is_err() {
                tell(Signal::KILL);
                drop(child.wait().await);
            }
            drop(entry);
        });
    }
}

/// How long a call that was given up may take to end.
const GRACE: Duration = Duration::from_secs(5);

/// Counts calls that were given up and have not ended yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Abandoned(watch::Sender<usize>);

impl Abandoned {
    fn enter(&self) -> Entry {
        self.0.send_modify(|count| *count += 1);
        Entry(self.clone())
    }

    pub(super) async fn none(&self) {
        // The sender lives as long as `self`, so this ends only by the count.
        drop(self.0.subscribe().wait_for(|count| *count == 0).await);
    }
}

/// One such call.
struct Entry(Abandoned);

impl Drop for Entry {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

pub(super) async fn to_memory(
    mut from: impl AsyncRead + Unpin,
    limit: u64,
    command: &str,
) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    let mut limited = (&mut from).take(limit.saturating_add(1));
    limited.read_to_end(&mut out).await.map_err(|source| Error::Io {
        command: command.to_owned(),
        source,
    })?;
    if out.len() as u64 > limit {
        return Err(Error::TooMuch {
            command: command.to_owned(),
            limit,
        });
    }
    Ok(out)
}

pub(super) async fn to_file(
    mut from: impl AsyncRead + Unpin,
    file: File,
    limit: u64,
    command: &str,
) -> Result<(), Error> {
    let io_error = |source| Error::Io {
        command: command.to_owned(),
        source,
    };
    let mut file = tokio::fs::File::from_std(file);
    let mut limited = (&mut from).take(limit.saturating_add(1));
    let written = tokio::io::copy(&mut limited, &mut file).await.map_err(io_error)?;
    if written > limit {
        return Err(Error::TooMuch {
            command: command.to_owned(),
            limit,
        });
    }
    file.flush().await.map_err(io_error)?;
    file.sync_all().await.map_err(io_error)
}

/// The end of what git said, without control characters.
pub(super) async fn tail(mut from: impl AsyncRead + Unpin) -> std::io::Result<String> {
    let mut kept: Vec<u8> = Vec::new();
    let mut buffer = [0u8; 4096];
    loop {
        let n = from.read(&mut buffer).await?;
        if n == 0 {
            break;
        }
        kept.extend_from_slice(&buffer[..n]);
        if kept.len() > STDERR_TAIL {
            kept.drain(..kept.len() - STDERR_TAIL);
        }
    }
    Ok(String::from_utf8_lossy(&kept)
        .trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect())
}
