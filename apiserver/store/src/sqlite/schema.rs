//! Opening the file: settings, schema version, checks.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, params};

use super::{Config, database, lock};
use crate::{Error, Revision};

/// Version of the tables below, kept in `user_version`.
const VERSION: i64 = 1;
/// `application_id`: "Pnda".
const APPLICATION: i64 = 0x506e_6461;

const TABLES: &str = "
    CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE log (
        rev INTEGER PRIMARY KEY, resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
        kind INTEGER NOT NULL, create_rev INTEGER NOT NULL, prev_rev INTEGER NOT NULL, value BLOB NOT NULL
    ) STRICT;
    CREATE TABLE objects (
        resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, rev INTEGER NOT NULL,
        PRIMARY KEY (resource, namespace, name)
    ) STRICT, WITHOUT ROWID;
    INSERT INTO meta VALUES ('below', 0), ('swept', 0), ('clean', 1), ('recoveries', 0);
";

/// An opened store, and what it says about itself.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) uid: String,
    pub(super) revision: Revision,
    /// History below this has been given up.
    pub(super) below: Revision,
    /// Rows below this have been removed.
    pub(super) swept: Revision,
}

pub(super) fn open(path: &Path, config: &Config, new_uid: &str) -> Result<Opened, Error> {
    let mark = Mark::beside(path);
    // Nobody may take a store that lost its file for a new one: it would answer that nothing was ever there.
    if mark.is_there()? && path.metadata().map_or(0, |metadata| metadata.len()) == 0 {
        return Err(Error::Missing {
            path: path.to_owned(),
        });
    }
    let size = lock::private_file(path)?;
    let refuse = |error| database("open the store", path, error);
    let mut connection = Connection::open(path).map_err(refuse)?;
    connection.set_prepared_statement_cache_capacity(32);
    let found = recognise(&connection, path)?;
    configure(&connection).map_err(refuse)?;
    // The writer checkpoints only here; the ordinary ones are the checkpointer's.
    let ceiling = i64::from(config.wal_ceiling_pages.max(1));
    connection
        .pragma_update(None, "wal_autocheckpoint", ceiling)
        .map_err(refuse)?;
    connection
        .pragma_update(None, "cache_size", -8000)
        .map_err(refuse)?;
    if found == 0 {
        create(&mut connection, new_uid).map_err(refuse)?;
    }
    let opened = describe(connection).map_err(refuse)?;
    let clean: i64 = meta(&opened.connection, "clean").map_err(refuse)?;
    if clean == 0 {
        inspect(&opened.connection, path, size, config.check_limit)?;
    }
    let (below, swept) = (opened.below, opened.swept);
    if below > opened.revision || swept > below {
        let detail = format!(
            "compacted below {below}, swept {swept}, newest revision {}",
            opened.revision
        );
        return Err(Error::Corrupt {
            path: path.to_owned(),
            detail,
        });
    }
    set_meta(&opened.connection, "clean", 0).map_err(refuse)?;
    mark.leave()?;
    Ok(opened)
}

/// The version of a file's tables, 0 for an empty file; what another program or a newer version wrote is refused.
pub(super) fn recognise(connection: &Connection, path: &Path) -> Result<i64, Error> {
    let refuse = |error| database("open the store", path, error);
    let found = pragma(connection, "user_version").map_err(refuse)?;
    let application = pragma(connection, "application_id").map_err(refuse)?;
    let foreign = application != APPLICATION
        && (found != 0 || application != 0 || has_tables(connection).map_err(refuse)?);
    if foreign {
        let detail = "the file belongs to another program".to_owned();
        return Err(Error::Corrupt {
            path: path.to_owned(),
            detail,
        });
    }
    if found > VERSION {
        return Err(Error::NewerSchema {
            found,
            supported: VERSION,
        });
    }
    Ok(found)
}

/// A file beside the database that says that there was one.
struct Mark(PathBuf);

impl Mark {
    fn beside(path: &Path) -> Self {
        Self(path.with_extension("used"))
    }

    fn error(&self, operation: &'static str, source: std::io::Error) -> Error {
        Error::Io {
            operation,
            path: self.0.clone(),
            source,
        }
    }

    fn is_there(&self) -> Result<bool, Error> {
        self.0.try_exists().map_err(|error| self.error("inspect", error))
    }

    fn leave(&self) -> Result<(), Error> {
        if self.is_there()? {
            return Ok(());
        }
        lock::private_file(&self.0)?;
        let folder = self.0.parent().unwrap_or(Path::new("."));
        let synced = std::fs::File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|error| self.error("sync", error))
    }
}

/// Settings of every connection.
pub(super) fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(std::time::Duration::from_secs(10))?;
    connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "temp_store", "memory")
}

pub(super) fn meta(connection: &Connection, key: &str) -> rusqlite::Result<i64> {
    connection
        .prepare_cached("SELECT value FROM meta WHERE key = ?1")?
        .query_row([key], |row| row.get(0))
}

pub(super) fn set_meta(connection: &Connection, key: &str, value: i64) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached("INSERT OR REPLACE INTO meta VALUES (?1, ?2)")?;
    statement.execute(params![key, value]).map(|_| ())
}

/// Revisions are stored as SQLite's signed integers; one that does not fit cannot occur before 2^63 writes.
pub(super) fn column(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

pub(super) fn revision(column: i64) -> Revision {
    Revision(u64::try_from(column).unwrap_or(0))
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

fn has_tables(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("SELECT EXISTS (SELECT 1 FROM sqlite_schema)", [], |row| {
        row.get(0)
    })
}

fn create(connection: &mut Connection, uid: &str) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    transaction.execute_batch(TABLES)?;
    transaction.execute("INSERT INTO meta VALUES ('uid', ?1)", [uid])?;
    transaction.pragma_update(None, "application_id", APPLICATION)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()
}

fn describe(connection: Connection) -> rusqlite::Result<Opened> {
    let uid = connection.query_row("SELECT value FROM meta WHERE key = 'uid'", [], |row| row.get(0))?;
    let newest: Option<i64> = connection.query_row("SELECT max(rev) FROM log", [], |row| row.get(0))?;
    let below = revision(meta(&connection, "below")?);
    let swept = revision(meta(&connection, "swept")?);
    Ok(Opened {
        connection,
        uid,
        revision: revision(newest.unwrap_or(0)),
        below,
        swept,
    })
}

/// After an unclean stop: SQLite's own check, and ours that every object has its log row.
pub(super) fn inspect(connection: &Connection, path: &Path, size: u64, limit: u64) -> Result<(), Error> {
    let refuse = |error| database("check the store", path, error);
    if size > limit {
        tracing::warn!(
            size,
            limit,
            "store was not closed cleanly and is too large to check at start"
        );
        return Ok(());
    }
    tracing::info!(size, "store was not closed cleanly, checking it");
    let corrupt = |detail: String| {
        Err(Error::Corrupt {
            path: path.to_owned(),
            detail,
        })
    };
    let finding: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(refuse)?;
    if finding != "ok" {
        return corrupt(finding);
    }
    let astray = "SELECT o.resource || ' ' || o.namespace || '/' || o.name
        FROM objects o LEFT JOIN log l ON l.rev = o.rev
        WHERE l.rev IS NULL OR l.kind = 2 OR l.resource != o.resource OR l.namespace != o.namespace
            OR l.name != o.name LIMIT 1";
    let astray: Option<String> = connection
        .query_row(astray, [], |row| row.get(0))
        .optional()
        .map_err(refuse)?;
    astray.map_or(Ok(()), |key| corrupt(format!("{key} has no version in the log")))
}
