//! List and watch as one endless stream.
//!
//! 1. The stream starts with `Init`, the objects of a list as `InitApply`, `InitDone`; then `Apply` and `Delete` in
//!    the server's order. Whenever the server no longer remembers the version that was reached, it starts over with
//!    `Init`, once for each such loss.
//! 2. A stream that is cut, or ended by the server, goes on after the last event seen; nothing is skipped. Bookmarks
//!    move that point forward when nothing happens.
//! 3. An error is an item of the stream. It is for the log: the stream recovers by itself, with back-off and jitter,
//!    and never ends.
//! 4. An object that cannot be read is reported as such, and takes nothing else with it.

use std::collections::VecDeque;
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt};
use tokio::time::Instant;

use crate::api::Api;
use crate::backoff::{Backoff, Jitter};
use crate::error::{self, Error};
use crate::params::{ListParams, WatchParams};
use crate::resource::Object;
use crate::watch::{Undecodable, WatchEvent, WatchStream};

/// An item of a watcher's stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<K> {
    /// A list begins; what follows replaces what was known.
    Init,
    /// An object of the list.
    InitApply(K),
    /// The list is complete.
    InitDone,
    /// The object was created or changed.
    Apply(K),
    /// The object is gone; this is its last state.
    Delete(K),
    /// An object that cannot be read, in a list or later.
    Undecodable(Undecodable),
}

/// What to watch, and how patiently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Label selector.
    pub label_selector: Option<String>,
    /// Field selector.
    pub field_selector: Option<String>,
    /// Objects a page of the list.
    pub page_size: u32,
    /// After so long the server is asked to end a watch, which is then opened again.
    pub watch_timeout: Duration,
    /// Delay after failures.
    pub backoff: Backoff,
    /// Seed of the jitter: a different one for each watcher of a process.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            label_selector: None,
            field_selector: None,
            page_size: 500,
            watch_timeout: Duration::from_secs(290),
            backoff: Backoff::new(Duration::from_millis(500), Duration::from_secs(30)),
            seed: 0,
        }
    }
}

/// A watch that the server ends sooner than this, and without an event, counts as a failure.
const SHORT: Duration = Duration::from_secs(1);
/// After so many refusals of one version the watcher lists again, whatever the reasons were.
const STUCK: u32 = 5;

/// Watches the objects of `api` for ever; see the module's contract.
pub fn watcher<K: Object>(api: Api<K>, config: Config) -> impl Stream<Item = Result<Event<K>, Error>> + Send {
    let state = Watcher {
        jitter: Jitter::new(config.seed),
        api,
        config,
        phase: Phase::List { token: None },
        whole_list: false,
        failures: 0,
        refusals: 0,
        wait_until: None,
        pending: VecDeque::new(),
    };
    stream::unfold(state, |mut watcher| async move {
        let item = watcher.next().await;
        Some((item, watcher))
    })
}

enum Phase<K> {
    /// Listing; the token is that of the next page.
    List { token: Option<String> },
    /// About to watch after this version.
    Open { version: String },
    /// Watching.
    Follow {
        version: String,
        events: WatchStream<K>,
        since: Instant,
        heard: bool,
    },
}

struct Watcher<K> {
    api: Api<K>,
    config: Config,
    jitter: Jitter,
    phase: Phase<K>,
    /// Pages failed us: the next list is one page.
    whole_list: bool,
    /// Failures in a row, for the back-off.
    failures: u32,
    /// Refusals in a row of the version that was reached.
    refusals: u32,
    wait_until: Option<Instant>,
    pending: VecDeque<Event<K>>,
}

