//! Backups of a data folder, and their way back.
//!
//! A backup is a tar archive of the store as one file, every blob and every log, each with its SHA-256; keys stand in it
//! only when they were asked for. It is taken beside a running server, from the data folder.
//!
//! What is restored is another store: devices see a new identity, watchers that every version they know is too old, and
//! nothing is bound, granted or published until it is activated.
//!
//! | module | holds |
//! |---|---|
//! | `layout` | names in an archive and in a data folder |
//! | `tar` | the archive's format |
//! | `save` | [`save`] |
//! | `restore` | [`restore`]: checked whole in a folder aside, then put in place |
//! | `swap` | putting it in place so that a crash leaves the old state or the new |

mod layout;
mod restore;
mod save;
mod swap;
mod tar;

use std::io;
use std::path::{Path, PathBuf};

use panda_api::meta::Time;
use serde::{Deserialize, Serialize};

pub(crate) use layout::{blob_dir, store_dir};
pub use restore::{RestoreOptions, Restored, restore};
pub use save::{SaveOptions, Saved, save};
pub(crate) use swap::finish;

/// How much the revision is raised by a restore: above everything that the lost part of the history can have had.
pub const RAISE: u64 = 1_000_000_000;

/// Why there is no backup, or nothing was restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store refused.
    #[error(transparent)]
    Store(#[from] panda_store::Error),
    /// The archive cannot be read on, or not written.
    #[error("the archive cannot be used")]
    Archive(#[from] tar::Error),
    /// The archive is none of ours.
    #[error("this is no backup of Panda: {0}")]
    Foreign(String),
    /// The archive is not what was written.
    #[error("the archive is damaged: {0}")]
    Damaged(String),
    /// The archive was written by a newer version.
    #[error("the archive has format {found}, this program knows up to {known}")]
    TooNew {
        /// Its format.
        found: u32,
        /// The newest that is known.
        known: u32,
    },
    /// A key is missing.
    #[error("the archive holds {secrets} Secrets and there is no key that opens them")]
    NoKey {
        /// How many Secrets there are.
        secrets: usize,
    },
    /// The key is another one.
    #[error("the key {} does not open the Secrets of the archive", path.display())]
    WrongKey {
        /// The key.
        path: PathBuf,
    },
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] crate::registry::KeyError),
    /// A file changed while it was read.
    #[error("{} changed while it was read", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A restore was interrupted.
    #[error("a restore into {} was interrupted", path.display())]
    Interrupted {
        /// The data folder.
        path: PathBuf,
    },
    /// A file of the server cannot be used.
    #[error(transparent)]
    Files(#[from] crate::files::Error),
    /// The file system refused.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// What was being done.
        operation: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// What to do next.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Store(panda_store::Error::Locked { .. }) => {
                "stop the server that uses this data folder first"
            }
            Self::Store(panda_store::Error::NewerSchema { .. }) | Self::TooNew { .. } => {
                "use the version of Panda that wrote it, or a newer one"
            }
            Self::NoKey { .. } => {
                "name the secrets.key of the server that was backed up with --secrets-key, or take backups --with-keys"
            }
            Self::WrongKey { .. } | Self::Key(_) => {
                "name the secrets.key of the server that was backed up with --secrets-key"
            }
            Self::Foreign(_) => "name a file that `pandactl backup` wrote",
            Self::Damaged(_) | Self::Archive(tar::Error::Truncated | tar::Error::Damaged(_)) => {
                "nothing was changed; take another backup, or copy the file again"
            }
            Self::Changed { .. } => "run the command again",
            Self::Interrupted { .. } => "start the server once, which ends it, or run the restore again",
            Self::Store(_) | Self::Archive(tar::Error::Io(_)) | Self::Files(_) | Self::Io { .. } => {
                "check the folder, its owner, its mode and the space left; nothing was changed"
            }
        }
    }
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io {
        operation,
        path,
        source,
    }
}

/// First file of an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    /// Always "PandaBackup".
    kind: String,
    /// Layout of the archive.
    format: u32,
    /// Version of the program that wrote it.
    program: String,
    /// Identity of the store.
    #[serde(rename = "storeUID")]
    store_uid: String,
    /// Newest revision.
    revision: u64,
    /// When the store was copied.
    time: Time,
    /// Whether keys are in it.
    keys: bool,
}

const KIND: &str = "PandaBackup";

/// Last file of an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    /// Files before the list of digests.
    files: u64,
    /// Their bytes.
    bytes: u64,
    /// Digest of the list of digests.
    sums: String,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Files done.
    pub files: u64,
    /// Bytes done.
    pub bytes: u64,
}
