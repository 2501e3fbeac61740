//! A queue of keys to look at.
//!
//! 1. Fair: keys are handed out in the order in which they were added.
//! 2. Stingy: a key that is added several times before it is handed out is handed out once.
//! 3. One at a time: a key that is being worked on is not handed out again until that work is done. If it was added
//!    meanwhile, it is handed out once more afterwards: no addition is lost.
//! 4. Many producers and consumers may use it at once.
//! 5. A delayed addition takes effect when its time has come; of several for one key, the earliest counts.
//! 6. After a shutdown nothing is accepted and nothing is handed out; a drain still hands out what was added before.
//!    Delayed additions are dropped by both.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::backoff::{Backoff, Jitter};

/// A queue of keys; cheap to clone. See the module's contract.
pub struct WorkQueue<K> {
    shared: Arc<Shared<K>>,
}

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<K> fmt::Debug for WorkQueue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorkQueue")
    }
}

struct Shared<K> {
    state: Mutex<State<K>>,
    /// Something can be handed out, or the next time has changed.
    work: Notify,
    /// Some work is done.
    idle: Notify,
    backoff: Backoff,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Open,
    Draining,
    Closed,
}

/// When a delayed key is due; the number keeps keys of one instant in order.
type Due = (Instant, u64);

struct State<K> {
    mode: Mode,
    /// Keys to hand out.
    queue: VecDeque<K>,
    /// Keys that were added since they were last handed out.
    dirty: BTreeSet<K>,
    /// Keys that are being worked on.
    in_work: BTreeSet<K>,
    delayed: BTreeMap<Due, K>,
    due: BTreeMap<K, Due>,
    next_number: u64,
    failures: BTreeMap<K, u32>,
    jitter: Jitter,
}

impl<K: Ord + Clone> State<K> {
    fn add(&mut self, key: K) {
        if self.mode != Mode::Open || !self.dirty.insert(key.clone()) {
            return;
        }
        if !self.in_work.contains(&key) {
            self.queue.push_back(key);
        }
    }

    fn add_at(&mut self, key: K, at: Instant) {
        if self.mode != Mode::Open {
            return;
        }
        if let Some(due) = self.due.get(&key) {
            if due.0 <= at {
                return;
            }
            self.delayed.remove(due);
        }
        let due = (at, self.next_number);
        self.next_number += 1;
        self.delayed.insert(due, key.clone());
        self.due.insert(key, due);
    }

    /// Adds what is due by now; returns when the next is.
    fn promote(&mut self, now: Instant) -> Option<Instant> {
        while let Some(entry) = self.delayed.first_entry() {
            if entry.key().0 > now {
                return Some(entry.key().0);
            }
            let key = entry.remove();
            self.due.remove(&key);
            self.add(key);
        }
        None
    }

    fn pop(&mut self) -> Option<K> {
        let key = self.queue.pop_front()?;
        self.dirty.remove(&key);
        self.in_work.insert(key.clone());
        Some(key)
    }

    fn done(&mut self, key: &K) {
        self.in_work.remove(key);
        if self.dirty.contains(key) && self.mode != Mode::Closed {
            self.queue.push_back(key.clone());
        }
    }

    /// Whether nothing will ever be handed out again.
    fn is_finished(&self) -> bool {
        match self.mode {
            Mode::Open => false,
            Mode::Closed => true,
            Mode::Draining => self.queue.is_empty() && self.in_work.is_disjoint(&self.dirty),
        }
    }
}

