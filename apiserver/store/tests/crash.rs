//! kill -9 in the middle of writing: whatever was acknowledged is there afterwards.
//!
//! The test runs its own binary again as the process to kill.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use panda_store::sqlite::{Config, Sqlite};
use panda_store::{Body, Error, HistoryRequest, Key, Op, Revision, Scope, Store, Txn, guaranteed_update};

const DIR: &str = "PANDA_STORE_CRASH_TEST_DIR";
const WRITERS: u64 = 6;

fn body(payload: u64) -> Body {
    let head = r#"{"rev":""#;
    Body::new(
        format!(r#"{head}","pad":"{}","payload":{payload}}}"#, "x".repeat(700)).into_bytes(),
        head.len(),
    )
}

fn payload(value: &[u8]) -> u64 {
    let text = std::str::from_utf8(value).unwrap();
    text.rsplit_once(':')
        .unwrap()
        .1
        .trim_end_matches('}')
        .parse()
        .unwrap()
}

fn key(name: String) -> Key {
    Key::new("panda.dev/tasks", "default", name)
}

/// Creates objects and raises a counter, in one transaction and in two, telling each acknowledgement.
async fn write_on(store: Arc<Sqlite>, writer: u64, start: Revision) -> Result<(), Error> {
    let counter = key(format!("counter-{writer}"));
    if store.get(counter.clone()).await?.is_none() {
        store.commit(Op::create(counter.clone(), body(0)).into()).await?;
    }
    for n in 0.. {
        let name = format!("w{writer}-{start}-{n}");
        let create = Op::create(key(name.clone()), body(n));
        let raised = if n % 2 == 0 {
            store.commit(create.into()).await?;
            guaranteed_update::<_, _, Error>(&*store, &counter, |entry| {
                Ok(Some(body(payload(&entry.value) + 1)))
            })
            .await?
        } else {
            let entry = store.get(counter.clone()).await?.unwrap();
            let raise = Op::update(counter.clone(), entry.revision, body(payload(&entry.value) + 1));
            store.commit(Txn::new(vec![create, raise])).await?.entries[1]
                .clone()
                .unwrap()
        };
        let line = format!("ack {name} {writer} {}\n", payload(&raised.value));
        std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the process that the other test kills"]
async fn writes_until_killed() {
    #[expect(
        clippy::disallowed_methods,
        reason = "how a test hands its own child a folder"
    )]
    let dir = std::env::var_os(DIR).expect("run by the other test only");
    let store = Arc::new(Sqlite::open(&Config::new(dir), "uid").unwrap());
    let start = store.current_revision().await.unwrap();
    let writers = (0..WRITERS).map(|writer| tokio::spawn(write_on(Arc::clone(&store), writer, start)));
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap().unwrap();
    }
}

/// Runs a child until it has acknowledged `count` writes, kills it, and reads what else it said.
fn kill_after(dir: &Path, count: usize) -> Vec<(String, u64, u64)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "writes_until_killed", "--nocapture"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut acknowledged = Vec::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    // A line that the kill cut off does not count: nobody has received it.
    while output.read_line(&mut line).unwrap() > 0 && line.ends_with('\n') {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["ack", name, writer, counter] = words[..] {
            acknowledged.push((name.to_owned(), writer.parse().unwrap(), counter.parse().unwrap()));
        }
        if acknowledged.len() == count {
            child.kill().unwrap();
        }
        line.clear();
    }
    assert!(
        acknowledged.len() >= count,
        "the child ended by itself: {:?}",
        child.wait()
    );
    assert!(!child.wait().unwrap().success());
    acknowledged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut names = Vec::new();
    let mut counters: BTreeMap<u64, u64> = BTreeMap::new();
    for count in [1, 137, 400, 29, 260] {
        for (name, writer, counter) in kill_after(&data, count) {
            names.push(name);
            let known = counters.entry(writer).or_default();
            assert!(
                counter > *known,
                "writer {writer} counted {counter} after {known}"
            );
            *known = counter;
        }
        let store = Sqlite::open(&Config::new(&data), "other").unwrap();
        assert_eq!(&*store.store_uid(), "uid");
        for name in &names {
            assert!(
                store.get(key(name.clone())).await.unwrap().is_some(),
                "{name} is lost"
            );
        }
        for (writer, counter) in &counters {
            let entry = store
                .get(key(format!("counter-{writer}")))
                .await
                .unwrap()
                .unwrap();
            // One more may have been committed without the news getting out.
            let stored = payload(&entry.value);
            assert!(
                (*counter..=counter + 1).contains(&stored),
                "{writer}: {stored}, told {counter}"
            );
        }
        let (mut after, newest) = (Revision::ZERO, store.current_revision().await.unwrap());
        while after < newest {
            let request = HistoryRequest {
                scope: Scope::all(),
                after,
                max: 1000,
            };
            for event in store.history(request).await.unwrap().events {
                assert_eq!(event.revision, after.next(), "the history has a hole");
                after = event.revision;
            }
        }
    }
}
