//! The audit log: who wrote what, and who was refused to read what; append-only, each record bound to all before it.
//!
//! 1. Every write that reaches a handler is recorded, whatever comes of it, and every read that is refused; and the
//!    Secrets that a device fetches. Metadata only: no bodies, no values, no tokens.
//! 2. The answer to a write waits until its record is with the system (it survives the end of the process); it is on the
//!    disk within a second and one sync (what a loss of power can take).
//! 3. No write without a record: when there is no space left for records, writes are refused, and what is under way has
//!    its space reserved. What devices report is taken all the same: it is no client's write.
//! 4. Files are bounded; that old ones went is itself a record.
//!
//! | module | holds |
//! |---|---|
//! | `event` | what a record says |
//! | `chain` | one record a line, and the hashes |
//! | `files` | segments, rotation, what a crash leaves |
//! | `writer` | the threads |
//! | [`verify`] | reading it, and finding what was changed |

mod chain;
pub(crate) mod event;
mod files;
#[cfg(test)]
mod tests;
pub mod verify;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use panda_api::meta::{Clock, IdSource};
use tokio::sync::oneshot;

pub use chain::Head;
pub use files::Bounds;

use event::Event;
use files::Files;
use writer::{Queue, Shared, Writer};

/// Annotation of the record that says up to which number older ones were removed.
const REMOVED: &str = "panda.dev/removed-through";

/// Why there is no audit log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process writes it.
    #[error("{} is held: another server writes this audit log", path.display())]
    Locked {
        /// The lock.
        path: PathBuf,
    },
    /// A file of ours cannot be used.
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

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io {
        operation,
        path,
        source,
    }
}

/// The log of a running server; cheap to clone. The last one ends its threads.
#[derive(Clone, Debug)]
pub struct Audit(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    queue: Arc<Queue>,
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Audit {
    /// Opens the log in a folder, or begins one.
    ///
    /// # Errors
    /// When another process writes it or the file system refuses. A log that was damaged is no error: that it was is
    /// recorded, and [`verify`] says where.
    pub fn open(
        dir: &Path,
        bounds: Bounds,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn IdSource>,
    ) -> Result<Self, Error> {
        let (mut files, found) = Files::open(dir, bounds)?;
        let ready = files.reserve().is_ok();
        let shared = Arc::new(Shared {
            ready: AtomicBool::new(ready),
            head: Mutex::new(files.head().clone()),
        });
        let queue = Arc::new(Queue::default());
        let mut writer = Writer {
            files,
            shared: Arc::clone(&shared),
            clock,
            ids,
            kept: Default::default(),
            lost: 0,
        };
        let mut text = "the server started".to_owned();
        if found.torn > 0 {
            text.push_str(&format!(
                "; {} bytes of a record that was being written were dropped",
                found.torn
            ));
        }
        if found.damaged {
            text.push_str("; the file before this one is damaged");
            tracing::error!(dir = %dir.display(), "the audit log is damaged; see `pandactl audit verify`");
        }
        writer.note(text, None);
        let threads = writer.spawn(Arc::clone(&queue))?;
        Ok(Self(Arc::new(Inner {
            queue,
            shared,
            threads: Mutex::new(threads),
        })))
    }

    /// Whether a write may go on: there is space for its record.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.0.shared.ready.load(Ordering::Acquire)
    }

    /// The newest record that was written.
    #[must_use]
    pub fn head(&self) -> Head {
        self.0
            .shared
            .head
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Records, and waits until the record is with the system.
    pub(crate) async fn record(&self, event: &Event) {
        let (done, written) = oneshot::channel();
        self.send(event, Some(done));
        // An error: it cannot be written now, and is kept; writes are refused from now on.
        let _: Result<(), _> = written.await;
    }

    /// Records without waiting.
    pub(crate) fn submit(&self, event: &Event) {
        self.send(event, None);
    }

    fn send(&self, event: &Event, done: Option<oneshot::Sender<()>>) {
        if !self.0.queue.push(event.to_json(), done) {
            // Only when the disk hangs and clients leave, or after the end.
            self.0.shared.ready.store(false, Ordering::Release);
            tracing::error!("the audit log does not keep up: a record was lost, writes are refused");
        }
    }

    /// Writes and syncs what is under way, and ends. Records after that are lost.
    pub async fn close(&self) {
        let inner = Arc::clone(&self.0);
        if tokio::task::spawn_blocking(move || inner.close()).await.is_err() {
            tracing::error!("the audit log could not be closed");
        }
    }
}

impl Inner {
    fn close(&self) {
        self.queue.close();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the audit log panicked");
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}
