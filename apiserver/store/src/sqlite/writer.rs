//! The writer thread: group commit, and compaction in steps between the groups.

use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::{Connection, params};
use tokio::sync::{mpsc, oneshot};

use super::checkpoint::Signal;
use super::lock::Lock;
use super::schema::{Opened, column, revision, set_meta};
use super::{database, read};
use crate::change::event;
use crate::hub::{End, Hub};
use crate::{Committed, Error, Event, EventKind, Revision, Txn};

/// Most transactions in one group.
const GROUP: usize = 512;
/// Bytes of bodies at which a group is closed.
const GROUP_BYTES: usize = 8 << 20;
/// Log rows looked at in one step of a compaction.
const SWEEP: i64 = 256;

type Reply<T> = oneshot::Sender<Result<T, Error>>;

pub(super) enum Command {
    Commit {
        txn: Txn,
        reply: Reply<Committed>,
    },
    Compact {
        below: Revision,
        reply: Reply<Revision>,
    },
    Close {
        reply: oneshot::Sender<()>,
    },
    #[cfg(test)]
    Execute {
        sql: String,
        reply: oneshot::Sender<()>,
    },
}

#[derive(Debug)]
pub(super) struct Writer {
    connection: Connection,
    path: PathBuf,
    hub: Arc<Hub>,
    queue: mpsc::Receiver<Command>,
    signal: Signal,
    revision: Revision,
    below: Revision,
    swept: Revision,
    /// A commit failed and its remains have not been overwritten yet.
    suspect: bool,
    /// A step of the compaction failed; the next compaction goes on with it.
    paused: bool,
    lock: Lock,
}

/// What a group did, once it is durable.
struct Done {
    outcomes: Vec<Result<Committed, Error>>,
    events: Vec<Arc<Event>>,
    revision: Revision,
}

impl Writer {
    pub(super) fn new(
        opened: Opened,
        path: PathBuf,
        hub: Arc<Hub>,
        queue: mpsc::Receiver<Command>,
        signal: Signal,
        lock: Lock,
    ) -> Self {
        let Opened {
            connection,
            revision,
            below,
            swept,
            uid: _,
        } = opened;
        Self {
            connection,
            path,
            hub,
            queue,
            signal,
            revision,
            below,
            swept,
            suspect: false,
            paused: false,
            lock,
        }
    }

    pub(super) fn run(mut self) {
        let mut closing = None;
        let mut group = Vec::new();
        let mut compactions = Vec::new();
        loop {
            let idle = self.paused || self.swept >= self.below;
            let mut next = if idle {
                self.queue.blocking_recv()
            } else {
                self.queue.try_recv().ok()
            };
            if next.is_none() && (idle || self.queue.is_closed()) {
                break;
            }
            let mut size = 0;
            while let Some(command) = next {
                match command {
                    Command::Commit { txn, reply } => {
                        size += txn.size();
                        group.push((txn, reply));
                    }
                    Command::Compact { below, reply } => compactions.push((below, reply)),
                    #[cfg(test)]
                    Command::Execute { sql, reply } => {
                        self.connection.execute_batch(&sql).unwrap();
                        reply.send(()).unwrap();
                    }
                    Command::Close { reply } => {
                        // What is queued is still done; the loop ends when the queue is empty.
                        self.queue.close();
                        closing = Some(reply);
                    }
                }
                let full = group.len() >= GROUP || size >= GROUP_BYTES;
                next = if full { None } else { self.queue.try_recv().ok() };
            }
            self.commit(std::mem::take(&mut group));
            for (below, reply) in compactions.drain(..) {
                // Whoever asked may have gone away.
                drop(reply.send(self.compact(below)));
            }
            self.sweep();
        }
        self.close();
        if let Some(reply) = closing {
            let _ = reply.send(());
        }
    }

