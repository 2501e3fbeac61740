//! The `Store` trait and the plain data it speaks.

use std::sync::Arc;

use bytes::Bytes;
pub use futures::future::BoxFuture;

use crate::{Body, Committed, Error, Key, Op, Revision, Scope, Txn, Watch};

/// How often [`guaranteed_update`] tries before it reports the conflict.
const UPDATE_ATTEMPTS: usize = 16;

/// One stored version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it lives.
    pub key: Key,
    /// When it was last changed.
    pub revision: Revision,
    /// When it was created.
    pub create_revision: Revision,
    /// Its JSON, revision included.
    pub value: Bytes,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It came into being.
    Created,
    /// It was replaced.
    Updated,
    /// It went away.
    Deleted,
}

/// One change. Shared by every watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its revision.
    pub revision: Revision,
    /// The key changed.
    pub key: Key,
    /// What happened.
    pub kind: EventKind,
    /// The new state; for a delete the last state.
    pub value: Bytes,
    /// The state before, so that a selector can turn an update into an addition or a deletion.
    pub prev: Option<Bytes>,
    /// Revision of the state before; zero for a creation.
    pub prev_revision: Revision,
    /// Revision at which the object was created.
    pub create_revision: Revision,
}

impl Event {
    /// The entry as it was before this event.
    pub(crate) fn before(&self) -> Option<Arc<Entry>> {
        self.prev.as_ref().map(|value| {
            Arc::new(Entry {
                key: self.key.clone(),
                revision: self.prev_revision,
                create_revision: self.create_revision,
                value: value.clone(),
            })
        })
    }

    /// The entry that this event left (a delete: the last state).
    pub(crate) fn after(&self) -> Arc<Entry> {
        Arc::new(Entry {
            key: self.key.clone(),
            revision: self.revision,
            create_revision: self.create_revision,
            value: self.value.clone(),
        })
    }
}

/// What to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListRequest {
    /// Which objects.
    pub scope: Scope,
    /// Most items in the page; none or zero: all.
    pub limit: Option<usize>,
    /// Continue behind this key.
    pub start_after: Option<Key>,
    /// The state at this revision; none: the newest.
    pub at: Option<Revision>,
}

/// Part of a list, of one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// In key order.
    pub items: Vec<Arc<Entry>>,
    /// The revision of which this is the state; continue with `at` set to it.
    pub revision: Revision,
    /// How many items follow this page.
    pub remaining: u64,
    /// Whether any follow.
    pub more: bool,
}

/// What to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRequest {
    /// Which objects.
    pub scope: Scope,
    /// Changes after this revision.
    pub from: Revision,
}

/// Which part of the history to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryRequest {
    /// Which objects.
    pub scope: Scope,
    /// Changes after this revision.
    pub after: Revision,
    /// Most events wanted. Fewer do not mean that there are no more: `Batch::through` says how far it went.
    pub max: usize,
}

/// A run of events of one scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// In revision order.
    pub events: Vec<Arc<Event>>,
    /// Every event of the scope up to and including this revision is in this batch or an earlier one.
    pub through: Revision,
}

/// The store of a control plane. The crate's documentation states the contract.
pub trait Store: Send + Sync + 'static {
    /// Identity of the data, chosen when it was created; a restored store has another.
    fn store_uid(&self) -> Arc<str>;

    /// Does all operations of a transaction, or none.
    fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<Committed, Error>>;

    /// The newest version of a key.
    fn get(&self, key: Key) -> BoxFuture<'_, Result<Option<Arc<Entry>>, Error>>;

    /// A page of a scope at one revision.
    fn list(&self, request: ListRequest) -> BoxFuture<'_, Result<Page, Error>>;

    /// Every change of a scope after a revision, without end.
    fn watch(&self, request: WatchRequest) -> BoxFuture<'_, Result<Watch, Error>>;

    /// A bounded piece of the history; does not wait.
    fn history(&self, request: HistoryRequest) -> BoxFuture<'_, Result<Batch, Error>>;

    /// The newest revision.
    fn current_revision(&self) -> BoxFuture<'_, Result<Revision, Error>>;

    /// Drops history below a revision (clamped to the newest). Current objects stay; lists at, and watches
    /// from, revisions older than `below - 1` end with [`Error::Compacted`]. Returns the oldest revision left.
    fn compact(&self, below: Revision) -> BoxFuture<'_, Result<Revision, Error>>;
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn store_uid(&self) -> Arc<str> {
        (**self).store_uid()
    }

    fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<Committed, Error>> {
        (**self).commit(txn)
    }

    fn get(&self, key: Key) -> BoxFuture<'_, Result<Option<Arc<Entry>>, Error>> {
        (**self).get(key)
    }

    fn list(&self, request: ListRequest) -> BoxFuture<'_, Result<Page, Error>> {
        (**self).list(request)
    }

    fn watch(&self, request: WatchRequest) -> BoxFuture<'_, Result<Watch, Error>> {
        (**self).watch(request)
    }

    fn history(&self, request: HistoryRequest) -> BoxFuture<'_, Result<Batch, Error>> {
        (**self).history(request)
    }

    fn current_revision(&self) -> BoxFuture<'_, Result<Revision, Error>> {
        (**self).current_revision()
    }

    fn compact(&self, below: Revision) -> BoxFuture<'_, Result<Revision, Error>> {
        (**self).compact(below)
    }
}

/// Reads a key, lets `change` make its next body, and commits it if nobody was faster; otherwise again.
///
/// `change` returning no body leaves the object as it is. After a bounded number of lost races the last
/// conflict is returned.
pub async fn guaranteed_update<S, F, E>(store: &S, key: &Key, mut change: F) -> Result<Arc<Entry>, E>
where
    S: Store + ?Sized,
    F: FnMut(&Entry) -> Result<Option<Body>, E>,
    E: From<Error>,
{
    let not_found = || E::from(Error::NotFound { key: key.clone() });
    let mut current = store.get(key.clone()).await?.ok_or_else(not_found)?;
    for attempt in 1.. {
        let Some(body) = change(&current)? else {
            return Ok(current);
        };
        let update = Op::update(key.clone(), current.revision, body);
        match store.commit(update.into()).await {
            Ok(committed) => {
                let entry = committed.entries.into_iter().flatten().next();
                return entry.ok_or_else(not_found);
            }
            Err(Error::Conflict {
                current: Some(newer), ..
            }) if attempt < UPDATE_ATTEMPTS => current = newer,
            Err(Error::Conflict { current: None, .. }) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Err(not_found())
}
