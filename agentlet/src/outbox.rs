//! What the device has to say, on its own disk before it is sent, kept until the server has it.
//!
//! 1. A report is durable (WAL, `synchronous=FULL`) before [`Outbox::report`] returns its number.
//! 2. Numbers only grow, also over restarts and over reports that were dropped.
//! 3. A report is *open* for a store until that store settled it (acknowledged it, or called it stale).
//! 4. A terminal report outlives its settlement: it is forgotten when the same store says that the run is gone, and it
//!    is open again for a store that has not seen it.
//! 5. A progress report of a run replaces an older, open progress report of that run, so that a long time out of
//!    reach does not fill the disk.
//! 6. A full disk is [`Error::Full`]: the caller still holds its report and tries again.
//!
//! One thread owns the file and group-commits: everything that waits is one transaction and one sync.

mod file;
#[cfg(test)]
mod tests;

use std::path::Path;

use panda_rpc::report::RunReport;
use panda_rpc::v1::Fence;
use prost::Message as _;
use rusqlite::{Connection, OptionalExtension as _, params};
use tokio::sync::{mpsc, oneshot, watch};

/// Largest body of a report.
const MAX_BODY: usize = 1 << 20;
/// Bytes of bodies that one look at what is pending brings at most, but for the last body.
pub(crate) const PENDING_BYTES: usize = 4 << 20;
/// Most runs that [`Outbox::to_name`] names; the server takes no more in a Hello.
const MAX_NAMED: i64 = 4096;
/// Commands that may wait for the writer.
const QUEUE: usize = 256;

/// Its file, in the device's data folder.
pub(crate) const FILE: &str = "outbox.db";

/// Why the outbox could not do something.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// No space; the report was not taken.
    #[error("no space left for the device's outbox: free some disk, the report is tried again")]
    Full,
    /// The disk failed.
    #[error("the device's outbox could not be written: {0}")]
    Io(String),
    /// A newer version wrote it.
    #[error("the device's outbox has format {found}, this version knows {known}: install a newer agentlet")]
    Newer {
        /// Format of the file.
        found: i64,
        /// Newest format known.
        known: i64,
    },
    /// The file is damaged.
    #[error("the device's outbox is damaged ({0}): it is moved aside at the next start")]
    Corrupt(String),
    /// A report larger than the server takes.
    #[error("report of {0} bytes is larger than the limit of {MAX_BODY}")]
    TooLarge(usize),
    /// The writer has ended.
    #[error("the device's outbox is closed")]
    Closed,
}

impl Error {
    /// Whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Full | Self::Io(_))
    }
}

/// What a report does to its run; decides how long it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Progress,
    Change,
    Terminal,
}

impl Class {
    fn of(report: &RunReport) -> Self {
        match report.phase {
            Some(phase) if phase.is_terminal() => Self::Terminal,
            None if report.event.is_none() && report.publish.is_none() => Self::Progress,
            _ => Self::Change,
        }
    }

    const fn code(self) -> i64 {
        match self {
            Self::Progress => 0,
            Self::Change => 1,
            Self::Terminal => 2,
        }
    }
}

/// A report that a store has not settled.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its number.
    pub seq: u64,
    /// Who speaks.
    pub fence: Fence,
    /// JSON of the [`RunReport`].
    pub body: Vec<u8>,
}

/// What the device remembers of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Store that it last spoke to; empty at first.
    pub store_uid: String,
    /// Newest revision that it heard of.
    pub last_revision: u64,
    /// Last number that was settled.
    pub last_ack: u64,
    /// Boot under which it last ran.
    pub boot_id: String,
}

type Finish = Box<dyn FnOnce(&Result<(), Error>) + Send>;
type Job = Box<dyn FnOnce(&Connection) -> (bool, Finish) + Send>;

/// Handle to the outbox; clones share it.
#[derive(Clone, Debug)]
pub struct Outbox {
    jobs: mpsc::Sender<Job>,
    newest: watch::Receiver<u64>,
    newest_tx: std::sync::Arc<watch::Sender<u64>>,
}

impl Outbox {
    /// Gives an outbox another name, if there is one: it belongs to a device that this one is no more, and what was
    /// acknowledged to that one would look as if the control plane had lost it.
    pub(crate) fn retire(path: &Path) -> Result<(), Error> {
        if path.exists() {
            let kept = file::move_aside(path)?;
            tracing::info!(kept = %kept.display(), "the outbox of the removed device was moved aside");
        }
        Ok(())
    }

