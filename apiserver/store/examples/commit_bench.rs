//! Durable creates per second through the `Store` trait, against bare SQLite that group-commits the same rows
//! in the same run. Prints rates and their ratio, the median of several rounds.
//!
//! `cargo run --release -p panda-store --example commit_bench [seconds per measurement]`

#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use panda_store::cacher::{self, Cacher};
use panda_store::sqlite::{Config, Sqlite};
use panda_store::{Body, Key, Op, Store};
use rusqlite::{Connection, params};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

const RESOURCE: &str = "panda.dev/tasks";
const ROUNDS: usize = 5;

/// 1.5 KB, like an object of ours.
fn body() -> Body {
    let head = r#"{"metadata":{"resourceVersion":""#;
    Body::new(
        format!(r#"{head}"}},"spec":"{}"}}"#, "x".repeat(1450)).into_bytes(),
        head.len(),
    )
}

/// Runs `clients` loops of `create` for a while; completed calls a second.
async fn measure<F, Fut>(clients: u64, time: Duration, create: F) -> f64
where
    F: Fn(String) -> Fut + Send + Sync + Clone + 'static,
    Fut: Future<Output = ()> + Send,
{
    let done = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let clients = (0..clients).map(|client| {
        let (create, done) = (create.clone(), Arc::clone(&done));
        tokio::spawn(async move {
            for n in 0.. {
                if start.elapsed() >= time {
                    break;
                }
                create(format!("{client}-{n}")).await;
                done.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.expect("a client panicked");
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let done = done.load(Ordering::Relaxed) as f64;
    done / start.elapsed().as_secs_f64()
}

async fn through_the_store(dir: &Path, clients: u64, time: Duration) -> f64 {
    let inner = Sqlite::open(&Config::new(dir.join("store")), "uid").expect("the store opens");
    let (store, feed) = Cacher::build(Arc::new(inner), cacher::Config::default());
    let token = CancellationToken::new();
    let feed = tokio::spawn(feed.run(token.clone()));
    let store = Arc::new(store);
    let rate = measure(clients, time, move |name| {
        let store = Arc::clone(&store);
        async move {
            let create = Op::create(Key::new(RESOURCE, "default", name), body());
            store.commit(create.into()).await.expect("the commit succeeds");
        }
    })
    .await;
    token.cancel();
    feed.await.expect("the feed ends");
    rate
}

type Row = (String, Vec<u8>, oneshot::Sender<()>);

/// The least that can be done: no preconditions, no events, no entries.
fn bare_writer(path: &Path, mut rows: mpsc::Receiver<Row>) -> rusqlite::Result<()> {
    let connection = Connection::open(path)?;
    connection.execute_batch(
        "PRAGMA journal_mode = wal; PRAGMA synchronous = full; PRAGMA wal_autocheckpoint = 16000;
         CREATE TABLE log (rev INTEGER PRIMARY KEY, resource TEXT, namespace TEXT, name TEXT, kind INTEGER,
             create_rev INTEGER, prev_rev INTEGER, value BLOB);
         CREATE TABLE objects (resource TEXT, namespace TEXT, name TEXT, rev INTEGER,
             PRIMARY KEY (resource, namespace, name)) WITHOUT ROWID;",
    )?;
    let mut revision = 0_i64;
    while let Some(first) = rows.blocking_recv() {
        let mut waiting = Vec::new();
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let mut next = Some(first);
        while let Some((name, value, reply)) = next {
            revision += 1;
            connection
                .prepare_cached("INSERT INTO log VALUES (?1, ?2, 'default', ?3, 0, ?1, 0, ?4)")?
                .execute(params![revision, RESOURCE, name, value])?;
            connection
                .prepare_cached("INSERT INTO objects VALUES (?1, 'default', ?2, ?3)")?
                .execute(params![RESOURCE, name, revision])?;
            waiting.push(reply);
            next = rows.try_recv().ok();
        }
        connection.execute_batch("COMMIT")?;
        for reply in waiting {
            reply.send(()).expect("the client waits");
        }
    }
    Ok(())
}

async fn bare(dir: &Path, clients: u64, time: Duration) -> f64 {
    let (send, rows) = mpsc::channel::<Row>(1024);
    let path = dir.join("bare.db");
    let writer = std::thread::spawn(move || bare_writer(&path, rows).expect("SQLite writes"));
    let rate = measure(clients, time, move |name| {
        let send = send.clone();
        async move {
            let (reply, done) = oneshot::channel();
            send.send((name, body().bytes, reply))
                .await
                .expect("the writer lives");
            done.await.expect("the writer answers");
        }
    })
    .await;
    writer.join().expect("the writer ends");
    rate
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::main]
async fn main() {
    let seconds = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(1.0);
    let time = Duration::from_secs_f64(seconds);
    println!("clients  store/s  bare SQLite/s  ratio (median of {ROUNDS} pairs)");
    for clients in [1, 16, 64] {
        let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let dir = tempfile::tempdir().expect("a temporary folder");
            // In turn, so that neither always meets the warmer disk.
            let (store, bare) = if round % 2 == 0 {
                let store = through_the_store(dir.path(), clients, time).await;
                (store, bare(dir.path(), clients, time).await)
            } else {
                let bare = bare(dir.path(), clients, time).await;
                (through_the_store(dir.path(), clients, time).await, bare)
            };
            ours.push(store);
            theirs.push(bare);
            ratios.push(store / bare);
        }
        println!(
            "{clients:7}  {:7.0}  {:13.0}  {:.2}",
            median(ours),
            median(theirs),
            median(ratios)
        );
    }
}
