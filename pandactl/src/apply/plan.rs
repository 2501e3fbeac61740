//! What is to be done with each document, and doing it.

use std::collections::{BTreeSet, HashMap};

use panda_api::apply_set;
use panda_api::manifest::{self, Document};
use panda_api::meta::field_path::FieldPath;
use panda_client::api::PatchKind;
use panda_client::params::{FieldValidation, WriteParams};
use panda_client::{ApiResource, DynamicApi};
use serde_json::Value;

use super::faults::{self, Fault};
use super::merge;
use crate::error::Result;
use crate::session::Session;

/// Whose fields these are, for the server, when this program merges.
const CLIENT_SIDE: &str = "pandactl-client-side-apply";
/// The same when the server merges.
const SERVER_SIDE: &str = "pandactl";
/// How often somebody else may get in between.
const TRIES: usize = 5;

/// How objects are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mode {
    /// The server merges and remembers who wants which field; else this program does.
    pub server_side: bool,
    /// Take over fields that others want otherwise.
    pub force: bool,
    /// Whose the fields are afterwards; none: this program's.
    pub manager: Option<String>,
    /// Id of the apply set that all objects become part of.
    pub part_of: Option<String>,
}

impl Mode {
    /// The word for a change, as kubectl says it.
    #[must_use]
    pub const fn word(&self, change: Change) -> &'static str {
        if self.server_side {
            "serverside-applied"
        } else {
            change.word()
        }
    }

    fn params(&self, dry_run: bool) -> WriteParams {
        let usual = if self.server_side {
            SERVER_SIDE
        } else {
            CLIENT_SIDE
        };
        WriteParams {
            dry_run,
            field_manager: Some(self.manager.clone().unwrap_or_else(|| usual.to_owned())),
            field_validation: Some(FieldValidation::Strict),
            force: self.server_side && self.force,
        }
    }
}

/// A document on its way.
#[derive(Debug)]
pub struct Item {
    /// Where it comes from.
    pub document: Document,
    /// The object to apply, with its annotation.
    pub object: Value,
    /// Its kind.
    pub resource: ApiResource,
    /// Its kind in its namespace.
    pub api: DynamicApi,
    /// It was printed by a server: applying it unchanged changes nothing, not even what was applied last.
    printed: bool,
    /// How it is written.
    mode: Mode,
}

/// What became of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is new.
    Created,
    /// It was changed.
    Configured,
    /// It was as wanted.
    Unchanged,
}

impl Change {
    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Configured => "configured",
            Self::Unchanged => "unchanged",
        }
    }
}

impl Item {
    /// The object's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// The object's namespace; empty for kinds without.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.object["metadata"]["namespace"].as_str().unwrap_or_default()
    }

    fn is_namespace(&self) -> bool {
        self.resource.group.is_empty() && self.resource.kind == "Namespace"
    }
}

