//! `pandactl apply`.

use std::time::Duration;

use futures::StreamExt;
use panda_api::manifest::Errors;
use panda_client::ApiResource;
use serde_json::Value;

use crate::apply::faults::{self, Fault};
use crate::apply::plan::{self, Change, Item};
use crate::apply::{input, merge};
use crate::args;
use crate::cli::Exit;
use crate::error::{Error, Kind, Result};
use crate::follow::task;
use crate::output::format::Format;
use crate::session::{Session, object_name};

/// Requests that are under way at one time.
const AT_ONCE: usize = 16;

/// Where a dry run happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DryRun {
    /// Write.
    #[default]
    None,
    /// Check here; ask no server.
    Client,
    /// Let the server check.
    Server,
}

/// Arguments of `apply`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl apply -f task.yaml
  pandactl apply -f manifests/ -R
  pandactl get task fix-login -o yaml | pandactl apply -f -
  pandactl apply -f task.yaml --dry-run=server
  pandactl apply -f task.yaml --wait --timeout 30m

All documents are checked, here and by the server, before the first one is written.")]
pub struct ApplyArgs {
    /// A file, a folder, or - for standard input; may be repeated
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true)]
    pub filename: Vec<String>,
    /// Look into the folders below, too
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Write what is right even if something else is wrong
    #[arg(long)]
    pub continue_on_error: bool,
    /// none, client or server: say what would be done
    #[arg(long, value_enum, value_name = "WHERE", default_value = "none", num_args = 0..=1, require_equals = true, default_missing_value = "client", hide_possible_values = true)]
    pub dry_run: DryRun,
    /// json, yaml, name or jsonpath=TEMPLATE: show the objects instead of what was done
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<String>,
    /// Wait until the tasks have ended
    #[arg(long)]
    pub wait: bool,
    /// How long to wait [default: as long as it takes]
    #[arg(long, value_name = "DURATION", value_parser = args::timeout)]
    pub timeout: Option<Duration>,
}

pub(crate) async fn run(args: ApplyArgs, session: &mut Session<'_>) -> Result<Exit> {
    let format = args
        .output
        .as_deref()
        .map(|text| Format::parse(Some(text)))
        .transpose()?;
    if format.as_ref().is_some_and(Format::is_table) {
        return Err(Error::user("apply shows no tables")
            .hint("use -o json, yaml, name or jsonpath=, or `pandactl get`"));
    }
    let read = input::read(session.io, &args.filename, args.recursive)?;
    let mut wrong = Wrong::default();
    for errors in &read.errors {
        wrong.unreadable(errors, session);
    }
    if wrong.count > 0 && !args.continue_on_error {
        return Err(wrong.nothing_applied());
    }
    if read.documents.is_empty() && wrong.count == 0 {
        session.note("no objects passed to apply");
        return Ok(0);
    }
    let (mut items, found) = plan::items(session, read.documents).await?;
    wrong.faults(&found, session)?;
    plan::in_order(&mut items);
    let items = checked(&args, items, &mut wrong, session).await?;
    if wrong.count > 0 && !args.continue_on_error {
        return Err(wrong.nothing_applied());
    }
    let done = written(&args, format.as_ref(), items, &mut wrong, session).await?;
    if let Some(format) = &format {
        let text = match done.as_slice() {
            [(resource, object)] => format.one(object, resource)?,
            objects => format.many(objects, true)?,
        };
        let text = format.safe(text, session.io.terminal.stdout);
        session.out(text)?;
    }
    session.io.flush()?;
    if wrong.count > 0 {
        return Err(wrong.some_applied());
    }
    if args.wait && args.dry_run == DryRun::None {
        wait(&done, args.timeout, session).await?;
    }
    Ok(0)
}

/// The items that the server (or, for a client's dry run, this program) finds nothing wrong with.
async fn checked(
    args: &ApplyArgs,
    items: Vec<Item>,
    wrong: &mut Wrong,
    session: &mut Session<'_>,
) -> Result<Vec<(Item, Change, Value)>> {
    let mut good = Vec::new();
    if args.dry_run == DryRun::Client {
        for item in items {
            let found = faults::of_this_program(&item.document, &item.object);
            if found.is_empty() {
                let live = item.api.get_opt(item.name()).await?;
                let change = match &live {
                    None => Change::Created,
                    Some(live) if merge::three_way(&item.object, live) == serde_json::json!({}) => {
                        Change::Unchanged
                    }
                    Some(_) => Change::Configured,
                };
                let object = item.object.clone();
                good.push((item, change, object));
            } else {
                wrong.faults(&found, session)?;
            }
        }
        return Ok(good);
    }
    let made_here = plan::made_here(&items);
    let answers: Vec<_> = futures::stream::iter(&items)
        .map(|item| plan::check(item, &made_here))
        .buffered(AT_ONCE)
        .collect()
        .await;
    for (item, answer) in items.into_iter().zip(answers) {
        match answer {
            Ok((change, object)) => good.push((item, change, object)),
            Err(found) => wrong.faults(&found, session)?,
        }
    }
    Ok(good)
}

