//! Fan-out: a bounded ring of recent events for each resource, and the wake-ups of those who follow it.
//!
//! There is no queue per watcher. A watcher keeps a cursor and copies shared pointers out of the ring; when
//! the ring has let go of an event that it has not seen, it is too slow. Waking is by scope, so a watcher
//! sleeps through what does not concern it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::watch;

use crate::{Batch, Error, Event, Revision, Scope};

/// How much recent history is kept in memory for watchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLimits {
    /// Most events for each resource.
    pub events_per_resource: usize,
    /// Most bytes of bodies, over all resources.
    pub bytes: usize,
}

impl Default for RingLimits {
    fn default() -> Self {
        Self {
            events_per_resource: 8192,
            bytes: 32 << 20,
        }
    }
}

/// Why nothing more will come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Closed,
    /// The history between the ring and the present is lost.
    Compacted(Revision),
}

impl From<End> for Error {
    fn from(end: End) -> Self {
        match end {
            End::Closed => Self::Closed,
            End::Compacted(oldest) => Self::Compacted { oldest },
        }
    }
}

#[derive(Debug)]
pub(crate) struct Hub {
    state: RwLock<State>,
    limits: RingLimits,
}

#[derive(Debug)]
struct State {
    /// Everything up to here has been published.
    revision: Revision,
    /// Where this hub began: older events were never in any ring.
    base: Revision,
    /// The newest revision that any ring has let go of.
    floor: Revision,
    bytes: usize,
    rings: BTreeMap<Arc<str>, Ring>,
    all: Option<Arc<Slot>>,
    end: Option<End>,
}

#[derive(Debug)]
struct Ring {
    events: VecDeque<Arc<Event>>,
    /// Events of this resource up to here may be missing.
    floor: Revision,
    bytes: usize,
    slot: Option<Arc<Slot>>,
    namespaces: HashMap<Arc<str>, Arc<Slot>>,
}

impl Ring {
    fn new(floor: Revision) -> Self {
        Self {
            events: VecDeque::new(),
            floor,
            bytes: 0,
            slot: None,
            namespaces: HashMap::new(),
        }
    }

    /// The events after `cursor`, oldest first.
    fn after(&self, cursor: Revision) -> impl Iterator<Item = &Arc<Event>> {
        let start = self.events.partition_point(|event| event.revision <= cursor);
        self.events.range(start..)
    }

    fn evict(&mut self, all: Option<&Slot>) -> usize {
        let Some(event) = self.events.pop_front() else {
            return 0;
        };
        self.floor = event.revision;
        let namespace = self.namespaces.get(&event.key.namespace);
        for slot in [all, self.slot.as_deref(), namespace.map(AsRef::as_ref)]
            .into_iter()
            .flatten()
        {
            slot.evicted.store(event.revision.0, Ordering::Relaxed);
        }
        let size = weight(&event);
        self.bytes -= size;
        size
    }
}

/// Those who follow one scope.
#[derive(Debug)]
struct Slot {
    /// Newest event of the scope, or an upper bound of it.
    last: AtomicU64,
    /// Newest event of the scope that the ring has let go of.
    evicted: AtomicU64,
    wake: watch::Sender<()>,
}

/// Bodies dominate; the previous body is shared with the event before.
fn weight(event: &Event) -> usize {
    event.value.len() + 256
}

/// Watchers to wake once no lock is held.
#[must_use]
pub(crate) struct Wakes(Vec<Arc<Slot>>);

impl Wakes {
    pub(crate) fn wake(self) {
        for slot in self.0 {
            slot.wake.send_replace(());
        }
    }
}

impl Hub {
    pub(crate) fn new(revision: Revision, limits: RingLimits) -> Arc<Self> {
        let state = State {
            revision,
            base: revision,
            floor: revision,
            bytes: 0,
            rings: BTreeMap::new(),
            all: None,
            end: None,
        };
        Arc::new(Self {
            state: RwLock::new(state),
            limits,
        })
    }

    // Every critical section below leaves the state whole, so a panic elsewhere does not spoil it.
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds events in revision order; everything up to `revision` has then been published.
    pub(crate) fn push(&self, events: &[Arc<Event>], revision: Revision) -> Wakes {
        let mut wakes: Vec<Arc<Slot>> = Vec::new();
        let mut guard = self.write();
        let state = &mut *guard;
        for event in events {
            if !state.rings.contains_key(&event.key.resource) {
                state
                    .rings
                    .insert(Arc::clone(&event.key.resource), Ring::new(state.base));
            }
            let Some(ring) = state.rings.get_mut(&event.key.resource) else {
                continue;
            };
            let namespace = ring.namespaces.get(&event.key.namespace);
            for slot in [state.all.as_ref(), ring.slot.as_ref(), namespace]
                .into_iter()
                .flatten()
            {
                slot.last.store(event.revision.0, Ordering::Relaxed);
                if !wakes.iter().any(|known| Arc::ptr_eq(known, slot)) {
                    wakes.push(Arc::clone(slot));
                }
            }
            let size = weight(event);
            ring.events.push_back(Arc::clone(event));
            ring.bytes += size;
            state.bytes += size;
            while ring.events.len() > self.limits.events_per_resource.max(1) {
                state.bytes -= ring.evict(state.all.as_deref());
                state.floor = state.floor.max(ring.floor);
            }
        }
        while state.bytes > self.limits.bytes {
            let Some(largest) = state.rings.values_mut().max_by_key(|ring| ring.bytes) else {
                break;
            };
            if largest.events.len() < 2 {
                break;
            }
            state.bytes -= largest.evict(state.all.as_deref());
            state.floor = state.floor.max(largest.floor);
        }
        state.revision = state.revision.max(revision);
        Wakes(wakes)
    }

