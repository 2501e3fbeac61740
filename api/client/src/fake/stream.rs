//! Watches.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use http::Response;
use panda_api::meta::{Reason, Status};
use panda_api::scheme::KindInfo;
use serde_json::{Value, json};
use tokio::time::{Duration, Instant};

use super::route::{Call, Selection, refuse};
use super::state::{Entry, State, refusal};
use super::{Server, faults};
use crate::transport::{Body, Error};

/// One open watch.
struct Watch {
    server: Server,
    info: &'static KindInfo,
    resource: String,
    namespace: String,
    selection: Selection,
    /// Everything up to here was sent or is of no interest.
    cursor: u64,
    epoch: u64,
    /// Lines to send first.
    first: Vec<Value>,
    ends: Option<Instant>,
    bookmark_at: Option<Instant>,
    over: bool,
}

fn too_old(version: u64, oldest: u64) -> Box<Status> {
    refusal(
        Reason::Expired,
        format!("too old resource version: {version} ({oldest})"),
    )
}

pub(super) fn open(
    server: &Server,
    call: &Call,
    info: &'static KindInfo,
    selection: Selection,
) -> Response<Body> {
    let config = &server.shared.config;
    let state = server.state();
    let version = match call.query.get("resourceVersion").map(String::as_str) {
        None | Some("" | "0") => None,
        Some(text) => match text.parse::<u64>() {
            Ok(version) => Some(version),
            Err(_) => {
                return refuse(&refusal(
                    Reason::BadRequest,
                    format!("invalid resource version {text:?}"),
                ));
            }
        },
    };
    let mut first = Vec::new();
    let mut over = false;
    match version {
        None => {
            let objects = state.list(info, &call.namespace);
            let selected = objects.iter().filter(|o| selection.matches(info, o));
            first.extend(selected.map(|o| json!({"type": "ADDED", "object": **o})));
        }
        Some(version) if version < state.compacted => {
            let status = too_old(version, state.compacted);
            if config.gone_as_status {
                return refuse(&status);
            }
            first.push(json!({"type": "ERROR", "object": status}));
            over = true;
        }
        Some(version) if version > state.revision => {
            return refuse(&refusal(Reason::Timeout, "Too large resource version"));
        }
        Some(_) => {}
    }
    first.reverse();
    let seconds = call.query.get("timeoutSeconds").and_then(|s| s.parse().ok());
    let bookmarks = call.query.contains_key("allowWatchBookmarks");
    let watch = Watch {
        server: server.clone(),
        info,
        resource: info.resource_name(),
        namespace: call.namespace.clone(),
        selection,
        cursor: version.unwrap_or(state.revision),
        epoch: state.epoch,
        first,
        ends: seconds.map(|s| Instant::now() + Duration::from_secs(s)),
        bookmark_at: bookmarks.then(|| Instant::now() + config.bookmark_every),
        over,
    };
    drop(state);
    let lines = stream::unfold(watch, |mut watch| async move {
        let line = watch.next().await?;
        Some((line, watch))
    });
    Response::new(Body::new(lines))
}

/// What a look at the state leads to.
enum Look {
    Send(Value),
    Cut,
    Wait(Option<Instant>),
}

impl Watch {
    async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        loop {
            if let Some(value) = self.first.pop() {
                return Some(Ok(Bytes::from(format!("{value}\n"))));
            }
            if self.over || self.ends.is_some_and(|at| at <= Instant::now()) {
                return None;
            }
            let server = self.server.clone();
            let mut changed = pin!(server.shared.changed.notified());
            changed.as_mut().enable();
            let look = self.look(&server.state());
            let until = match look {
                Look::Send(value) => {
                    self.first.push(value);
                    continue;
                }
                Look::Cut => {
                    self.over = true;
                    return Some(Err(faults::cut()));
                }
                Look::Wait(until) => until,
            };
            let next = [until, self.ends, self.bookmark_at].into_iter().flatten().min();
            match next {
                Some(at) => {
                    tokio::select! {
                        () = changed => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
                None => changed.await,
            }
        }
    }

    fn look(&mut self, state: &State) -> Look {
        if state.epoch != self.epoch {
            return Look::Cut;
        }
        if self.cursor < state.compacted {
            // A watch that saw everything is not hurt by compaction; one that lags has lost something.
            self.over = true;
            return Look::Send(json!({"type": "ERROR", "object": too_old(self.cursor, state.compacted)}));
        }
        let now = Instant::now();
        let start = state.log.partition_point(|e| e.revision <= self.cursor);
        for entry in &state.log[start..] {
            if entry.visible > now {
                return Look::Wait(Some(entry.visible));
            }
            self.cursor = entry.revision;
            if let Some(event) = self.event(entry) {
                return Look::Send(event);
            }
        }
        if self.bookmark_at.is_some_and(|at| at <= now) {
            self.bookmark_at = Some(now + self.server.shared.config.bookmark_every);
            return Look::Send(json!({"type": "BOOKMARK", "object": {
                "kind": self.info.kind,
                "apiVersion": self.info.api_version(),
                "metadata": {"resourceVersion": self.cursor.to_string()},
            }}));
        }
        Look::Wait(None)
    }

    fn event(&self, entry: &Entry) -> Option<Value> {
        let (resource, namespace, _) = &entry.key;
        if *resource != self.resource || !(self.namespace.is_empty() || self.namespace == *namespace) {
            return None;
        }
        let matches = |o: &Arc<Value>| self.selection.matches(self.info, o);
        let before = entry.old.as_ref().is_some_and(matches);
        let after = !entry.deleted && matches(&entry.new);
        match (before, after) {
            (false, true) => Some(json!({"type": "ADDED", "object": *entry.new})),
            (true, true) => Some(json!({"type": "MODIFIED", "object": *entry.new})),
            (true, false) => {
                // The last state that matched, with the version of the change.
                let mut last = entry.old.as_ref().map(|o| (**o).clone()).unwrap_or_default();
                last["metadata"]["resourceVersion"] = Value::from(entry.revision.to_string());
                Some(json!({"type": "DELETED", "object": last}))
            }
            (false, false) => None,
        }
    }
}
