//! `pandactl describe`: all about one object, for people.

mod page;
mod task;

use panda_api::{Resource, Run, Task};
use panda_client::ApiResource;
use panda_client::params::ListParams;
use serde_json::Value;

use self::page::Page;
pub(super) use self::task::check_line;
use super::events;
use crate::args;
use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::output::table::align;
use crate::output::text;
use crate::session::Session;

/// Arguments of `describe`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  pandactl describe task/fix-login\n  pandactl describe device laptop\n  pandactl describe tasks -l team=web"
)]
pub struct DescribeArgs {
    /// KIND/NAME..., KIND NAME..., or KIND
    #[arg(value_name = "KIND[/NAME]", required = true)]
    pub resources: Vec<String>,
    /// All namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Label selector
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub selector: Option<String>,
}

/// Events that are shown.
const MAX_EVENTS: usize = 25;

pub(crate) async fn run(args: DescribeArgs, session: &mut Session<'_>) -> Result<Exit> {
    let mut shown = false;
    for target in args::targets(session, &args.resources).await? {
        let namespace = if args.all_namespaces {
            None
        } else {
            Some(session.namespace()?)
        };
        let api = session.api_in(&target.resource, namespace.as_deref())?;
        let objects = if target.names.is_empty() {
            let params = ListParams {
                label_selector: args.selector.clone(),
                ..ListParams::default()
            };
            api.list_all(&params).await?.items
        } else {
            if args.all_namespaces {
                return Err(Error::user("a named object is in one namespace, not in all")
                    .hint("use -n NAMESPACE instead of -A"));
            }
            let mut objects = Vec::new();
            for name in &target.names {
                objects.push(api.get(name).await?);
            }
            objects
        };
        if objects.is_empty() {
            session.note("No resources found");
        }
        for object in objects {
            if shown {
                session.out("\n\n")?;
            }
            shown = true;
            let text = describe(&target.resource, &object, session).await?;
            session.out(text)?;
        }
    }
    Ok(0)
}

async fn describe(resource: &ApiResource, object: &Value, session: &mut Session<'_>) -> Result<String> {
    let mut page = Page::new(session.color_out(), session.io.clock.now());
    page.metadata(object);
    match (resource.group.as_str(), resource.kind.as_str()) {
        (Task::GROUP, Task::KIND) => match serde_json::from_value::<Task>(object.clone()) {
            Ok(task) => task::task(&mut page, &task, session).await?,
            Err(_) => page.rest(object),
        },
        (Run::GROUP, Run::KIND) => match serde_json::from_value::<Run>(object.clone()) {
            Ok(run) => task::run(&mut page, &run),
            Err(_) => page.rest(object),
        },
        ("", "Secret") => {
            page.field("Type", object["type"].as_str().unwrap_or_default());
            page.heading("Data (values are not shown)");
            for (key, value) in object["data"].as_object().into_iter().flatten() {
                let bytes = value
                    .as_str()
                    .map_or(0, |text| text.trim_end_matches('=').len() * 3 / 4);
                page.item(&format!("{}: {bytes} bytes", text::line(key)));
            }
        }
        _ => page.rest(object),
    }
    page.conditions(&object["status"]["conditions"]);
    let meta = &object["metadata"];
    let (namespace, uid) = (
        meta["namespace"].as_str().unwrap_or_default(),
        meta["uid"].as_str().unwrap_or_default(),
    );
    if resource.kind != "Event" {
        let events = events::about(session, namespace, uid).await.unwrap_or_default();
        add_events(&mut page, &events);
    }
    Ok(page.text())
}

fn add_events(page: &mut Page, events: &[panda_api::Event]) {
    if events.is_empty() {
        page.field("Events", "<none>");
        return;
    }
    page.heading("Events");
    let skipped = events.len().saturating_sub(MAX_EVENTS);
    if skipped > 0 {
        page.item(&format!("({skipped} older ones: see `pandactl events`)"));
    }
    let mut rows = vec![
        ["TYPE", "REASON", "AGE", "FROM", "MESSAGE"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for event in &events[skipped..] {
        let mut age = events::when(event).map_or_else(|| "?".to_owned(), |time| page.age(time));
        if let Some(count) = event.count.filter(|count| *count > 1) {
            age.push_str(&format!(" (x{count})"));
        }
        let from = if event.source.component.is_empty() {
            &event.reporting_component
        } else {
            &event.source.component
        };
        rows.push(
            [&event.type_, &event.reason, &age, from, &event.message]
                .map(|cell| text::line(cell))
                .to_vec(),
        );
    }
    page.block(&align(&rows));
}
