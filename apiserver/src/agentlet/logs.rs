//! GET `runs/NAME/log`, `runs/NAME/events` and `tasks/NAME/log`: what runs wrote, as text, followed if asked.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use jiff::Timestamp;
use panda_api::logline::{Origin, Renderer, View};
use panda_api::{Resource, Run, RunPhase, Task, TaskPhase};
use panda_store::blob::{self, Chunk, StreamId};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::http::{self as answers, Failure};
use super::{Agentlets, objects};

/// Bytes read at a time.
const PIECE: usize = 64 * 1024;
/// Most lines that `tailLines` may ask for.
const MAX_TAIL: u64 = 1_000_000;
/// How often a follower looks whether its run has ended.
const LOOK: Duration = Duration::from_millis(250);
/// How long a follower waits for the rest of the log of a run that has ended.
const REST: Duration = Duration::from_secs(10);

/// The query of a log request; the names are those of Pod logs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LogQuery {
    follow: Option<String>,
    tail_lines: Option<u64>,
    since_time: Option<String>,
    since_seconds: Option<u64>,
    timestamps: Option<String>,
    limit_bytes: Option<u64>,
    /// `Stdout`, `Stderr` or `All`.
    stream: Option<String>,
    /// `Text`, or `Records` of a run: as they are stored, from `offset` on, so that a reader can go on where it was.
    format: Option<String>,
    offset: u64,
}

/// Upstream's rule: a boolean in a query is true when it is there and neither `false` nor `0`.
fn truth(value: Option<&String>) -> bool {
    value.is_some_and(|value| !value.eq_ignore_ascii_case("false") && value != "0")
}

struct Wanted {
    view: View,
    follow: bool,
    tail: Option<usize>,
    limit: Option<u64>,
    /// Records as they are stored, from this offset on.
    records: Option<u64>,
}

impl LogQuery {
    fn wanted(&self, now: Timestamp) -> Result<Wanted, Failure> {
        let mut since = None;
        if let Some(text) = &self.since_time {
            let time = text
                .parse()
                .map_err(|_| answers::bad_request("sinceTime must be RFC 3339"))?;
            since = Some(time);
        }
        if let Some(seconds) = self.since_seconds {
            let span = jiff::SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
            since = Some(now.checked_sub(span).unwrap_or(Timestamp::MIN));
        }
        let origin = match self.stream.as_deref() {
            None | Some("" | "All") => None,
            Some("Stdout") => Some(Origin::Stdout),
            Some("Stderr") => Some(Origin::Stderr),
            Some(_) => return Err(answers::bad_request("stream must be All, Stdout or Stderr")),
        };
        let records = match self.format.as_deref() {
            None | Some("" | "Text") => None,
            Some("Records") => Some(self.offset),
            Some(_) => return Err(answers::bad_request("format must be Text or Records")),
        };
        let tail = self
            .tail_lines
            .map(|n| usize::try_from(n.min(MAX_TAIL)).unwrap_or(usize::MAX));
        Ok(Wanted {
            view: View {
                timestamps: truth(self.timestamps.as_ref()),
                since,
                origin,
            },
            follow: truth(self.follow.as_ref()),
            tail,
            limit: self.limit_bytes,
            records,
        })
    }
}

pub(crate) fn routes(agentlets: Arc<Agentlets>) -> Router {
    const BASE: &str = "/apis/panda.dev/v1alpha1/namespaces/{namespace}";
    Router::new()
        .route(&format!("{BASE}/runs/{{name}}/log"), get(run_log))
        .route(&format!("{BASE}/runs/{{name}}/events"), get(run_events))
        .route(&format!("{BASE}/tasks/{{name}}/log"), get(task_log))
        .with_state(agentlets)
}

async fn run_log(
    State(agentlets): State<Arc<Agentlets>>,
    Path((namespace, name)): Path<(String, String)>,
    Query(query): Query<LogQuery>,
) -> Result<Response, Failure> {
    let wanted = query.wanted(agentlets.clock.now())?;
    let run = agentlets.run_named(&namespace, &name).await?;
    let out = Sink::new(&wanted);
    Ok(out.respond(
        "text/plain; charset=utf-8",
        agentlets.clone(),
        move |agentlets, mut out| async move {
            match wanted.records {
                Some(offset) => copy_records(&agentlets, &run, wanted.follow, offset, &mut out).await,
                None => copy_run(&agentlets, &run, &wanted, wanted.tail, &mut out).await,
            }
        },
    ))
}

