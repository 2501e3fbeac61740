//! Tells people what happened to an object, as `v1` Events.
//!
//! 1. [`Recorder::record`] never waits and never fails: what does not fit is dropped and counted in the log.
//! 2. The same thing about the same object within the window is one Event with a count.
//! 3. Each object has a budget that refills slowly; beyond it nothing is written.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use panda_api::meta::{Clock, IdSource, ObjectMeta, Time};
use panda_api::{Event, EventSource, ObjectReference, Resource};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::client::Client;
use crate::error::Error;
use crate::params::WriteParams;

/// How serious it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Normal,
    /// Someone may want to look.
    Warning,
}

impl Severity {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// How much is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The same thing within this time is counted, not written anew.
    pub window: Duration,
    /// Writes about one object in one burst.
    pub burst: u32,
    /// One more write about an object after this time.
    pub refill: Duration,
    /// Objects and events remembered.
    pub remembered: usize,
    /// Reports waiting to be written.
    pub backlog: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(600),
            burst: 25,
            refill: Duration::from_secs(60),
            remembered: 4096,
            backlog: 1024,
        }
    }
}

/// A reference to an object, for [`Recorder::record`].
#[must_use]
pub fn reference<K: Resource>(object: &K) -> ObjectReference {
    let meta = object.metadata();
    ObjectReference {
        api_version: K::api_version(),
        kind: K::KIND.to_owned(),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: String::new(),
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
struct Report {
    about: ObjectReference,
    severity: Severity,
    reason: String,
    message: String,
}

/// Takes reports; cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    reports: mpsc::Sender<Report>,
}

/// Writes reports as Events.
pub struct RecorderWorker {
    client: Client,
    reports: mpsc::Receiver<Report>,
    aggregator: Aggregator,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
}

impl fmt::Debug for RecorderWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecorderWorker")
    }
}

/// How long reports may still be written after cancellation.
const GRACE: Duration = Duration::from_secs(2);
/// A message is no longer.
const MAX_MESSAGE: usize = 1024;

impl Recorder {
    /// A recorder for `component`, and the worker that writes its Events.
    #[must_use]
    pub fn new(
        client: Client,
        component: &str,
        limits: Limits,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn IdSource>,
    ) -> (Self, RecorderWorker) {
        let (send, receive) = mpsc::channel(limits.backlog.max(1));
        let worker = RecorderWorker {
            client,
            reports: receive,
            aggregator: Aggregator::new(component, limits),
            clock,
            ids,
        };
        (Self { reports: send }, worker)
    }

    /// Reports that something happened. `reason` is a stable CamelCase word.
    pub fn record(&self, about: ObjectReference, severity: Severity, reason: &str, message: &str) {
        let report = Report {
            about,
            severity,
            reason: reason.to_owned(),
            message: message.chars().take(MAX_MESSAGE).collect(),
        };
        if self.reports.try_send(report).is_err() {
            tracing::debug!(reason, "event dropped: the recorder is full or gone");
        }
    }
}

impl RecorderWorker {
    /// Writes Events until the token is cancelled or every recorder is gone; what was reported before is still
    /// written if the server takes it within a short grace period.
    pub async fn run(mut self, token: CancellationToken) {
        let mut end = pin!(async {
            token.cancelled().await;
            tokio::time::sleep(GRACE).await;
        });
        let mut closing = false;
        loop {
            let report = tokio::select! {
                biased;
                () = token.cancelled(), if !closing => {
                    closing = true;
                    self.reports.close();
                    continue;
                }
                report = self.reports.recv() => report,
            };
            let Some(report) = report else { return };
            tokio::select! {
                () = self.write(report) => {}
                () = &mut end => return,
            }
        }
    }

    async fn write(&mut self, report: Report) {
        let now = (self.clock.monotonic(), self.clock.now());
        let result = match self.aggregator.observe(report, now, &*self.ids) {
            Decision::Drop => return,
            Decision::Create(event) => self.create(&event).await,
            Decision::Count(event) => {
                let patch = serde_json::json!({"count": event.count, "lastTimestamp": event.last_timestamp});
                let meta = &event.metadata;
                match self
                    .api(&event)
                    .patch_merge(&meta.name, &patch, &WriteParams::default())
                    .await
                {
                    // It expired meanwhile.
                    Err(error) if error.is_not_found() => self.create(&event).await,
                    other => other.map(drop),
                }
            }
        };
        if let Err(error) = result {
            tracing::debug!(error = &error as &dyn std::error::Error, "event not written");
        }
    }

