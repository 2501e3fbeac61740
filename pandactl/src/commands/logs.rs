//! `pandactl logs`.

mod follow;
mod records;

use std::time::Duration;

use futures::StreamExt;
use panda_api::logline::{self, Origin};
use panda_api::{Resource, Run, RunPhase, Task};
use panda_client::params::ListParams;
use panda_client::{Api, ApiResource, DynamicApi};

use crate::args;
use crate::cli::Exit;
use crate::error::{Error, Kind, Result};
use crate::io::Io;
use crate::output::text::LogCleaner;
use crate::session::Session;

/// Which of the streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Stream {
    /// Both, and what the platform says.
    #[default]
    All,
    /// The agent's standard output.
    Stdout,
    /// The agent's standard error.
    Stderr,
}

impl Stream {
    const fn word(self) -> &'static str {
        match self {
            Self::All => "All",
            Self::Stdout => "Stdout",
            Self::Stderr => "Stderr",
        }
    }

    const fn origin(self) -> Option<Origin> {
        match self {
            Self::All => None,
            Self::Stdout => Some(Origin::Stdout),
            Self::Stderr => Some(Origin::Stderr),
        }
    }
}

/// Arguments of `logs`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl logs task/fix-login
  pandactl logs -f fix-login --exit-status
  pandactl logs run/fix-login-3f9a0c21d4-1 --tail 50 --timestamps
  pandactl logs task/fix-login --since 5m

A bare name is a task. After a broken connection, following goes on where it was,
without loss or repetition; when it cannot, the exit code is not 0.
With --exit-status: 0 succeeded, 2 failed, 3 cancelled, 5 in review.")]
pub struct LogsArgs {
    /// task/NAME, run/NAME or NAME
    #[arg(value_name = "TASK|RUN")]
    pub target: String,
    /// Go on until the task or run has ended
    #[arg(short = 'f', long)]
    pub follow: bool,
    /// Only so many of the last lines; -1: all
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, hide_default_value = true)]
    pub tail: i64,
    /// Only what is newer than this, for example 5m
    #[arg(long, value_name = "DURATION", value_parser = args::duration, conflicts_with = "since_time")]
    pub since: Option<Duration>,
    /// Only what is newer than this (RFC 3339)
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub since_time: Option<jiff::Timestamp>,
    /// Put the time before each line
    #[arg(long)]
    pub timestamps: bool,
    /// all, stdout or stderr
    #[arg(
        long,
        value_enum,
        value_name = "STREAM",
        default_value = "all",
        hide_possible_values = true
    )]
    pub stream: Stream,
    /// With -f: mirror how the task or run ended
    #[arg(long, requires = "follow")]
    pub exit_status: bool,
    /// Of a task: the attempt before the newest one
    #[arg(short = 'p', long, conflicts_with = "follow")]
    pub previous: bool,
}

fn time(text: &str) -> Result<jiff::Timestamp, String> {
    text.parse()
        .map_err(|_| "want a time such as 2026-01-31T08:00:00Z".to_owned())
}

/// What is shown of a log.
#[derive(Clone, Debug)]
struct View {
    shown: logline::View,
    tail: Option<usize>,
}

/// What is looked at.
enum Target {
    Task(String),
    Run(String),
}

fn target(word: &str) -> Result<Target> {
    match word.split_once('/') {
        Some((kind, name)) if !name.is_empty() && args::is_kind(kind, "Run") => {
            Ok(Target::Run(name.to_owned()))
        }
        Some((kind, _)) if !args::is_kind(kind, "Task") => {
            Err(Error::user(format!("{word:?}: only tasks and runs have logs"))
                .hint("write task/NAME or run/NAME"))
        }
        _ => args::task_name(word).map(Target::Task),
    }
}

pub(crate) async fn run(args: LogsArgs, session: &mut Session<'_>) -> Result<Exit> {
    let target = target(&args.target)?;
    let now = session.io.clock.now();
    let since = args.since_time.or_else(|| {
        let span = jiff::SignedDuration::try_from(args.since?).ok()?;
        Some(now.checked_sub(span).unwrap_or(jiff::Timestamp::MIN))
    });
    let view = View {
        shown: logline::View {
            timestamps: args.timestamps,
            since,
            origin: args.stream.origin(),
        },
        tail: usize::try_from(args.tail).ok(),
    };
    if args.follow {
        let gone = session.io.stdout_gone.clone();
        tokio::select! {
            exit = follow::run(&args, target, view, session) => return exit,
            () = Io::until_reader_gone(gone) => return Ok(0),
        }
    }
    let (resource, name) = match target {
        Target::Run(name) => (ApiResource::of::<Run>(), name),
        Target::Task(name) if args.previous => (ApiResource::of::<Run>(), previous(&name, session).await?),
        Target::Task(name) => (ApiResource::of::<Task>(), name),
    };
    let api = session.api(&resource)?;
    whole(&api, &name, &args, &view, session).await?;
    Ok(0)
}

