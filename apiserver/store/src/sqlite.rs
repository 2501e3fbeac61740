//! The durable store: one SQLite file, one writer thread, group commit.
//!
//! 1. Everything that waits when the writer is free becomes one SQLite transaction and one sync. A failed
//!    precondition concerns its own transaction only.
//! 2. An object's body is written once, into the append-only `log`; `objects` points at it by revision. The
//!    log is the watch history.
//! 3. A commit is acknowledged after the sync. If writing fails nobody in the group is acknowledged and each
//!    is tried alone, so that one transaction too large for the disk does not harm its neighbours; the writer
//!    goes on. After a failed commit it first commits a record of its own over the failed one's place, so
//!    that a refused change cannot come back after a crash.
//! 4. Checkpoints run on a thread of their own; a ceiling inside the writer bounds the WAL all the same.
//! 5. One process owns the directory, by a lock on `store.lock`.

mod checkpoint;
pub mod copy;
mod lock;
mod read;
mod schema;
#[cfg(test)]
mod tests;
mod writer;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use futures::FutureExt;
use tokio::sync::{mpsc, oneshot};

use crate::change::check_revision;
use crate::hub::Hub;
use crate::watch::History;
use crate::{
    Batch, BoxFuture, Committed, Entry, Error, HistoryRequest, Key, ListRequest, Page, Revision, RingLimits,
    Scope, Store, Txn, Watch, WatchRequest,
};
use read::Readers;
use writer::{Command, Writer};

/// Where and how the store keeps its data.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory; made with mode 0700 when it does not exist.
    pub dir: PathBuf,
    /// Most transactions that wait for the writer; more wait outside.
    pub queue: usize,
    /// Most concurrent reads.
    pub readers: usize,
    /// Recent history kept in memory for watchers.
    pub ring: RingLimits,
    /// Pages in the WAL at which the writer itself checkpoints.
    pub wal_ceiling_pages: u32,
    /// After an unclean stop a file up to this size is checked whole before it is used.
    pub check_limit: u64,
}

impl Config {
    /// The defaults, in this directory.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            queue: 1024,
            readers: 4,
            ring: RingLimits {
                events_per_resource: 1024,
                bytes: 8 << 20,
            },
            wal_ceiling_pages: 16_000,
            check_limit: 1 << 30,
        }
    }
}

/// A durable store in one directory.
#[derive(Debug)]
pub struct Sqlite {
    uid: Arc<str>,
    shared: Arc<Shared>,
    commands: Option<mpsc::Sender<Command>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    hub: Arc<Hub>,
    readers: Readers,
}

impl Sqlite {
    /// Opens the store, or creates it with this uid. Blocks on the disk.
    pub fn open(config: &Config, new_uid: &str) -> Result<Self, Error> {
        lock::private_dir(&config.dir)?;
        let lock = lock::Lock::acquire(&config.dir)?;
        let path = config.dir.join(copy::FILE);
        let opened = schema::open(&path, config, new_uid)?;
        let hub = Hub::new(opened.revision, config.ring);
        let readers = Readers::new(path.clone(), config.readers.max(1));
        let shared = Arc::new(Shared { hub, readers });
        let (commands, queue) = mpsc::channel(config.queue.max(1));
        let (signal, checkpointer) = checkpoint::spawn(&path)?;
        let uid = opened.uid.as_str().into();
        let writer = Writer::new(opened, path, Arc::clone(&shared.hub), queue, signal, lock);
        let writer = spawn("panda-store-write", move || writer.run())?;
        Ok(Self {
            uid,
            shared,
            commands: Some(commands),
            threads: Mutex::new(vec![writer, checkpointer]),
        })
    }

    /// Finishes what is queued, marks the file as cleanly closed and gives up the directory. Later operations
    /// fail with [`Error::Closed`]. Dropping the store does the same, blocking.
    pub async fn shutdown(&self) {
        let (reply, done) = oneshot::channel();
        if let Some(commands) = &self.commands
            && commands.send(Command::Close { reply }).await.is_ok()
        {
            // An error means that the writer is gone already, which is what we want.
            let _ = done.await;
        }
        self.shared.readers.close();
        let threads = self.take_threads();
        let joined = tokio::task::spawn_blocking(move || join(threads)).await;
        if joined.is_err() {
            tracing::error!("store threads could not be joined");
        }
    }