    /// Opens or creates the outbox in `path` (mode 0600), of at most `max_bytes`. A damaged file is moved aside, for a
    /// person to look at: the folders of runs know how they ended, and the server says what it has heard already.
    pub fn open(path: &Path, max_bytes: u64) -> Result<Self, Error> {
        let conn = match file::open(path, max_bytes) {
            Err(Error::Corrupt(why)) => {
                let kept = file::move_aside(path)?;
                tracing::error!(
                    why,
                    kept = %kept.display(),
                    "the outbox is damaged and was moved aside: runs that were at work are ended and reported as \
                     failures of the device, finished ones are reported again"
                );
                file::open(path, max_bytes)?
            }
            opened => opened?,
        };
        let newest = file::newest(&conn)?;
        let (jobs, queue) = mpsc::channel(QUEUE);
        let (newest_tx, newest) = watch::channel(newest);
        std::thread::Builder::new()
            .name("outbox".into())
            .spawn(move || file::run(conn, queue))
            .map_err(|e| Error::Io(e.to_string()))?;
        Ok(Self {
            jobs,
            newest,
            newest_tx: std::sync::Arc::new(newest_tx),
        })
    }

    /// Takes a report: it is on disk when this returns its number.
    pub async fn report(&self, fence: &Fence, report: &RunReport) -> Result<u64, Error> {
        let body = serde_json::to_vec(report).map_err(|e| Error::Io(e.to_string()))?;
        if body.len() > MAX_BODY {
            return Err(Error::TooLarge(body.len()));
        }
        let class = Class::of(report);
        let (run, fence) = (fence.run_uid.clone(), fence.encode_to_vec());
        let seq = self
            .call(move |conn| {
                if class == Class::Progress {
                    conn.prepare_cached(
                        "DELETE FROM reports WHERE run_uid = ?1 AND class = 0 AND settled_by IS NULL",
                    )?
                    .execute([&run])?;
                }
                let seq: i64 = conn
                    .prepare_cached("UPDATE memory SET next_seq = next_seq + 1 RETURNING next_seq - 1")?
                    .query_row([], |row| row.get(0))?;
                conn.prepare_cached(
                    "INSERT INTO reports (seq, run_uid, fence, body, class) VALUES (?1, ?2, ?3, ?4, ?5)",
                )?
                .execute(params![seq, run, fence, body, class.code()])?;
                Ok(seq.unsigned_abs())
            })
            .await?;
        self.newest_tx.send_if_modified(|newest| {
            let grew = seq > *newest;
            *newest = seq.max(*newest);
            grew
        });
        Ok(seq)
    }

    /// Number of the newest report, as it grows.
    #[must_use]
    pub fn newest(&self) -> watch::Receiver<u64> {
        self.newest.clone()
    }

    /// Up to `limit` reports after number `after` that `store` has not settled, oldest first; fewer when they are large.
    pub async fn pending(&self, store: &str, after: u64, limit: usize) -> Result<Vec<Entry>, Error> {
        let store = store.to_owned();
        self.call(move |conn| {
            let mut query = conn.prepare_cached(
                "SELECT seq, fence, body FROM reports
                 WHERE seq > ?2 AND (settled_by IS NULL OR settled_by <> ?1) ORDER BY seq LIMIT ?3",
            )?;
            let mut rows = query.query(params![store, signed(after), signed(limit as u64)])?;
            let (mut found, mut bytes) = (Vec::new(), 0);
            while bytes < PENDING_BYTES
                && let Some(row) = rows.next()?
            {
                let entry = Entry {
                    seq: row.get::<_, i64>(0)?.unsigned_abs(),
                    fence: decode_fence(row, 1)?,
                    body: row.get(2)?,
                };
                bytes += entry.body.len();
                found.push(entry);
            }
            Ok(found)
        })
        .await
    }

    /// The server of `store` has dealt with report `seq`.
    pub async fn settle(&self, store: &str, seq: u64) -> Result<(), Error> {
        let store = store.to_owned();
        self.call(move |conn| {
            conn.prepare_cached("DELETE FROM reports WHERE seq = ?1 AND class < 2")?
                .execute([signed(seq)])?;
            conn.prepare_cached("UPDATE reports SET settled_by = ?2 WHERE seq = ?1")?
                .execute(params![signed(seq), store])?;
            conn.prepare_cached("UPDATE memory SET last_ack = max(last_ack, ?1)")?
                .execute([signed(seq)])?;
            Ok(())
        })
        .await
    }

    /// The server of `store` has forgotten a run: terminal reports that it settled are dropped.
    pub async fn gone(&self, store: &str, run_uid: &str) -> Result<(), Error> {
        let (store, run) = (store.to_owned(), run_uid.to_owned());
        self.call(move |conn| {
            conn.prepare_cached("DELETE FROM reports WHERE run_uid = ?1 AND settled_by = ?2")?
                .execute(params![run, store])?;
            Ok(())
        })
        .await
    }

    /// Fences of the runs whose terminal report is here.
    pub async fn finished(&self) -> Result<Vec<Fence>, Error> {
        self.call(|conn| {
            conn.prepare_cached("SELECT fence FROM reports WHERE class = 2 ORDER BY seq")?
                .query_map([], |row| decode_fence(row, 0))?
                .collect()
        })
        .await
    }