/// The attempt before the newest one.
async fn previous(task: &str, session: &mut Session<'_>) -> Result<String> {
    let runs = attempts(task, session).await?;
    runs.iter()
        .rev()
        .nth(1)
        .map(|run| run.metadata.name.clone())
        .ok_or_else(|| {
            Error::user(format!("task {task:?} has had no attempt before this one"))
                .hint(format!("see `pandactl logs task/{task}`"))
        })
}

/// The runs of a task, by attempt.
async fn attempts(name: &str, session: &mut Session<'_>) -> Result<Vec<Run>> {
    let namespace = session.namespace()?;
    let tasks: Api<Task> = Api::namespaced(session.client()?, &namespace);
    let task = tasks.get(name).await?;
    runs_of(&Api::namespaced(session.client()?, &namespace), &task).await
}

/// The runs of a task, by attempt.
///
/// # Errors
/// When the server does not answer.
pub(super) async fn runs_of(api: &Api<Run>, task: &Task) -> Result<Vec<Run>> {
    let selector = format!("spec.taskRef.name={}", task.metadata.name);
    let mut runs = api.list_all(&ListParams::fields(selector)).await?.items;
    runs.retain(|run| {
        run.spec.task_ref.uid == task.metadata.uid
            || run
                .metadata()
                .owner_references
                .iter()
                .any(|owner| owner.uid == task.metadata.uid)
    });
    runs.sort_by_key(|run| {
        (
            run.spec.attempt,
            run.metadata.creation_timestamp.as_ref().map(|time| time.0),
        )
    });
    Ok(runs)
}

/// Everything that is there now, as the server shows it.
async fn whole(
    api: &DynamicApi,
    name: &str,
    args: &LogsArgs,
    view: &View,
    session: &mut Session<'_>,
) -> Result<()> {
    let tail = view.tail.map(|tail| tail.to_string());
    let since = view.shown.since.map(|since| since.to_string());
    let mut query = vec![("stream", args.stream.word())];
    if view.shown.timestamps {
        query.push(("timestamps", "true"));
    }
    if let Some(tail) = &tail {
        query.push(("tailLines", tail));
    }
    if let Some(since) = &since {
        query.push(("sinceTime", since));
    }
    let mut body = api.stream_subresource(name, "log", &query).await?;
    let mut printer = Printer::new(session);
    while let Some(part) = body.next().await {
        let part = part.map_err(|error| {
            Error::from(panda_client::Error::Transport(error)).during("the log broke off")
        })?;
        printer.print(&part, session)?;
    }
    printer.finish(session)
}

/// Puts log bytes on standard output: as they are, except on a terminal, which must not be told what to do by them.
#[derive(Debug)]
struct Printer {
    cleaner: Option<LogCleaner>,
}

impl Printer {
    fn new(session: &Session<'_>) -> Self {
        let color = session.color_out();
        Self {
            cleaner: session.io.terminal.stdout.then(|| LogCleaner::new(color)),
        }
    }

    fn print(&mut self, bytes: &[u8], session: &mut Session<'_>) -> Result<()> {
        match &mut self.cleaner {
            Some(cleaner) => {
                let text = cleaner.push(bytes);
                session.out(text)?;
            }
            None => session.out(bytes)?,
        }
        session.io.flush()
    }

    fn finish(&mut self, session: &mut Session<'_>) -> Result<()> {
        if let Some(cleaner) = &mut self.cleaner {
            let text = cleaner.finish();
            session.out(text)?;
        }
        session.io.flush()
    }
}

/// Exit code that mirrors a run.
const fn exit_of(phase: RunPhase) -> Exit {
    match phase {
        RunPhase::Succeeded => 0,
        RunPhase::Cancelled => 3,
        _ => 2,
    }
}

/// The error of a log that cannot be followed any further.
fn broken(what: &str, error: &Error) -> Error {
    let mut all = Error::user(format!(
        "{what}: the log could not be followed to its end: {}",
        error.message
    ))
    .hint("run the command again; without -f it shows what the server has");
    all.kind = Kind::Connect;
    all
}
