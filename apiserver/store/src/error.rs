//! What a store can answer instead of a result.

use std::path::PathBuf;
use std::sync::Arc;

use crate::{Entry, Key, Revision};

/// Why a store operation did not happen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A precondition of operation `index` does not hold; `current` is what is stored now, if anything.
    #[error("precondition of operation {index} failed: {}", describe(current.as_deref()))]
    Conflict {
        /// Position of the operation in its transaction.
        index: usize,
        /// The stored entry, or nothing when the key does not exist.
        current: Option<Arc<Entry>>,
    },
    /// Operation `index` wanted to create a key that exists.
    #[error("{} already exists at revision {}", current.key, current.revision)]
    Exists {
        /// Position of the operation in its transaction.
        index: usize,
        /// The stored entry.
        current: Arc<Entry>,
    },
    /// The key does not exist.
    #[error("{key} not found")]
    NotFound {
        /// The key asked for.
        key: Key,
    },
    /// The revision asked for has been compacted: list again and watch from the list's revision.
    #[error("the requested revision has been compacted, the oldest available is {oldest}")]
    Compacted {
        /// The oldest revision that can still be listed at or watched from.
        oldest: Revision,
    },
    /// The revision asked for has not happened yet in this store.
    #[error("revision {requested} is newer than the store's {current}")]
    FutureRevision {
        /// The revision asked for.
        requested: Revision,
        /// The newest revision.
        current: Revision,
    },
    /// The request can never succeed.
    #[error("invalid request: {reason}")]
    Invalid {
        /// What is wrong with it.
        reason: String,
    },
    /// A transaction is over the bound.
    #[error("transaction too large: {what} is {actual}, the limit is {limit}")]
    TooLarge {
        /// The measure that is over its bound.
        what: &'static str,
        /// Its value.
        actual: usize,
        /// The bound.
        limit: usize,
    },
    /// The watcher did not keep up with the events that are kept for it; watch again from its last revision.
    #[error("the watcher fell behind the buffered events; watch again from the last revision received")]
    SlowWatcher,
    /// The store is loading, or could not catch up in time.
    #[error("the store is not ready")]
    NotReady,
    /// The store has been closed.
    #[error("the store is closed")]
    Closed,
    /// Another process owns the data directory.
    #[error("{} is in use by {}; stop it, or use another data directory", path.display(), owner(*pid))]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The owner's process id, when it could be read.
        pid: Option<u32>,
    },
    /// The directory was in use, and its data is not there any more.
    #[error("the store at {} was in use and is gone; restore it from a backup, or remove its directory to begin anew", path.display())]
    Missing {
        /// The file that is not there, or empty.
        path: PathBuf,
    },
    /// The data was written by a newer version.
    #[error("the store has schema version {found}, this program knows up to {supported}; upgrade it")]
    NewerSchema {
        /// Version in the file.
        found: i64,
        /// Newest version this program reads.
        supported: i64,
    },
    /// The data is damaged.
    #[error("the store at {} is damaged: {detail}; restore it from a backup", path.display())]
    Corrupt {
        /// The database file.
        path: PathBuf,
        /// First finding.
        detail: String,
    },
    /// The disk is full; nothing was written.
    #[error("no space left on the device that holds the store")]
    DiskFull,
    /// The database engine refused.
    #[error("cannot {operation}")]
    Database {
        /// What was being done.
        operation: &'static str,
        /// The engine's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The file system refused.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// What was being done.
        operation: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// Whether the same request may succeed later without being changed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::SlowWatcher | Self::NotReady | Self::DiskFull | Self::Database { .. } | Self::Io { .. }
        )
    }

    pub(crate) fn invalid(reason: impl Into<String>) -> Self {
        Self::Invalid {
            reason: reason.into(),
        }
    }
}

fn describe(current: Option<&Entry>) -> String {
    match current {
        Some(entry) => format!("{} is at revision {}", entry.key, entry.revision),
        None => "the key does not exist".to_owned(),
    }
}

fn owner(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}
