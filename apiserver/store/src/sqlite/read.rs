//! Reads: a pool of connections on blocking threads, each read one SQLite snapshot.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row, params};
use tokio::sync::Semaphore;

use super::database;
use super::schema::{column, configure, meta, revision};
use crate::change::check_revision;
use crate::snapshot::{first_key, limit};
use crate::{Batch, Entry, Error, Event, EventKind, HistoryRequest, Key, ListRequest, Page, Revision, Scope};

/// Revisions looked through for one batch of history.
const WINDOW: u64 = 4096;
/// Bytes of bodies after which a batch of history ends.
const BATCH_BYTES: usize = 8 << 20;

#[derive(Clone, Debug)]
pub(super) struct Readers {
    pool: Arc<Pool>,
    permits: Arc<Semaphore>,
}

#[derive(Debug)]
struct Pool {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    closed: AtomicBool,
}

impl Pool {
    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(&self) -> rusqlite::Result<Connection> {
        let connection = Connection::open(&self.path)?;
        configure(&connection)?;
        connection.pragma_update(None, "query_only", true)?;
        connection.pragma_update(None, "cache_size", -2000)?;
        Ok(connection)
    }
}

/// What a read fails with: our own refusal, or the engine's.
pub(super) enum Failure {
    Refused(Error),
    Engine(rusqlite::Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Engine(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl Readers {
    pub(super) fn new(path: PathBuf, most: usize) -> Self {
        let pool = Pool {
            path,
            idle: Mutex::new(Vec::new()),
            closed: AtomicBool::new(false),
        };
        Self {
            pool: Arc::new(pool),
            permits: Arc::new(Semaphore::new(most)),
        }
    }

    pub(super) fn close(&self) {
        self.pool.closed.store(true, Ordering::Release);
        self.permits.close();
        self.pool.idle().clear();
    }

    /// Runs a read inside one snapshot.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        read: impl FnOnce(&Connection) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Error> {
        let permit = Arc::clone(&self.permits)
            .acquire_owned()
            .await
            .map_err(|_| Error::Closed)?;
        let pool = Arc::clone(&self.pool);
        let work = move || {
            let _permit = permit;
            let refuse = |error| database(operation, &pool.path, error);
            let idle = pool.idle().pop();
            let connection = idle.map_or_else(|| pool.connect(), Ok).map_err(refuse)?;
            connection.execute_batch("BEGIN DEFERRED").map_err(refuse)?;
            let outcome = read(&connection);
            // A connection that cannot end its snapshot is not used again.
            if connection.execute_batch("ROLLBACK").is_ok() && !pool.closed.load(Ordering::Acquire) {
                pool.idle().push(connection);
            }
            outcome.map_err(|failure| match failure {
                Failure::Refused(error) => error,
                Failure::Engine(error) => refuse(error),
            })
        };
        let joined = tokio::task::spawn_blocking(work).await;
        joined.map_err(|error| Error::Database {
            operation,
            source: Box::new(error),
        })?
    }
}

/// Makes keys that share their repeated parts.
#[derive(Default)]
pub(super) struct Keys(Option<Key>);

impl Keys {
    /// The key in columns `at`, `at + 1` and `at + 2`.
    pub(super) fn read(&mut self, row: &Row<'_>, at: usize) -> rusqlite::Result<Key> {
        let (resource, namespace) = (row.get_ref(at)?.as_str()?, row.get_ref(at + 1)?.as_str()?);
        let share = |last: Option<&Arc<str>>, text: &str| match last {
            Some(last) if **last == *text => Arc::clone(last),
            _ => Arc::from(text),
        };
        let last = self.0.as_ref();
        let key = Key {
            resource: share(last.map(|key| &key.resource), resource),
            namespace: share(last.map(|key| &key.namespace), namespace),
            name: Arc::from(row.get_ref(at + 2)?.as_str()?),
        };
        self.0 = Some(key.clone());
        Ok(key)
    }
}

fn bytes(row: &Row<'_>, at: usize) -> rusqlite::Result<Bytes> {
    Ok(Bytes::copy_from_slice(row.get_ref(at)?.as_blob()?))
}

/// The newest version of a key; also the writer's view of it.
pub(super) fn current(connection: &Connection, key: &Key) -> rusqlite::Result<Option<Arc<Entry>>> {
    let mut statement = connection.prepare_cached(
        "SELECT l.rev, l.create_rev, l.value FROM objects o CROSS JOIN log l ON l.rev = o.rev
         WHERE o.resource = ?1 AND o.namespace = ?2 AND o.name = ?3",
    )?;
    let found = statement.query_row(params![key.resource, key.namespace, key.name], |row| {
        Ok(Arc::new(Entry {
            key: key.clone(),
            revision: revision(row.get(0)?),
            create_revision: revision(row.get(1)?),
            value: bytes(row, 2)?,
        }))
    });
    found.optional()
}

pub(super) fn get(connection: &Connection, key: &Key) -> Result<Option<Arc<Entry>>, Failure> {
    Ok(current(connection, key)?)
}

/// The newest revision of this snapshot, once `asked` is known to be inside of its history.
fn bounds(connection: &Connection, asked: Option<Revision>) -> Result<Revision, Failure> {
    let newest: Option<i64> = connection
        .prepare_cached("SELECT max(rev) FROM log")?
        .query_row([], |row| row.get(0))?;
    let newest = revision(newest.unwrap_or(0));
    if let Some(asked) = asked {
        let below = revision(meta(connection, "below")?);
        check_revision(asked, Revision(below.0.saturating_sub(1)), newest)?;
    }
    Ok(newest)
}

pub(super) fn check(connection: &Connection, request: &HistoryRequest) -> Result<(), Failure> {
    bounds(connection, Some(request.after)).map(|_| ())
}

pub(super) fn history(connection: &Connection, request: &HistoryRequest) -> Result<Batch, Failure> {
    let newest = bounds(connection, Some(request.after))?;
    let end = newest.min(Revision(request.after.0.saturating_add(WINDOW)));
    let mut statement = connection.prepare_cached(
        "SELECT l.resource, l.namespace, l.name, l.rev, l.kind, l.create_rev, l.prev_rev, l.value, p.value
         FROM log l LEFT JOIN log p ON p.rev = l.prev_rev
         WHERE l.rev > ?1 AND l.rev <= ?2 AND (?3 IS NULL OR l.resource = ?3)
             AND (?4 IS NULL OR l.namespace = ?4) ORDER BY l.rev",
    )?;
    let Scope { resource, namespace } = &request.scope;
    let namespace = resource.as_ref().and(namespace.as_ref());
    let mut rows = statement.query(params![
        column(request.after),
        column(end),
        resource.as_deref(),
        namespace.map(|n| &**n)
    ])?;
    let (mut keys, mut size, mut events) = (Keys::default(), 0, Vec::new());
    while let Some(row) = rows.next()? {
        let kind = match row.get(4)? {
            0 => EventKind::Created,
            1 => EventKind::Updated,
            _ => EventKind::Deleted,
        };
        let prev_revision = revision(row.get(6)?);
        let event = Event {
            revision: revision(row.get(3)?),
            key: keys.read(row, 0)?,
            kind,
            value: bytes(row, 7)?,
            prev: if prev_revision > Revision::ZERO {
                Some(bytes(row, 8)?)
            } else {
                None
            },
            prev_revision,
            create_revision: revision(row.get(5)?),
        };
        size += event.value.len();
        let through = event.revision;
        events.push(Arc::new(event));
        if events.len() >= request.max.max(1) || size >= BATCH_BYTES {
            return Ok(Batch { events, through });
        }
    }
    Ok(Batch { events, through: end })
}

/// The keys of a scope behind a start key, as a condition on `?1`, `?2`, `?3`.
fn range(scope: &Scope) -> &'static str {
    match (&scope.resource, &scope.namespace) {
        (None, _) => "(resource, namespace, name) > (?1, ?2, ?3)",
        (Some(_), None) => "resource = ?1 AND (namespace, name) > (?2, ?3)",
        (Some(_), Some(_)) => "resource = ?1 AND namespace = ?2 AND name > ?3",
    }
}

pub(super) fn list(connection: &Connection, request: &ListRequest) -> Result<Page, Failure> {
    let newest = bounds(connection, request.at)?;
    let at = request.at.unwrap_or(newest);
    let first = first_key(&request.scope);
    let start = match &request.start_after {
        Some(after) if *after > first && !request.scope.contains(after) => {
            return Ok(Page {
                revision: at,
                ..Page::default()
            });
        }
        Some(after) => after.clone().max(first),
        None => first,
    };
    let limit = limit(request);
    let mut changed = changed_since(connection, &request.scope, &start, at)?
        .into_iter()
        .peekable();
    let total_changed = changed.len();
    let condition = range(&request.scope);
    let mut statement = connection.prepare_cached(&format!(
        "SELECT o.resource, o.namespace, o.name, l.rev, l.create_rev, l.value
         FROM (SELECT * FROM objects WHERE {condition} AND rev <= ?4
               ORDER BY resource, namespace, name LIMIT ?5) o CROSS JOIN log l ON l.rev = o.rev
         ORDER BY o.resource, o.namespace, o.name"
    ))?;
    let sql_limit = i64::try_from(limit).unwrap_or(-1);
    let mut rows = statement.query(params![
        start.resource,
        start.namespace,
        start.name,
        column(at),
        sql_limit
    ])?;
    let (mut keys, mut items) = (Keys::default(), Vec::new());
    let mut next = rows.next()?.map(|row| entry(&mut keys, row)).transpose()?;
    while items.len() < limit {
        let take_changed = match (&next, changed.peek()) {
            (Some(next), Some((key, _))) => *key < next.key,
            (None, Some(_)) => true,
            (Some(_), None) => false,
            (None, None) => break,
        };
        if take_changed {
            if let Some((key, rev)) = changed.next() {
                items.push(version(connection, key, rev)?);
            }
        } else if let Some(unchanged) = next.take() {
            items.push(unchanged);
            next = rows.next()?.map(|row| entry(&mut keys, row)).transpose()?;
        }
    }
    let remaining = if items.len() < limit {
        0
    } else {
        let mut statement = connection.prepare_cached(&format!(
            "SELECT count(*) FROM objects WHERE {condition} AND rev <= ?4"
        ))?;
        let total: i64 = statement.query_row(
            params![start.resource, start.namespace, start.name, column(at)],
            |row| row.get(0),
        )?;
        let total = usize::try_from(total).unwrap_or(0) + total_changed;
        total.saturating_sub(items.len()) as u64
    };
    Ok(Page {
        items,
        revision: at,
        remaining,
        more: remaining > 0,
    })
}

fn entry(keys: &mut Keys, row: &Row<'_>) -> rusqlite::Result<Arc<Entry>> {
    Ok(Arc::new(Entry {
        key: keys.read(row, 0)?,
        revision: revision(row.get(3)?),
        create_revision: revision(row.get(4)?),
        value: bytes(row, 5)?,
    }))
}

fn version(connection: &Connection, key: Key, rev: i64) -> rusqlite::Result<Arc<Entry>> {
    let mut statement = connection.prepare_cached("SELECT create_rev, value FROM log WHERE rev = ?1")?;
    statement.query_row([rev], |row| {
        let create_revision = revision(row.get(0)?);
        Ok(Arc::new(Entry {
            key,
            revision: revision(rev),
            create_revision,
            value: bytes(row, 1)?,
        }))
    })
}

/// Keys behind `start` that changed after `at` and existed then, with the revision they had.
fn changed_since(
    connection: &Connection,
    scope: &Scope,
    start: &Key,
    at: Revision,
) -> rusqlite::Result<BTreeMap<Key, i64>> {
    // With min() SQLite takes the other columns from the same, first row.
    let mut statement = connection.prepare_cached(&format!(
        "SELECT resource, namespace, name, prev_rev, min(rev) FROM log WHERE rev > ?4 AND {}
         GROUP BY resource, namespace, name",
        range(scope)
    ))?;
    let mut keys = Keys::default();
    let mut rows = statement.query(params![start.resource, start.namespace, start.name, column(at)])?;
    let mut changed = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let before: i64 = row.get(3)?;
        if before > 0 {
            changed.insert(keys.read(row, 0)?, before);
        }
    }
    Ok(changed)
}
