//! Why a workspace cannot be had.

use std::path::PathBuf;

use panda_api::v1alpha1::{FailureReason, RefusalReason};

use crate::{disk, git};

/// Why a workspace cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter that cannot name a folder or branch.
    #[error("{field} {value:?} cannot be used: {why}")]
    Invalid {
        /// Which.
        field: &'static str,
        /// Its value.
        value: String,
        /// What is wrong.
        why: &'static str,
    },
    /// Another agentlet works in the same folder.
    #[error("another agentlet uses {}; give each its own data and work folder", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// Agents would not reach their folder.
    #[error("uid {uid} cannot reach {}: {} is closed to it; choose another folder or `chmod o+x` that one", path.display(), closed.display())]
    Unreachable {
        /// The folder.
        path: PathBuf,
        /// The ancestor.
        closed: PathBuf,
        /// The agents' uid.
        uid: u32,
    },
    /// Lent to another Run.
    #[error("the workspace is lent to run {by}; its processes must be proved ended first")]
    Held {
        /// Uid of that Run.
        by: String,
    },
    /// Not lent to this Run.
    #[error("no workspace is lent to run {run_uid}")]
    NotLent {
        /// Uid of the Run.
        run_uid: String,
    },
    /// Every name is taken by something that is not ours.
    #[error("every name for this workspace under {} is taken by something that is not registered as ours; move those folders away", work_dir.display())]
    NoFreeName {
        /// Where.
        work_dir: PathBuf,
    },
    /// The proof before start failed.
    #[error("the workspace is not where it should be: {detail}")]
    ProofFailed {
        /// What was found.
        detail: String,
    },
    /// The user's repository cannot be used.
    #[error(transparent)]
    Source(#[from] git::source::Error),
    /// The mirror cannot be used.
    #[error(transparent)]
    Mirror(#[from] git::mirror::Error),
    /// Git failed in the workspace.
    #[error("git failed while the workspace was made")]
    Git(#[from] git::Error),
    /// A file or folder of ours.
    #[error("{what} {} failed", path.display())]
    Io {
        /// What was done.
        what: &'static str,
        /// To what.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// The reason that a Run fails with.
    #[must_use]
    pub fn reason(&self) -> FailureReason {
        let full = match self {
            Self::Git(e)
            | Self::Mirror(git::mirror::Error::Git { source: e, .. })
            | Self::Source(git::source::Error::Git { source: e, .. }) => e.is_disk_full(),
            Self::Mirror(git::mirror::Error::Io { source, .. }) | Self::Io { source, .. } => {
                disk::is_full(source)
            }
            _ => false,
        };
        if full {
            FailureReason::DiskFull
        } else {
            FailureReason::WorkspaceFailed
        }
    }

    /// The word for `status.unschedulable`, when this device can never serve the request as it stands.
    #[must_use]
    pub fn refusal(&self) -> Option<RefusalReason> {
        match self {
            Self::Source(git::source::Error::RootDenied { .. } | git::source::Error::Owner { .. }) => {
                Some(RefusalReason::WorkspaceRootDenied)
            }
            Self::Source(git::source::Error::Absent { .. }) => Some(RefusalReason::RepositoryAbsent),
            _ => None,
        }
    }

    /// Whether the same call may succeed later on this device.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Held { .. } | Self::Io { .. } | Self::Mirror(git::mirror::Error::Io { .. }) => true,
            Self::Git(e)
            | Self::Mirror(git::mirror::Error::Git { source: e, .. })
            | Self::Source(git::source::Error::Git { source: e, .. }) => e.is_retryable(),
            _ => false,
        }
    }
}
