//! The agentlet's side of a supervisor: spawn, adopt, command, follow.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;
use std::time::Duration;

use futures::Stream;
use panda_api::FailureReason;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};

use super::control::{Ask, Command, Progress, Reply, Request, Status, read_line, write_line};
use super::folder::{Error as FolderError, RunFolder};
use super::grant::Grant;
use super::journal::{Entry, Outcome, Reader, Record};
use super::secrets::Handover;
use crate::process::stat;

mod adopt;

/// How long a supervisor may take until it listens, and beyond its grace to end.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long one that listens may take to answer: it does nothing else but look and answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Why a supervisor could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The run folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The supervisor program cannot be started.
    #[error("cannot start the supervisor {program:?}")]
    Spawn {
        /// The program.
        program: OsString,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// Nobody answers: it has ended, or was killed. [`Handle::adopt`] tells which.
    #[error("the supervisor does not answer")]
    Gone,
    /// It answers, and refuses.
    #[error("the supervisor refused: {0}")]
    Refused(String),
    /// The journal.
    #[error("supervisor")]
    Io(#[from] io::Error),
}

impl Error {
    /// Whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Folder(e) => e.is_retryable(),
            Self::Spawn { .. } | Self::Io(_) => true,
            Self::Gone | Self::Refused(_) => false,
        }
    }
}

/// What a run folder turned out to hold.
#[derive(Debug)]
pub enum Adopted {
    /// A supervisor is at work.
    Running(Handle),
    /// The job ended and its supervisor said so.
    Ended(Box<Outcome>),
    /// The job was never started, and nobody is about to; see [`RunFolder::forbid`] before giving it up.
    NeverStarted,
    /// The job was started and its supervisor is gone. What was left has been killed and the end written down.
    Crashed(Box<Outcome>),
}

/// A supervisor, wherever it was started. Dropping it changes nothing.
#[derive(Clone, Debug)]
pub struct Handle {
    folder: RunFolder,
    /// Pid and start time, when this process started it.
    started: Option<(i32, u64)>,
}

impl Handle {
    /// Starts a supervisor for a folder: detached, with an empty environment and nothing inherited.
    ///
    /// `exe`: program and arguments up to the hidden subcommand; the folder is added. Call it within a tokio runtime,
    /// which waits for the process.
    ///
    /// # Errors
    ///
    /// When the program cannot be started.
    pub fn spawn(exe: &[OsString], folder: &RunFolder) -> Result<Self, Error> {
        Self::spawn_with(exe, folder, None)
    }

    /// The same, for a job that uses Secrets.
    ///
    /// # Errors
    ///
    /// When the program cannot be started.
    pub fn spawn_with(
        exe: &[OsString],
        folder: &RunFolder,
        handover: Option<&Handover>,
    ) -> Result<Self, Error> {
        let program = exe.first().cloned().unwrap_or_default();
        let failed = |source| Error::Spawn {
            program: program.clone(),
            source,
        };
        let log = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(folder.supervisor_log())
            .map_err(failed)?;
        let stdin = match handover {
            Some(handover) => Stdio::from(handover.send().map_err(failed)?),
            None => Stdio::null(),
        };
        let child = tokio::process::Command::new(&program)
            .args(exe.iter().skip(1))
            .arg(folder.path())
            .env_clear()
            .current_dir("/")
            .stdin(stdin)
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(false)
            .spawn()
            .map_err(failed)?;
        let started = child
            .id()
            .and_then(|pid| i32::try_from(pid).ok())
            .map(|pid| (pid, stat(pid).map_or(0, |p| p.starttime)));
        Ok(Self {
            folder: folder.clone(),
            started,
        })
    }

    /// Finds out how a folder stands, and cleans up behind a supervisor that was killed.
    ///
    /// # Errors
    ///
    /// When the folder is damaged. Killing what was left may take long; it returns when nothing is left.
    pub async fn adopt(folder: &RunFolder) -> Result<Adopted, Error> {
        adopt::adopt(folder).await
    }

