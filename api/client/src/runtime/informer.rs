//! A cache that keeps itself up to date, shared by many handlers.
//!
//! 1. The cache of an object is always a state that the object really had; over time these states come in the order
//!    in which they happened, though some may be left out. When nothing changes and the server can be reached, the
//!    cache becomes equal to the server.
//! 2. Handlers are told of every change of the cache, after it happened, in that same order for each object. Nothing
//!    is said about the order between objects.
//! 3. No deletion is missed: an object that vanished while nobody watched is reported as deleted, with the last state
//!    known. An object that was deleted and made anew is reported as deleted and then added.
//! 4. A handler added late is first told of everything in the cache, as added.
//! 5. With a resync period, every object is reported again now and then as updated from itself to itself.
//! 6. Handlers run one after another, inside the informer: they return at once (typically they put a key into a
//!    queue), and do not add handlers. A handler that panics is logged and called again for the next change.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::metrics::{Metrics, NoMetrics};
use super::store::{self, Change, IndexFn, Store, Writer};
use super::watcher::{self, Event, watcher};
use crate::api::Api;
use crate::backoff::Jitter;
use crate::resource::Object;

/// How an informer behaves.
pub struct Config<K> {
    /// What is watched.
    pub watcher: watcher::Config,
    /// Every object is reported again after about so long; absent: never.
    pub resync: Option<Duration>,
    /// Indexes beside that by owner.
    pub indexes: Vec<(&'static str, IndexFn<K>)>,
    /// Where counts go.
    pub metrics: Arc<dyn Metrics>,
}

impl<K> Default for Config<K> {
    fn default() -> Self {
        Self {
            watcher: watcher::Config::default(),
            resync: None,
            indexes: Vec::new(),
            metrics: Arc::new(NoMetrics),
        }
    }
}

impl<K> fmt::Debug for Config<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("watcher", &self.watcher)
            .field("resync", &self.resync)
            .finish_non_exhaustive()
    }
}

type Handler<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;

/// Handlers, in the order of their registration. Its lock also orders changes of the cache against registrations.
type Handlers<K> = Arc<Mutex<Vec<Handler<K>>>>;

/// Fills a cache and tells its handlers. [`Informer::run`] does the work; [`Informer::handle`] is for everyone else.
pub struct Informer<K> {
    api: Api<K>,
    watcher: watcher::Config,
    resync: Option<Duration>,
    metrics: Arc<dyn Metrics>,
    writer: Writer<K>,
    handle: InformerHandle<K>,
}

impl<K: Object> fmt::Debug for Informer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Informer")
            .field("api", &self.api)
            .finish_non_exhaustive()
    }
}

/// Reads an informer's cache and adds handlers; cheap to clone.
pub struct InformerHandle<K> {
    store: Store<K>,
    handlers: Handlers<K>,
}

impl<K> Clone for InformerHandle<K> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            handlers: Arc::clone(&self.handlers),
        }
    }
}

impl<K> fmt::Debug for InformerHandle<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InformerHandle")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

impl<K: Object> InformerHandle<K> {
    /// The cache.
    #[must_use]
    pub const fn store(&self) -> &Store<K> {
        &self.store
    }

    /// Calls `handler` for every change from now on, first for what is in the cache already.
    pub fn on_change(&self, handler: impl Fn(&Change<K>) + Send + Sync + 'static) {
        let handler: Handler<K> = Box::new(handler);
        let mut handlers = self.handlers.lock().unwrap_or_else(PoisonError::into_inner);
        for object in self.store.list() {
            call(&handler, &Change::Added(object));
        }
        handlers.push(handler);
    }
}

impl<K: Object> Informer<K> {
    /// An informer of the objects of `api`. Nothing happens until it runs.
    #[must_use]
    pub fn new(api: Api<K>, config: Config<K>) -> Self {
        let (writer, store) = store::store(config.indexes);
        Self {
            api,
            watcher: config.watcher,
            resync: config.resync,
            metrics: config.metrics,
            writer,
            handle: InformerHandle {
                store,
                handlers: Arc::default(),
            },
        }
    }

    /// A handle, for readers and handlers.
    #[must_use]
    pub fn handle(&self) -> InformerHandle<K> {
        self.handle.clone()
    }

    /// Keeps the cache up to date until the token is cancelled.
    pub async fn run(mut self, token: CancellationToken) {
        let kind = self.api.resource().to_string();
        let mut jitter = Jitter::new(self.watcher.seed);
        let mut events = pin!(watcher(self.api.clone(), self.watcher.clone()));
        let mut resync_at = self.resync.map(|every| Instant::now() + jitter.spread(every));
        loop {
            let event = tokio::select! {
                biased;
                () = token.cancelled() => return,
                () = sleep_until(resync_at) => {
                    resync_at = self.resync.map(|every| Instant::now() + jitter.spread(every));
                    self.resync();
                    continue;
                }
                event = events.next() => event,
            };
            match event {
                Some(Ok(event)) => self.apply(&kind, event),
                Some(Err(error)) => {
                    self.metrics.watch_failed(&kind);
                    tracing::debug!(
                        kind,
                        error = &error as &dyn std::error::Error,
                        "watch failed, recovering"
                    );
                }
                None => return,
            }
        }
    }

    fn apply(&mut self, kind: &str, event: Event<K>) {
        match &event {
            Event::InitDone => self.metrics.listed(kind),
            Event::Undecodable(bad) => {
                self.metrics.undecodable(kind);
                tracing::warn!(
                    kind,
                    namespace = bad.metadata.namespace,
                    name = bad.metadata.name,
                    problem = bad.problem,
                    "object cannot be read, left as it was"
                );
            }
            _ => {}
        }
        let handlers = self
            .handle
            .handlers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for change in self.writer.apply(event) {
            for handler in handlers.iter() {
                call(handler, &change);
            }
        }
    }

    fn resync(&self) {
        let handlers = self
            .handle
            .handlers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for object in self.handle.store.list() {
            let change = Change::Updated {
                old: Arc::clone(&object),
                new: object,
            };
            for handler in handlers.iter() {
                call(handler, &change);
            }
        }
    }
}

fn call<K>(handler: &Handler<K>, change: &Change<K>) {
    if std::panic::catch_unwind(AssertUnwindSafe(|| handler(change))).is_err() {
        tracing::error!("informer handler panicked");
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
