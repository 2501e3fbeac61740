//! `get -w`: changes as they happen. A version that is too old or a connection that breaks is no news to anybody: the
//! list is read again and what is new in it is shown.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use panda_client::DynamicApi;
use panda_client::params::WatchParams;
use panda_client::table::Table;
use panda_client::watch::{WatchEvent, WatchStream};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use super::{GetArgs, list};
use crate::args::Target;
use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::io::Io;
use crate::output::format::Format;
use crate::output::table::Printer;
use crate::session::Session;

/// How long the server may be away.
const AWAY: Duration = Duration::from_secs(60);
/// Pause before the next try.
const PAUSE: Duration = Duration::from_millis(500);

/// What is watched: rows or objects.
trait Item: DeserializeOwned + Send + 'static {
    /// Uid and version of the objects in it.
    fn ids(&self) -> Vec<(String, String)>;
}

fn id(object: &Value) -> (String, String) {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("uid"), text("resourceVersion"))
}

impl Item for Table {
    fn ids(&self) -> Vec<(String, String)> {
        self.rows.iter().map(|row| id(&row.object)).collect()
    }
}

impl Item for Value {
    fn ids(&self) -> Vec<(String, String)> {
        vec![id(self)]
    }
}

pub(super) async fn run(
    args: &GetArgs,
    format: &Format,
    targets: &[Target],
    session: &mut Session<'_>,
) -> Result<Exit> {
    let Some(target) = targets.first() else {
        return Ok(0);
    };
    let gone = session.io.stdout_gone.clone();
    let watching = async {
        if format.is_table() {
            tables(args, format, target, session).await
        } else {
            objects(args, format, target, session).await
        }
    };
    tokio::select! {
        done = watching => done,
        () = Io::until_reader_gone(gone) => Ok(0),
    }
}

/// A watch that begins anew whenever it must.
struct Watched {
    api: DynamicApi,
    args: GetArgs,
    /// The one object, if one is named.
    name: Option<String>,
    version: String,
    /// Version of each object that was shown.
    seen: HashMap<String, String>,
    lost: Option<Instant>,
}

impl Watched {
    fn new(args: &GetArgs, target: &Target, session: &mut Session<'_>) -> Result<Self> {
        let namespace = super::scope(args, session)?;
        let api = session.api_in(&target.resource, namespace.as_deref())?;
        let mut args = args.clone();
        let name = target.names.first().cloned();
        if let Some(name) = &name {
            args.field_selector = Some(format!("metadata.name={name}"));
        }
        Ok(Self {
            api,
            args,
            name,
            version: String::new(),
            seen: HashMap::new(),
            lost: None,
        })
    }

    fn params(&self) -> WatchParams {
        WatchParams {
            label_selector: self.args.selector.clone(),
            field_selector: self.args.field_selector.clone(),
            ..WatchParams::after(self.version.clone())
        }
    }

    /// Whether this state of these objects was not shown yet.
    fn is_news(&mut self, item: &impl Item) -> bool {
        let mut news = false;
        for (uid, version) in item.ids() {
            news |= self.seen.insert(uid, version.clone()).as_ref() != Some(&version);
            self.version = version;
        }
        news
    }

    /// After a failure: waits, or gives up.
    async fn pause(&mut self, error: Error) -> Result<()> {
        if !list::may_recover(&error) {
            return Err(error);
        }
        let since = *self.lost.get_or_insert_with(Instant::now);
        if since.elapsed() > AWAY {
            return Err(error);
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }

    /// The next event, or nothing when the list must be read again.
    async fn next<T: Item>(&mut self, stream: &mut WatchStream<T>) -> Option<WatchEvent<T>> {
        loop {
            match stream.next().await? {
                Ok(WatchEvent::Bookmark { resource_version }) => self.version = resource_version,
                Ok(WatchEvent::Error(_)) | Err(_) => return None,
                Ok(WatchEvent::Undecodable(bad)) => tracing::warn!(%bad, "an object cannot be read"),
                Ok(event) => return Some(event),
            }
        }
    }
}

async fn tables(args: &GetArgs, format: &Format, target: &Target, session: &mut Session<'_>) -> Result<Exit> {
    let mut watched = Watched::new(args, target, session)?;
    let mut look = args.look(session, *format == Format::Table { wide: true });
    look.namespace = args.all_namespaces && target.resource.namespaced;
    let mut printer = Printer::new(look);
    let mut silent = args.watch_only;
    if let Some(name) = watched.name.clone() {
        // An object that is not there at all is a mistake, not something to wait for.
        watched.api.get_table(&name).await?;
    }
    loop {
        let mut table = match list::pages(&watched.api, &watched.args.params()).await {
            Ok(table) => table,
            Err(error) => {
                watched.pause(error).await?;
                continue;
            }
        };
        watched.lost = None;
        let version = table.metadata.resource_version.clone();
        table.rows.retain(|row| {
            let (uid, version) = id(&row.object);
            watched.seen.insert(uid, version.clone()).as_ref() != Some(&version)
        });
        watched.version = version;
        if !silent {
            session.out(printer.print(&table))?;
            session.io.flush()?;
        }
        silent = false;
        let mut stream = match watched.api.watch_table(&watched.params()).await {
            Ok(stream) => stream,
            Err(error) if error.is_gone() => continue,
            Err(error) => {
                watched.pause(error.into()).await?;
                continue;
            }
        };
        while let Some(event) = watched.next(&mut stream).await {
            let Some(table) = event.object() else { continue };
            if watched.is_news(table) {
                session.out(printer.print(table))?;
                session.io.flush()?;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn objects(
    args: &GetArgs,
    format: &Format,
    target: &Target,
    session: &mut Session<'_>,
) -> Result<Exit> {
    let mut watched = Watched::new(args, target, session)?;
    let mut silent = args.watch_only;
    let mut count = 0_usize;
    if let Some(name) = watched.name.clone() {
        watched.api.get(&name).await?;
    }
    loop {
        let listed = match watched.api.list_all(&watched.args.params()).await {
            Ok(listed) => listed,
            Err(error) if error.is_gone() => continue,
            Err(error) => {
                watched.pause(error.into()).await?;
                continue;
            }
        };
        watched.lost = None;
        for object in &listed.items {
            if watched.is_news(object) && !silent {
                print(object, format, target, &mut count, session)?;
            }
        }
        watched.version = listed.metadata.resource_version;
        silent = false;
        let mut stream = match watched.api.watch(&watched.params()).await {
            Ok(stream) => stream,
            Err(error) if error.is_gone() => continue,
            Err(error) => {
                watched.pause(error.into()).await?;
                continue;
            }
        };
        while let Some(event) = watched.next(&mut stream).await {
            let Some(object) = event.object() else { continue };
            if watched.is_news(object) {
                print(object, format, target, &mut count, session)?;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn print(
    object: &Value,
    format: &Format,
    target: &Target,
    count: &mut usize,
    session: &mut Session<'_>,
) -> Result<()> {
    let mut object = object.clone();
    list::typed(&mut object, &target.resource);
    let text = match format {
        Format::Columns(_) => format.many(&[(target.resource.clone(), object)], *count == 0)?,
        _ => format.one(&object, &target.resource)?,
    };
    let text = format.safe(text, session.io.terminal.stdout);
    if *format == Format::Yaml && *count > 0 {
        session.out("---\n")?;
    }
    *count += 1;
    session.out(text)?;
    session.io.flush()
}
