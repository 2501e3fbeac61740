//! The outbox's file and the thread that owns it.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode};
use tokio::sync::mpsc;

use super::{Error, Finish, Job};

/// Format of the file.
const FORMAT: i64 = 1;
/// Jobs in one transaction.
const BATCH: usize = 128;
const PAGE: u64 = 4096;
/// Damaged files that are kept at most.
const KEPT: u32 = 8;

const SCHEMA: &str = "
CREATE TABLE reports (
    seq INTEGER PRIMARY KEY,
    run_uid TEXT NOT NULL,
    fence BLOB NOT NULL,
    body BLOB NOT NULL,
    class INTEGER NOT NULL,
    settled_by TEXT
);
CREATE INDEX reports_by_run ON reports (run_uid);
CREATE TABLE memory (
    next_seq INTEGER NOT NULL,
    last_ack INTEGER NOT NULL,
    last_revision INTEGER NOT NULL,
    store_uid TEXT NOT NULL,
    boot_id TEXT NOT NULL
);
INSERT INTO memory VALUES (1, 0, 0, '', '');
PRAGMA user_version = 1;
";

pub(super) fn open(path: &Path, max_bytes: u64) -> Result<Connection, Error> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(|e| Error::Io(format!("{}: {e}", path.display())))?;
    let conn = Connection::open(path).map_err(error)?;
    prepare(&conn, max_bytes).map_err(error)?;
    let found = conn
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(error)?;
    if found > FORMAT {
        return Err(Error::Newer { found, known: FORMAT });
    }
    if found == 0 {
        conn.execute_batch(&format!("BEGIN IMMEDIATE; {SCHEMA} COMMIT;"))
            .map_err(error)?;
    }
    let check: String = conn
        .query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
        .map_err(error)?;
    if check != "ok" {
        return Err(Error::Corrupt(check));
    }
    if newest(&conn).is_err() {
        return Err(Error::Corrupt("it has no memory".into()));
    }
    readable(&conn).map_err(error)?;
    Ok(conn)
}

/// Whatever would stop the daemon later is found at its start.
fn readable(conn: &Connection) -> rusqlite::Result<()> {
    conn.prepare("SELECT fence FROM reports")?
        .query_map([], |row| super::decode_fence(row, 0))?
        .try_for_each(|fence| fence.map(drop))
}

/// Gives a damaged outbox another name: the first that is free, or the last one of a few.
pub(super) fn move_aside(path: &Path) -> Result<PathBuf, Error> {
    let named = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let mut kept = named(".damaged-1");
    for n in 2..=KEPT {
        if !kept.exists() {
            break;
        }
        kept = named(&format!(".damaged-{n}"));
    }
    let aside = |from: &Path, to: &Path| match std::fs::rename(from, to) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::Io(format!("{}: {e}", from.display())))
        }
        _ => Ok(()),
    };
    // The log first: left behind, it would be played into the new file.
    let mut wal = kept.as_os_str().to_owned();
    wal.push("-wal");
    aside(&named("-wal"), Path::new(&wal))?;
    aside(path, &kept)?;
    drop(std::fs::remove_file(named("-shm")));
    Ok(kept)
}

fn prepare(conn: &Connection, max_bytes: u64) -> rusqlite::Result<()> {
    conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "cache_size", -512)?;
    let pages = i64::try_from(max_bytes / PAGE).unwrap_or(i64::MAX).max(8);
    conn.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))
}

/// Number of the newest report that was ever taken.
pub(super) fn newest(conn: &Connection) -> Result<u64, Error> {
    conn.query_row("SELECT next_seq - 1 FROM memory", [], |row| row.get::<_, i64>(0))
        .map(i64::unsigned_abs)
        .map_err(error)
}

/// Serves jobs until every handle is gone.
pub(super) fn run(conn: Connection, mut queue: mpsc::Receiver<Job>) {
    while let Some(first) = queue.blocking_recv() {
        let mut jobs = vec![first];
        while jobs.len() < BATCH {
            match queue.try_recv() {
                Ok(job) => jobs.push(job),
                Err(_) => break,
            }
        }
        let (outcome, finishes) = commit(&conn, jobs);
        for finish in finishes {
            finish(&outcome);
        }
    }
}

/// All of `jobs` in one transaction; when one fails, none of them happened.
fn commit(conn: &Connection, jobs: Vec<Job>) -> (Result<(), Error>, Vec<Finish>) {
    let begun = conn.execute_batch("BEGIN IMMEDIATE").map_err(error);
    let mut finishes = Vec::with_capacity(jobs.len());
    let mut all = begun.is_ok();
    for job in jobs {
        let (ok, finish) = job(conn);
        all &= ok;
        finishes.push(finish);
    }
    let outcome = match begun {
        Err(error) => Err(error),
        Ok(()) if all => conn.execute_batch("COMMIT").map_err(error),
        Ok(()) => Err(Error::Io("another report of the same commit failed".into())),
    };
    if outcome.is_err() && !conn.is_autocommit() {
        // After a failed ROLLBACK every later BEGIN fails too, and says so.
        drop(conn.execute_batch("ROLLBACK"));
    }
    (outcome, finishes)
}

pub(super) fn error(error: rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Error::Full,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Error::Corrupt(error.to_string()),
        _ => Error::Io(error.to_string()),
    }
}
