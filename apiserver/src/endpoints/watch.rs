//! Watches: one JSON document a line, straight from the stored bytes.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use futures::StreamExt;
use http::StatusCode;
use panda_api::meta::{Reason, Status, StatusDetails};
use panda_store::{self as store, Event, EventKind, Revision, Watch};
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::endpoints::forms::Printer;
use crate::endpoints::read::printer;
use crate::endpoints::{Api, Call};
use crate::metrics::Held;
use crate::query::invalid;
use crate::registry::{Error, Filter, ListOptions, Object, Registry, encode, meta, scope};
use crate::respond::{Failure, JSON, bytes_response};

/// Bytes that go into one frame when more than one event is waiting.
const FRAME: usize = 32 << 10;
/// How often an idle watcher hears how far it is.
const BOOKMARKS: Duration = Duration::from_secs(60);
/// How long before the end of a watch its last bookmark comes.
const LAST_BOOKMARK: Duration = Duration::from_secs(1);
/// A watch without `timeoutSeconds` ends between this and twice this, at random, so that not all come back at once.
const SHORTEST: u64 = 1800;
/// Longest `timeoutSeconds`.
const LONGEST: u64 = 24 * 3600;

/// Where a watch begins.
enum Start {
    /// With the objects that are there; `marked`: then a bookmark that says so.
    Initial { marked: bool },
    /// After a version.
    After(Revision),
}

fn start(call: &Call) -> Result<Start, Failure> {
    let version = call
        .params
        .version()?
        .filter(|version| *version != Revision::ZERO);
    let matching = call
        .params
        .get("resourceVersionMatch")
        .filter(|text| !text.is_empty());
    let Some(send) = call
        .params
        .get("sendInitialEvents")
        .filter(|text| !text.is_empty())
    else {
        if matching.is_some() {
            let text =
                "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            return Err(invalid(
                "ListOptions",
                "resourceVersionMatch",
                "FieldValueForbidden",
                text,
            ));
        }
        return Ok(version.map_or(Start::Initial { marked: false }, Start::After));
    };
    if matching != Some("NotOlderThan") {
        let text = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        return Err(invalid(
            "ListOptions",
            "resourceVersionMatch",
            "FieldValueForbidden",
            text,
        ));
    }
    if crate::request::truth(send) {
        return Ok(Start::Initial { marked: true });
    }
    Ok(version.map_or(Start::After(Revision::ZERO), Start::After))
}

pub(crate) async fn watch(api: &Arc<Api>, call: &Call) -> Result<Response, Failure> {
    let printer = printer(api, call)?;
    let mut filter = call.params.filter(call.kind)?;
    if let Some(name) = &call.target.name {
        filter = filter.and_name(name);
    }
    let start = start(call)?;
    let registry = api.registry.clone();
    let at_least = call.params.version()?.unwrap_or_default();
    let now = registry.store().current_revision().await.map_err(Error::from)?;
    if at_least > now {
        return Err(Error::FutureVersion {
            requested: at_least.0,
            current: now.0,
        }
        .into());
    }
    let scope = scope(call.kind, Some(call.namespace()));
    let mut initial = VecDeque::new();
    let (from, marked) = match start {
        Start::Initial { marked } => {
            let options = ListOptions {
                namespace: Some(call.namespace().to_owned()),
                filter: filter.clone(),
                ..ListOptions::default()
            };
            let list = registry.list(call.kind, &options).await?;
            initial.extend(list.items);
            (list.revision, marked)
        }
        // Asked to send nothing first, and from no version: from now on.
        Start::After(Revision::ZERO) => (now, false),
        Start::After(version) => (version, false),
    };
    let bookmarks = call.params.flag("allowWatchBookmarks");
    let source = match registry.watch(scope, from).await {
        Ok(watch) => Ok(watch),
        // Too old: 200 and an ERROR event, which every client's watch code reads.
        Err(error @ Error::Expired { .. }) => Err(error.into()),
        Err(error) => return Err(error.into()),
    };
    let began = Instant::now();
    let stream = Stream {
        source,
        initial,
        // As upstream: who did not ask for bookmarks gets no other mark of the end either.
        mark: (marked && bookmarks).then_some(from),
        bookmarks,
        next_bookmark: began + BOOKMARKS,
        last_bookmark: false,
        end: began + life(api, call)?,
        first: true,
        done: false,
        stop: api.stop.clone(),
        registry,
        printer,
        filter,
        _held: api.metrics.watcher(),
    };
    let frames = futures::stream::unfold(stream, |mut stream| async move {
        let frame = stream.frame().await?;
        Some((Ok::<_, Infallible>(frame), stream))
    });
    Ok(bytes_response(StatusCode::OK, JSON, Body::from_stream(frames)))
}