    /// The run folder.
    #[must_use]
    pub const fn folder(&self) -> &RunFolder {
        &self.folder
    }

    /// Ends the tree: the attempt then failed for `reason`. Returns when the order is taken, not when it is done.
    ///
    /// # Errors
    ///
    /// When nobody answers.
    pub async fn stop(&self, reason: FailureReason, message: &str) -> Result<Status, Error> {
        let message = message.chars().take(2000).collect();
        self.command(Command::Stop { reason, message }).await
    }

    /// How long it may take after the end of the grant until nothing is left of the run, without anybody's order.
    #[must_use]
    pub fn patience_at_grant_end(&self) -> Duration {
        let spec = self.folder.spec();
        let grace = spec.map_or(Duration::ZERO, |spec| spec.stop.grace.min(spec.grant_grace));
        // It looks once a second at least.
        grace.saturating_add(Duration::from_secs(2))
    }

    /// How long it may take after an order to stop until nothing is left of the run.
    #[must_use]
    pub fn patience(&self) -> Duration {
        // A folder that cannot be read says nothing of its grace.
        let grace = self.folder.spec().map_or(Duration::ZERO, |spec| spec.stop.grace);
        grace.saturating_add(PATIENCE)
    }

    /// Kills the supervisor itself, because it does not do what it was told (it may be frozen). What it leaves of the
    /// run is for [`Handle::adopt`].
    ///
    /// # Errors
    ///
    /// When there is none any more.
    pub async fn overrule(&self) -> Result<(), Error> {
        let ours = self
            .started
            .filter(|(pid, starttime)| stat(*pid).is_some_and(|p| p.starttime == *starttime))
            .map(|(pid, _)| pid);
        let pid = match ours {
            Some(pid) => pid,
            None => {
                // The kernel knows who listens, and tells it even when that process is frozen.
                let (_folder, path) = self.folder.socket()?;
                let stream = UnixStream::connect(&path).await.map_err(|_| Error::Gone)?;
                stream.peer_cred()?.pid().ok_or(Error::Gone)?
            }
        };
        let pid = Pid::from_raw(pid).ok_or(Error::Gone)?;
        kill_process(pid, Signal::KILL).map_err(|_| Error::Gone)
    }

    /// Freezes the tree.
    ///
    /// # Errors
    ///
    /// When nobody answers.
    pub async fn pause(&self) -> Result<Status, Error> {
        self.command(Command::Pause).await
    }

    /// Lets a frozen tree go on.
    ///
    /// # Errors
    ///
    /// When nobody answers.
    pub async fn resume(&self) -> Result<Status, Error> {
        self.command(Command::Resume).await
    }

    /// Hands over a renewed grant.
    ///
    /// # Errors
    ///
    /// When nobody answers.
    pub async fn grant(&self, grant: Grant) -> Result<Status, Error> {
        self.command(Command::Grant(grant)).await
    }

    /// Asks how the run stands.
    ///
    /// # Errors
    ///
    /// When nobody answers.
    pub async fn status(&self) -> Result<Status, Error> {
        self.command(Command::Status).await
    }

    async fn command(&self, command: Command) -> Result<Status, Error> {
        let mut connection = self.connect(Ask::Do(command)).await?;
        let reply = timeout(ANSWER, read_line::<Reply>(&mut connection)).await;
        match reply {
            Ok(Ok(Some(Reply::Ok(status)))) => Ok(status),
            Ok(Ok(Some(Reply::Refused(why)))) => Err(Error::Refused(why)),
            Ok(Ok(Some(Reply::Progress(_)) | None) | Err(_)) | Err(_) => Err(Error::Gone),
        }
    }

