//! What a connection is busy with, so that one that is not used, or does not read its answers, can be ended.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Instant;

/// Bytes of an answer that are handed over at a time: what a client has to read within the stall timeout.
const PIECE: usize = 64 << 10;

/// See the module.
pub(super) struct Activity(Mutex<State>);

struct State {
    /// Requests being answered.
    busy: usize,
    /// When the last answer ended.
    unused: Instant,
    next: u64,
    /// Answers of which a piece waits to be taken, and since when.
    waiting: HashMap<u64, Instant>,
}

/// Why a connection has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// Nobody has used it for too long.
    Unused,
    /// An answer was not read for too long.
    Unread,
}

/// A request that is being answered, until it is dropped.
pub(super) struct Busy {
    activity: Arc<Activity>,
    number: u64,
}

impl Activity {
    pub(super) fn new() -> Self {
        Self(Mutex::new(State {
            busy: 0,
            unused: Instant::now(),
            next: 0,
            waiting: HashMap::new(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.state().busy > 0
    }

    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        let mut state = self.state();
        state.busy += 1;
        let number = state.next;
        state.next += 1;
        drop(state);
        Busy {
            activity: Arc::clone(self),
            number,
        }
    }

    /// Resolves when the connection has to end.
    pub(super) async fn over(&self, unused: Duration, unread: Duration) -> Over {
        loop {
            match self.look(Instant::now(), unused, unread) {
                Ok(next) => tokio::time::sleep_until(next).await,
                Err(over) => return over,
            }
        }
    }

    /// When to look again, or why the connection has to end.
    fn look(&self, now: Instant, unused: Duration, unread: Duration) -> Result<Instant, Over> {
        let state = self.state();
        let oldest = state.waiting.values().min().map(|since| *since + unread);
        if oldest.is_some_and(|end| end <= now) {
            return Err(Over::Unread);
        }
        let idle = (state.busy == 0).then(|| state.unused + unused);
        if idle.is_some_and(|end| end <= now) {
            return Err(Over::Unused);
        }
        // Whatever begins from now on cannot be over before this.
        let earliest = now + unused.min(unread);
        Ok(oldest.into_iter().chain(idle).fold(earliest, Instant::min))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.activity.state();
        state.busy -= 1;
        state.unused = Instant::now();
        state.waiting.remove(&self.number);
    }
}

/// The body of an answer, in pieces; the next is taken when the client has read.
pub(super) struct Answer {
    pub(super) body: Body,
    pub(super) rest: Bytes,
    pub(super) busy: Busy,
}

impl Answer {
    pub(super) fn new(body: Body, busy: Busy) -> Self {
        Self {
            body,
            rest: Bytes::new(),
            busy,
        }
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let number = this.busy.number;
        if this.rest.is_empty() {
            this.busy.activity.state().waiting.remove(&number);
            match std::task::ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                other => return Poll::Ready(other),
            }
        }
        let piece = this.rest.split_to(this.rest.len().min(PIECE));
        this.busy.activity.state().waiting.insert(number, Instant::now());
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, inner) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(inner.lower() + rest);
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    const UNUSED: Duration = Duration::from_secs(60);
    const UNREAD: Duration = Duration::from_secs(40);

    /// What is said `seconds` from now.
    fn later(activity: &Activity, seconds: u64) -> Option<Over> {
        let then = Instant::now() + Duration::from_secs(seconds);
        activity.look(then, UNUSED, UNREAD).err()
    }

    #[test]
    fn a_connection_without_requests_is_over_and_a_quiet_watch_is_not() {
        let activity = Arc::new(Activity::new());
        assert_eq!(later(&activity, 50), None);
        assert_eq!(later(&activity, 60), Some(Over::Unused));
        let busy = activity.begin();
        assert_eq!(later(&activity, 3600), None);
        drop(busy);
        assert_eq!(later(&activity, 60), Some(Over::Unused));
        let next = activity.look(Instant::now(), UNUSED, UNREAD).unwrap();
        assert!(next <= Instant::now() + UNREAD);
    }

    #[tokio::test]
    async fn an_answer_that_is_not_read_ends_its_connection_and_a_slow_reader_does_not() {
        let activity = Arc::new(Activity::new());
        let whole = Bytes::from(vec![7; 5 * PIECE + 1]);
        let mut answer = Answer::new(Body::from(whole.clone()), activity.begin());
        let mut got = Vec::new();
        while !answer.is_end_stream() {
            assert_eq!(answer.size_hint().exact(), Some((whole.len() - got.len()) as u64));
            let frame = answer.frame().await.unwrap().unwrap();
            got.extend(frame.into_data().unwrap());
            assert_eq!(later(&activity, 30), None, "each piece has its time");
            assert_eq!(later(&activity, 40), Some(Over::Unread));
        }
        assert_eq!(got, whole);
        drop(answer);
        assert_eq!(later(&activity, 40), None);
        assert_eq!(later(&activity, 60), Some(Over::Unused));
    }
}
