//! What only the durable store can do: restart, refuse, recover.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;

use super::{Config, Sqlite};
use crate::conformance::{TASKS, body, create, delete, json, key, list, take, update, watch};
use crate::{Error, ListRequest, Op, Revision, Scope, Store, Txn};

fn config(dir: &tempfile::TempDir) -> Config {
    Config::new(dir.path().join("data"))
}

fn open(dir: &tempfile::TempDir) -> Sqlite {
    Sqlite::open(&config(dir), "new-uid").unwrap()
}

fn edit(dir: &tempfile::TempDir, sql: &str) {
    Connection::open(dir.path().join("data/store.db"))
        .unwrap()
        .execute_batch(sql)
        .unwrap();
}

#[tokio::test]
async fn a_restart_keeps_everything() {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open(&config(&dir), "first-uid").unwrap();
    let one = create(&store, &key("default", "one"), 1).await;
    let two = create(&store, &key("default", "two"), 2).await;
    let one = update(&store, &one, 3).await;
    delete(&store, &two).await;
    store.compact(Revision(2)).await.unwrap();
    let last = store.current_revision().await.unwrap();
    store.shutdown().await;
    assert!(matches!(
        store.commit(Op::create(key("a", "b"), body(1)).into()).await,
        Err(Error::Closed)
    ));
    assert!(matches!(store.get(one.key.clone()).await, Err(Error::Closed)));
    // The old handle still lives; the directory is free all the same.
    let again = Sqlite::open(&config(&dir), "second-uid").unwrap();
    assert_eq!(&*again.store_uid(), "first-uid");
    assert_eq!(again.current_revision().await.unwrap(), last);
    assert_eq!(
        list(&again, Scope::all(), None).await.unwrap(),
        [Arc::clone(&one)]
    );
    let mut watch = watch(&again, Scope::all(), Revision(1)).await;
    let next = create(&again, &key("default", "two"), 4).await;
    assert_eq!(next.revision, last.next());
    let seen: Vec<u64> = take(&mut watch, 4)
        .await
        .iter()
        .map(|event| event.revision.0)
        .collect();
    assert_eq!(seen, [2, 3, 4, 5]);
    let compacted = list(&again, Scope::all(), Some(Revision::ZERO)).await;
    assert!(
        matches!(compacted, Err(Error::Compacted { oldest: Revision(1) })),
        "{compacted:?}"
    );
}

#[tokio::test]
async fn a_store_that_lost_its_file_is_not_taken_for_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data/store.db");
    drop(open(&dir));
    let kept = std::fs::read(&path).unwrap();
    std::fs::write(&path, b"").unwrap();
    let emptied = Sqlite::open(&config(&dir), "new-uid").unwrap_err();
    assert!(matches!(emptied, Error::Missing { .. }), "{emptied:?}");
    std::fs::remove_file(&path).unwrap();
    let removed = Sqlite::open(&config(&dir), "new-uid").unwrap_err();
    assert!(matches!(removed, Error::Missing { .. }), "{removed:?}");
    std::fs::write(&path, kept).unwrap();
    drop(open(&dir));
    // A folder without the mark is a new one, even with an empty file of an interrupted start in it.
    std::fs::remove_dir_all(dir.path().join("data")).unwrap();
    std::fs::create_dir(dir.path().join("data")).unwrap();
    std::fs::write(&path, b"").unwrap();
    drop(open(&dir));
}

#[tokio::test]
async fn dropping_the_store_finishes_what_is_queued() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    for n in 0..50 {
        create(&store, &key("default", &format!("n{n}")), n).await;
    }
    drop(store);
    assert_eq!(list(&open(&dir), Scope::all(), None).await.unwrap().len(), 50);
}

#[tokio::test]
async fn watchers_hear_of_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let mut watch = watch(&store, Scope::all(), Revision::ZERO).await;
    store.shutdown().await;
    let end = futures::StreamExt::next(&mut watch).await;
    assert!(matches!(end, Some(Err(Error::Closed))), "{end:?}");
    assert!(futures::StreamExt::next(&mut watch).await.is_none());
}

#[test]
fn a_second_owner_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(&dir);
    let refused = Sqlite::open(&config(&dir), "uid").unwrap_err();
    assert!(
        matches!(refused, Error::Locked { pid: Some(pid), .. } if pid == std::process::id()),
        "{refused:?}"
    );
    assert!(refused.to_string().contains(&std::process::id().to_string()));
    drop(first);
    open(&dir);
}

