//! `pandactl get`: the server's tables, or objects in a format for programs.

mod list;
mod watch;

use panda_client::ApiResource;
use panda_client::params::ListParams;
use serde_json::Value;

use crate::args::{self, Target};
use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::output::format::Format;
use crate::output::jsonpath::Template;
use crate::output::table::{Look, Printer};
use crate::session::Session;

/// Arguments of `get`.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = "Examples:
  pandactl get tasks
  pandactl get task fix-login -o yaml
  pandactl get runs -A -o wide
  pandactl get tasks -l team=web --field-selector status.phase=Running
  pandactl get tasks -w
  pandactl get tasks -o jsonpath='{range .items[*]}{.metadata.name}{\"\\n\"}{end}'
  pandactl get all")]
pub struct GetArgs {
    /// KIND, KIND NAME..., KIND/NAME..., KIND,KIND or `all`
    #[arg(value_name = "KIND[/NAME]", required = true)]
    pub resources: Vec<String>,
    /// All namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Label selector, for example app=web,tier!=db
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub selector: Option<String>,
    /// Field selector, for example status.phase=Running
    #[arg(long, value_name = "FIELDS")]
    pub field_selector: Option<String>,
    /// Go on showing changes
    #[arg(short = 'w', long)]
    pub watch: bool,
    /// Show changes only
    #[arg(long)]
    pub watch_only: bool,
    /// wide, yaml, json, name, jsonpath=TEMPLATE, custom-columns=NAME:PATH,... or the last two from a
    /// file: jsonpath-file=FILE, custom-columns-file=FILE
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<String>,
    /// Sort by a field, for example .metadata.creationTimestamp
    #[arg(long, value_name = "PATH")]
    pub sort_by: Option<String>,
    /// A column with the labels
    #[arg(long)]
    pub show_labels: bool,
    /// No headings
    #[arg(long)]
    pub no_headers: bool,
    /// Do not fail when a named object is not there
    #[arg(long)]
    pub ignore_not_found: bool,
    /// Most objects a request; 0: all at once
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub chunk_size: u32,
}

impl GetArgs {
    fn params(&self) -> ListParams {
        ListParams {
            label_selector: self.selector.clone(),
            field_selector: self.field_selector.clone(),
            limit: Some(self.chunk_size).filter(|size| *size > 0),
            ..ListParams::default()
        }
    }

    fn look(&self, session: &Session<'_>, wide: bool) -> Look {
        Look {
            wide,
            no_headers: self.no_headers,
            namespace: false,
            labels: self.show_labels,
            kind: None,
            width: session.width(),
            color: session.color_out(),
        }
    }
}

pub(crate) async fn run(args: GetArgs, session: &mut Session<'_>) -> Result<Exit> {
    let format = Format::read(args.output.as_deref(), &session.io.env.cwd)?;
    let sort = args
        .sort_by
        .as_deref()
        .map(Template::path)
        .transpose()
        .map_err(|error| {
            Error::user(format!("--sort-by: {error}"))
                .hint("for example --sort-by=.metadata.creationTimestamp")
        })?;
    let targets = args::targets(session, &args.resources).await?;
    check(&args, &targets)?;
    if args.watch || args.watch_only {
        return watch::run(&args, &format, &targets, session).await;
    }
    if format.is_table() {
        tables(&args, &format, &targets, sort.as_ref(), session).await
    } else {
        objects(&args, &format, &targets, sort.as_ref(), session).await
    }
}

fn check(args: &GetArgs, targets: &[Target]) -> Result<()> {
    let named = targets.iter().any(|target| !target.names.is_empty());
    if named && args.all_namespaces {
        return Err(Error::user("a named object is in one namespace, not in all")
            .hint("use -n NAMESPACE instead of -A"));
    }
    if named && (args.selector.is_some() || args.field_selector.is_some()) {
        return Err(Error::user("names and selectors do not mix").hint("leave one of them out"));
    }
    if args.watch || args.watch_only {
        let many = targets.len() > 1 || targets.iter().any(|target| target.names.len() > 1);
        if many {
            return Err(
                Error::user("only one kind, or one object, can be watched").hint("run one command for each")
            );
        }
        if args.sort_by.is_some() {
            return Err(Error::user("--sort-by and --watch do not mix")
                .hint("changes come in the order in which they happen"));
        }
    }
    Ok(())
}