async fn run_events(
    State(agentlets): State<Arc<Agentlets>>,
    Path((namespace, name)): Path<(String, String)>,
    Query(query): Query<LogQuery>,
) -> Result<Response, Failure> {
    let wanted = query.wanted(agentlets.clock.now())?;
    let run = agentlets.run_named(&namespace, &name).await?;
    let out = Sink::new(&wanted);
    Ok(out.respond(
        "application/jsonl",
        agentlets.clone(),
        move |agentlets, mut out| async move {
            let stream = StreamId::new(&run.metadata.uid, "events")?;
            let mut offset = 0;
            copy_stream(
                &agentlets,
                &run,
                &stream,
                wanted.follow,
                &mut offset,
                &mut |piece| match piece {
                    Piece::Data(bytes) => bytes.to_vec(),
                    Piece::Gap(missing) => {
                        format!("{{\"type\":\"gap\",\"missingBytes\":{missing}}}\n").into_bytes()
                    }
                },
                &mut out,
            )
            .await
        },
    ))
}

async fn task_log(
    State(agentlets): State<Arc<Agentlets>>,
    Path((namespace, name)): Path<(String, String)>,
    Query(query): Query<LogQuery>,
) -> Result<Response, Failure> {
    let wanted = query.wanted(agentlets.clock.now())?;
    let task = agentlets.objects.get::<Task>(&namespace, &name).await?;
    let task = task.ok_or_else(|| answers::not_found("tasks", &name))?.object;
    let out = Sink::new(&wanted);
    Ok(out.respond(
        "text/plain; charset=utf-8",
        agentlets.clone(),
        move |agentlets, mut out| async move { copy_task(&agentlets, &task, &wanted, &mut out).await },
    ))
}

