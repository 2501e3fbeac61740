//! `pandactl delete`.

mod held;

use std::time::Duration;

use panda_api::{Resource, Task};
use panda_client::params::{DeleteParams, ListParams, Preconditions, Propagation};
use panda_client::{ApiResource, DynamicApi};
use serde_json::Value;
use tokio::time::Instant;

use self::held::Deleted;
use crate::apply::{Mode, input};
use crate::args;
use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::follow::{self, Ended};
use crate::output::text;
use crate::session::{Session, object_name, qualified};

/// Arguments of `delete`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl delete task fix-login
  pandactl delete -f task.yaml
  pandactl delete tasks -l team=web
  pandactl delete tasks --all -n scratch")]
pub struct DeleteArgs {
    /// KIND NAME..., KIND/NAME..., or KIND with -l or --all
    #[arg(value_name = "KIND[/NAME]")]
    pub resources: Vec<String>,
    /// Delete what a file, a folder or - (standard input) describes
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    pub filename: Vec<String>,
    /// Look into the folders below, too
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Label selector
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub selector: Option<String>,
    /// Field selector
    #[arg(long, value_name = "FIELDS")]
    pub field_selector: Option<String>,
    /// All objects of the kind in the namespace
    #[arg(long)]
    pub all: bool,
    /// In all namespaces; needs -l, --field-selector or --all
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Wait until the objects are gone
    #[arg(long, default_value = "true", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false", action = clap::ArgAction::Set)]
    pub wait: bool,
    /// How long to wait; 0: as long as it takes
    #[arg(long, value_name = "DURATION", value_parser = args::timeout, default_value = "0")]
    pub timeout: Duration,
    /// What is not there counts as deleted
    #[arg(long)]
    pub ignore_not_found: bool,
    /// Seconds for a graceful end, where the kind has one
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub grace_period: Option<i64>,
    /// The same as --grace-period=0
    #[arg(long)]
    pub force: bool,
    /// background, foreground or orphan: what becomes of what the object owns
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_value = "background", default_missing_value = "background", value_parser = ["background", "foreground", "orphan"], hide_possible_values = true)]
    pub cascade: String,
    /// Say what would be deleted
    #[arg(long, value_name = "WHERE", num_args = 0..=1, require_equals = true, default_missing_value = "client", value_parser = ["none", "client", "server"], hide_possible_values = true)]
    pub dry_run: Option<String>,
    /// name: print KIND/NAME only
    #[arg(short, long, value_name = "FORMAT", value_parser = ["name"], hide_possible_values = true)]
    pub output: Option<String>,
}

/// After so long people are told what is waited for.
const SILENCE: Duration = Duration::from_secs(2);
/// How long what its device holds is waited for when no time was given.
const DEVICE: Duration = Duration::from_secs(900);

struct Doomed {
    api: DynamicApi,
    resource: ApiResource,
    name: String,
}

pub(crate) async fn run(args: DeleteArgs, session: &mut Session<'_>) -> Result<Exit> {
    let doomed = targets(&args, session).await?;
    if doomed.is_empty() && !args.ignore_not_found {
        session.note("No resources found");
        return Ok(0);
    }
    let mut failed: Option<Error> = None;
    let mut waiting = Vec::new();
    for object in doomed {
        match delete(&args, &object, session).await {
            Ok(Some(deleted)) => waiting.push((object, deleted)),
            Ok(None) => {}
            Err(error) => {
                if let Some(before) = failed.replace(error) {
                    crate::cli::report(&before, &session.io.stderr, session.color_err());
                }
            }
        }
    }
    session.io.flush()?;
    if args.wait {
        let deadline = Some(args.timeout)
            .filter(|timeout| !timeout.is_zero())
            .map(|timeout| Instant::now() + timeout);
        let mut tasks = Vec::new();
        for (object, deleted) in waiting {
            gone(&object, &deleted.uid, deadline, session).await?;
            if (object.resource.group.as_str(), object.resource.plural.as_str())
                == (Task::GROUP, Task::PLURAL)
            {
                tasks.push(deleted);
            }
        }
        held::wait(&tasks, deadline, session).await?;
    }
    failed.map_or(Ok(0), Err)
}

