//! A store as one file: taken out of a running one, looked at, and made into another store.
//!
//! Nothing here needs the store's own threads: SQLite lets other processes read a consistent state beside the
//! writer. While a copy is taken the write-ahead log cannot be begun anew, so it grows with what is written meanwhile.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, params};

use super::{database, lock, schema};
use crate::change::event;
use crate::{Body, Change, Error, Expect, Key, Op, Revision};

/// What a file says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The store's identity.
    pub uid: String,
    /// Its newest revision.
    pub revision: Revision,
}

/// A store's folder, held as its owner holds it: no server can open it meanwhile.
#[derive(Debug)]
pub struct Owned(#[expect(dead_code, reason = "held, not read")] lock::Lock);

/// Takes a store's folder; makes it, with mode 0700, when it is not there.
///
/// # Errors
/// [`Error::Locked`] while a server, or another program, has it.
pub fn own(dir: &Path) -> Result<Owned, Error> {
    lock::private_dir(dir)?;
    Ok(Owned(lock::Lock::acquire(dir)?))
}

/// Writes the newest state of the store in `dir`, whether or not it is in use, to the new file `target`.
///
/// # Errors
/// When there is no store, it is another program's or of a newer version, or the disk is full.
pub fn copy(dir: &Path, target: &Path) -> Result<Facts, Error> {
    let path = dir.join(FILE);
    let refuse = |error| database("copy the store", &path, error);
    let connection = open(&path)?;
    schema::recognise(&connection, &path)?;
    lock::private_file(target)?;
    let name = target.to_str().ok_or_else(|| Error::Io {
        operation: "name",
        path: target.to_owned(),
        source: std::io::ErrorKind::InvalidFilename.into(),
    })?;
    connection.execute("VACUUM INTO ?1", [name]).map_err(refuse)?;
    let copied = open(target)?;
    let refuse = |error| database("read the copy of the store", target, error);
    facts(&copied).map_err(refuse)
}

/// Checks a file whole: it is a store, of a version that this program knows, and not damaged.
///
/// # Errors
/// What is wrong with it.
pub fn examine(path: &Path) -> Result<Facts, Error> {
    let connection = open(path)?;
    if schema::recognise(&connection, path)? == 0 {
        return Err(Error::Corrupt {
            path: path.to_owned(),
            detail: "it is no store".to_owned(),
        });
    }
    schema::inspect(&connection, path, 0, u64::MAX)?;
    facts(&connection).map_err(|error| database("read the store", path, error))
}

/// Shows every object of a resource, as it is stored, until `visit` fails.
///
/// # Errors
/// The store's own, and those of `visit`.
pub fn visit<E: From<Error>>(
    path: &Path,
    resource: &str,
    mut visit: impl FnMut(&Key, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let refuse = |error| database("read the store", path, error);
    let connection = open(path)?;
    let mut statement = connection
        .prepare(
            "SELECT o.namespace, o.name, l.value FROM objects o CROSS JOIN log l ON l.rev = o.rev
             WHERE o.resource = ?1 ORDER BY o.namespace, o.name",
        )
        .map_err(refuse)?;
    let mut rows = statement.query([resource]).map_err(refuse)?;
    while let Some(row) = rows.next().map_err(refuse)? {
        let text = |at| row.get_ref(at).and_then(|value| Ok(value.as_str()?.to_owned()));
        let key = Key::new(resource, text(0).map_err(refuse)?, text(1).map_err(refuse)?);
        let value = row.get_ref(2).map_err(refuse)?;
        let value = value.as_blob().map_err(|error| refuse(error.into()))?;
        visit(&key, value)?;
    }
    Ok(())
}

/// Makes the file another store, one that begins after everything that anybody may have seen of the old one: a new
/// identity, the revision raised by `raise`, no history, so that every older version is refused as compacted. The object
/// `key` is set to `body` on the way; it is what has the new revision.
///
/// # Errors
/// When the file cannot be written.
pub fn renew(path: &Path, uid: &str, raise: u64, key: &Key, body: Body) -> Result<Facts, Error> {
    let refuse = |error| database("give the store a new identity", path, error);
    let mut connection = open(path)?;
    // One file, nothing beside it that would have to be moved with it.
    connection
        .pragma_update_and_check(None, "journal_mode", "delete", |_| Ok(()))
        .map_err(refuse)?;
    let facts = (|| {
        let transaction = connection.transaction()?;
        let before = facts(&transaction)?;
        // Made anew: what it was has no place in a history that begins here.
        transaction.execute(
            "DELETE FROM objects WHERE resource = ?1 AND namespace = ?2 AND name = ?3",
            params![key.resource, key.namespace, key.name],
        )?;
        let op = Op {
            key: key.clone(),
            expect: Expect::Absent,
            change: Change::Put(body),
        };
        let newest = Revision(before.revision.0.saturating_add(raise));
        if let Some(event) = event(&op, None, newest) {
            super::writer::insert(&transaction, &event)?;
        }
        transaction.execute("DELETE FROM log WHERE rev NOT IN (SELECT rev FROM objects)", [])?;
        transaction.execute("UPDATE meta SET value = ?1 WHERE key = 'uid'", params![uid])?;
        for mark in ["below", "swept"] {
            schema::set_meta(&transaction, mark, schema::column(newest))?;
        }
        schema::set_meta(&transaction, "clean", 1)?;
        let after = facts(&transaction)?;
        transaction.commit()?;
        Ok(after)
    })();
    let facts = facts.map_err(refuse)?;
    connection.close().map_err(|(_, error)| refuse(error))?;
    std::fs::File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(|source| Error::Io {
            operation: "sync",
            path: path.to_owned(),
            source,
        })?;
    Ok(facts)
}

/// Name of the database in a store's folder.
pub const FILE: &str = "store.db";

fn open(path: &Path) -> Result<Connection, Error> {
    let refuse = |error| database("open the store", path, error);
    // SQLite's own message for a file that is not there does not say so.
    path.metadata().map_err(|source| Error::Io {
        operation: "open",
        path: path.to_owned(),
        source,
    })?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(refuse)?;
    connection
        .busy_timeout(std::time::Duration::from_secs(10))
        .map_err(refuse)?;
    Ok(connection)
}

fn facts(connection: &Connection) -> rusqlite::Result<Facts> {
    let uid = connection.query_row("SELECT value FROM meta WHERE key = 'uid'", [], |row| row.get(0))?;
    let newest: Option<i64> = connection.query_row("SELECT max(rev) FROM log", [], |row| row.get(0))?;
    Ok(Facts {
        uid,
        revision: schema::revision(newest.unwrap_or(0)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::{Config, Sqlite};
    use crate::{ListRequest, Scope, Store, Txn, WatchRequest};

    fn body(text: &str) -> Body {
        let head = r#"{"metadata":{"resourceVersion":""#;
        Body::new(
            format!("{head}\"}},\"text\":\"{text}\"}}").into_bytes(),
            head.len(),
        )
    }

    fn key(name: &str) -> Key {
        Key::new("x/things", "ns", name)
    }

    async fn put(store: &Sqlite, name: &str, text: &str) -> Revision {
        let op = match store.get(key(name)).await.unwrap() {
            Some(entry) => Op::update(key(name), entry.revision, body(text)),
            None => Op::create(key(name), body(text)),
        };
        store.commit(Txn::new(vec![op])).await.unwrap().revision
    }

    #[tokio::test]
    async fn a_copy_of_a_store_in_use_becomes_another_store_without_a_past() {
        let dir = tempfile::tempdir().unwrap();
        let live = Sqlite::open(&Config::new(dir.path().join("live")), "first").unwrap();
        let old = put(&live, "a", "one").await;
        put(&live, "a", "two").await;
        let newest = put(&live, "b", "one").await;
        let other = dir.path().join("other");
        std::fs::create_dir(&other).unwrap();
        let file = other.join(FILE);
        let copied = copy(&dir.path().join("live"), &file).unwrap();
        assert_eq!((copied.uid.as_str(), copied.revision), ("first", newest));
        // The store goes on, the copy stays as it is.
        put(&live, "a", "three").await;
        assert_eq!(examine(&file).unwrap(), copied);

        let marker = Key::new("x/markers", "", "m");
        let renewed = renew(&file, "second", 1_000_000_000, &marker, body("restored")).unwrap();
        assert_eq!(renewed.revision, Revision(newest.0 + 1_000_000_000));
        let mut seen = Vec::new();
        visit(&file, "x/things", |key, value| {
            seen.push((key.name.to_string(), String::from_utf8_lossy(value).into_owned()));
            Ok::<_, Error>(())
        })
        .unwrap();
        assert_eq!(seen.len(), 2);
        assert!(seen[0].1.contains("two"), "{seen:?}");

        let store = Sqlite::open(&Config::new(&other), "ignored").unwrap();
        assert_eq!(&*store.store_uid(), "second");
        let watch = |from| WatchRequest {
            scope: Scope::resource("x/things"),
            from,
        };
        for version in [old, newest, Revision(newest.0 + 500)] {
            let refused = store.watch(watch(version)).await.unwrap_err();
            assert!(matches!(refused, Error::Compacted { .. }), "{version}: {refused}");
        }
        let page = store
            .list(ListRequest {
                scope: Scope::resource("x/things"),
                ..ListRequest::default()
            })
            .await
            .unwrap();
        assert_eq!((page.items.len(), page.revision), (2, renewed.revision));
        store.watch(watch(page.revision)).await.unwrap();
        assert_eq!(put(&store, "a", "four").await, renewed.revision.next());
    }

    #[test]
    fn what_is_no_store_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        assert!(matches!(examine(&file), Err(Error::Io { .. })));
        std::fs::write(&file, "").unwrap();
        assert!(matches!(examine(&file), Err(Error::Corrupt { .. })));
        std::fs::write(&file, "x".repeat(8192)).unwrap();
        assert!(matches!(examine(&file), Err(Error::Corrupt { .. })));
        std::fs::remove_file(&file).unwrap();
        let connection = Connection::open(&file).unwrap();
        connection.execute_batch("CREATE TABLE t (x)").unwrap();
        assert!(matches!(examine(&file), Err(Error::Corrupt { .. })));
        connection
            .pragma_update(None, "application_id", 0x506e_6461)
            .unwrap();
        connection.pragma_update(None, "user_version", 99).unwrap();
        assert!(matches!(
            examine(&file),
            Err(Error::NewerSchema { found: 99, .. })
        ));
    }
}