impl<K: Object> Watcher<K> {
    async fn next(&mut self) -> Result<Event<K>, Error> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(event);
            }
            if let Some(until) = self.wait_until {
                tokio::time::sleep_until(until).await;
                self.wait_until = None;
            }
            if let Err(error) = self.step().await {
                self.back_off();
                return Err(error);
            }
        }
    }

    fn back_off(&mut self) {
        self.failures = self.failures.saturating_add(1);
        let delay = self.config.backoff.jittered(self.failures, &mut self.jitter);
        self.wait_until = Some(Instant::now() + delay);
    }

    /// One request or one event. Whatever happens, `phase` says how to go on.
    async fn step(&mut self) -> Result<(), Error> {
        match std::mem::replace(&mut self.phase, Phase::List { token: None }) {
            Phase::List { token } => self.list(token).await,
            Phase::Open { version } => self.open(version).await,
            Phase::Follow {
                version,
                events,
                since,
                heard,
            } => self.follow(version, events, since, heard).await,
        }
    }

    async fn list(&mut self, token: Option<String>) -> Result<(), Error> {
        let first = token.is_none();
        let params = ListParams {
            label_selector: self.config.label_selector.clone(),
            field_selector: self.config.field_selector.clone(),
            limit: (!self.whole_list).then_some(self.config.page_size),
            continue_token: token,
            ..ListParams::default()
        };
        let page = match self.api.list(&params).await {
            Ok(page) => page,
            Err(error) => {
                // The snapshot went away between two pages; one page cannot be overtaken like that.
                self.whole_list |= !first && error.is_gone();
                return Err(error);
            }
        };
        // A watch from "0" would begin with the current objects, in no order that it could be taken up from.
        if matches!(page.metadata.resource_version.as_str(), "" | "0") {
            return Err(Error::Request(format!(
                "the list of {} has no resourceVersion to watch from",
                self.api.resource()
            )));
        }
        if first {
            self.pending.push_back(Event::Init);
        }
        self.pending.extend(page.items.into_iter().map(Event::InitApply));
        self.pending
            .extend(page.undecodable.into_iter().map(Event::Undecodable));
        if page.metadata.continue_.is_empty() {
            self.pending.push_back(Event::InitDone);
            self.whole_list = false;
            self.refusals = 0;
            self.phase = Phase::Open {
                version: page.metadata.resource_version,
            };
        } else {
            self.phase = Phase::List {
                token: Some(page.metadata.continue_),
            };
        }
        Ok(())
    }

    async fn open(&mut self, version: String) -> Result<(), Error> {
        let params = WatchParams {
            label_selector: self.config.label_selector.clone(),
            field_selector: self.config.field_selector.clone(),
            resource_version: Some(version.clone()),
            timeout: Some(self.config.watch_timeout),
            bookmarks: true,
        };
        match self.api.watch(&params).await {
            Ok(events) => {
                self.phase = Phase::Follow {
                    version,
                    events,
                    since: Instant::now(),
                    heard: false,
                };
                Ok(())
            }
            Err(error) => Err(self.failed(version, error)),
        }
    }

    /// Decides between watching again from `version` and a new list.
    fn failed(&mut self, version: String, error: Error) -> Error {
        // A network that is down says nothing about the version; everything else might.
        if !matches!(error, Error::Transport(_) | Error::Timeout { .. }) {
            self.refusals += 1;
        }
        let hopeless = matches!(&error, Error::Api(_)) && !error.is_retryable();
        self.phase = if hopeless || self.refusals >= STUCK {
            Phase::List { token: None }
        } else {
            Phase::Open { version }
        };
        error
    }

    async fn follow(
        &mut self,
        mut version: String,
        mut events: WatchStream<K>,
        since: Instant,
        heard: bool,
    ) -> Result<(), Error> {
        let event = match events.next().await {
            Some(Ok(event)) => event,
            Some(Err(error)) => return Err(self.failed(version, error)),
            None => {
                if heard || since.elapsed() >= SHORT {
                    self.failures = 0;
                } else {
                    self.back_off();
                }
                self.phase = Phase::Open { version };
                return Ok(());
            }
        };
        let (seen, event) = match event {
            WatchEvent::Error(status) => {
                let error = if error::is_gone(&status) {
                    self.phase = Phase::List { token: None };
                    Error::Api(status)
                } else {
                    self.failed(version, Error::Api(status))
                };
                return Err(error);
            }
            WatchEvent::Added(k) | WatchEvent::Modified(k) => {
                (k.meta().resource_version.clone(), Some(Event::Apply(k)))
            }
            WatchEvent::Deleted(k) => (k.meta().resource_version.clone(), Some(Event::Delete(k))),
            WatchEvent::Bookmark { resource_version } => (resource_version, None),
            WatchEvent::Undecodable(bad) => (
                bad.metadata.resource_version.clone(),
                Some(Event::Undecodable(bad)),
            ),
        };
        if !seen.is_empty() {
            version = seen;
        }
        self.failures = 0;
        self.refusals = 0;
        self.pending.extend(event);
        self.phase = Phase::Follow {
            version,
            events,
            since,
            heard: true,
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests;
