//! One watcher's stream.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, Stream, StreamExt};

use crate::hub::{Hub, Subscription, Taken};
use crate::{Batch, Error, Event, Revision, Scope};

/// Most events taken from the ring at once.
const BATCH: usize = 256;

/// Where events come from that are no longer in the ring.
pub(crate) trait History: Send + Sync + 'static {
    fn read(&self, scope: Scope, after: Revision) -> BoxFuture<'_, Result<Batch, Error>>;
}

/// Every change of a scope after a revision, in order. Ends after its first error.
pub struct Watch {
    batches: BoxStream<'static, Result<Batch, Error>>,
    subscription: Arc<Subscription>,
    buffer: VecDeque<Arc<Event>>,
    /// Reached once the buffer is empty.
    through: Revision,
    /// Reached now.
    seen: Revision,
    failure: Option<Error>,
    ended: bool,
}

impl Watch {
    pub(crate) fn new(hub: &Arc<Hub>, scope: Scope, from: Revision, history: Arc<dyn History>) -> Self {
        let subscription = Arc::new(hub.subscribe(scope));
        let follower = Follower {
            subscription: Arc::clone(&subscription),
            history,
            cursor: from,
            live: false,
        };
        let batches = futures::stream::unfold(Some(follower), |state| async move {
            let mut follower = state?;
            match follower.next().await {
                Ok(batch) => Some((Ok(batch), Some(follower))),
                Err(error) => Some((Err(error), None)),
            }
        });
        Self {
            batches: Box::pin(batches),
            subscription,
            buffer: VecDeque::new(),
            through: from,
            seen: from,
            failure: None,
            ended: false,
        }
    }

    /// The newest revision of which this watcher has received everything that concerns it: what a bookmark
    /// may say. Moves on while the scope is idle.
    #[must_use]
    pub fn progress(&self) -> Revision {
        if self.buffer.is_empty() {
            self.subscription.progress(self.seen)
        } else {
            self.seen
        }
    }

    /// An event that is already here, without waiting: for filling a frame. An error waits for the next poll.
    pub fn try_next(&mut self) -> Option<Arc<Event>> {
        if self.buffer.is_empty() && !self.ended && self.failure.is_none() {
            // Losing the task's waker here is harmless: whoever waits polls again, with its own.
            match self.batches.next().now_or_never() {
                Some(Some(Ok(batch))) => self.accept(batch),
                Some(Some(Err(error))) => self.failure = Some(error),
                Some(None) => self.ended = true,
                None => {}
            }
        }
        self.pop()
    }

    fn accept(&mut self, batch: Batch) {
        self.through = batch.through;
        self.buffer.extend(batch.events);
        if self.buffer.is_empty() {
            self.seen = self.through;
        }
    }

    fn pop(&mut self) -> Option<Arc<Event>> {
        let event = self.buffer.pop_front()?;
        self.seen = if self.buffer.is_empty() {
            self.through
        } else {
            event.revision
        };
        Some(event)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("seen", &self.seen)
            .field("buffered", &self.buffer.len())
            .finish()
    }
}

impl Stream for Watch {
    type Item = Result<Arc<Event>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.pop() {
                return Poll::Ready(Some(Ok(event)));
            }
            if let Some(error) = self.failure.take() {
                self.ended = true;
                return Poll::Ready(Some(Err(error)));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            match ready!(self.batches.as_mut().poll_next(cx)) {
                Some(Ok(batch)) => self.accept(batch),
                Some(Err(error)) => self.failure = Some(error),
                None => self.ended = true,
            }
        }
    }
}

/// Walks the history until the ring covers it, then follows the ring.
struct Follower {
    subscription: Arc<Subscription>,
    history: Arc<dyn History>,
    cursor: Revision,
    live: bool,
}

impl Follower {
    async fn next(&mut self) -> Result<Batch, Error> {
        let mut wake = self.subscription.wake();
        loop {
            wake.borrow_and_update();
            match self.subscription.take(self.cursor, self.live, BATCH)? {
                Taken::Behind if self.live => return Err(Error::SlowWatcher),
                Taken::Behind => {
                    let batch = self
                        .history
                        .read(self.subscription.scope().clone(), self.cursor)
                        .await?;
                    self.cursor = batch.through;
                    return Ok(batch);
                }
                Taken::Batch(batch) => {
                    self.live = true;
                    self.cursor = batch.through;
                    if !batch.events.is_empty() {
                        return Ok(batch);
                    }
                }
            }
            // The sender lives in the slot that our subscription holds.
            wake.changed().await.map_err(|_| Error::Closed)?;
        }
    }
}