/// Why copying ended early.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the reader is gone, or has what it asked for")]
    Reader,
    #[error("the server stops")]
    Stopping,
    #[error(transparent)]
    Blob(#[from] blob::Error),
    #[error(transparent)]
    Objects(#[from] objects::Error),
}

/// The reader's end of a log.
struct Sink {
    sender: mpsc::Sender<Result<Bytes, std::io::Error>>,
    receiver: Option<mpsc::Receiver<Result<Bytes, std::io::Error>>>,
    left: Option<u64>,
}

impl Sink {
    fn new(wanted: &Wanted) -> Self {
        // A few pieces: a reader that stops stops the copying, and nothing else.
        let (sender, receiver) = mpsc::channel(4);
        Self {
            sender,
            receiver: Some(receiver),
            left: wanted.limit,
        }
    }

    async fn write(&mut self, mut bytes: Vec<u8>) -> Result<(), Ended> {
        if let Some(left) = &mut self.left {
            bytes.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= bytes.len() as u64;
        }
        if !bytes.is_empty() {
            self.sender
                .send(Ok(bytes.into()))
                .await
                .map_err(|_| Ended::Reader)?;
        }
        if self.left == Some(0) {
            Err(Ended::Reader)
        } else {
            Ok(())
        }
    }

    fn respond<F, Fut>(mut self, content_type: &'static str, agentlets: Arc<Agentlets>, copy: F) -> Response
    where
        F: FnOnce(Arc<Agentlets>, Self) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), Ended>> + Send,
    {
        let receiver = self.receiver.take();
        let sender = self.sender.clone();
        let tracker = agentlets.tracker.clone();
        tracker.spawn(async move {
            match copy(agentlets, self).await {
                Ok(()) | Err(Ended::Reader) => {}
                Err(error) => {
                    if !matches!(error, Ended::Stopping) {
                        tracing::warn!(%error, "log ended early");
                    }
                    // The body breaks off visibly: a reader must not take half a log for a whole one.
                    let _: Result<(), _> = sender
                        .send(Err(std::io::Error::other("the log could not be read on")))
                        .await;
                }
            }
        });
        match receiver {
            Some(receiver) => (
                [(CONTENT_TYPE, content_type)],
                Body::from_stream(ReceiverStream::new(receiver)),
            )
                .into_response(),
            None => answers::bad_request("the log was asked for twice").into_response(),
        }
    }
}

enum Piece<'a> {
    Data(&'a [u8]),
    Gap(u64),
}

/// Copies a stream from `offset` on; follows it until the run has ended and its log is complete.
async fn copy_stream(
    agentlets: &Agentlets,
    run: &Run,
    stream: &StreamId,
    follow: bool,
    offset: &mut u64,
    convert: &mut (dyn FnMut(Piece<'_>) -> Vec<u8> + Send),
    out: &mut Sink,
) -> Result<(), Ended> {
    let mut grown = agentlets.blobs.follow(stream.clone()).await?;
    let mut waited = Duration::ZERO;
    loop {
        match agentlets.blobs.read(stream.clone(), *offset, PIECE).await? {
            Chunk::Data { offset: at, bytes } => {
                *offset = at + bytes.len() as u64;
                waited = Duration::ZERO;
                out.write(convert(Piece::Data(&bytes))).await?;
                continue;
            }
            Chunk::Gap { from, to } => {
                *offset = to;
                out.write(convert(Piece::Gap(to - from))).await?;
                continue;
            }
            Chunk::End { .. } if !follow => return Ok(()),
            Chunk::End { .. } => {}
        }
        tokio::select! {
            changed = grown.changed() => if changed.is_err() { return Ok(()) },
            () = out.sender.closed() => return Err(Ended::Reader),
            () = agentlets.stopping.cancelled() => return Err(Ended::Stopping),
            () = tokio::time::sleep(LOOK) => {
                let current = agentlets.objects.get::<Run>(&run.metadata.namespace, &run.metadata.name).await?;
                let current = current.map(|stored| stored.object).filter(|now| now.metadata.uid == run.metadata.uid);
                let Some(current) = current else { return Ok(()) };
                if current.status.phase.is_some_and(RunPhase::is_terminal) {
                    let whole = current.status.logs.as_ref().is_none_or(|logs| *offset >= logs.bytes);
                    waited += LOOK;
                    if whole || stream.name() != "log" || waited >= REST {
                        return Ok(());
                    }
                }
            }
        }
    }
}

async fn copy_run(
    agentlets: &Agentlets,
    run: &Run,
    wanted: &Wanted,
    tail: Option<usize>,
    out: &mut Sink,
) -> Result<(), Ended> {
    let stream = StreamId::new(&run.metadata.uid, "log")?;
    let mut renderer = Renderer::new(wanted.view.clone());
    let mut offset = 0;
    if let Some(tail) = tail {
        let text = last_lines(agentlets, &stream, tail, &mut renderer, &mut offset).await?;
        out.write(text).await?;
    }
    let mut convert = |piece: Piece<'_>| {
        let mut text = Vec::new();
        match piece {
            Piece::Data(bytes) => renderer.push(bytes, &mut text),
            Piece::Gap(missing) => renderer.gap(missing, &mut text),
        }
        text
    };
    copy_stream(
        agentlets,
        run,
        &stream,
        wanted.follow,
        &mut offset,
        &mut convert,
        out,
    )
    .await
}

/// The records of a run as they are stored; a line `gap FROM TO` stands for bytes that are not there.
async fn copy_records(
    agentlets: &Agentlets,
    run: &Run,
    follow: bool,
    mut offset: u64,
    out: &mut Sink,
) -> Result<(), Ended> {
    let stream = StreamId::new(&run.metadata.uid, "log")?;
    let (mut at, mut at_line_start) = (offset, true);
    let mut convert = |piece: Piece<'_>| match piece {
        Piece::Data(bytes) => {
            at += bytes.len() as u64;
            at_line_start = bytes.last().is_none_or(|&b| b == b'\n');
            bytes.to_vec()
        }
        Piece::Gap(missing) => {
            let from = at;
            at += missing;
            let fresh = if std::mem::replace(&mut at_line_start, true) {
                ""
            } else {
                "\n"
            };
            format!("{fresh}gap {from} {at}\n").into_bytes()
        }
    };
    copy_stream(agentlets, run, &stream, follow, &mut offset, &mut convert, out).await
}

/// The last lines of what is here now; `offset` is left at its end.
async fn last_lines(
    agentlets: &Agentlets,
    stream: &StreamId,
    tail: usize,
    renderer: &mut Renderer,
    offset: &mut u64,
) -> Result<Vec<u8>, Ended> {
    let mut lines: VecDeque<Vec<u8>> = VecDeque::new();
    let mut open = Vec::new();
    loop {
        let mut text = Vec::new();
        match agentlets.blobs.read(stream.clone(), *offset, PIECE).await? {
            Chunk::Data { offset: at, bytes } => {
                *offset = at + bytes.len() as u64;
                renderer.push(&bytes, &mut text);
            }
            Chunk::Gap { from, to } => {
                *offset = to;
                renderer.gap(to - from, &mut text);
            }
            Chunk::End { .. } => break,
        }
        for piece in text.split_inclusive(|&b| b == b'\n') {
            open.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                lines.push_back(std::mem::take(&mut open));
                if lines.len() > tail {
                    lines.pop_front();
                }
            }
        }
    }
    if !open.is_empty() && tail > 0 {
        if lines.len() == tail {
            lines.pop_front();
        }
        lines.push_back(open);
    }
    Ok(lines.into_iter().flatten().collect())
}

