//! The thread that writes the log, and the one that syncs it.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use panda_api::meta::{Clock, IdSource};
use tokio::sync::oneshot;

use super::chain::Head;
use super::event::Event;
use super::files::Files;
use super::{Error, REMOVED};

/// How long after a write it is synced.
const LINGER: Duration = Duration::from_secs(1);
/// How often a log that cannot be written is tried again.
const RETRY: Duration = Duration::from_millis(250);
/// Most records in one write.
const GROUP: usize = 512;
/// Most records kept in memory while they cannot be written.
const KEPT: usize = 16_384;

/// A record that is to be written, and who hears when it is.
type Waiting = (String, Option<oneshot::Sender<()>>);

/// Records on their way to the writer. There are never many more than requests at a time: each waits for its own.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<Queued>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queued {
    events: VecDeque<Waiting>,
    closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Queued> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False when there are too many, or the writer has ended.
    pub(super) fn push(&self, event: String, done: Option<oneshot::Sender<()>>) -> bool {
        let mut queued = self.lock();
        if queued.closed || queued.events.len() >= KEPT {
            return false;
        }
        queued.events.push_back((event, done));
        drop(queued);
        self.changed.notify_one();
        true
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// The next records; false at the end. Waits without end, or until it is time to try again.
    fn take(&self, into: &mut Vec<Waiting>, retry: bool) -> bool {
        let mut queued = self.lock();
        while queued.events.is_empty() && !queued.closed {
            if retry {
                let waited = self.changed.wait_timeout(queued, RETRY);
                queued = waited.unwrap_or_else(PoisonError::into_inner).0;
                break;
            }
            queued = self.changed.wait(queued).unwrap_or_else(PoisonError::into_inner);
        }
        let count = queued.events.len().min(GROUP);
        into.extend(queued.events.drain(..count));
        !(queued.closed && queued.events.is_empty())
    }
}

/// What others see of the writer.
#[derive(Debug)]
pub(super) struct Shared {
    /// Whether there is space for more.
    pub(super) ready: AtomicBool,
    pub(super) head: Mutex<Head>,
}

pub(super) struct Writer {
    pub(super) files: Files,
    pub(super) shared: Arc<Shared>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) ids: Arc<dyn IdSource>,
    /// Not written yet.
    pub(super) kept: VecDeque<String>,
    /// Records that were given up, to be said in the next that is written.
    pub(super) lost: u64,
}

impl Writer {
    pub(super) fn spawn(self, queue: Arc<Queue>) -> Result<Vec<JoinHandle<()>>, Error> {
        let (wake, woken) = sync_channel(1);
        let file = Arc::new(Mutex::new(self.files.file()));
        let to_sync = Arc::clone(&file);
        let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(work)
                .map_err(super::failed("start a thread for", std::path::Path::new(name)))
        };
        let syncer = start("panda-audit-sync", Box::new(move || sync(&woken, &to_sync)))?;
        let writer = start("panda-audit", Box::new(move || self.run(&queue, &wake, &file)))?;
        Ok(vec![writer, syncer])
    }

    fn run(mut self, queue: &Queue, wake: &SyncSender<()>, current: &Mutex<Arc<File>>) {
        let mut taken = Vec::new();
        let mut open = true;
        while open {
            let retry = !self.kept.is_empty() || !self.shared.ready.load(Ordering::Acquire);
            open = queue.take(&mut taken, retry);
            let mut waiting = Vec::new();
            for (event, done) in taken.drain(..) {
                self.keep(event);
                waiting.extend(done);
            }
            if self.write(current) {
                // Whoever waits may have gone away.
                for done in waiting {
                    let _: Result<(), ()> = done.send(());
                }
                // Full: it has been told already.
                let _ = wake.try_send(());
            }
        }
        self.note("the server stopped".to_owned(), None);
        self.write(current);
        if let Err(error) = self.files.file().sync_all() {
            tracing::error!(%error, "the audit log cannot be synced");
        }
    }

    fn keep(&mut self, event: String) {
        if self.kept.len() >= KEPT {
            self.lost += 1;
        } else {
            self.kept.push_back(event);
        }
    }

    /// A record about the log itself.
    pub(super) fn note(&mut self, text: String, removed: Option<u64>) {
        let mut event = Event::note(text, self.ids.uuid().to_string(), self.clock.now().into());
        if let Some(through) = removed {
            event = event.with(REMOVED, through.to_string());
        }
        self.keep(event.to_json());
    }

    /// Writes what is kept; true when all of it is written.
    fn write(&mut self, current: &Mutex<Arc<File>>) -> bool {
        let written = self.try_write(current);
        let ready = written.and_then(|()| {
            self.files
                .reserve()
                .map_err(super::failed("reserve space for", std::path::Path::new("audit")))
        });
        *self.shared.head.lock().unwrap_or_else(PoisonError::into_inner) = self.files.head().clone();
        let was = self.shared.ready.swap(ready.is_ok(), Ordering::AcqRel);
        match ready {
            Err(error) if was => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(
                    error,
                    "the audit log cannot be written: writes are refused until it can"
                );
            }
            Ok(()) if !was => tracing::info!("the audit log can be written again"),
            _ => {}
        }
        self.kept.is_empty()
    }

    fn try_write(&mut self, current: &Mutex<Arc<File>>) -> Result<(), Error> {
        while !self.kept.is_empty() || self.lost > 0 {
            if self.files.is_full() {
                let gone = self.files.rotate()?;
                *current.lock().unwrap_or_else(PoisonError::into_inner) = self.files.file();
                if let Some(through) = gone {
                    self.note(
                        format!("the records up to {through} were removed to keep the log bounded"),
                        gone,
                    );
                }
            }
            let count = self.kept.len().min(GROUP);
            self.files
                .append(self.kept.iter().take(count).map(String::as_str))?;
            self.kept.drain(..count);
            if self.kept.is_empty() && self.lost > 0 {
                let lost = std::mem::take(&mut self.lost);
                self.note(
                    format!("{lost} records were lost while the log could not be written"),
                    None,
                );
            }
        }
        Ok(())
    }
}

fn sync(woken: &Receiver<()>, current: &Mutex<Arc<File>>) {
    while woken.recv().is_ok() {
        // What comes meanwhile is synced with it.
        std::thread::sleep(LINGER);
        let file = Arc::clone(&*current.lock().unwrap_or_else(PoisonError::into_inner));
        if let Err(error) = file.sync_data() {
            tracing::error!(%error, "the audit log cannot be synced");
        }
    }
}
