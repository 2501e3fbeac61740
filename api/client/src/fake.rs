//! An API server in memory, for tests of whatever uses a client.
//!
//! It checks, defaults and versions objects with the same code as the real server (`panda_api::scheme`), and behaves
//! like it in resource versions, generations, finalizers, status subresources, merge patches, paging and selectors,
//! also on watches. It has no authorisation, no tables, and does not ask whether a namespace exists.
//!
//! What real networks do is scripted: watches that lag ([`Server::set_watch_lag`], in tokio's time), are cut
//! ([`Server::cut_watches`]) or too old ([`Server::compact`]), and requests that fail before or after they took effect
//! ([`Server::inject`]).

mod access;
mod faults;
mod route;
mod state;
mod stream;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use panda_api::meta::{Clock, IdSource, Status};
use serde_json::Value;
use tokio::sync::Notify;
use uuid::Uuid;

pub use faults::{Effect, Fault, Seen};

use crate::client::{Client, Options};
use crate::transport::{Body, Error, Transport};
use state::State;

/// Answers a POST to a subresource: changes the object and returns the answer.
pub type PostHandler = Arc<dyn Fn(&mut Value, &Value) -> Result<Value, Box<Status>> + Send + Sync>;

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// Stamps objects.
    pub clock: Arc<dyn Clock>,
    /// Names and identifies objects.
    pub ids: Arc<dyn IdSource>,
    /// A watch that asks for bookmarks gets one this often.
    pub bookmark_every: Duration,
    /// A version that is too old is refused with HTTP 410 instead of an event in the stream.
    pub gone_as_status: bool,
}

impl Default for Config {
    /// The time stands still in 1970 and ids count up.
    fn default() -> Self {
        Self {
            clock: Arc::new(StoppedClock),
            ids: Arc::new(CountingIds::default()),
            bookmark_every: Duration::from_secs(60),
            gone_as_status: false,
        }
    }
}

/// A clock that stands still.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoppedClock;

impl Clock for StoppedClock {
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::UNIX_EPOCH
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

/// Ids that count up from 1.
#[derive(Debug, Default)]
pub struct CountingIds(std::sync::atomic::AtomicU64);

impl IdSource for CountingIds {
    fn uuid(&self) -> Uuid {
        let n = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        Uuid::from_u128(u128::from(n))
    }
}

/// An API server in memory; cheap to clone.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Something happened that a watch may wait for.
    changed: Notify,
    config: Config,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fake::Server")
    }
}

impl Default for Server {
    fn default() -> Self {
        Self::new(Config::default())
    }
}

impl Server {
    /// An empty server.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::default(),
                changed: Notify::new(),
                config,
            }),
        }
    }

    /// A client of this server.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client_with(Options::default())
    }

    /// A client of this server.
    #[must_use]
    pub fn client_with(&self, options: Options) -> Client {
        Client::new(Arc::new(self.clone()), options)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, what happens is seen by watches so much later.
    pub fn set_watch_lag(&self, lag: Duration) {
        self.state().lag = lag;
    }

    /// Cuts every open watch in the middle.
    pub fn cut_watches(&self) {
        self.state().epoch += 1;
        self.shared.changed.notify_waiters();
    }

    /// Forgets all history: who is behind must list again.
    pub fn compact(&self) {
        self.state().compact();
        self.shared.changed.notify_waiters();
    }

    /// Adds a fault; faults are tried in the order in which they were added.
    pub fn inject(&self, fault: Fault) {
        self.state().faults.push(fault);
    }

    /// Answers POSTs to a subresource of a kind, for example `runs` and `binding`.
    pub fn on_post(
        &self,
        plural: &str,
        subresource: &str,
        handler: impl Fn(&mut Value, &Value) -> Result<Value, Box<Status>> + Send + Sync + 'static,
    ) {
        let key = (plural.to_owned(), subresource.to_owned());
        self.state().post_handlers.insert(key, Arc::new(handler));
    }

    /// The requests so far, oldest first.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.state().seen.clone()
    }
}

impl Transport for Server {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Body>, Error>> {
        Box::pin(async move {
            let call = match route::Call::read(&request) {
                Ok(call) => call,
                Err(status) => return Ok(route::refuse(&status)),
            };
            let effect = {
                let mut state = self.state();
                state.seen.push(call.seen());
                faults::next(&mut state.faults, &call.seen())
            };
            match effect {
                None => Ok(self.answer(call, request.into_body())),
                Some(Effect::Refuse(status)) => Ok(route::refuse(&status)),
                Some(Effect::Unreachable) => Err(Error::Connect(crate::connector::Error::Closed)),
                Some(Effect::LoseRequest) => Err(faults::cut()),
                Some(Effect::LoseReply) => {
                    drop(self.answer(call, request.into_body()));
                    Err(faults::cut())
                }
                Some(Effect::Hang) => {
                    drop(self.answer(call, request.into_body()));
                    std::future::pending().await
                }
                Some(Effect::Delay(delay)) => {
                    tokio::time::sleep(delay).await;
                    Ok(self.answer(call, request.into_body()))
                }
            }
        })
    }
}

#[cfg(test)]
mod tests;
