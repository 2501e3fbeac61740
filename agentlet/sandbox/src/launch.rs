//! The caller's side: start the helper, judge its report, let it go.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::{Deserialize, Serialize};

use crate::spec::{FloorError, FloorSpec, Report};

/// Longest request, and longest answer, in bytes. A prompt may stand in an argument (256 KiB).
pub(crate) const MAX_MESSAGE: u64 = 8 << 20;

/// What the helper says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Answer {
    /// The floor is made; waits for [`GO`].
    Ready(Report),
    /// It is not, or the program cannot be run.
    Failed(FloorError),
}

/// What the caller says to a helper that is ready.
pub(crate) const GO: &[u8] = b"go\n";

/// Why nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The floor or the program: see the reason.
    #[error(transparent)]
    Floor(#[from] FloorError),
    /// The helper did not answer as it should.
    #[error("the helper stage {program:?} failed")]
    Helper {
        /// Program of the helper.
        program: OsString,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
}

/// What the program's standard input is.
#[derive(Debug)]
pub enum Stdin {
    /// The null device.
    Null,
    /// This descriptor, usually the read end of a pipe.
    From(OwnedFd),
}

/// Starts programs on the floor through the helper stage.
#[derive(Clone, Debug)]
pub struct Launcher {
    helper: Vec<OsString>,
    timeout: Duration,
}

impl Launcher {
    /// `helper`: program and arguments whose `main` calls [`exec_floor`](crate::exec_floor).
    #[must_use]
    pub fn new(helper: Vec<OsString>) -> Self {
        Self {
            helper,
            timeout: Duration::from_secs(30),
        }
    }

    /// Starts the helper and waits until the floor is made; the program does not run yet.
    ///
    /// Blocks for some milliseconds, on a very busy machine longer.
    ///
    /// # Errors
    ///
    /// When the floor cannot be made. Nothing is left running then.
    pub fn prepare(&self, spec: &FloorSpec, stdin: Stdin) -> Result<Prepared, LaunchError> {
        let program = self.helper.first().cloned().unwrap_or_default();
        let failed = |source| LaunchError::Helper {
            program: program.clone(),
            source,
        };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        ours.set_read_timeout(Some(self.timeout)).map_err(failed)?;
        ours.set_write_timeout(Some(self.timeout)).map_err(failed)?;
        let mut child = Command::new(&program)
            .args(self.helper.iter().skip(1))
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let mut waiting = Waiting {
            child: Some(child),
            control: BufReader::new(ours),
        };
        let report = (|| {
            send_request(waiting.control.get_ref(), spec, stdin)?;
            waiting.answer()
        })()
        .map_err(failed)?;
        let report = match report {
            Some(Answer::Ready(report)) => report,
            Some(Answer::Failed(reason)) => return Err(reason.into()),
            None => {
                return Err(failed(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "it ended without an answer; is it a program that makes the floor?",
                )));
            }
        };
        let (Some(stdout), Some(stderr)) = (stdout, stderr) else {
            return Err(failed(io::Error::other("no pipes")));
        };
        Ok(Prepared {
            waiting,
            program,
            report,
            stdout,
            stderr,
        })
    }
}

/// A program on its floor, not yet running. Dropped, it never runs.
#[derive(Debug)]
pub struct Prepared {
    waiting: Waiting,
    program: OsString,
    report: Report,
    stdout: ChildStdout,
    stderr: ChildStderr,
}

/// A running program. The caller waits for the process id.
#[derive(Debug)]
pub struct Started {
    /// Process id; also the id of its process group and session.
    pub pid: u32,
    /// Its standard output.
    pub stdout: OwnedFd,
    /// Its standard error.
    pub stderr: OwnedFd,
}

impl Prepared {
    /// The process id that the program will have.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.waiting.child.as_ref().map_or(0, Child::id)
    }

    /// What was really enforced.
    #[must_use]
    pub const fn report(&self) -> &Report {
        &self.report
    }

    /// Lets the program run.
    ///
    /// # Errors
    ///
    /// When it cannot be run. Nothing is left running then.
    pub fn go(mut self) -> Result<Started, LaunchError> {
        let pid = self.pid();
        let answer = (|| {
            self.waiting.control.get_mut().write_all(GO)?;
            self.waiting.answer()
        })()
        .map_err(|source| LaunchError::Helper {
            program: self.program.clone(),
            source,
        })?;
        match answer {
            // The socket closes by exec: the program runs.
            None => {
                self.waiting.child = None;
                Ok(Started {
                    pid,
                    stdout: self.stdout.into(),
                    stderr: self.stderr.into(),
                })
            }
            Some(Answer::Failed(reason)) => Err(reason.into()),
            Some(Answer::Ready(_)) => Err(LaunchError::Helper {
                program: self.program.clone(),
                source: io::Error::new(io::ErrorKind::InvalidData, "answered twice"),
            }),
        }
    }
}

/// The helper before exec. Ends with its owner.
#[derive(Debug)]
struct Waiting {
    child: Option<Child>,
    control: BufReader<UnixStream>,
}

impl Waiting {
    fn answer(&mut self) -> io::Result<Option<Answer>> {
        let mut line = String::new();
        let mut limited = io::Read::take(&mut self.control, MAX_MESSAGE);
        if limited.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&line)?))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Already dead is as good; it is reaped in any case.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn send_request(control: &UnixStream, spec: &FloorSpec, stdin: Stdin) -> io::Result<()> {
    let body = serde_json::to_vec(spec)?;
    let size = u32::try_from(body.len())
        .ok()
        .filter(|n| u64::from(*n) <= MAX_MESSAGE)
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "arguments and environment are too long",
            )
        })?
        .to_le_bytes();
    match stdin {
        Stdin::Null => send_all(control, &size, None)?,
        Stdin::From(fd) => send_all(control, &size, Some(&fd))?,
    }
    (&*control).write_all(&body)
}

/// The first bytes carry the descriptor that becomes standard input.
fn send_all(control: &UnixStream, bytes: &[u8; 4], fd: Option<&OwnedFd>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = fd.map(|fd| [fd.as_fd()]);
    if let Some(fds) = &fds {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    // Four bytes into an empty socket go in one piece.
    let sent = sendmsg(
        control,
        &[IoSlice::new(bytes)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    if sent == bytes.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// Makes a floor and throws it away: says what this machine can do, by trying.
///
/// `hide` is a folder or file that must exist; the program is never run.
///
/// # Errors
///
/// As [`Launcher::prepare`].
pub fn probe(launcher: &Launcher, user: Option<crate::User>, hide: &Path) -> Result<Report, LaunchError> {
    let spec = FloorSpec {
        argv: vec!["/bin/true".into()],
        cwd: "/".into(),
        user,
        hidden: vec![hide.into()],
        ..FloorSpec::default()
    };
    Ok(launcher.prepare(&spec, Stdin::Null)?.report().clone())
}
