//! What is taken out of a workspace: snapshots and declared outputs.
//!
//! An agent's tree is hostile data once its processes are gone. It is read by the [`walk`]er alone, through folder
//! handles: no link is followed, no other file system entered, nothing that is not a regular file opened, nothing that
//! another user owns taken. Git never looks at the tree and never at the agent's `.git`: a fresh repository of ours, with
//! the mirror's objects borrowed, is given the bytes over a pipe (`git fast-import`) and makes the commit, patch and
//! bundle from them. So no configuration, attribute, hook or filter that an agent plants is ever read, and commits that
//! it made count only by the tree they left. Without git the same walk fills an archive of ours.
//!
//! In a snapshot: every regular file and link that the base commit tracks or no `.gitignore` of the workspace ignores;
//! the contents of a nested repository as plain files; never anything named like a git folder. What was left out is
//! listed with the reason.

pub(crate) mod archive;
mod commit;
mod output;
pub(crate) mod path;
mod scope;
mod walk;

#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use panda_api::v1alpha1::{BlobRef, FailureReason};
use serde::{Deserialize, Serialize};

use crate::git;
use crate::workspace::{self, Content, Key, TreeEmpty, Workspace, Workspaces, disk, remove};

pub(crate) use commit::entries;
pub use path::{display, parse};
pub use scope::{Globs, violations};

/// Why something could not be taken out of a workspace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The workspace itself.
    #[error(transparent)]
    Workspace(#[from] workspace::Error),
    /// More than allowed.
    #[error(
        "the workspace holds more than {limit} {what} (at {path}); remove or ignore what is not part of the result"
    )]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// The bound.
        limit: u64,
        /// Where it was noticed.
        path: String,
    },
    /// Contents that git refuses for safety.
    #[error("the result holds something that git refuses: {detail}")]
    Unsafe {
        /// What fsck says.
        detail: String,
    },
    /// A declared output is not there.
    #[error("output {name:?} was not written: there is no file {path}")]
    OutputMissing {
        /// Its name.
        name: String,
        /// Its path.
        path: String,
    },
    /// A declared output is no file that can be taken.
    #[error("output {name:?} at {path} cannot be taken: {why}")]
    OutputRefused {
        /// Its name.
        name: String,
        /// Its path.
        path: String,
        /// Why.
        why: &'static str,
    },
    /// A glob that cannot be understood.
    #[error("{glob:?} is not a glob: {detail}")]
    Glob {
        /// The glob.
        glob: String,
        /// What is wrong.
        detail: String,
    },
    /// Git failed.
    #[error("git failed while the result was taken")]
    Git(#[from] git::Error),
    /// Reading the tree failed.
    #[error("reading {path} in the workspace failed")]
    Read {
        /// Path in the workspace.
        path: String,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// Writing the result failed.
    #[error("writing the result failed")]
    Write(#[source] std::io::Error),
}

impl Error {
    /// The reason that a Run fails with: what the agent did is told from what the device could not do.
    #[must_use]
    pub fn reason(&self) -> FailureReason {
        match self {
            Self::Workspace(e) => e.reason(),
            Self::Git(e) if e.is_disk_full() => FailureReason::DiskFull,
            Self::Read { source, .. } | Self::Write(source) if crate::disk::is_full(source) => {
                FailureReason::DiskFull
            }
            Self::Limit { .. }
            | Self::Unsafe { .. }
            | Self::OutputMissing { .. }
            | Self::OutputRefused { .. } => FailureReason::AgentError,
            Self::Git(_) | Self::Read { .. } | Self::Write(_) | Self::Glob { .. } => {
                FailureReason::WorkspaceFailed
            }
        }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Workspace(e) => e.is_retryable(),
            Self::Git(e) => e.is_retryable(),
            Self::Read { .. } | Self::Write(_) => true,
            _ => false,
        }
    }
}

/// A file of ours for the blob store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Blob {
    /// Where it is.
    pub path: PathBuf,
    /// `sha256:` and 64 hexadecimal digits.
    pub digest: String,
    /// Bytes.
    pub size: u64,
}

impl Blob {
    /// As the API names it.
    #[must_use]
    pub fn to_ref(&self) -> BlobRef {
        BlobRef {
            digest: self.digest.clone(),
            size: self.size,
        }
    }
}

/// What happened to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// Its contents or mode changed.
    Modified,
    /// It is gone.
    Deleted,
}

/// A path that differs from the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// The path, with bytes that are not UTF-8 (and `\` and control characters) written `\xNN`; [`parse`] reads it back.
    pub path: String,
    /// What happened.
    pub kind: ChangeKind,
}

/// A path that is not part of a snapshot although no rule of the user leaves it out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Skipped {
    /// The path, written as in [`Change::path`].
    pub path: String,
    /// Why.
    pub why: String,
}