fn life(api: &Api, call: &Call) -> Result<Duration, Failure> {
    let seconds = match call.params.timeout_seconds()? {
        Some(0) | None => SHORTEST + api.registry.ids().uuid().as_u64_pair().0 % SHORTEST,
        Some(seconds) => seconds.min(LONGEST),
    };
    Ok(Duration::from_secs(seconds))
}

struct Stream {
    /// The events, or why there are none.
    source: Result<Watch, Failure>,
    initial: VecDeque<Object>,
    /// The version whose objects were sent, until that has been said.
    mark: Option<Revision>,
    bookmarks: bool,
    next_bookmark: Instant,
    last_bookmark: bool,
    end: Instant,
    /// Nothing was sent yet.
    first: bool,
    done: bool,
    stop: CancellationToken,
    registry: Registry,
    printer: Printer,
    filter: Filter,
    _held: Held,
}

enum Next {
    Event(Arc<Event>),
    Failed(store::Error),
    Bookmark,
    LastBookmark,
    End,
}

impl Stream {
    /// The next bytes for the client; nothing at the end.
    async fn frame(&mut self) -> Option<Bytes> {
        if self.done {
            return None;
        }
        let mut out = BytesMut::new();
        if let Err(error) = self.fill(&mut out).await {
            self.fail(&mut out, &error);
        }
        (!out.is_empty()).then(|| out.freeze())
    }

    fn fail(&mut self, out: &mut BytesMut, failure: &Failure) {
        self.done = true;
        let status = serde_json::to_vec(failure.status()).unwrap_or_default();
        line(out, "ERROR", &status);
    }