/// The namespace of a request: none for all of them.
fn scope(args: &GetArgs, session: &mut Session<'_>) -> Result<Option<String>> {
    if args.all_namespaces {
        Ok(None)
    } else {
        session.namespace().map(Some)
    }
}

async fn tables(
    args: &GetArgs,
    format: &Format,
    targets: &[Target],
    sort: Option<&Template>,
    session: &mut Session<'_>,
) -> Result<Exit> {
    let wide = *format == Format::Table { wide: true };
    let namespace = scope(args, session)?;
    let (mut found, mut failed, mut shown) = (0_usize, None, false);
    for target in targets {
        let api = session.api_in(&target.resource, namespace.as_deref())?;
        let table = match list::table(&api, target, &args.params(), sort, args.ignore_not_found).await {
            Ok((table, missing)) => {
                for error in missing {
                    failed = keep(failed, error, session);
                }
                table
            }
            Err(error) => {
                failed = keep(failed, error, session);
                continue;
            }
        };
        if table.rows.is_empty() {
            continue;
        }
        found += table.rows.len();
        let mut look = args.look(session, wide);
        look.namespace = args.all_namespaces && target.resource.namespaced;
        look.kind = (targets.len() > 1).then(|| target.resource.clone());
        let text = Printer::new(look).print(&table);
        if shown {
            session.out("\n")?;
        }
        shown = true;
        session.out(text)?;
    }
    finish(found, failed, targets, namespace.as_deref(), args, session)
}

async fn objects(
    args: &GetArgs,
    format: &Format,
    targets: &[Target],
    sort: Option<&Template>,
    session: &mut Session<'_>,
) -> Result<Exit> {
    let namespace = scope(args, session)?;
    let mut all: Vec<(ApiResource, Value)> = Vec::new();
    let mut failed = None;
    for target in targets {
        let api = session.api_in(&target.resource, namespace.as_deref())?;
        match list::objects(&api, target, &args.params(), args.ignore_not_found).await {
            Ok((objects, missing)) => {
                all.extend(
                    objects
                        .into_iter()
                        .map(|object| (target.resource.clone(), object)),
                );
                for error in missing {
                    failed = keep(failed, error, session);
                }
            }
            Err(error) => failed = keep(failed, error, session),
        }
    }
    if let Some(sort) = sort {
        list::sort(&mut all, sort, |(_, object)| object)?;
    }
    let asked_for_one = targets.len() == 1 && targets[0].names.len() == 1;
    let text = match (asked_for_one, all.as_slice()) {
        (true, [(resource, object)]) => format.one(object, resource)?,
        (true, []) => String::new(),
        // As in kubectl: a list of nothing is still a list, except where each object is a line.
        (_, []) if matches!(format, Format::Columns(_)) => String::new(),
        (_, all) => format.many(all, !args.no_headers)?,
    };
    let text = format.safe(text, session.io.terminal.stdout);
    session.out(text)?;
    if matches!(format, Format::Json | Format::Yaml | Format::JsonPath(_)) {
        return failed.map_or(Ok(0), Err);
    }
    finish(all.len(), failed, targets, namespace.as_deref(), args, session)
}

/// Keeps one failure for the end and shows the ones before it.
fn keep(before: Option<Error>, error: Error, session: &Session<'_>) -> Option<Error> {
    if let Some(before) = before {
        crate::cli::report(&before, &session.io.stderr, session.color_err());
    }
    Some(error)
}

fn finish(
    found: usize,
    failed: Option<Error>,
    targets: &[Target],
    namespace: Option<&str>,
    args: &GetArgs,
    session: &Session<'_>,
) -> Result<Exit> {
    if let Some(error) = failed {
        return Err(error);
    }
    if found == 0 && !args.ignore_not_found {
        let namespaced = targets.iter().any(|target| target.resource.namespaced);
        match namespace.filter(|_| namespaced) {
            Some(namespace) => session.note(&format!("No resources found in {namespace} namespace.")),
            None => session.note("No resources found"),
        }
    }
    Ok(0)
}
