//! A store in memory: for tests, and the simplest statement of the contract.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use futures::future::ready;

use crate::change::{check_revision, event};
use crate::hub::{End, Hub};
use crate::snapshot::Snapshot;
use crate::watch::History;
use crate::{
    Batch, BoxFuture, Committed, Entry, Error, Event, HistoryRequest, Key, ListRequest, Page, Revision,
    RingLimits, Scope, Store, Txn, Watch, WatchRequest,
};

/// A store that forgets everything when it is dropped.
#[derive(Debug)]
pub struct Memory {
    uid: Arc<str>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    hub: Arc<Hub>,
}

#[derive(Debug)]
struct State {
    snapshot: Snapshot,
    /// Every event since `oldest`.
    log: VecDeque<Arc<Event>>,
    oldest: Revision,
}

impl Memory {
    /// An empty store with this identity.
    pub fn new(uid: impl Into<Arc<str>>) -> Self {
        Self::with_ring(uid, RingLimits::default())
    }

    /// An empty store whose watchers are cut beyond these limits.
    pub fn with_ring(uid: impl Into<Arc<str>>, limits: RingLimits) -> Self {
        let state = State {
            snapshot: Snapshot::default(),
            log: VecDeque::new(),
            oldest: Revision::ZERO,
        };
        let hub = Hub::new(Revision::ZERO, limits);
        Self {
            uid: uid.into(),
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                hub,
            }),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.shared.hub.end(End::Closed);
    }
}

impl Shared {
    // A transaction is verified before it changes anything, so a poisoned state is still whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn commit(&self, txn: &Txn) -> Result<Committed, Error> {
        txn.validate()?;
        let mut state = self.lock();
        for (index, op) in txn.ops.iter().enumerate() {
            op.verify(index, state.snapshot.get(&op.key))?;
        }
        let mut events = Vec::with_capacity(txn.ops.len());
        let mut entries = Vec::with_capacity(txn.ops.len());
        for op in &txn.ops {
            let event = event(op, state.snapshot.get(&op.key), state.snapshot.revision.next());
            entries.push(event.as_ref().map(|event| event.after()));
            if let Some(event) = event {
                state.snapshot.apply(&event);
                state.log.push_back(Arc::clone(&event));
                events.push(event);
            }
        }
        let revision = state.snapshot.revision;
        // Pushed under the lock, so that events enter the ring in order.
        let wakes = self.hub.push(&events, revision);
        drop(state);
        wakes.wake();
        Ok(Committed { revision, entries })
    }

    fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        let state = self.lock();
        let Some(at) = request.at else {
            return Ok(state.snapshot.page(request));
        };
        check_revision(at, state.oldest, state.snapshot.revision)?;
        let start = state.log.partition_point(|event| event.revision <= at);
        let since: Vec<Arc<Event>> = state
            .log
            .range(start..)
            .filter(|event| request.scope.contains(&event.key))
            .cloned()
            .collect();
        Ok(state.snapshot.page_at(request, at, &since))
    }

    fn history(&self, request: &HistoryRequest) -> Result<Batch, Error> {
        let state = self.lock();
        check_revision(request.after, state.oldest, state.snapshot.revision)?;
        let start = state.log.partition_point(|event| event.revision <= request.after);
        let found = state
            .log
            .range(start..)
            .filter(|event| request.scope.contains(&event.key));
        let events: Vec<Arc<Event>> = found.take(request.max).cloned().collect();
        let through = match events.last() {
            Some(last) if events.len() >= request.max => last.revision,
            _ => state.snapshot.revision,
        };
        Ok(Batch { events, through })
    }

    fn compact(&self, below: Revision) -> Revision {
        let mut state = self.lock();
        let below = below.min(state.snapshot.revision);
        state.oldest = state.oldest.max(Revision(below.0.saturating_sub(1)));
        let oldest = state.oldest;
        let gone = state.log.partition_point(|event| event.revision <= oldest);
        state.log.drain(..gone);
        oldest
    }

    fn bounds(&self) -> (Revision, Revision) {
        let state = self.lock();
        (state.oldest, state.snapshot.revision)
    }
}

impl History for Shared {
    fn read(&self, scope: Scope, after: Revision) -> BoxFuture<'_, Result<Batch, Error>> {
        ready(self.history(&HistoryRequest {
            scope,
            after,
            max: 512,
        }))
        .boxed()
    }
}

impl Store for Memory {
    fn store_uid(&self) -> Arc<str> {
        Arc::clone(&self.uid)
    }

    fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<Committed, Error>> {
        async move { self.shared.commit(&txn) }.boxed()
    }

    fn get(&self, key: Key) -> BoxFuture<'_, Result<Option<Arc<Entry>>, Error>> {
        async move { Ok(self.shared.lock().snapshot.get(&key).cloned()) }.boxed()
    }

    fn list(&self, request: ListRequest) -> BoxFuture<'_, Result<Page, Error>> {
        async move { self.shared.list(&request) }.boxed()
    }

    fn watch(&self, request: WatchRequest) -> BoxFuture<'_, Result<Watch, Error>> {
        async move {
            let (oldest, current) = self.shared.bounds();
            check_revision(request.from, oldest, current)?;
            let history = Arc::clone(&self.shared) as Arc<dyn History>;
            Ok(Watch::new(&self.shared.hub, request.scope, request.from, history))
        }
        .boxed()
    }

    fn history(&self, request: HistoryRequest) -> BoxFuture<'_, Result<Batch, Error>> {
        async move { self.shared.history(&request) }.boxed()
    }

    fn current_revision(&self) -> BoxFuture<'_, Result<Revision, Error>> {
        async move { Ok(self.shared.bounds().1) }.boxed()
    }

    fn compact(&self, below: Revision) -> BoxFuture<'_, Result<Revision, Error>> {
        async move { Ok(self.shared.compact(below)) }.boxed()
    }
}