    fn commit(&mut self, group: Vec<(Txn, Reply<Committed>)>) {
        if group.is_empty() {
            return;
        }
        let txns: Vec<&Txn> = group.iter().map(|(txn, _)| txn).collect();
        let outcomes = match self.write(&txns) {
            Ok(done) => self.publish(done),
            Err(error) if txns.len() == 1 => vec![Err(error)],
            Err(error) => {
                tracing::warn!(%error, transactions = txns.len(), "group commit failed, trying one by one");
                let alone = txns.iter().flat_map(|txn| match self.write(&[txn]) {
                    Ok(done) => self.publish(done),
                    Err(error) => vec![Err(error)],
                });
                alone.collect()
            }
        };
        for ((_, reply), outcome) in group.into_iter().zip(outcomes) {
            // Whoever asked may have gone away; the commit stands.
            drop(reply.send(outcome));
        }
    }

    /// Events first, so that who hears of the commit finds it everywhere.
    fn publish(&mut self, done: Done) -> Vec<Result<Committed, Error>> {
        self.revision = done.revision;
        if !done.events.is_empty() {
            self.signal
                .wrote(done.events.iter().map(|event| event.value.len()).sum());
            self.hub.push(&done.events, done.revision).wake();
        }
        done.outcomes
    }

    fn write(&mut self, group: &[&Txn]) -> Result<Done, Error> {
        self.recover()?;
        match self.attempt(group) {
            Ok(done) => Ok(done),
            Err(error) => {
                if let Err(error) = self.recover() {
                    tracing::error!(%error, "store is not writable");
                }
                Err(database("write to the store", &self.path, error))
            }
        }
    }

    fn attempt(&mut self, group: &[&Txn]) -> rusqlite::Result<Done> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let mut done = Done {
            outcomes: Vec::with_capacity(group.len()),
            events: Vec::new(),
            revision: self.revision,
        };
        for txn in group {
            let outcome = apply(&self.connection, txn, &mut done)?;
            done.outcomes.push(outcome);
        }
        if done.events.is_empty() {
            self.connection.execute_batch("ROLLBACK")?;
        } else {
            self.suspect = true;
            self.connection.execute_batch("COMMIT")?;
            self.suspect = false;
        }
        Ok(done)
    }

    /// Ends a transaction left open by a failure, and overwrites what a failed commit left in the WAL.
    fn recover(&mut self) -> Result<(), Error> {
        let failed = |error| database("recover from a failed write", &self.path, error);
        if !self.connection.is_autocommit() {
            self.connection.execute_batch("ROLLBACK").map_err(failed)?;
        }
        if self.suspect {
            let overwrite = "UPDATE meta SET value = value + 1 WHERE key = 'recoveries'";
            self.connection.execute(overwrite, []).map_err(failed)?;
            self.suspect = false;
        }
        Ok(())
    }

    /// Gives up the history below a revision; the rows go in [`Self::sweep`].
    fn compact(&mut self, below: Revision) -> Result<Revision, Error> {
        self.paused = false;
        let below = below.min(self.revision);
        if below > self.below {
            self.recover()?;
            let set = set_meta(&self.connection, "below", column(below));
            set.map_err(|error| database("compact the store", &self.path, error))?;
            self.below = below;
        }
        Ok(Revision(self.below.0.saturating_sub(1)))
    }

    fn sweep(&mut self) {
        if self.paused || self.swept >= self.below {
            return;
        }
        match self.sweep_step() {
            Ok(swept) => {
                self.swept = swept;
                self.signal.wrote(0);
            }
            Err(error) => {
                // What is given up stays given up; the rows go at the next compaction or start.
                let error = database("remove old history", &self.path, error);
                tracing::warn!(%error, "compaction step failed");
                self.paused = true;
                if let Err(error) = self.recover() {
                    tracing::error!(%error, "store is not writable");
                }
            }
        }
    }

    /// A row goes when a later one below the limit replaced it; a deletion goes at once. So what was current
    /// at the limit stays, with everything after it.
    fn sweep_step(&mut self) -> rusqlite::Result<Revision> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let swept = {
            let mut rows = self.connection.prepare_cached(
                "SELECT rev, kind, prev_rev FROM log WHERE rev >= ?1 AND rev < ?2 ORDER BY rev LIMIT ?3",
            )?;
            let found = rows.query_map(params![column(self.swept), column(self.below), SWEEP], |row| {
                Ok((
                    row.get::<_, i64>(0)?,
                    row.get::<_, i64>(1)?,
                    row.get::<_, i64>(2)?,
                ))
            })?;
            let found: Vec<(i64, i64, i64)> = found.collect::<rusqlite::Result<_>>()?;
            let mut delete = self.connection.prepare_cached("DELETE FROM log WHERE rev = ?1")?;
            for (rev, kind, before) in &found {
                if *before > 0 {
                    delete.execute([before])?;
                }
                if *kind == code(EventKind::Deleted) {
                    delete.execute([rev])?;
                }
            }
            match found.last() {
                Some((rev, ..)) if i64::try_from(found.len()) == Ok(SWEEP) => revision(*rev).next(),
                _ => self.below,
            }
        };
        set_meta(&self.connection, "swept", column(swept))?;
        self.connection.execute_batch("COMMIT")?;
        Ok(swept)
    }

    fn close(self) {
        self.hub.end(End::Closed);
        let closed = set_meta(&self.connection, "clean", 1).and_then(|()| {
            self.connection
                .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        });
        if let Err(error) = closed {
            // The next start checks the file, that is all.
            tracing::warn!(%error, "store could not be marked as cleanly closed");
        }
        drop(self.connection);
        // Only now may another process open the directory.
        drop(self.lock);
    }
}

