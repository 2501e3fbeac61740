//! Everything that the server ever told a watcher, from the first revision on, as plain JSON.
//!
//! It reads the wire itself and knows no kind: what it records is evidence against the code that wrote it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http::Request;
use panda_client::Client;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::{CancellationToken, DropGuard};

/// What is recorded: a name for it and the path of its collection.
const RESOURCES: &[(&str, &str)] = &[
    ("tasks", "/apis/panda.dev/v1alpha1/tasks"),
    ("runs", "/apis/panda.dev/v1alpha1/runs"),
    ("leases", "/apis/coordination.k8s.io/v1/leases"),
];
/// Between tries to reach a server that is away.
const PAUSE: Duration = Duration::from_millis(100);

/// One change of one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Its resource: `tasks`, `runs`, `leases`.
    pub resource: &'static str,
    /// `ADDED`, `MODIFIED`, `DELETED`.
    pub kind: String,
    /// The store's revision of it.
    pub revision: u64,
    /// The object afterwards; for a deletion, its last state.
    pub object: Value,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

#[derive(Debug, Default)]
struct Recorded {
    changes: Vec<Change>,
    gaps: Vec<String>,
}

/// Records until it is dropped.
#[derive(Debug)]
pub struct Recorder {
    recorded: Arc<Mutex<Recorded>>,
    _stop: DropGuard,
}

impl Recorder {
    /// Begins to record, from the first revision on.
    #[must_use]
    pub fn start(client: &Client) -> Self {
        let (recorded, stop) = (Arc::<Mutex<Recorded>>::default(), CancellationToken::new());
        for (resource, path) in RESOURCES {
            let one = One {
                resource,
                path,
                client: client.clone(),
                recorded: Arc::clone(&recorded),
                next: 0,
            };
            let stop = stop.clone();
            tokio::spawn(async move { stop.run_until_cancelled(one.run()).await });
        }
        Self {
            recorded,
            _stop: stop.drop_guard(),
        }
    }

    /// What was recorded so far, by revision.
    ///
    /// # Errors
    /// When something is missing: a server that forgot what was not yet read.
    pub fn changes(&self) -> anyhow::Result<Vec<Change>> {
        let recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        anyhow::ensure!(
            recorded.gaps.is_empty(),
            "the record has gaps: {:?}",
            recorded.gaps
        );
        let mut changes = recorded.changes.clone();
        drop(recorded);
        changes.sort_by_key(|change| change.revision);
        Ok(changes)
    }

    /// Whether this revision of something was recorded.
    #[must_use]
    pub fn has(&self, revision: &str) -> bool {
        let recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted: Option<u64> = revision.parse().ok();
        recorded
            .changes
            .iter()
            .rev()
            .any(|change| Some(change.revision) == wanted)
    }
}

struct One {
    resource: &'static str,
    path: &'static str,
    client: Client,
    recorded: Arc<Mutex<Recorded>>,
    /// The newest revision that was read.
    next: u64,
}

impl One {
    async fn run(mut self) {
        loop {
            // The server may be dead or frozen; a watch that ends or breaks goes on where it was.
            let _: anyhow::Result<()> = self.follow().await;
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn follow(&mut self) -> anyhow::Result<()> {
        let uri = format!(
            "{}?watch=true&allowWatchBookmarks=true&resourceVersion={}",
            self.path, self.next
        );
        let request = Request::get(uri)
            .header("accept", "application/json")
            .body(Bytes::new())?;
        let mut body = self.client.stream(request).await?.into_body();
        let mut pending = Vec::new();
        while let Some(data) = body.next().await {
            pending.extend_from_slice(&data?);
            while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = pending.drain(..=end).collect();
                self.line(&line)?;
            }
        }
        Ok(())
    }

    fn line(&mut self, line: &[u8]) -> anyhow::Result<()> {
        let event: Event = serde_json::from_slice(line)?;
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        if event.kind == "ERROR" {
            // Only what the server has forgotten is lost; a server that stops, or cannot read now, is asked again.
            if event.object["code"] == 410 {
                recorded
                    .gaps
                    .push(format!("{} after {}: {}", self.resource, self.next, event.object));
            }
            anyhow::bail!("the watch ended with an error");
        }
        let revision = event.object["metadata"]["resourceVersion"]
            .as_str()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| anyhow::anyhow!("an event without revision: {}", event.object))?;
        self.next = revision;
        if event.kind != "BOOKMARK" {
            recorded.changes.push(Change {
                resource: self.resource,
                kind: event.kind,
                revision,
                object: event.object,
            });
        }
        Ok(())
    }
}