    async fn fill(&mut self, out: &mut BytesMut) -> Result<(), Failure> {
        while let Some(object) = self.initial.pop_front() {
            self.put(out, "ADDED", &object.json)?;
            if out.len() >= FRAME {
                return Ok(());
            }
        }
        if let Some(revision) = self.mark.take() {
            self.put_bookmark(out, revision, true);
            return Ok(());
        }
        if !out.is_empty() {
            return Ok(());
        }
        // Events that the filter leaves out make no frame.
        while out.is_empty() && !self.done {
            match self.next().await? {
                Next::Event(event) => self.put_event(out, &event)?,
                Next::Failed(error) => return Err(ended(error)),
                Next::Bookmark => {
                    self.next_bookmark = Instant::now() + BOOKMARKS;
                    self.put_progress(out)?;
                }
                Next::LastBookmark => {
                    self.last_bookmark = true;
                    self.put_progress(out)?;
                }
                Next::End => self.done = true,
            }
            while out.len() < FRAME {
                let Some(event) = self.source.as_mut().ok().and_then(Watch::try_next) else {
                    break;
                };
                self.put_event(out, &event)?;
            }
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Next, Failure> {
        let watch = self.source.as_mut().map_err(|failure| failure.clone())?;
        let almost = self.end.checked_sub(LAST_BOOKMARK).unwrap_or(self.end);
        let next = tokio::select! {
            biased;
            () = self.stop.cancelled() => Next::End,
            event = watch.next() => match event {
                Some(Ok(event)) => Next::Event(event),
                Some(Err(error)) => Next::Failed(error),
                None => Next::End,
            },
            () = tokio::time::sleep_until(almost), if self.bookmarks && !self.last_bookmark => Next::LastBookmark,
            () = tokio::time::sleep_until(self.next_bookmark), if self.bookmarks => Next::Bookmark,
            () = tokio::time::sleep_until(self.end) => Next::End,
        };
        Ok(next)
    }

    fn put(&mut self, out: &mut BytesMut, kind: &str, json: &Bytes) -> Result<(), Error> {
        // Ages are of now, not of when the watch began.
        self.printer.now = self.registry.clock().now();
        let object = self.printer.event(json, self.first)?;
        self.first = false;
        line(out, kind, &object);
        Ok(())
    }

    fn put_progress(&mut self, out: &mut BytesMut) -> Result<(), Failure> {
        let revision = self.source.as_ref().map_err(Clone::clone)?.progress();
        self.put_bookmark(out, revision, false);
        Ok(())
    }

    fn put_bookmark(&self, out: &mut BytesMut, revision: Revision, initial: bool) {
        line(
            out,
            "BOOKMARK",
            self.printer.bookmark(revision, initial).to_string().as_bytes(),
        );
    }

    fn put_event(&mut self, out: &mut BytesMut, event: &Event) -> Result<(), Failure> {
        let shown = self.shown(event)?;
        let Some((kind, json)) = shown else { return Ok(()) };
        Ok(self.put(out, kind, &json)?)
    }

    /// What this watcher sees of an event: with a filter, entering the selection is an addition and leaving it
    /// a deletion.
    fn shown(&self, event: &Event) -> Result<Option<(&'static str, Bytes)>, Error> {
        let open = |bytes: &Bytes| self.registry.open_value(&event.key, bytes);
        let value = open(&event.value)?;
        if self.filter.is_all() {
            let kind = match event.kind {
                EventKind::Created => "ADDED",
                EventKind::Updated => "MODIFIED",
                EventKind::Deleted => "DELETED",
            };
            return Ok(Some((kind, value)));
        }
        let matches = |bytes: &Bytes| self.filter.matches(self.printer.kind, &event.key, bytes);
        let before = event.prev.as_ref().map(open).transpose()?;
        let was = match &before {
            Some(before) => matches(before)?,
            None => false,
        };
        let is = event.kind != EventKind::Deleted && matches(&value)?;
        Ok(match (was, is, before) {
            (false, true, _) => Some(("ADDED", value)),
            (true, true, _) => Some(("MODIFIED", value)),
            (true, false, Some(before)) => Some(("DELETED", at(&before, event)?)),
            _ => None,
        })
    }
}

/// The last state that matched, with the version at which it stopped to.
fn at(json: &Bytes, event: &Event) -> Result<Bytes, Error> {
    let damaged = |error: serde_json::Error| Error::Damaged {
        key: event.key.to_string(),
        detail: error.to_string(),
    };
    let value: Value = serde_json::from_slice(json).map_err(damaged)?;
    debug_assert!(!meta::text(&value, "resourceVersion").is_empty());
    let body = encode::body(&value);
    Ok(encode::fill(&body.bytes, body.splice, &event.revision.to_string()).into())
}

/// Why a watch ends before its time.
fn ended(error: store::Error) -> Failure {
    match error {
        // The client is to go on from where it is, not to list everything anew.
        store::Error::SlowWatcher => {
            let mut status = Status::failure(
                Reason::TooManyRequests,
                "the watcher did not keep up with the changes; watch again from the last resourceVersion received",
            );
            status.details = Some(StatusDetails {
                retry_after_seconds: 1,
                ..StatusDetails::default()
            });
            status.into()
        }
        error => Error::from(error).into(),
    }
}

fn line(out: &mut BytesMut, kind: &str, object: &[u8]) {
    out.reserve(object.len() + 40);
    out.put_slice(b"{\"type\":\"");
    out.put_slice(kind.as_bytes());
    out.put_slice(b"\",\"object\":");
    out.put_slice(object);
    out.put_slice(b"}\n");
}
