//! `logs -f`: attempt after attempt, from record to record. The place in a run's log is an offset, so that a broken
//! connection is resumed exactly there.

use std::time::Duration;

use futures::StreamExt;
use panda_api::{Run, RunPhase, Task};
use panda_client::Api;
use tokio::time::Instant;

use super::records::{Reader, last_lines};
use super::{LogsArgs, Printer, Target, View, broken, exit_of, runs_of};
use crate::cli::Exit;
use crate::error::{Error, Kind, Result};
use crate::follow::task::outcome;
use crate::output::text;
use crate::session::Session;

/// How long the server may be away.
const AWAY: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(250);
/// A connection that is silent for so long is opened anew: it may be dead without anybody knowing.
const SILENCE: Duration = Duration::from_secs(45);
/// How long the rest of the log of an ended run is waited for.
const REST: Duration = Duration::from_secs(15);

pub(super) async fn run(
    args: &LogsArgs,
    target: Target,
    view: View,
    session: &mut Session<'_>,
) -> Result<Exit> {
    let namespace = session.namespace()?;
    let runs: Api<Run> = Api::namespaced(session.client()?, &namespace);
    let tasks: Api<Task> = Api::namespaced(session.client()?, &namespace);
    let mut printer = Printer::new(session);
    let exit = match target {
        Target::Run(name) => {
            let run = runs.get(&name).await?;
            let phase = copy(&runs, &run, &view, view.tail, &mut printer, session).await?;
            phase.map_or(2, exit_of)
        }
        Target::Task(name) => follow_task(&tasks, &runs, &name, &view, &mut printer, session).await?,
    };
    printer.finish(session)?;
    Ok(if args.exit_status { exit } else { 0 })
}