impl<K: Ord + Clone> WorkQueue<K> {
    /// An empty queue. `seed` is that of the back-off's jitter.
    #[must_use]
    pub fn new(backoff: Backoff, seed: u64) -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    mode: Mode::Open,
                    queue: VecDeque::new(),
                    dirty: BTreeSet::new(),
                    in_work: BTreeSet::new(),
                    delayed: BTreeMap::new(),
                    due: BTreeMap::new(),
                    next_number: 0,
                    failures: BTreeMap::new(),
                    jitter: Jitter::new(seed),
                }),
                work: Notify::new(),
                idle: Notify::new(),
                backoff,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a key.
    pub fn add(&self, key: K) {
        self.lock().add(key);
        self.shared.work.notify_one();
    }

    /// Adds a key after `delay`.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        self.lock().add_at(key, Instant::now() + delay);
        self.shared.work.notify_one();
    }

    /// Counts a failure of the key and adds it after back-off; returns the delay.
    pub fn add_backoff(&self, key: K) -> Duration {
        let mut state = self.lock();
        let failures = state.failures.entry(key.clone()).or_insert(0);
        *failures = failures.saturating_add(1);
        let failures = *failures;
        let delay = self.shared.backoff.jittered(failures, &mut state.jitter);
        state.add_at(key, Instant::now() + delay);
        drop(state);
        self.shared.work.notify_one();
        delay
    }

    /// Failures of the key since it was last forgotten.
    #[must_use]
    pub fn failures(&self, key: &K) -> u32 {
        self.lock().failures.get(key).copied().unwrap_or(0)
    }

    /// Forgets the failures of the key.
    pub fn forget(&self, key: &K) {
        self.lock().failures.remove(key);
    }

    /// How many keys wait to be handed out, without those that are delayed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().queue.len()
    }

    /// Whether no key waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys are being worked on.
    #[must_use]
    pub fn in_work(&self) -> usize {
        self.lock().in_work.len()
    }

    /// The next key, as soon as there is one; none after a shutdown. Cancel safe.
    pub async fn get(&self) -> Option<Item<K>> {
        loop {
            let mut woken = pin!(self.shared.work.notified());
            // Registered before looking, so that no wake-up falls between looking and waiting.
            woken.as_mut().enable();
            let next = {
                let mut state = self.lock();
                let next = state.promote(Instant::now());
                if state.mode != Mode::Closed
                    && let Some(key) = state.pop()
                {
                    // This worker will be busy: another one must mind what is left, including the clock.
                    if !state.queue.is_empty() || next.is_some() {
                        self.shared.work.notify_one();
                    }
                    return Some(Item {
                        key,
                        queue: self.clone(),
                    });
                }
                if state.is_finished() {
                    return None;
                }
                next
            };
            match next {
                Some(at) => {
                    tokio::select! {
                        () = woken => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
                None => woken.await,
            }
        }
    }

    fn done(&self, key: &K) {
        let (more, finished) = {
            let mut state = self.lock();
            state.done(key);
            (!state.queue.is_empty(), state.is_finished())
        };
        if more {
            self.shared.work.notify_one();
        }
        if finished {
            self.shared.work.notify_waiters();
        }
        self.shared.idle.notify_waiters();
    }

    fn close(&self, mode: Mode) {
        {
            let mut state = self.lock();
            if state.mode == Mode::Closed {
                return;
            }
            state.mode = mode;
            state.delayed.clear();
            state.due.clear();
            if mode == Mode::Closed {
                state.queue.clear();
                state.dirty.clear();
            }
        }
        self.shared.work.notify_waiters();
        self.shared.idle.notify_waiters();
    }

    /// Accepts and hands out nothing more. Work that has begun may end.
    pub fn shut_down(&self) {
        self.close(Mode::Closed);
    }

    /// Accepts nothing more, hands out what was added before, and waits until all of it is done.
    pub async fn drain(&self) {
        self.close(Mode::Draining);
        loop {
            let mut idle = pin!(self.shared.idle.notified());
            idle.as_mut().enable();
            {
                let state = self.lock();
                if state.is_finished() && state.in_work.is_empty() {
                    return;
                }
            }
            idle.await;
        }
    }
}

/// A key that is being worked on. Dropping it says that the work is done, however it ended.
pub struct Item<K: Ord + Clone> {
    key: K,
    queue: WorkQueue<K>,
}

impl<K: Ord + Clone + fmt::Debug> fmt::Debug for Item<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Item").field(&self.key).finish()
    }
}

impl<K: Ord + Clone> Item<K> {
    /// The key.
    pub const fn key(&self) -> &K {
        &self.key
    }

    /// Failures of the key since it was last forgotten.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.queue.failures(&self.key)
    }
}

impl<K: Ord + Clone> Drop for Item<K> {
    fn drop(&mut self) {
        self.queue.done(&self.key);
    }
}

#[cfg(test)]
mod tests;