    fn api(&self, event: &Event) -> Api<Event> {
        Api::namespaced(self.client.clone(), &event.metadata.namespace)
    }

    async fn create(&self, event: &Event) -> Result<(), Error> {
        match self.api(event).create(event, &WriteParams::default()).await {
            // A repeated request after a lost answer.
            Err(error) if error.is_already_exists() => Ok(()),
            other => other.map(drop),
        }
    }
}

#[derive(Debug, PartialEq)]
enum Decision {
    Create(Box<Event>),
    Count(Box<Event>),
    Drop,
}

/// What makes two reports the same.
type Same = (String, Severity, String, String);

/// Decides what is written. No I/O, no clock.
struct Aggregator {
    component: String,
    limits: Limits,
    events: BTreeMap<Same, (Duration, Event)>,
    budgets: BTreeMap<String, Budget>,
}

struct Budget {
    left: u32,
    since: Duration,
}

impl Aggregator {
    fn new(component: &str, limits: Limits) -> Self {
        Self {
            component: component.to_owned(),
            limits,
            events: BTreeMap::new(),
            budgets: BTreeMap::new(),
        }
    }

    fn observe(
        &mut self,
        report: Report,
        (now, wall): (Duration, Timestamp),
        ids: &dyn IdSource,
    ) -> Decision {
        let object = object_key(&report.about);
        if !self.spend(&object, now) {
            return Decision::Drop;
        }
        self.forget(now);
        let same = (
            object,
            report.severity,
            report.reason.clone(),
            report.message.clone(),
        );
        if let Some((last, event)) = self.events.get_mut(&same)
            && now.saturating_sub(*last) < self.limits.window
        {
            *last = now;
            event.count = Some(event.count.unwrap_or(1).saturating_add(1));
            event.last_timestamp = Some(Time(wall));
            return Decision::Count(Box::new(event.clone()));
        }
        let event = self.event(report, wall, ids);
        self.events.insert(same, (now, event.clone()));
        Decision::Create(Box::new(event))
    }

    fn event(&self, report: Report, wall: Timestamp, ids: &dyn IdSource) -> Event {
        // Events about objects without a namespace live in the default one, as upstream.
        let namespace = if report.about.namespace.is_empty() {
            "default"
        } else {
            &report.about.namespace
        };
        let stem: String = report.about.name.chars().take(200).collect();
        Event {
            metadata: ObjectMeta::namespaced(namespace, format!("{stem}.{}", ids.suffix(10))),
            involved_object: report.about,
            reason: report.reason,
            message: report.message,
            type_: report.severity.as_str().to_owned(),
            source: EventSource {
                component: self.component.clone(),
                host: String::new(),
            },
            reporting_component: self.component.clone(),
            first_timestamp: Some(Time(wall)),
            last_timestamp: Some(Time(wall)),
            count: Some(1),
            ..Event::default()
        }
    }

    fn spend(&mut self, object: &str, now: Duration) -> bool {
        let Limits { burst, refill, .. } = self.limits;
        let budget = self.budgets.entry(object.to_owned()).or_insert(Budget {
            left: burst,
            since: now,
        });
        let refills = now.saturating_sub(budget.since).as_millis() / refill.as_millis().max(1);
        if refills > 0 {
            let refills = u32::try_from(refills).unwrap_or(u32::MAX);
            budget.left = budget.left.saturating_add(refills).min(burst);
            budget.since += refill.saturating_mul(refills);
        }
        if budget.left == 0 {
            return false;
        }
        budget.left -= 1;
        true
    }

    /// Keeps memory bounded: first what is past its time, then what was seen longest ago.
    fn forget(&mut self, now: Duration) {
        let Limits {
            window, remembered, ..
        } = self.limits;
        if self.events.len() >= remembered {
            self.events
                .retain(|_, (last, _)| now.saturating_sub(*last) < window);
        }
        while self.events.len() >= remembered {
            let oldest = self.events.iter().min_by_key(|(_, (last, _))| *last);
            match oldest.map(|(same, _)| same.clone()) {
                Some(same) => self.events.remove(&same),
                None => break,
            };
        }
        if self.budgets.len() > remembered {
            let full = self.limits.refill.saturating_mul(self.limits.burst);
            self.budgets.retain(|_, b| now.saturating_sub(b.since) < full);
        }
        while self.budgets.len() > remembered {
            self.budgets.pop_first();
        }
    }
}

fn object_key(about: &ObjectReference) -> String {
    format!("{}/{}/{}/{}", about.kind, about.namespace, about.name, about.uid)
}

#[cfg(test)]
mod tests;