async fn targets(args: &DeleteArgs, session: &mut Session<'_>) -> Result<Vec<Doomed>> {
    let selecting = args.all || args.selector.is_some() || args.field_selector.is_some();
    if !args.filename.is_empty() {
        if !args.resources.is_empty() || selecting {
            return Err(Error::user("-f does not mix with kinds, names and selectors")
                .hint("give either -f or KIND/NAME"));
        }
        return from_files(args, session).await;
    }
    if args.resources.is_empty() {
        return Err(Error::user("nothing to delete was named")
            .hint("for example `pandactl delete task/NAME` or `pandactl delete -f FILE`"));
    }
    let targets = args::targets(session, &args.resources).await?;
    let mut doomed = Vec::new();
    for target in targets {
        if !target.names.is_empty() {
            if selecting || args.all_namespaces {
                return Err(Error::user("names do not mix with --all, -A and selectors")
                    .hint("leave one of them out"));
            }
            let api = session.api(&target.resource)?;
            doomed.extend(target.names.into_iter().map(|name| Doomed {
                api: api.clone(),
                resource: target.resource.clone(),
                name,
            }));
            continue;
        }
        if !selecting {
            return Err(Error::user(format!("which {}?", target.resource.plural))
                .hint("give names, a selector with -l, or --all"));
        }
        let namespace = if args.all_namespaces {
            None
        } else {
            Some(session.namespace()?)
        };
        let api = session.api_in(&target.resource, namespace.as_deref())?;
        let params = ListParams {
            label_selector: args.selector.clone(),
            field_selector: args.field_selector.clone(),
            ..ListParams::default()
        };
        for object in api.list_all(&params).await?.items {
            let meta = &object["metadata"];
            let name = meta["name"].as_str().unwrap_or_default().to_owned();
            let namespace = meta["namespace"].as_str().unwrap_or_default();
            let api = if namespace.is_empty() {
                api.clone()
            } else {
                api.within(namespace)
            };
            doomed.push(Doomed {
                api,
                resource: target.resource.clone(),
                name,
            });
        }
    }
    Ok(doomed)
}

async fn from_files(args: &DeleteArgs, session: &mut Session<'_>) -> Result<Vec<Doomed>> {
    let read = input::read(session.io, &args.filename, args.recursive)?;
    let mut wrong = 0;
    for error in read.errors.iter().flatten() {
        wrong += 1;
        session.note(&error.render(session.color_err()));
    }
    let (items, found) = crate::apply::plan::items(session, read.documents, &Mode::default()).await?;
    for fault in &found {
        wrong += 1;
        session.note(&fault.render(session.color_err()));
    }
    if wrong > 0 {
        return Err(
            Error::user("nothing was deleted: the files cannot be read").hint("correct what is shown above")
        );
    }
    Ok(items
        .into_iter()
        .map(|item| Doomed {
            name: item.name().to_owned(),
            api: item.api,
            resource: item.resource,
        })
        .collect())
}

/// Deletes an object. Which one it was, when it may take a while to go.
async fn delete(args: &DeleteArgs, object: &Doomed, session: &mut Session<'_>) -> Result<Option<Deleted>> {
    let dry_run = args.dry_run.as_deref().filter(|place| *place != "none");
    let live = match object.api.get(&object.name).await {
        Ok(live) => live,
        Err(error) if error.is_not_found() && args.ignore_not_found => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let meta = |field: &str| live["metadata"][field].as_str().unwrap_or_default().to_owned();
    let uid = meta("uid");
    if dry_run != Some("client") {
        let grace = if args.force { Some(0) } else { args.grace_period };
        let params = DeleteParams {
            grace_period_seconds: grace.and_then(|seconds| u32::try_from(seconds).ok()),
            // Whoever made a new object of that name meanwhile did not ask for this.
            preconditions: Some(Preconditions {
                uid: Some(uid.clone()),
                resource_version: None,
            }),
            propagation_policy: Some(match args.cascade.as_str() {
                "foreground" => Propagation::Foreground,
                "orphan" => Propagation::Orphan,
                _ => Propagation::Background,
            }),
            dry_run: dry_run.is_some(),
        };
        match object.api.delete(&object.name, &params).await {
            Ok(_) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    let suffix = match dry_run {
        None => "",
        Some("server") => " (server dry run)",
        Some(_) => " (dry run)",
    };
    let line = if args.output.is_some() {
        format!("{}\n", object_name(&object.resource, &object.name))
    } else {
        format!(
            "{} \"{}\" deleted{suffix}\n",
            qualified(&object.resource),
            text::line(&object.name)
        )
    };
    session.out(line)?;
    let namespace = meta("namespace");
    Ok(dry_run.is_none().then_some(Deleted { namespace, uid }))
}

/// Waits until the object with this uid is gone.
async fn gone(
    object: &Doomed,
    uid: &str,
    mut deadline: Option<Instant>,
    session: &mut Session<'_>,
) -> Result<()> {
    let mut check = |live: Option<&Value>| {
        Ok(live
            .is_none_or(|live| live["metadata"]["uid"].as_str() != Some(uid))
            .then_some(()))
    };
    let quiet = Instant::now() + SILENCE;
    if deadline.is_none_or(|deadline| deadline > quiet) {
        match follow::until(&object.api, &object.name, Some(quiet), &mut check).await? {
            Ended::Met(()) => return Ok(()),
            Ended::TimedOut(live) => {
                if let Some(note) = live.and_then(|live| held::note(&live)) {
                    session.note(&note);
                    deadline.get_or_insert_with(|| Instant::now() + DEVICE);
                }
            }
        }
    }
    match follow::until(&object.api, &object.name, deadline, &mut check).await? {
        Ended::Met(()) => Ok(()),
        Ended::TimedOut(live) => {
            let finalizers = live
                .map(|live| live["metadata"]["finalizers"].to_string())
                .unwrap_or_default();
            Err(Error::user(format!(
                "timed out waiting for {} to go",
                object_name(&object.resource, &object.name)
            ))
            .hint(format!(
                "its finalizers must finish first: {finalizers}; `pandactl describe` shows what it waits for"
            )))
        }
    }
}
