//! Commands and answers on the socket of a run: one JSON object a line, within a bound.

use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::time::Duration;

use panda_api::FailureReason;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::folder::RunFolder;
use super::grant::Grant;

/// Longest line either side sends.
pub(super) const MAX_LINE: u64 = 64 << 10;

/// Most connections at a time; further ones wait in the socket's queue.
const MAX_CONNECTIONS: usize = 16;

/// How long a peer may take to say something.
const PATIENCE: Duration = Duration::from_secs(10);

/// Shortest time between two notes of progress on one connection.
const PACE: Duration = Duration::from_millis(20);

/// What is wanted of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "command")]
pub enum Command {
    /// End the tree; the attempt then failed for this reason.
    Stop {
        /// For example `Cancelled`.
        reason: FailureReason,
        /// Sentence for people.
        message: String,
    },
    /// Freeze the tree.
    Pause,
    /// Let it go on.
    Resume,
    /// A renewed grant.
    Grant(Grant),
    /// Nothing: only the answer is wanted.
    Status,
}

/// How a run stands: the answer to every command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// Process id of the supervisor.
    pub supervisor: u32,
    /// Process id of the agent, once it runs.
    pub pid: Option<i32>,
    /// Whether the tree is frozen.
    pub frozen: bool,
    /// Whether the tree is being ended.
    pub ending: bool,
}

/// How far the files of a run have grown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    /// Last entry of the journal.
    pub seq: u64,
    /// Bytes of the log.
    pub log: u64,
    /// Bytes of events.
    pub events: u64,
}

/// A line to the supervisor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request {
    /// See [`RunFolder::key`].
    pub(super) key: String,
    pub(super) ask: Ask,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Ask {
    Do(Command),
    /// Notes of progress from now on, until the supervisor ends.
    Follow,
}

/// A line from the supervisor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Reply {
    Ok(Status),
    Progress(Progress),
    Refused(String),
}

/// A command on its way to the main loop.
pub(super) type Order = (Command, oneshot::Sender<Status>);

/// Takes connections for as long as it is polled.
pub(super) async fn serve(
    listener: UnixListener,
    key: String,
    orders: mpsc::Sender<Order>,
    progress: watch::Receiver<Progress>,
) {
    let mut connections = JoinSet::new();
    loop {
        if connections.len() >= MAX_CONNECTIONS {
            connections.join_next().await;
        }
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let (key, orders, progress) = (key.clone(), orders.clone(), progress.clone());
                    connections.spawn(async move {
                        // A peer that breaks off is its own affair.
                        drop(attend(stream, &key, &orders, progress).await);
                    });
                }
                // Out of descriptors: they come back.
                Err(_) => sleep(PATIENCE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Binds the socket in the folder; one left by a supervisor that is gone is replaced.
pub(super) fn bind(folder: &RunFolder) -> io::Result<UnixListener> {
    let (_handle, path) = folder.socket()?;
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = StdListener::bind(&path)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

async fn attend(
    mut stream: UnixStream,
    key: &str,
    orders: &mpsc::Sender<Order>,
    mut progress: watch::Receiver<Progress>,
) -> io::Result<()> {
    let (read, mut write) = stream.split();
    let mut lines = BufReader::new(read);
    loop {
        let Some(request) = timeout(PATIENCE, read_line::<Request>(&mut lines)).await?? else {
            return Ok(());
        };
        if !same(request.key.as_bytes(), key.as_bytes()) {
            return write_line(&mut write, &Reply::Refused("wrong key".into())).await;
        }
        match request.ask {
            Ask::Do(command) => {
                let (answer, answered) = oneshot::channel();
                let reply = match orders.send((command, answer)).await {
                    Ok(()) => answered.await.map_or_else(|_| ended(), Reply::Ok),
                    Err(_) => ended(),
                };
                write_line(&mut write, &reply).await?;
            }
            Ask::Follow => loop {
                let now = *progress.borrow_and_update();
                timeout(PATIENCE, write_line(&mut write, &Reply::Progress(now))).await??;
                sleep(PACE).await;
                if progress.changed().await.is_err() {
                    return Ok(());
                }
            },
        }
    }
}

fn ended() -> Reply {
    Reply::Refused("the run has ended".into())
}

/// In constant time, out of habit.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
}

/// One line of at most [`MAX_LINE`] bytes; none at the end.
pub(super) async fn read_line<T: serde::de::DeserializeOwned>(
    from: &mut (impl AsyncBufReadExt + Unpin),
) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    if from.take(MAX_LINE).read_until(b'\n', &mut line).await? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

pub(super) async fn write_line(
    to: &mut (impl AsyncWriteExt + Unpin),
    value: &impl Serialize,
) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line).await
}