/// Makes items out of documents: kinds, namespaces, names. What cannot be one is a fault.
///
/// # Errors
/// When the server must be asked and does not answer.
pub async fn items(
    session: &mut Session<'_>,
    documents: Vec<Document>,
    mode: &Mode,
) -> Result<(Vec<Item>, Vec<Fault>)> {
    let asked = session.global.namespace.clone();
    let default = session.namespace()?;
    let (mut items, mut found) = (Vec::new(), Vec::new());
    let mut first: HashMap<(String, String, String), String> = HashMap::new();
    let mut kinds: HashMap<(String, String), Option<ApiResource>> = HashMap::new();
    for document in documents {
        let mut fault = |document: &Document, field: &str, what: String, remedy: String| {
            let path: FieldPath = field.parse().unwrap_or_default();
            found.push(Fault::At(Box::new(document.error(&path, what).remedy(remedy))));
        };
        let text = |field: &str| document.object[field].as_str().unwrap_or_default().to_owned();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        let key = (api_version.clone(), kind.clone());
        if !kinds.contains_key(&key) {
            let resource = session.find(&api_version, &kind).await?;
            kinds.insert(key.clone(), resource);
        }
        let Some(Some(resource)) = kinds.get(&key).cloned() else {
            let what = format!("the server has no kind {kind:?} in {api_version:?}");
            fault(
                &document,
                "kind",
                what,
                "`pandactl api-resources` lists the kinds".to_owned(),
            );
            continue;
        };
        let mut object = document.object.clone();
        manifest::without_server_fields(&mut object);
        merge::settle_secret(&mut object);
        let meta = &object["metadata"];
        let name = meta["name"].as_str().unwrap_or_default().to_owned();
        if name.is_empty() {
            let what = "the object has no name".to_owned();
            fault(
                &document,
                "metadata",
                what,
                "add metadata.name: apply finds the object by it".to_owned(),
            );
            continue;
        }
        let mut namespace = String::new();
        if resource.namespaced {
            let written = meta["namespace"].as_str().unwrap_or_default().to_owned();
            if let Some(asked) = asked
                .as_ref()
                .filter(|asked| !written.is_empty() && **asked != written)
            {
                let what = format!("the object is for namespace {written:?}, the command for {asked:?}");
                fault(
                    &document,
                    "metadata.namespace",
                    what,
                    "leave out -n, or change the manifest".to_owned(),
                );
                continue;
            }
            namespace = if written.is_empty() {
                default.clone()
            } else {
                written
            };
            object["metadata"]["namespace"] = namespace.clone().into();
        }
        let here = format!("{}:{}", document.file(), document.start().line);
        let identity = (resource.to_string(), namespace.clone(), name.clone());
        if let Some(before) = first.insert(identity, here) {
            let what = format!(
                "{}/{name} stands twice; the first time at {before}",
                resource.singular
            );
            fault(
                &document,
                "metadata.name",
                what,
                "remove one of the two, or give it another name".to_owned(),
            );
            continue;
        }
        let api = session.api_in(
            &resource,
            Some(&namespace).filter(|n| !n.is_empty()).map(String::as_str),
        )?;
        let was = &document.object["metadata"];
        let printed = was["uid"].is_string() || was["annotations"][merge::LAST_APPLIED].is_string();
        if let Some(id) = &mode.part_of {
            let written = object["metadata"]["labels"][apply_set::PART_OF].as_str();
            if written.is_some_and(|written| written != id) {
                let what = "the manifest says that the object belongs to another apply set".to_owned();
                let remedy = "leave the label out: apply sets it";
                fault(&document, "metadata.labels", what, remedy.to_owned());
                continue;
            }
            label(&mut object, apply_set::PART_OF, id);
        }
        let object = if mode.server_side {
            object
        } else {
            merge::with_last_applied(&object)
        };
        items.push(Item {
            document,
            object,
            resource,
            api,
            printed,
            mode: mode.clone(),
        });
    }
    Ok((items, found))
}

/// Namespaces that the items themselves will make.
#[must_use]
pub fn made_here(items: &[Item]) -> BTreeSet<String> {
    items
        .iter()
        .filter(|item| item.is_namespace())
        .map(|item| item.name().to_owned())
        .collect()
}

/// Items in the order in which they are written: namespaces first.
pub fn in_order(items: &mut [Item]) {
    items.sort_by_key(|item| !item.is_namespace());
}

fn label(object: &mut Value, key: &str, value: &str) {
    let meta = &mut object["metadata"];
    if !meta["labels"].is_object() {
        meta["labels"] = serde_json::json!({});
    }
    meta["labels"][key] = value.into();
}

/// What applying an item would do, and the object that would come out.
///
/// # Errors
/// What is wrong with it.
pub async fn check(item: &Item, made_here: &BTreeSet<String>) -> Result<(Change, Value), Vec<Fault>> {
    match attempt(item, true).await {
        Ok(done) => Ok(done),
        Err(Trouble::Client(error)) if error.is_not_found() && made_here.contains(item.namespace()) => {
            // Its namespace comes with the same command: nobody but this program can be asked.
            let faults = faults::of_this_program(&item.document, &item.object);
            if faults.is_empty() {
                Ok((Change::Created, item.object.clone()))
            } else {
                Err(faults)
            }
        }
        Err(trouble) => Err(trouble.faults(item)),
    }
}