/// The attempts of a task, one after the other, each marked.
async fn copy_task(agentlets: &Agentlets, task: &Task, wanted: &Wanted, out: &mut Sink) -> Result<(), Ended> {
    let mut shown: u32 = 0;
    let mut tail = wanted.tail;
    loop {
        let runs = attempts(agentlets, task).await?;
        let last = runs.last().map_or(0, |run| run.spec.attempt);
        let known = shown;
        for run in runs.iter().filter(|run| run.spec.attempt > known) {
            shown = run.spec.attempt;
            if tail.is_some() && shown != last {
                // A tail is a tail of the newest attempt: the older ones would only push it out of sight.
                continue;
            }
            if last > 1 || shown > 1 {
                let device = if run.spec.device_name.is_empty() {
                    "no device"
                } else {
                    run.spec.device_name.as_str()
                };
                let agent = &run.spec.agent.name;
                out.write(format!("==> attempt {shown}: {agent} on {device} <==\n").into_bytes())
                    .await?;
            }
            copy_run(agentlets, run, wanted, tail.take(), out).await?;
        }
        if !wanted.follow {
            return Ok(());
        }
        let current = agentlets
            .objects
            .get::<Task>(&task.metadata.namespace, &task.metadata.name)
            .await?;
        let current = current
            .map(|stored| stored.object)
            .filter(|now| now.metadata.uid == task.metadata.uid);
        let ended = |task: &Task| {
            let settled = task.status.observed_generation == Some(task.metadata.generation);
            settled
                && task
                    .status
                    .phase
                    .is_some_and(|phase| phase.is_terminal() || phase == TaskPhase::Review)
        };
        if current.as_ref().is_none_or(ended)
            && attempts(agentlets, task)
                .await?
                .iter()
                .all(|r| r.spec.attempt <= shown)
        {
            return Ok(());
        }
        tokio::select! {
            () = out.sender.closed() => return Err(Ended::Reader),
            () = agentlets.stopping.cancelled() => return Err(Ended::Stopping),
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

/// The runs of a task, by attempt.
async fn attempts(agentlets: &Agentlets, task: &Task) -> Result<Vec<Run>, Ended> {
    let scope = panda_store::Scope::namespace(objects::resource::<Run>(), task.metadata.namespace.as_str());
    let request = panda_store::ListRequest {
        scope,
        ..Default::default()
    };
    let page = agentlets
        .objects
        .store()
        .list(request)
        .await
        .map_err(objects::Error::from)?;
    let mut runs: Vec<Run> = page
        .items
        .iter()
        .filter_map(|entry| objects::decode::<Run>(entry).ok())
        .filter(|run| {
            run.metadata()
                .owner_references
                .iter()
                .any(|owner| owner.uid == task.metadata.uid)
        })
        .collect();
    runs.sort_by_key(|run| run.spec.attempt);
    Ok(runs)
}
