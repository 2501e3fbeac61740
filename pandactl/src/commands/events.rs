//! `pandactl events`.

use panda_api::Event;
use panda_client::params::ListParams;

use super::get::{self, GetArgs};
use crate::args;
use crate::cli::Exit;
use crate::error::Result;
use crate::session::Session;

/// Arguments of `events`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  pandactl events\n  pandactl events --for task/fix-login\n  pandactl events -w -A"
)]
pub struct EventsArgs {
    /// Only events about one object, for example task/fix-login
    #[arg(long = "for", value_name = "KIND/NAME")]
    pub for_: Option<String>,
    /// All namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Go on showing events
    #[arg(short = 'w', long)]
    pub watch: bool,
    /// Only events of this type: Normal or Warning
    #[arg(long, value_name = "TYPE")]
    pub types: Option<String>,
    /// wide, yaml, json, name or jsonpath=TEMPLATE
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<String>,
    /// No headings
    #[arg(long)]
    pub no_headers: bool,
}

pub(crate) async fn run(args: EventsArgs, session: &mut Session<'_>) -> Result<Exit> {
    let mut selectors = Vec::new();
    if let Some(about) = &args.for_ {
        for (resource, name) in args::named(session, std::slice::from_ref(about)).await? {
            selectors.push(format!("involvedObject.kind={}", resource.kind));
            selectors.push(format!("involvedObject.apiVersion={}", resource.api_version()));
            selectors.push(format!("involvedObject.name={name}"));
        }
    }
    if let Some(types) = &args.types {
        selectors.push(format!("type={types}"));
    }
    let get = GetArgs {
        resources: vec!["events".to_owned()],
        all_namespaces: args.all_namespaces,
        field_selector: Some(selectors.join(",")).filter(|text| !text.is_empty()),
        watch: args.watch,
        output: args.output,
        no_headers: args.no_headers,
        sort_by: (!args.watch).then(|| ".lastTimestamp".to_owned()),
        chunk_size: 500,
        ..GetArgs::default()
    };
    get::run(get, session).await
}

/// The events about one object, oldest first.
pub(super) async fn about(session: &mut Session<'_>, namespace: &str, uid: &str) -> Result<Vec<Event>> {
    let client = session.client()?;
    // Events about objects without a namespace are kept in `default`.
    let namespace = if namespace.is_empty() {
        "default"
    } else {
        namespace
    };
    let api: panda_client::Api<Event> = panda_client::Api::namespaced(client, namespace);
    let mut events = api
        .list_all(&ListParams::fields(format!("involvedObject.uid={uid}")))
        .await?
        .items;
    events.sort_by_key(when);
    Ok(events)
}

/// When an event was last seen.
pub(super) fn when(event: &Event) -> Option<jiff::Timestamp> {
    event
        .last_timestamp
        .as_ref()
        .map(|time| time.0)
        .or_else(|| event.event_time.as_ref().map(|time| time.0))
        .or_else(|| event.first_timestamp.as_ref().map(|time| time.0))
        .or_else(|| event.metadata.creation_timestamp.as_ref().map(|time| time.0))
}