    /// Ends every watcher, now and later.
    pub(crate) fn end(&self, end: End) {
        let slots: Vec<Arc<Slot>> = {
            let mut state = self.write();
            state.end = Some(end);
            let rings = state.rings.values();
            let scoped = rings.flat_map(|ring| ring.slot.iter().chain(ring.namespaces.values()));
            scoped.chain(state.all.iter()).cloned().collect()
        };
        Wakes(slots).wake();
    }

    /// Everything up to here has been published.
    pub(crate) fn revision(&self) -> Revision {
        self.read().revision
    }

    /// The events of a scope after `cursor`, unless some of them are no longer in the ring.
    pub(crate) fn since(&self, scope: &Scope, cursor: Revision, max: usize) -> Option<Batch> {
        let state = self.read();
        (cursor >= floor(&state, scope)).then(|| collect(&state, scope, cursor, max))
    }

    pub(crate) fn subscribe(self: &Arc<Self>, scope: Scope) -> Subscription {
        let mut guard = self.write();
        let state = &mut *guard;
        let now = state.revision;
        let new = || {
            let (last, evicted) = (AtomicU64::new(now.0), AtomicU64::new(0));
            Arc::new(Slot {
                last,
                evicted,
                wake: watch::Sender::new(()),
            })
        };
        let slot = match &scope.resource {
            None => Arc::clone(state.all.get_or_insert_with(new)),
            Some(resource) => {
                let base = state.base;
                let ring = state
                    .rings
                    .entry(Arc::clone(resource))
                    .or_insert_with(|| Ring::new(base));
                match &scope.namespace {
                    None => Arc::clone(ring.slot.get_or_insert_with(new)),
                    Some(name) => Arc::clone(ring.namespaces.entry(Arc::clone(name)).or_insert_with(new)),
                }
            }
        };
        Subscription {
            hub: Arc::clone(self),
            scope,
            slot,
        }
    }
}

/// Below this revision events of the scope may be missing.
fn floor(state: &State, scope: &Scope) -> Revision {
    match &scope.resource {
        None => state.floor,
        Some(resource) => state.rings.get(resource).map_or(state.base, |ring| ring.floor),
    }
}

fn collect(state: &State, scope: &Scope, cursor: Revision, max: usize) -> Batch {
    let mut events: Vec<Arc<Event>> = Vec::new();
    match &scope.resource {
        Some(resource) => {
            let ring = state.rings.get(resource);
            let found = ring.into_iter().flat_map(|ring| ring.after(cursor));
            events.extend(
                found
                    .filter(|event| scope.contains(&event.key))
                    .take(max)
                    .cloned(),
            );
        }
        None => {
            // The oldest `max` overall are among the oldest `max` of each ring.
            for ring in state.rings.values() {
                events.extend(ring.after(cursor).take(max).cloned());
            }
            events.sort_unstable_by_key(|event| event.revision);
            events.truncate(max);
        }
    }
    let through = match events.last() {
        Some(last) if events.len() >= max => last.revision,
        _ => state.revision.max(cursor),
    };
    Batch { events, through }
}

/// What the ring answers to a cursor.
pub(crate) enum Taken {
    /// Events of the scope after the cursor are no longer here.
    Behind,
    Batch(Batch),
}

/// A registered interest in a scope.
#[derive(Debug)]
pub(crate) struct Subscription {
    hub: Arc<Hub>,
    scope: Scope,
    slot: Arc<Slot>,
}

impl Subscription {
    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }

    pub(crate) fn wake(&self) -> watch::Receiver<()> {
        self.slot.wake.subscribe()
    }

    /// Takes what follows `cursor`. A live cursor has been inside the ring since this subscription began, so
    /// only evicted events of its own scope can have passed it by.
    pub(crate) fn take(&self, cursor: Revision, live: bool, max: usize) -> Result<Taken, Error> {
        let state = self.hub.read();
        if let Some(end) = state.end {
            return Err(end.into());
        }
        let floor = if live {
            Revision(self.slot.evicted.load(Ordering::Relaxed))
        } else {
            floor(&state, &self.scope)
        };
        if cursor < floor {
            return Ok(Taken::Behind);
        }
        Ok(Taken::Batch(collect(&state, &self.scope, cursor, max)))
    }

    /// `seen`, or the newest revision if nothing of the scope happened since.
    pub(crate) fn progress(&self, seen: Revision) -> Revision {
        let state = self.hub.read();
        if seen.0 >= self.slot.last.load(Ordering::Relaxed) {
            seen.max(state.revision)
        } else {
            seen
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.hub.write();
        // Ours and the table's: nobody else follows this scope.
        if Arc::strong_count(&self.slot) > 2 {
            return;
        }
        match &self.scope.resource {
            None => state.all = None,
            Some(resource) => {
                let Some(ring) = state.rings.get_mut(resource) else {
                    return;
                };
                match &self.scope.namespace {
                    None => ring.slot = None,
                    Some(namespace) => {
                        ring.namespaces.remove(namespace);
                    }
                }
            }
        }
    }
}