/// The state of a workspace after a Run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// The Run.
    pub run_uid: String,
    /// `sha256:` and 64 hexadecimal digits over paths, modes and contents.
    pub digest: String,
    /// Files and links in it.
    pub files: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// What differs from the start.
    pub changes: Vec<Change>,
    /// `2 files changed, 10 insertions(+)`.
    pub diffstat: String,
    /// What was left out, at most 1000.
    pub skipped: Vec<Skipped>,
    /// What holds the contents.
    pub store: Stored,
}

/// What holds the contents of a [`Snapshot`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Stored {
    /// A commit on top of the base.
    Git(GitResult),
    /// An archive of ours.
    Archive {
        /// The archive.
        archive: Blob,
    },
}

/// The commit of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GitResult {
    /// Where the work started.
    pub base: String,
    /// The result; the same as `base` when nothing changed.
    pub commit: String,
    /// Its tree.
    pub tree: String,
    /// Branch that it is to be published as.
    pub branch: String,
    /// The user's repository.
    pub repository: PathBuf,
    /// The change, for `git apply`.
    pub patch: Blob,
    /// The commit as a bundle on top of `base`; `None` when nothing changed.
    pub bundle: Option<Blob>,
    /// Bare repository of ours that holds the commit.
    pub(crate) git_dir: PathBuf,
}

impl Snapshot {
    /// The commit, if the workspace was a git one.
    #[must_use]
    pub fn git(&self) -> Option<&GitResult> {
        match &self.store {
            Stored::Git(git) => Some(git),
            Stored::Archive { .. } => None,
        }
    }
}

/// What a snapshot's commit says. The same input gives the same commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Message.
    pub message: String,
    /// Date, in seconds since 1970.
    pub seconds: i64,
}

/// A declared output, taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its name.
    pub name: String,
    /// Its path, as declared.
    pub path: String,
    /// The copy for the blob store.
    pub blob: Blob,
}

impl Workspaces {
    /// Takes the snapshot of a Run whose processes are proved gone. Once taken it never changes: a second call, after a
    /// crash, finds it.
    pub async fn snapshot(
        &self,
        workspace: &Workspace,
        empty: &TreeEmpty,
        stamp: &Stamp,
    ) -> Result<Snapshot, Error> {
        let held = self.hold(&workspace.key).await;
        self.check_lent(workspace, empty)?;
        if let Some(done) = self.saved(&workspace.run_uid)? {
            return Ok(done);
        }
        let dir = self.snapshot_dir(&workspace.run_uid);
        remove::tree(&held, &dir).await?;
        disk::make_dir(&dir, 0o700)?;
        let taken = self.take(workspace, &dir, stamp).await;
        if taken.is_err() {
            // What is half written may be what the disk is full of.
            remove::tree(&held, &dir).await?;
        }
        taken
    }

    async fn take(&self, workspace: &Workspace, dir: &Path, stamp: &Stamp) -> Result<Snapshot, Error> {
        let snapshot = match &workspace.record.content {
            Content::Git { path, branch, .. } => {
                commit::take(self, workspace, dir, path, branch, stamp).await?
            }
            Content::Empty => archive::take(self, workspace, dir).await?,
        };
        let bytes = serde_json::to_vec(&snapshot).map_err(|e| Error::Write(e.into()))?;
        disk::write_whole(&dir.join(SAVED), &bytes)?;
        Ok(snapshot)
    }

    /// The snapshot that was taken of a Run, if it is still kept.
    pub async fn taken(&self, key: &Key, run_uid: &str) -> Result<Option<Snapshot>, Error> {
        workspace::check_key(key, run_uid)?;
        let _held = self.hold(key).await;
        self.saved(run_uid)
    }

    fn saved(&self, run_uid: &str) -> Result<Option<Snapshot>, Error> {
        let path = self.snapshot_dir(run_uid).join(SAVED);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|e| Error::Write(e.into())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::Write(e)),
        }
    }

    fn snapshot_dir(&self, run_uid: &str) -> PathBuf {
        self.results(run_uid).join("snapshot")
    }
}

/// Written last: a snapshot without it is not complete.
const SAVED: &str = "snapshot.json";

/// Describes a file of ours.
async fn blob(path: &Path) -> Result<Blob, Error> {
    let owned = path.to_owned();
    tokio::task::spawn_blocking(move || {
        let mut file = fs::File::open(&owned)?;
        let mut hash = walk::Hashing::new(std::io::sink());
        let size = std::io::copy(&mut file, &mut hash)?;
        Ok(Blob {
            path: owned,
            digest: hash.digest(),
            size,
        })
    })
    .await
    .map_err(std::io::Error::other)
    .flatten()
    .map_err(Error::Write)
}