#[test]
fn what_it_cannot_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir));
    edit(&dir, "PRAGMA user_version = 2");
    let refused = Sqlite::open(&config(&dir), "uid").unwrap_err();
    assert!(
        matches!(
            refused,
            Error::NewerSchema {
                found: 2,
                supported: 1
            }
        ),
        "{refused:?}"
    );
    edit(&dir, "PRAGMA user_version = 1; PRAGMA application_id = 7");
    let refused = Sqlite::open(&config(&dir), "uid").unwrap_err();
    assert!(matches!(refused, Error::Corrupt { .. }), "{refused:?}");
    edit(&dir, "PRAGMA application_id = 0x506e6461");
    open(&dir);
    std::fs::write(
        dir.path().join("data/store.db"),
        "this is not a database, only some text in a file",
    )
    .unwrap();
    let refused = Sqlite::open(&config(&dir), "uid").unwrap_err();
    assert!(matches!(refused, Error::Corrupt { .. }), "{refused:?}");
}

#[tokio::test]
async fn damage_is_found_after_an_unclean_stop() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    create(&store, &key("default", "one"), 1).await;
    create(&store, &key("default", "two"), 1).await;
    drop(store);
    edit(
        &dir,
        "DELETE FROM log WHERE rev = 1; UPDATE meta SET value = 0 WHERE key = 'clean'",
    );
    let refused = Sqlite::open(&config(&dir), "uid").unwrap_err();
    assert!(
        matches!(&refused, Error::Corrupt { detail, .. } if detail.contains("default/one")),
        "{refused:?}"
    );
    edit(
        &dir,
        "UPDATE meta SET value = 9 WHERE key = 'below'; UPDATE meta SET value = 1 WHERE key = 'clean'",
    );
    let refused = Sqlite::open(&config(&dir), "uid").unwrap_err();
    assert!(
        matches!(&refused, Error::Corrupt { detail, .. } if detail.contains("below 9")),
        "{refused:?}"
    );
}

#[tokio::test]
async fn its_files_are_private() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o755)).unwrap();
    let store = open(&dir);
    create(&store, &key("default", "one"), 1).await;
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&data), 0o700);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&data).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
        names.push(path.file_name().unwrap().to_owned());
    }
    for name in ["store.db", "store.db-wal", "store.db-shm", "store.lock"] {
        assert!(names.iter().any(|found| *found == *name), "{name} in {names:?}");
    }
}

#[tokio::test]
async fn a_failed_precondition_does_not_harm_its_neighbours() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    create(&store, &key("default", "taken"), 0).await;
    let commits = (0..100_u64).map(|n| {
        let name = if n % 3 == 0 {
            "taken".to_owned()
        } else {
            format!("n{n}")
        };
        store.commit(Op::create(key("default", &name), body(n)).into())
    });
    let outcomes = futures::future::join_all(commits).await;
    for (n, outcome) in outcomes.iter().enumerate() {
        assert_eq!(outcome.is_ok(), n % 3 != 0, "{n}: {outcome:?}");
    }
    let expected = 1 + outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert_eq!(list(&store, Scope::all(), None).await.unwrap().len(), expected);
    assert_eq!(store.current_revision().await.unwrap(), Revision(expected as u64));
}