    /// Fences of finished runs to name to a server: those whose terminal report `store` has not settled, the oldest first,
    /// then the newest of the others; [`MAX_NAMED`] at most.
    pub async fn to_name(&self, store: &str) -> Result<Vec<Fence>, Error> {
        let store = store.to_owned();
        self.call(move |conn| {
            conn.prepare_cached(
                "SELECT fence FROM reports WHERE class = 2
                 ORDER BY CASE WHEN settled_by = ?1 THEN 1 ELSE 0 END, CASE WHEN settled_by = ?1 THEN -seq ELSE seq END
                 LIMIT ?2",
            )?
            .query_map(params![store, MAX_NAMED], |row| decode_fence(row, 0))?
            .collect()
        })
        .await
    }

    /// Whether a run's terminal report is here, and whether `store` settled it.
    pub async fn terminal(&self, store: &str, run_uid: &str) -> Result<Option<bool>, Error> {
        let (store, run) = (store.to_owned(), run_uid.to_owned());
        self.call(move |conn| {
            conn.prepare_cached(
                "SELECT ifnull(settled_by = ?2, 0) FROM reports WHERE run_uid = ?1 AND class = 2
                 ORDER BY seq LIMIT 1",
            )?
            .query_row(params![run, store], |row| row.get(0))
            .optional()
        })
        .await
    }

    /// Whether three quarters of its space are taken: the rest is for runs that are at work.
    pub async fn is_crowded(&self) -> Result<bool, Error> {
        self.call(|conn| {
            let read = |name| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
            let used = read("page_count")? - read("freelist_count")?;
            Ok(used >= read("max_page_count")? / 4 * 3)
        })
        .await
    }

    /// What the device remembers of the server.
    pub async fn memory(&self) -> Result<Memory, Error> {
        self.call(|conn| {
            conn.prepare_cached("SELECT store_uid, last_revision, last_ack, boot_id FROM memory")?
                .query_row([], |row| {
                    Ok(Memory {
                        store_uid: row.get(0)?,
                        last_revision: row.get::<_, i64>(1)?.unsigned_abs(),
                        last_ack: row.get::<_, i64>(2)?.unsigned_abs(),
                        boot_id: row.get(3)?,
                    })
                })
        })
        .await
    }

    /// Remembers the store that the device speaks to. Under another store than before, revisions start afresh.
    pub async fn set_store(&self, store_uid: &str) -> Result<(), Error> {
        let store = store_uid.to_owned();
        self.call(move |conn| {
            conn.execute(
                "UPDATE memory SET last_revision = iif(store_uid = ?1, last_revision, 0), store_uid = ?1",
                [store],
            )?;
            Ok(())
        })
        .await
    }

    /// Remembers the newest revision.
    pub async fn set_revision(&self, revision: u64) -> Result<(), Error> {
        self.call(move |conn| {
            conn.prepare_cached("UPDATE memory SET last_revision = max(last_revision, ?1)")?
                .execute([signed(revision)])?;
            Ok(())
        })
        .await
    }

    /// Remembers the boot.
    pub async fn set_boot(&self, boot_id: &str) -> Result<(), Error> {
        let boot = boot_id.to_owned();
        self.call(move |conn| {
            conn.execute("UPDATE memory SET boot_id = ?1", [boot])?;
            Ok(())
        })
        .await
    }

    /// The outbox is behind what the server has (`floor`): numbers on above it. Terminal reports are kept under new
    /// numbers, since a lost outbox may be the reason; what else was said is of the past.
    pub async fn restart_above(&self, floor: u64) -> Result<(), Error> {
        let newest = self
            .call(move |conn| {
                conn.execute("DELETE FROM reports WHERE class < 2", [])?;
                // By way of negative numbers, so that no number meets another on the way.
                conn.execute("UPDATE reports SET seq = -seq", [])?;
                conn.execute("UPDATE reports SET seq = ?1 - seq", [signed(floor)])?;
                conn.query_row(
                    "UPDATE memory SET next_seq = next_seq + ?1, last_ack = max(last_ack, ?1)
                     RETURNING next_seq - 1",
                    [signed(floor)],
                    |row| row.get::<_, i64>(0),
                )
            })
            .await?;
        self.newest_tx
            .send_modify(|known| *known = (*known).max(newest.unsigned_abs()));
        Ok(())
    }

    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |conn| {
            let result = work(conn).map_err(file::error);
            let ok = result.is_ok();
            let finish: Finish = Box::new(move |committed: &Result<(), Error>| {
                let answer = match committed {
                    Ok(()) => result,
                    Err(error) => Err(result.err().unwrap_or_else(|| error.clone())),
                };
                // The caller may have gone; what is committed stays committed.
                drop(reply.send(answer));
            });
            (ok, finish)
        });
        self.jobs.send(job).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn decode_fence(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Fence> {
    let bytes: Vec<u8> = row.get(column)?;
    Fence::decode(bytes.as_slice()).map_err(|e| {
        let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
        rusqlite::Error::SqliteFailure(code, Some(format!("fence of a report: {e}")))
    })
}
