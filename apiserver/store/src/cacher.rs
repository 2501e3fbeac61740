//! A watch cache in front of any store, itself a store.
//!
//! 1. Reads are served from memory, and are as fresh as the store behind: each first asks that store for its
//!    newest revision and waits until the cache has it.
//! 2. All watchers are fed from one ring by one watch on the store behind; a watcher that starts below the
//!    ring reads the store's history until it reaches the ring.
//! 3. Until the first load is complete reads and watches wait, at most `Config::patience`.
//! 4. When the feed is cut it continues where it stopped. Only if that has been compacted meanwhile is
//!    everything loaded anew, and every watcher ended with [`Error::Compacted`].

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::change::check_revision;
use crate::hub::{End, Hub};
use crate::snapshot::Snapshot;
use crate::watch::History;
use crate::{
    Batch, BoxFuture, Committed, Entry, Error, Event, HistoryRequest, Key, ListRequest, Page, Revision,
    RingLimits, Scope, Store, Txn, Watch, WatchRequest,
};

/// Entries loaded at a time.
const LOAD_PAGE: usize = 1000;
/// Events applied under one lock.
const APPLY: usize = 512;
/// First and longest wait between attempts to reach the store behind.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// How a [`Cacher`] behaves.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How much recent history is kept for watchers.
    pub ring: RingLimits,
    /// Longest that a read waits for the cache to be loaded or to catch up; then [`Error::NotReady`].
    pub patience: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ring: RingLimits::default(),
            patience: Duration::from_secs(10),
        }
    }
}

/// The watch cache.
#[derive(Debug)]
pub struct Cacher<S: ?Sized> {
    shared: Arc<Shared>,
    config: Config,
    inner: Arc<S>,
}

/// What keeps a [`Cacher`] up to date; it answers nothing until this runs.
#[derive(Debug)]
pub struct Feed<S: ?Sized> {
    shared: Arc<Shared>,
    config: Config,
    inner: Arc<S>,
}

#[derive(Debug)]
struct Shared {
    cache: RwLock<Cache>,
    progress: watch::Sender<Progress>,
    /// Oldest revision left by a compaction through this cache.
    oldest: AtomicU64,
}

#[derive(Debug)]
struct Cache {
    snapshot: Snapshot,
    hub: Arc<Hub>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Loading,
    Applied(Revision),
    Stopped,
}

impl Shared {
    // Snapshot and ring change together under the lock by code that does not panic half-way.
    fn read(&self) -> RwLockReadGuard<'_, Cache> {
        self.cache.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Cache> {
        self.cache.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(&self, events: &[Arc<Event>], through: Revision) {
        let wakes = {
            let mut cache = self.write();
            for event in events {
                cache.snapshot.apply(event);
            }
            cache.snapshot.revision = cache.snapshot.revision.max(through);
            cache.hub.push(events, through)
        };
        self.progress.send_replace(Progress::Applied(through));
        wakes.wake();
    }

    fn replace(&self, snapshot: Snapshot, limits: RingLimits) {
        let revision = snapshot.revision;
        let hub = Hub::new(revision, limits);
        let old = std::mem::replace(&mut *self.write(), Cache { snapshot, hub });
        old.hub.end(End::Compacted(revision));
        self.progress.send_replace(Progress::Applied(revision));
    }
}

impl<S: Store + ?Sized> Cacher<S> {
    /// A cache over `inner`, and the feed to run beside it.
    pub fn build(inner: Arc<S>, config: Config) -> (Self, Feed<S>) {
        let shared = Arc::new(Shared {
            cache: RwLock::new(Cache {
                snapshot: Snapshot::default(),
                hub: Hub::new(Revision::ZERO, config.ring),
            }),
            progress: watch::Sender::new(Progress::Loading),
            oldest: AtomicU64::new(0),
        });
        let feed = Feed {
            shared: Arc::clone(&shared),
            config,
            inner: Arc::clone(&inner),
        };
        (
            Self {
                shared,
                config,
                inner,
            },
            feed,
        )
    }

    /// Whether the first load is complete.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(*self.shared.progress.borrow(), Progress::Applied(_))
    }

    /// Waits for the first load, however long it takes.
    pub async fn ready(&self) -> Result<(), Error> {
        let mut progress = self.shared.progress.subscribe();
        let reached = progress.wait_for(|progress| *progress != Progress::Loading).await;
        match reached.as_deref() {
            Ok(Progress::Applied(_)) => Ok(()),
            _ => Err(Error::Closed),
        }
    }

    /// Waits until the cache has everything that was committed when this was called.
    async fn fresh(&self) -> Result<(), Error> {
        let wanted = self.inner.current_revision().await?;
        let reached = |progress: &Progress| match progress {
            Progress::Loading => false,
            Progress::Applied(revision) => *revision >= wanted,
            Progress::Stopped => true,
        };
        let now = *self.shared.progress.borrow();
        let progress = if reached(&now) {
            now
        } else {
            let mut receiver = self.shared.progress.subscribe();
            let waited = tokio::time::timeout(self.config.patience, receiver.wait_for(reached)).await;
            *waited.map_err(|_| Error::NotReady)?.map_err(|_| Error::Closed)?
        };
        if progress == Progress::Stopped {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    fn check(&self, asked: Revision, current: Revision) -> Result<(), Error> {
        check_revision(
            asked,
            Revision(self.shared.oldest.load(Ordering::Acquire)),
            current,
        )
    }

    /// Answers a list from memory, unless it asks for a revision below the ring.
    fn list_cached(&self, request: &ListRequest) -> Result<Option<Page>, Error> {
        let cache = self.shared.read();
        let Some(at) = request.at else {
            return Ok(Some(cache.snapshot.page(request)));
        };
        self.check(at, cache.snapshot.revision)?;
        if at == cache.snapshot.revision {
            return Ok(Some(cache.snapshot.page(request)));
        }
        let since = cache.hub.since(&request.scope, at, usize::MAX);
        Ok(since.map(|since| cache.snapshot.page_at(request, at, &since.events)))
    }
}

struct Behind<S: ?Sized>(Arc<S>);

impl<S: Store + ?Sized> History for Behind<S> {
    fn read(&self, scope: Scope, after: Revision) -> BoxFuture<'_, Result<Batch, Error>> {
        self.0.history(HistoryRequest {
            scope,
            after,
            max: APPLY,
        })
    }
}

impl<S: Store + ?Sized> Store for Cacher<S> {
    fn store_uid(&self) -> Arc<str> {
        self.inner.store_uid()
    }

    fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<Committed, Error>> {
        self.inner.commit(txn)
    }

    fn get(&self, key: Key) -> BoxFuture<'_, Result<Option<Arc<Entry>>, Error>> {
        async move {
            self.fresh().await?;
            Ok(self.shared.read().snapshot.get(&key).cloned())
        }
        .boxed()
    }

    fn list(&self, request: ListRequest) -> BoxFuture<'_, Result<Page, Error>> {
        async move {
            self.fresh().await?;
            match self.list_cached(&request)? {
                Some(page) => Ok(page),
                None => self.inner.list(request).await,
            }
        }
        .boxed()
    }

    fn watch(&self, request: WatchRequest) -> BoxFuture<'_, Result<Watch, Error>> {
        async move {
            self.fresh().await?;
            let hub = Arc::clone(&self.shared.read().hub);
            self.check(request.from, hub.revision())?;
            if hub.since(&request.scope, request.from, 1).is_none() {
                // Below the ring: the store behind says now whether it still has that.
                let probe = HistoryRequest {
                    scope: request.scope.clone(),
                    after: request.from,
                    max: 1,
                };
                self.inner.history(probe).await?;
            }
            let history = Arc::new(Behind(Arc::clone(&self.inner)));
            Ok(Watch::new(&hub, request.scope, request.from, history))
        }
        .boxed()
    }

    fn history(&self, request: HistoryRequest) -> BoxFuture<'_, Result<Batch, Error>> {
        async move {
            self.fresh().await?;
            let hub = Arc::clone(&self.shared.read().hub);
            self.check(request.after, hub.revision())?;
            match hub.since(&request.scope, request.after, request.max) {
                Some(batch) => Ok(batch),
                None => self.inner.history(request).await,
            }
        }
        .boxed()
    }

    fn current_revision(&self) -> BoxFuture<'_, Result<Revision, Error>> {
        self.inner.current_revision()
    }

    fn compact(&self, below: Revision) -> BoxFuture<'_, Result<Revision, Error>> {
        async move {
            let oldest = self.inner.compact(below).await?;
            self.shared.oldest.fetch_max(oldest.0, Ordering::AcqRel);
            Ok(oldest)
        }
        .boxed()
    }
}

impl<S: Store + ?Sized> Feed<S> {
    /// Loads the cache and follows the store until the token is cancelled; then ends every watcher.
    pub async fn run(self, token: CancellationToken) {
        let _ = token.run_until_cancelled(self.follow()).await;
        self.shared.progress.send_replace(Progress::Stopped);
        self.shared.read().hub.end(End::Closed);
    }

    async fn follow(&self) {
        let mut loaded = None;
        let mut delay = RETRY.0;
        loop {
            let started = loaded;
            let outcome = match loaded {
                None => self.load().await.map(|revision| loaded = Some(revision)),
                Some(from) => self.watch_from(from, &mut loaded).await,
            };
            match outcome {
                Ok(()) => continue,
                Err(Error::Closed) => return,
                Err(Error::Compacted { .. }) => loaded = None,
                Err(error) => tracing::warn!(%error, "watch cache feed interrupted"),
            }
            delay = if loaded == started {
                (delay * 2).min(RETRY.1)
            } else {
                RETRY.0
            };
            tokio::time::sleep(delay).await;
        }
    }

    async fn load(&self) -> Result<Revision, Error> {
        let mut snapshot = Snapshot::default();
        let mut request = ListRequest {
            scope: Scope::all(),
            limit: Some(LOAD_PAGE),
            start_after: None,
            at: None,
        };
        loop {
            let page = self.inner.list(request.clone()).await?;
            snapshot.revision = page.revision;
            request.at = Some(page.revision);
            request.start_after = page.items.last().map(|entry| entry.key.clone());
            for entry in page.items {
                snapshot.load(entry);
            }
            if !page.more {
                break;
            }
        }
        let revision = snapshot.revision;
        self.shared.replace(snapshot, self.config.ring);
        tracing::debug!(revision = revision.0, "watch cache loaded");
        Ok(revision)
    }

    async fn watch_from(&self, from: Revision, applied: &mut Option<Revision>) -> Result<(), Error> {
        let mut watch = self
            .inner
            .watch(WatchRequest {
                scope: Scope::all(),
                from,
            })
            .await?;
        let mut events = Vec::with_capacity(APPLY);
        while let Some(event) = watch.next().await {
            events.push(event?);
            while events.len() < APPLY
                && let Some(event) = watch.try_next()
            {
                events.push(event);
            }
            let through = watch.progress().max(from);
            self.shared.apply(&events, through);
            *applied = Some(through);
            events.clear();
        }
        Err(Error::Closed)
    }
}
