//! The only place that starts git.
//!
//! Every call is made with nothing inherited: an empty environment, no system or global configuration, and the settings
//! that could run a program (hooks, fsmonitor, filters, external diff, signing, ssh, credential helpers) or open a
//! connection overridden on the command line, which outranks any repository's own configuration. No transport is used at
//! all: objects move between repositories as packs through pipes of ours ([`transfer`]). A call has a deadline, a bound on
//! what it may print, and, for a repository of somebody else, the uid of that person.

mod call;
pub mod mirror;
mod running;
pub mod source;
pub(crate) mod transfer;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use crate::disk;

pub use call::Call;
pub(crate) use call::{IDENTITY_EMAIL, IDENTITY_NAME, Sink};

/// The user and group that something runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Why git could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program could not be started.
    #[error("git could not be started from {}; install git 2.39 or newer, or set its path", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// It took too long.
    #[error("`git {command}` did not end within {} s and was killed", after.as_secs())]
    Timeout {
        /// Subcommand.
        command: String,
        /// The deadline.
        after: Duration,
    },
    /// It failed.
    #[error("`git {command}` failed ({status}): {stderr}")]
    Failed {
        /// Subcommand.
        command: String,
        /// Exit status.
        status: String,
        /// End of what it said.
        stderr: String,
    },
    /// It printed more than allowed.
    #[error("`git {command}` printed more than {limit} bytes")]
    TooMuch {
        /// Subcommand.
        command: String,
        /// The bound.
        limit: u64,
    },
    /// It printed something that cannot be understood.
    #[error("`git {command}` printed something unexpected: {detail}")]
    Unexpected {
        /// Subcommand.
        command: String,
        /// What.
        detail: String,
    },
    /// Talking to it failed.
    #[error("talking to `git {command}` failed")]
    Io {
        /// Subcommand.
        command: String,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// Whether the disk was full.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::Failed { stderr, .. } => disk::FULL.iter().any(|words| stderr.contains(words)),
            Self::Io { source, .. } => disk::is_full(source),
            _ => false,
        }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::Io { .. }) || self.is_disk_full()
    }
}

/// A git program with its bounds.
#[derive(Clone, Debug)]
pub struct Git {
    program: PathBuf,
    timeout: Duration,
    max_output: u64,
    abandoned: running::Abandoned,
}

impl Git {
    /// `program` is an absolute path; `timeout` bounds one call, `max_output` what one call may print into memory.
    #[must_use]
    pub fn new(program: PathBuf, timeout: Duration, max_output: u64) -> Self {
        Self {
            program,
            timeout,
            max_output,
            abandoned: running::Abandoned::default(),
        }
    }

    /// Waits until every call that was given up (its future dropped, its deadline passed) has ended.
    pub(crate) async fn settle(&self) {
        self.abandoned.none().await;
    }

    /// Starts to describe a call of `command`.
    pub fn call(&self, command: &'static str) -> Call {
        Call::new(self.clone(), command)
    }
}

/// A repository, and the user that touches it.
#[derive(Clone, Debug)]
pub(crate) struct Repo {
    /// Its git folder.
    pub(crate) git_dir: PathBuf,
    /// Who runs git there; `None`: ourselves.
    pub(crate) user: Option<Ids>,
}

impl Repo {
    /// A call in this repository.
    pub(crate) fn call(&self, git: &Git, command: &'static str) -> Call {
        git.call(command).git_dir(&self.git_dir).user(self.user)
    }
}

/// Whether `text` is a full object id of either hash.
#[must_use]
pub fn is_object_id(text: &str) -> bool {
    (text.len() == 40 || text.len() == 64)
        && text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}