async fn follow_task(
    tasks: &Api<Task>,
    runs: &Api<Run>,
    name: &str,
    view: &View,
    printer: &mut Printer,
    session: &mut Session<'_>,
) -> Result<Exit> {
    let mut task = tasks.get(name).await?;
    let uid = task.metadata.uid.clone();
    let mut shown = 0;
    let mut tail = view.tail;
    loop {
        let attempts = patiently(name, || runs_of(runs, &task)).await?;
        let last = attempts.last().map_or(0, |run| run.spec.attempt);
        let known = shown;
        for run in attempts.iter().filter(|run| run.spec.attempt > known) {
            shown = run.spec.attempt;
            if tail.is_some() && shown != last {
                // A tail is one of the newest attempt: the older ones would only push it out of sight.
                continue;
            }
            if last > 1 || shown > 1 {
                let device = if run.spec.device_name.is_empty() {
                    "no device yet"
                } else {
                    &run.spec.device_name
                };
                let mark = format!(
                    "==> attempt {shown}: {} on {} <==\n",
                    text::line(&run.spec.agent.name),
                    text::line(device)
                );
                printer.print(mark.as_bytes(), session)?;
            }
            copy(runs, run, view, tail.take(), printer, session).await?;
        }
        // The state comes before the list of attempts is read for the last time: none can be missed.
        let current = patiently(name, || async { Ok(tasks.get_opt(name).await?) }).await?;
        let Some(current) = current.filter(|current| current.metadata.uid == uid) else {
            return Err(
                Error::user(format!("task {name:?} was deleted")).hint("its runs and their logs go with it")
            );
        };
        task = current;
        if let Some(outcome) = outcome(&task) {
            let attempts = patiently(name, || runs_of(runs, &task)).await?;
            if attempts.iter().all(|run| run.spec.attempt <= shown) {
                return Ok(outcome.exit());
            }
        } else {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Asks until an answer comes, for as long as a server may be away.
async fn patiently<T, F, Fut>(what: &str, mut ask: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T>>,
{
    let start = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(error) if error.kind == Kind::Connect && start.elapsed() < AWAY => {
                tokio::time::sleep(PAUSE).await
            }
            Err(error) if error.kind == Kind::Connect => return Err(broken(what, &error)),
            Err(error) => return Err(error),
        }
    }
}

/// Copies the log of a run to its end. The phase that it ended in; none when it was deleted.
async fn copy(
    runs: &Api<Run>,
    run: &Run,
    view: &View,
    tail: Option<usize>,
    printer: &mut Printer,
    session: &mut Session<'_>,
) -> Result<Option<RunPhase>> {
    let name = &run.metadata.name;
    let mut reader = Reader::new(view.shown.clone());
    if let Some(tail) = tail {
        let mut text = Vec::new();
        let mut keep = |part: &[u8]| {
            text.extend_from_slice(part);
            let kept = last_lines(&text, tail.saturating_add(1));
            let cut = text.len() - kept.len();
            // Only what may still be shown is kept.
            text.drain(..cut);
            Ok(())
        };
        patient_read(runs, name, false, &mut reader, &mut keep).await?;
        let last = last_lines(&text, tail).to_vec();
        printer.print(&last, session)?;
    }
    let mut ended: Option<Instant> = None;
    loop {
        patient_read(runs, name, ended.is_none(), &mut reader, &mut |part| {
            printer.print(part, session)
        })
        .await?;
        // The stream has ended; whether the log has, the run knows.
        let current = patiently(name, || async { Ok(runs.get_opt(name).await?) }).await?;
        let Some(current) = current.filter(|current| current.metadata.uid == run.metadata.uid) else {
            return Ok(None);
        };
        if let Some(phase) = current.status.phase.filter(|phase| phase.is_terminal()) {
            let bytes = current.status.logs.as_ref().map_or(0, |logs| logs.bytes);
            if reader.offset() >= bytes {
                return Ok(Some(phase));
            }
            if ended.get_or_insert_with(Instant::now).elapsed() > REST {
                let missing = bytes - reader.offset();
                session.note(&format!("Warning: the last {missing} bytes of the log of run {name} have not arrived; their device may be away"));
                return Ok(Some(phase));
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Reads from the reader's offset to the end of the stream, opening it anew whenever it breaks.
async fn patient_read(
    runs: &Api<Run>,
    name: &str,
    follow: bool,
    reader: &mut Reader,
    show: &mut (dyn FnMut(&[u8]) -> Result<()> + Send),
) -> Result<()> {
    let mut lost: Option<Instant> = None;
    loop {
        let before = reader.offset();
        let error = match read(runs, name, follow, reader, show).await {
            Ok(Read::Whole) => return Ok(()),
            Ok(Read::Silent) => {
                lost = None;
                reader.broken();
                continue;
            }
            Err(error) => error,
        };
        reader.broken();
        if reader.offset() > before {
            lost = None;
        }
        if error.kind != Kind::Connect {
            return Err(error);
        }
        if lost.get_or_insert_with(Instant::now).elapsed() > AWAY {
            return Err(broken(name, &error));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

enum Read {
    Whole,
    Silent,
}

async fn read(
    runs: &Api<Run>,
    name: &str,
    follow: bool,
    reader: &mut Reader,
    show: &mut (dyn FnMut(&[u8]) -> Result<()> + Send),
) -> Result<Read> {
    let offset = reader.offset().to_string();
    let mut query = vec![("format", "Records"), ("offset", offset.as_str())];
    if follow {
        query.push(("follow", "true"));
    }
    let mut body = runs.stream_subresource(name, "log", &query).await?;
    loop {
        let part = match tokio::time::timeout(SILENCE, body.next()).await {
            Err(_) => return Ok(Read::Silent),
            Ok(None) => return Ok(Read::Whole),
            Ok(Some(part)) => part.map_err(|error| Error::from(panda_client::Error::Transport(error)))?,
        };
        let mut text = Vec::new();
        reader.push(&part, &mut text);
        if !text.is_empty() {
            show(&text)?;
        }
    }
}