async fn written(
    args: &ApplyArgs,
    format: Option<&Format>,
    items: Vec<(Item, Change, Value)>,
    wrong: &mut Wrong,
    session: &mut Session<'_>,
) -> Result<Vec<(ApiResource, Value)>> {
    let mut done = Vec::new();
    let suffix = match args.dry_run {
        DryRun::None => "",
        DryRun::Client => " (dry run)",
        DryRun::Server => " (server dry run)",
    };
    let namespaces = items
        .iter()
        .take_while(|(item, ..)| item.resource.kind == "Namespace" && item.resource.group.is_empty())
        .count();
    let (first, rest) = items.split_at(namespaces);
    for (part, at_once) in [(first, 1), (rest, AT_ONCE)] {
        let mut answers = futures::stream::iter(part)
            .map(|(item, change, object)| async move {
                if args.dry_run == DryRun::None && *change != Change::Unchanged {
                    plan::write(item).await
                } else {
                    Ok((*change, object.clone()))
                }
            })
            .buffered(at_once);
        for (item, ..) in part {
            match answers.next().await {
                Some(Ok((change, object))) => {
                    if format.is_none() {
                        session.out(format!(
                            "{} {}{suffix}\n",
                            object_name(&item.resource, item.name()),
                            change.word()
                        ))?;
                    }
                    done.push((item.resource.clone(), object));
                }
                Some(Err(found)) => wrong.faults(&found, session)?,
                None => {}
            }
        }
    }
    Ok(done)
}

async fn wait(
    done: &[(ApiResource, Value)],
    timeout: Option<Duration>,
    session: &mut Session<'_>,
) -> Result<()> {
    let deadline = timeout.map(|timeout| tokio::time::Instant::now() + timeout);
    let mut failed: Option<Error> = None;
    for (resource, object) in done {
        if resource.kind != "Task" || resource.group != "panda.dev" {
            continue;
        }
        let meta = &object["metadata"];
        let (namespace, name) = (
            meta["namespace"].as_str().unwrap_or_default(),
            meta["name"].as_str().unwrap_or_default(),
        );
        let left = deadline.map(|deadline| deadline.saturating_duration_since(tokio::time::Instant::now()));
        let outcome = match task::finished(session, namespace, name, left).await? {
            Some((task, outcome)) => task::expect_success(&task, outcome, false),
            None => Err(task::timed_out(name)),
        };
        if let Err(error) = outcome
            && let Some(before) = failed.replace(error)
        {
            crate::cli::report(&before, &session.io.stderr, session.color_err());
        }
    }
    failed.map_or(Ok(()), Err)
}

/// What is wrong so far; each fault is shown when it is found.
#[derive(Debug, Default)]
struct Wrong {
    count: usize,
}

impl Wrong {
    fn unreadable(&mut self, errors: &Errors, session: &Session<'_>) {
        for error in errors {
            self.count += 1;
            session.note(&error.render(session.color_err()));
        }
    }

    /// Shows faults. A server that cannot be reached ends everything: the rest would fail the same way.
    fn faults(&mut self, faults: &[Fault], session: &Session<'_>) -> Result<()> {
        for fault in faults {
            self.count += 1;
            if let Fault::Other(error) = fault
                && matches!(error.kind, Kind::Connect | Kind::Config)
            {
                return Err(Error {
                    kind: error.kind,
                    message: error.message.clone(),
                    hints: error.hints.clone(),
                    exit: 1,
                });
            }
            session.note(&fault.render(session.color_err()));
        }
        Ok(())
    }

    fn problems(&self) -> String {
        if self.count == 1 {
            "one problem".to_owned()
        } else {
            format!("{} problems", self.count)
        }
    }

    fn nothing_applied(&self) -> Error {
        Error::user(format!("nothing was applied: {}", self.problems()))
            .hint("correct what is shown above; --continue-on-error applies what is right")
    }

    fn some_applied(&self) -> Error {
        Error::user(format!("not everything was applied: {}", self.problems()))
            .hint("correct what is shown above and apply again")
    }
}