    fn take_threads(&self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn send(&self, command: Command) -> Result<(), Error> {
        let commands = self.commands.as_ref().ok_or(Error::Closed)?;
        commands.send(command).await.map_err(|_| Error::Closed)
    }
}

#[cfg(test)]
impl Sqlite {
    /// Runs SQL on the writer's own connection: for injecting faults.
    async fn execute(&self, sql: &str) {
        let (reply, done) = oneshot::channel();
        self.send(Command::Execute {
            sql: sql.to_owned(),
            reply,
        })
        .await
        .unwrap();
        done.await.unwrap();
    }

    async fn limit_pages(&self, pages: u32) {
        self.execute(&format!("PRAGMA max_page_count = {pages}")).await;
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        // The writer ends when nobody can send any more.
        self.commands = None;
        self.shared.readers.close();
        join(self.take_threads());
    }
}

fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("a store thread panicked");
        }
    }
}

fn spawn(name: &'static str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    spawned.map_err(|source| Error::Io {
        operation: "start a thread for",
        path: name.into(),
        source,
    })
}

impl History for Shared {
    fn read(&self, scope: Scope, after: Revision) -> BoxFuture<'_, Result<Batch, Error>> {
        let request = HistoryRequest {
            scope,
            after,
            max: 512,
        };
        self.readers
            .run("read the history", move |connection| {
                read::history(connection, &request)
            })
            .boxed()
    }
}

impl Store for Sqlite {
    fn store_uid(&self) -> Arc<str> {
        Arc::clone(&self.uid)
    }

    fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<Committed, Error>> {
        async move {
            txn.validate()?;
            let (reply, answer) = oneshot::channel();
            self.send(Command::Commit { txn, reply }).await?;
            answer.await.map_err(|_| Error::Closed)?
        }
        .boxed()
    }

    fn get(&self, key: Key) -> BoxFuture<'_, Result<Option<Arc<Entry>>, Error>> {
        self.shared
            .readers
            .run("read an object", move |connection| read::get(connection, &key))
            .boxed()
    }

    fn list(&self, request: ListRequest) -> BoxFuture<'_, Result<Page, Error>> {
        self.shared
            .readers
            .run("list objects", move |connection| read::list(connection, &request))
            .boxed()
    }

    fn watch(&self, request: WatchRequest) -> BoxFuture<'_, Result<Watch, Error>> {
        async move {
            let hub = &self.shared.hub;
            check_revision(request.from, Revision::ZERO, hub.revision())?;
            let probe = HistoryRequest {
                scope: request.scope.clone(),
                after: request.from,
                max: 1,
            };
            self.shared
                .readers
                .run("read the history", move |connection| {
                    read::check(connection, &probe)
                })
                .await?;
            let history = Arc::clone(&self.shared) as Arc<dyn History>;
            Ok(Watch::new(hub, request.scope, request.from, history))
        }
        .boxed()
    }

    fn history(&self, request: HistoryRequest) -> BoxFuture<'_, Result<Batch, Error>> {
        let readers = &self.shared.readers;
        readers
            .run("read the history", move |connection| {
                read::history(connection, &request)
            })
            .boxed()
    }

    fn current_revision(&self) -> BoxFuture<'_, Result<Revision, Error>> {
        futures::future::ready(Ok(self.shared.hub.revision())).boxed()
    }

    fn compact(&self, below: Revision) -> BoxFuture<'_, Result<Revision, Error>> {
        async move {
            let (reply, answer) = oneshot::channel();
            self.send(Command::Compact { below, reply }).await?;
            answer.await.map_err(|_| Error::Closed)?
        }
        .boxed()
    }
}

/// Names what failed, and tells the failures apart that a caller treats differently.
fn database(operation: &'static str, path: &std::path::Path, error: rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DiskFull) => Error::DiskFull,
        Some(rusqlite::ErrorCode::DatabaseCorrupt | rusqlite::ErrorCode::NotADatabase) => Error::Corrupt {
            path: path.to_owned(),
            detail: error.to_string(),
        },
        _ => Error::Database {
            operation,
            source: Box::new(error),
        },
    }
}
