//! Checkpoints off the hot path: the WAL is copied into the database by a thread of its own.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;

use super::{database, schema};
use crate::Error;

/// Bytes of bodies after which a checkpoint is due at once.
const DUE: usize = 4 << 20;
/// Otherwise how long after the first write.
const LINGER: Duration = Duration::from_secs(1);

/// The writer's end: says how much has been written.
#[derive(Debug)]
pub(super) struct Signal {
    wake: SyncSender<()>,
    dirty: Arc<AtomicUsize>,
}

impl Signal {
    /// Wakes the checkpointer at the first write and when a checkpoint is due; never blocks.
    pub(super) fn wrote(&self, bytes: usize) {
        let bytes = bytes.max(1);
        let before = self.dirty.fetch_add(bytes, Ordering::Relaxed);
        if before == 0 || (before < DUE && before.saturating_add(bytes) >= DUE) {
            // Full: it has been woken and not yet looked. Disconnected: it reports its own end.
            let _ = self.wake.try_send(());
        }
    }
}

pub(super) fn spawn(path: &Path) -> Result<(Signal, JoinHandle<()>), Error> {
    let refuse = |error| database("open the store", path, error);
    let connection = Connection::open(path).map_err(refuse)?;
    schema::configure(&connection).map_err(refuse)?;
    let (wake, woken) = sync_channel(1);
    let dirty = Arc::new(AtomicUsize::new(0));
    let signal = Signal {
        wake,
        dirty: Arc::clone(&dirty),
    };
    let path = path.to_owned();
    let thread = super::spawn("panda-store-ckpt", move || {
        run(&connection, &path, &woken, &dirty)
    })?;
    Ok((signal, thread))
}

fn run(connection: &Connection, path: &Path, woken: &Receiver<()>, dirty: &AtomicUsize) {
    while woken.recv().is_ok() {
        if dirty.load(Ordering::Relaxed) < DUE
            && let Err(RecvTimeoutError::Disconnected) = woken.recv_timeout(LINGER)
        {
            return;
        }
        dirty.store(0, Ordering::Relaxed);
        if let Err(error) = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
            let error = database("checkpoint the store", path, error);
            tracing::warn!(%error, "checkpoint failed");
        }
    }
}