/// Verifies a transaction, then writes it. Nothing is written unless all of it may be.
fn apply(connection: &Connection, txn: &Txn, done: &mut Done) -> rusqlite::Result<Result<Committed, Error>> {
    let mut found = Vec::with_capacity(txn.ops.len());
    for (index, op) in txn.ops.iter().enumerate() {
        let current = read::current(connection, &op.key)?;
        if let Err(refused) = op.verify(index, current.as_ref()) {
            return Ok(Err(refused));
        }
        found.push(current);
    }
    let mut entries = Vec::with_capacity(txn.ops.len());
    for (op, current) in txn.ops.iter().zip(&found) {
        let event = event(op, current.as_ref(), done.revision.next());
        if let Some(event) = &event {
            insert(connection, event)?;
            done.revision = event.revision;
            done.events.push(Arc::clone(event));
        }
        entries.push(event.map(|event| event.after()));
    }
    Ok(Ok(Committed {
        revision: done.revision,
        entries,
    }))
}

pub(super) fn insert(connection: &Connection, event: &Event) -> rusqlite::Result<()> {
    let key = &event.key;
    let mut log = connection.prepare_cached("INSERT INTO log VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?;
    log.execute(params![
        column(event.revision),
        key.resource,
        key.namespace,
        key.name,
        code(event.kind),
        column(event.create_revision),
        column(event.prev_revision),
        &*event.value,
    ])?;
    let sql = match event.kind {
        EventKind::Created => "INSERT INTO objects VALUES (?1, ?2, ?3, ?4)",
        EventKind::Updated => {
            "UPDATE objects SET rev = ?4 WHERE resource = ?1 AND namespace = ?2 AND name = ?3"
        }
        EventKind::Deleted => {
            "DELETE FROM objects WHERE resource = ?1 AND namespace = ?2 AND name = ?3 AND rev < ?4"
        }
    };
    let mut objects = connection.prepare_cached(sql)?;
    objects.execute(params![
        key.resource,
        key.namespace,
        key.name,
        column(event.revision)
    ])?;
    Ok(())
}

fn code(kind: EventKind) -> i64 {
    match kind {
        EventKind::Created => 0,
        EventKind::Updated => 1,
        EventKind::Deleted => 2,
    }
}
