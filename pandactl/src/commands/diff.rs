//! `pandactl diff`: what apply would change, asked of the server.

use futures::StreamExt;
use serde_json::Value;

use crate::apply::faults::Fault;
use crate::apply::plan::{self, Item, Mode};
use crate::apply::set::{Members, Set};
use crate::apply::source::SourceArgs;
use crate::apply::wrong::Wrong;
use crate::cli::Exit;
use crate::error::{Error, Kind, Result};
use crate::output::diff::{self, Sides};
use crate::session::{Session, qualified};

/// Requests that are under way at one time.
const AT_ONCE: usize = 16;
/// There are differences.
const DIFFERENT: Exit = 1;
/// It is not known whether there are.
pub const TROUBLE: Exit = 2;

/// Arguments of `diff`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl diff -f task.yaml
  pandactl diff -k overlays/laptop
  pandactl diff -f manifests/ -R --server-side
  pandactl diff -f manifests/ --prune --applyset=web

The server merges as it would, and writes nothing. Values of Secrets are hidden.
Exit codes: 0 no differences, 1 differences, 2 it could not be found out.")]
pub struct DiffArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Compare with what a server-side apply would make
    #[arg(long)]
    pub server_side: bool,
    /// Take over fields that others want otherwise
    #[arg(long, requires = "server_side")]
    pub force_conflicts: bool,
    /// Name under which the fields are wanted [default: pandactl]
    #[arg(long, value_name = "NAME")]
    pub field_manager: Option<String>,
    /// Show what would be removed of the set, too
    #[arg(long, requires = "applyset")]
    pub prune: bool,
    /// The set: the name of a Secret that is its parent, or configmap/NAME
    #[arg(long, value_name = "[KIND/]NAME", requires = "prune")]
    pub applyset: Option<String>,
    /// Show who wants which fields, too
    #[arg(long)]
    pub show_managed_fields: bool,
}

pub(crate) async fn run(args: DiffArgs, session: &mut Session<'_>) -> Result<Exit> {
    let done = compare(&args, session).await;
    done.map_err(|error| match error.kind {
        // Whoever stopped reading has seen a difference.
        Kind::ClosedPipe => error.exit(DIFFERENT),
        _ => error.exit(TROUBLE),
    })
}

async fn compare(args: &DiffArgs, session: &mut Session<'_>) -> Result<Exit> {
    let read = args.source.read(session).await?;
    let mut wrong = Wrong::default();
    for errors in &read.errors {
        wrong.unreadable(errors, session);
    }
    if read.documents.is_empty() && wrong.count == 0 {
        return Err(Error::user("no objects to compare").hint("name files that hold objects"));
    }
    let set = match &args.applyset {
        Some(reference) => Some(Set::open(session, reference).await?),
        None => None,
    };
    let mode = Mode {
        server_side: args.server_side,
        force: args.force_conflicts,
        manager: args.field_manager.clone(),
        part_of: set.as_ref().map(|set| set.id().to_owned()),
    };
    let (mut items, found) = plan::items(session, read.documents, &mode).await?;
    wrong.faults(&found, session)?;
    plan::in_order(&mut items);
    let made_here = plan::made_here(&items);
    let mut different = false;
    let mut answers = futures::stream::iter(&items)
        .map(|item| sides(item, &made_here))
        .buffered(AT_ONCE);
    for item in &items {
        match answers.next().await {
            Some(Ok(sides)) => {
                let name = format!(
                    "{}{}",
                    qualified(&item.resource),
                    place(item.namespace(), item.name())
                );
                different |= show(sides, &name, args, session)?;
            }
            Some(Err(found)) => wrong.faults(&found, session)?,
            None => {}
        }
    }
    drop(answers);
    if let Some(set) = set.filter(|_| wrong.count == 0) {
        for lost in set.lost(&Members::of(items.iter()), 100, session).await? {
            let name = format!(
                "{}{}",
                qualified(lost.resource()),
                place(lost.namespace(), lost.name())
            );
            let sides = Sides {
                live: lost.object().await?,
                merged: None,
            };
            different |= show(sides, &name, args, session)?;
        }
    }
    session.io.flush()?;
    if wrong.count > 0 {
        return Err(
            Error::user(format!("not everything could be compared: {}", wrong.problems()))
                .hint("correct what is shown above"),
        );
    }
    Ok(if different { DIFFERENT } else { 0 })
}

fn place(namespace: &str, name: &str) -> String {
    if namespace.is_empty() {
        format!("/{name}")
    } else {
        format!("/{namespace}/{name}")
    }
}

async fn sides(item: &Item, made_here: &std::collections::BTreeSet<String>) -> Result<Sides, Vec<Fault>> {
    let live: Option<Value> = match item.api.get_opt(item.name()).await {
        Ok(live) => live,
        Err(error) => return Err(crate::apply::faults::of_refusal(&item.document, error)),
    };
    let (_, merged) = plan::check(item, made_here).await?;
    Ok(Sides {
        live,
        merged: Some(merged),
    })
}

/// Prints a difference, if it is one.
fn show(sides: Sides, name: &str, args: &DiffArgs, session: &mut Session<'_>) -> Result<bool> {
    let Some(text) = sides.unified(name, args.show_managed_fields) else {
        return Ok(false);
    };
    let text = if session.io.terminal.stdout {
        diff::paint(&text, session.color_out())
    } else if session.color_out() {
        diff::paint(&text, true)
    } else {
        text
    };
    session.out(text)?;
    Ok(true)
}
