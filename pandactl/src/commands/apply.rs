//! `pandactl apply`.

use std::time::Duration;

use futures::StreamExt;
use panda_client::ApiResource;
use serde_json::Value;

use crate::apply::plan::{self, Change, Item, Mode};
use crate::apply::set::{self, Set};
use crate::apply::source::SourceArgs;
use crate::apply::wrong::Wrong;
use crate::apply::{faults, merge};
use crate::args;
use crate::cli::Exit;
use crate::error::{Error, Result};
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

impl DryRun {
    /// What is said after the word for a change.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Client => " (dry run)",
            Self::Server => " (server dry run)",
        }
    }
}

/// Arguments of `apply`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl apply -f task.yaml
  pandactl apply -f manifests/ -R
  pandactl get task fix-login -o yaml | pandactl apply -f -
  pandactl apply -f task.yaml --dry-run=server
  pandactl apply -f task.yaml --wait --timeout 30m
  pandactl apply -k overlays/laptop
  pandactl apply -f task.yaml --server-side --field-manager=ci
  pandactl apply -f manifests/ --prune --applyset=web --dry-run=server
  pandactl apply -f manifests/ --prune --applyset=web --prune-limit=100

All documents are checked, here and by the server, before the first one is written.
Nothing is pruned when anything cannot be read, and never a whole set.")]
pub struct ApplyArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Write what is right even if something else is wrong
    #[arg(long)]
    pub continue_on_error: bool,
    /// none, client or server: say what would be done
    #[arg(long, value_enum, value_name = "WHERE", default_value = "none", num_args = 0..=1, require_equals = true, default_missing_value = "client", hide_possible_values = true)]
    pub dry_run: DryRun,
    /// Let the server merge, and remember who wants which field
    #[arg(long)]
    pub server_side: bool,
    /// Take over fields that others want otherwise
    #[arg(long, requires = "server_side")]
    pub force_conflicts: bool,
    /// Name under which the fields are wanted [default: pandactl]
    #[arg(long, value_name = "NAME")]
    pub field_manager: Option<String>,
    /// Remove what the set held before and the files do not hold any more
    #[arg(long, requires = "applyset")]
    pub prune: bool,
    /// The set: the name of a Secret that is its parent, or configmap/NAME
    #[arg(long, value_name = "[KIND/]NAME", requires = "prune")]
    pub applyset: Option<String>,
    /// Most of the set, in percent, that may be removed at one time
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub prune_limit: u8,
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

impl ApplyArgs {
    fn mode(&self) -> Mode {
        Mode {
            server_side: self.server_side,
            force: self.force_conflicts,
            manager: self.field_manager.clone(),
            part_of: None,
        }
    }
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
    let read = args.source.read(session).await?;
    let mut wrong = Wrong::default();
    for errors in &read.errors {
        wrong.unreadable(errors, session);
    }
    if wrong.count > 0 && !args.continue_on_error {
        return Err(wrong.nothing_applied());
    }
    if read.documents.is_empty() && args.prune {
        return Err(Error::user("nothing was pruned: there are no objects in what was read").hint(
            "an empty set is more likely a mistake; delete its objects with `pandactl delete` if you mean it",
        ));
    }
    if read.documents.is_empty() && wrong.count == 0 {
        session.note("no objects passed to apply");
        return Ok(0);
    }
    let mut mode = args.mode();
    let set = match &args.applyset {
        Some(reference) => Some(Set::open(session, reference).await?),
        None => None,
    };
    mode.part_of = set.as_ref().map(|set| set.id().to_owned());
    let (mut items, found) = plan::items(session, read.documents, &mode).await?;
    wrong.faults(&found, session)?;
    plan::in_order(&mut items);
    let items = checked(&args, items, &mut wrong, session).await?;
    if wrong.count > 0 && !args.continue_on_error {
        return Err(wrong.nothing_applied());
    }
    let whole = wrong.count == 0;
    let members = set::Members::of(items.iter().map(|(item, ..)| item));
    let mut lost = Vec::new();
    if let Some(set) = set.as_ref().filter(|_| whole) {
        lost = set.lost(&members, args.prune_limit, session).await?;
        if args.dry_run == DryRun::None {
            set.widen(&members).await?;
        }
    }
    let done = written(&args, &mode, format.as_ref(), items, &mut wrong, session).await?;
    if let Some(set) = &set {
        if wrong.count > 0 {
            session.note("nothing was pruned, since not everything was applied");
        } else {
            set.prune(&lost, &members, args.dry_run, format.is_none(), session)
                .await?;
        }
    }
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
    if args.server_side && args.dry_run == DryRun::Client {
        return Err(
            Error::user("a server-side apply cannot be tried without the server")
                .hint("use --dry-run=server"),
        );
    }
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
    mode: &Mode,
    format: Option<&Format>,
    items: Vec<(Item, Change, Value)>,
    wrong: &mut Wrong,
    session: &mut Session<'_>,
) -> Result<Vec<(ApiResource, Value)>> {
    let mut done = Vec::new();
    let suffix = args.dry_run.suffix();
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
                            mode.word(change)
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