#[tokio::test]
async fn the_writer_survives_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let before = create(&store, &key("default", "before"), 1).await;
    // SQLite's own limit of the file's size answers as a full disk does, but only to the connection that sets
    // it: the writer's.
    store.limit_pages(30).await;
    let large = |name: &str| {
        let mut body = body(1);
        body.bytes.resize(400_000, b' ');
        Op::create(key("default", name), body)
    };
    let (failed, small) = futures::future::join(
        store.commit(large("large").into()),
        store.commit(Op::create(key("default", "small"), body(2)).into()),
    )
    .await;
    assert!(matches!(failed, Err(Error::DiskFull)), "{failed:?}");
    let small = small.unwrap().entries[0].clone().unwrap();
    assert_eq!(small.revision, before.revision.next());
    assert_eq!(
        list(&store, Scope::all(), None).await.unwrap(),
        [Arc::clone(&before), Arc::clone(&small)]
    );
    store.limit_pages(1_000_000).await;
    let large = store.commit(large("large").into()).await.unwrap();
    assert_eq!(large.revision, small.revision.next());
    drop(store);
    assert_eq!(list(&open(&dir), Scope::all(), None).await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_group_that_cannot_be_committed_is_refused_and_does_not_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    create(&store, &key("default", "before"), 1).await;
    // A deferred constraint fails in COMMIT itself, after every statement has succeeded.
    let (parent, child) = (
        "CREATE TABLE p (a INTEGER PRIMARY KEY)",
        "CREATE TABLE c (a REFERENCES p DEFERRABLE INITIALLY DEFERRED)",
    );
    store.execute(&format!("{parent}; {child}")).await;
    store
        .execute(
            "CREATE TRIGGER t AFTER INSERT ON log WHEN new.name = 'bad' BEGIN INSERT INTO c VALUES (9); END",
        )
        .await;
    store.execute("PRAGMA foreign_keys = ON").await;
    let names = ["good", "bad", "fine"];
    let commits = names.map(|name| store.commit(Op::create(key("default", name), body(2)).into()));
    let outcomes = futures::future::join_all(commits).await;
    assert!(outcomes[0].is_ok() && outcomes[2].is_ok(), "{outcomes:?}");
    assert!(
        matches!(&outcomes[1], Err(error @ Error::Database { .. }) if error.is_retryable()),
        "{outcomes:?}"
    );
    let found: Vec<_> = list(&store, Scope::all(), None)
        .await
        .unwrap()
        .iter()
        .map(|e| e.key.name.to_string())
        .collect();
    assert_eq!(found, ["before", "fine", "good"]);
    assert_eq!(store.current_revision().await.unwrap(), Revision(3));
    drop(store);
    assert_eq!(list(&open(&dir), Scope::all(), None).await.unwrap().len(), 3);
}

#[tokio::test]
async fn compaction_removes_rows_and_goes_on_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let mut busy = create(&store, &key("default", "busy"), 0).await;
    for n in 1..1000 {
        busy = update(&store, &busy, n).await;
    }
    let gone = create(&store, &key("default", "gone"), 0).await;
    delete(&store, &gone).await;
    create(&store, &key("default", "last"), 0).await;
    store.compact(Revision(u64::MAX)).await.unwrap();
    // At once: what is not swept yet is swept after the restart.
    drop(store);
    let store = open(&dir);
    let rows = || {
        let connection = Connection::open(dir.path().join("data/store.db")).unwrap();
        connection
            .query_row("SELECT count(*) FROM log", [], |row| row.get::<_, i64>(0))
            .unwrap()
    };
    create(&store, &key("default", "wake"), 0).await;
    let swept = async {
        while rows() > 3 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), swept)
        .await
        .expect("history stays");
    let left = list(&store, Scope::resource(TASKS), None).await.unwrap();
    assert_eq!(left[0].value, json(999, busy.revision));
    assert_eq!(left.len(), 3);
}

#[tokio::test]
async fn the_wal_stays_bounded_under_steady_writes() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let mut padded = body(1);
    padded.bytes.resize(64 << 10, b' ');
    let (mut written, mut largest) = (0_u64, 0);
    let wal = dir.path().join("data/store.db-wal");
    for round in 0..40 {
        let ops = (0..48).map(|n| Op::create(key("default", &format!("n{round}-{n}")), padded.clone()));
        store.commit(Txn::new(ops.collect())).await.unwrap();
        written += 48 * padded.bytes.len() as u64;
        largest = largest.max(wal.metadata().unwrap().len());
    }
    assert!(written >= 120 << 20);
    assert!(
        largest < 96 << 20,
        "the WAL grew to {largest} bytes for {written} bytes written"
    );
}

#[tokio::test]
async fn large_lists_and_long_histories_come_in_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    for round in 0..12 {
        let ops = (0..500).map(|n| Op::create(key("default", &format!("n{round:02}-{n:03}")), body(n)));
        store.commit(Txn::new(ops.collect())).await.unwrap();
    }
    let mut seen = 0;
    let mut request = ListRequest {
        scope: Scope::resource(TASKS),
        limit: Some(700),
        ..ListRequest::default()
    };
    loop {
        let page = store.list(request.clone()).await.unwrap();
        seen += page.items.len();
        request.at = Some(page.revision);
        request.start_after = page.items.last().map(|entry| entry.key.clone());
        if !page.more {
            break;
        }
    }
    assert_eq!(seen, 6000);
    // More than one window of history, of which the last part alone is in the ring.
    let mut watch = watch(&store, Scope::namespace(TASKS, "default"), Revision(3)).await;
    let events = take(&mut watch, 5997).await;
    assert!(
        events
            .iter()
            .zip(4_u64..)
            .all(|(event, revision)| event.revision.0 == revision)
    );
}