    /// Connects, waiting for a supervisor that is only just starting.
    async fn connect(&self, ask: Ask) -> Result<BufReader<UnixStream>, Error> {
        let (_folder, path) = self.folder.socket()?;
        let until = Instant::now() + PATIENCE;
        let mut stream = loop {
            match UnixStream::connect(&path).await {
                Ok(stream) => break stream,
                Err(_) if self.may_be_starting() && Instant::now() < until => {
                    sleep(Duration::from_millis(5)).await
                }
                Err(_) => return Err(Error::Gone),
            }
        };
        let request = Request {
            key: self.folder.key()?,
            ask,
        };
        // A supervisor that ends right now.
        write_line(&mut stream, &request).await.map_err(|_| Error::Gone)?;
        Ok(BufReader::new(stream))
    }

    /// Whether somebody may yet answer: our own child is alive, or the lock of the folder is held.
    fn may_be_starting(&self) -> bool {
        match self.started {
            Some((pid, starttime)) => stat(pid).is_some_and(|p| p.starttime == starttime && p.is_alive()),
            None => matches!(self.folder.lock(), Err(FolderError::Locked { .. })),
        }
    }

    /// How far the files of the run have grown, whenever they do; ends with the supervisor.
    ///
    /// # Errors
    ///
    /// When nobody answers.
    pub async fn follow(&self) -> Result<Following, Error> {
        Ok(Following {
            connection: self.connect(Ask::Follow).await?,
        })
    }

    /// The journal from entry `from_seq` on, old and coming.
    #[must_use]
    pub fn tail(&self, from_seq: u64) -> Tail {
        Tail {
            handle: self.clone(),
            reader: Reader::open(&self.folder.journal()),
            from_seq,
            ready: VecDeque::new(),
            following: None,
            over: false,
        }
    }
}

/// Notes of progress.
#[derive(Debug)]
pub struct Following {
    connection: BufReader<UnixStream>,
}

impl Following {
    /// The next note; none when the supervisor has ended. Not to be dropped while waiting and then used again.
    pub async fn next(&mut self) -> Option<Progress> {
        match read_line::<Reply>(&mut self.connection).await {
            Ok(Some(Reply::Progress(progress))) => Some(progress),
            Ok(Some(Reply::Ok(_) | Reply::Refused(_)) | None) | Err(_) => None,
        }
    }
}

/// The journal, as it grows.
#[derive(Debug)]
pub struct Tail {
    handle: Handle,
    reader: Reader,
    from_seq: u64,
    ready: VecDeque<Entry>,
    following: Option<Following>,
    over: bool,
}

impl Tail {
    /// The next entry; can be dropped while waiting and called again. None after [`Record::Ended`], or when the supervisor is gone without one: then
    /// [`Handle::adopt`] says what became of the run.
    ///
    /// # Errors
    ///
    /// When the journal cannot be read.
    pub async fn next(&mut self) -> io::Result<Option<Entry>> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                self.over |= matches!(entry.record, Record::Ended { .. });
                return Ok(Some(entry));
            }
            if self.over {
                return Ok(None);
            }
            let gone = match self.following.take() {
                Some(mut following) => match following.next().await {
                    Some(_) => {
                        self.following = Some(following);
                        false
                    }
                    None => true,
                },
                None => match self.handle.follow().await {
                    Ok(following) => {
                        self.following = Some(following);
                        false
                    }
                    Err(_) => true,
                },
            };
            // After the supervisor's end nothing more is written, so this look is the last one needed.
            self.read()?;
            self.over |= gone && self.ready.is_empty();
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let from = self.from_seq;
        self.ready
            .extend(self.reader.read()?.into_iter().filter(|e| e.seq >= from));
        Ok(())
    }

    /// As a stream.
    pub fn into_stream(self) -> impl Stream<Item = io::Result<Entry>> + Send {
        futures::stream::try_unfold(self, async |mut tail| {
            Ok(tail.next().await?.map(|entry| (entry, tail)))
        })
    }
}