/// Applies an item.
///
/// # Errors
/// What is wrong with it.
pub async fn write(item: &Item) -> Result<(Change, Value), Vec<Fault>> {
    attempt(item, false).await.map_err(|trouble| trouble.faults(item))
}

/// Why an item is not applied.
enum Trouble {
    Client(panda_client::Error),
    /// It is part of another apply set.
    Owned(String),
}

impl Trouble {
    fn faults(self, item: &Item) -> Vec<Fault> {
        match self {
            Self::Client(error) => faults::of_refusal(&item.document, error),
            Self::Owned(set) => {
                let path: FieldPath = "metadata.name".parse().unwrap_or_default();
                let what = format!("the object belongs to another apply set, {set}");
                let error = item.document.error(&path, what);
                let remedy = "apply it with that set, or take its label away first";
                vec![Fault::At(Box::new(error.remedy(format!(
                    "{remedy}: `pandactl label {}/{} {}-`",
                    item.resource.singular,
                    item.name(),
                    apply_set::PART_OF
                ))))]
            }
        }
    }
}

impl From<panda_client::Error> for Trouble {
    fn from(error: panda_client::Error) -> Self {
        Self::Client(error)
    }
}

async fn attempt(item: &Item, dry_run: bool) -> Result<(Change, Value), Trouble> {
    let mut tries = 0;
    loop {
        tries += 1;
        match once(item, dry_run).await {
            // Somebody else made, changed or removed it meanwhile: look again. Who wants a field otherwise goes on to.
            Err(Trouble::Client(error))
                if tries < TRIES
                    && (error.is_conflict() || error.is_already_exists())
                    && !faults::is_of_managers(&error) => {}
            other => return other,
        }
    }
}

async fn once(item: &Item, dry_run: bool) -> Result<(Change, Value), Trouble> {
    let live = item.api.get_opt(item.name()).await?;
    if let (Some(id), Some(live)) = (&item.mode.part_of, &live)
        && let Some(other) = live["metadata"]["labels"][apply_set::PART_OF].as_str()
        && other != id
    {
        return Err(Trouble::Owned(other.to_owned()));
    }
    if item.mode.server_side {
        return server_side(item, live.as_ref(), dry_run).await;
    }
    let params = |dry_run| item.mode.params(dry_run);
    let Some(live) = live else {
        let made = item.api.create(&item.object, &params(dry_run)).await?;
        return Ok((Change::Created, made));
    };
    let patch = merge::three_way(&item.object, &live);
    if item.printed && merge::is_bookkeeping(&patch) {
        return Ok((Change::Unchanged, live));
    }
    if patch.as_object().is_some_and(serde_json::Map::is_empty) {
        return Ok((Change::Unchanged, live));
    }
    // Other spellings of the same (`90s` and `1m30s`, defaults inside lists) change nothing once the server has read them.
    let would_be = item.api.patch_merge(item.name(), &patch, &params(true)).await?;
    if merge::same_content(&would_be, &live) {
        return Ok((Change::Unchanged, live));
    }
    if dry_run {
        return Ok((Change::Configured, would_be));
    }
    let changed = item.api.patch_merge(item.name(), &patch, &params(false)).await?;
    Ok((Change::Configured, changed))
}

/// The server merges: what the same manager does not mention any more goes, what others want stays.
async fn server_side(item: &Item, live: Option<&Value>, dry_run: bool) -> Result<(Change, Value), Trouble> {
    let (api, params) = (&item.api, item.mode.params(dry_run));
    let applied = api
        .patch_as(item.name(), None, PatchKind::Apply, &item.object, &params)
        .await?;
    let change = match live {
        None => Change::Created,
        Some(live) if merge::same_content(&applied, live) && merge::same_managers(&applied, live) => {
            Change::Unchanged
        }
        Some(_) => Change::Configured,
    };
    Ok((change, applied))
}
