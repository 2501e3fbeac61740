//! What is to be done with each document, and doing it.

use std::collections::{BTreeSet, HashMap};

use panda_api::manifest::{self, Document};
use panda_api::meta::field_path::FieldPath;
use panda_client::params::{FieldValidation, WriteParams};
use panda_client::{ApiResource, DynamicApi};
use serde_json::Value;

use super::faults::{self, Fault};
use super::merge;
use crate::error::Result;
use crate::session::Session;

/// Whose fields these are, for the server.
const MANAGER: &str = "pandactl-client-side-apply";
/// How often somebody else may get in between.
const TRIES: usize = 5;

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
pub async fn items(session: &mut Session<'_>, documents: Vec<Document>) -> Result<(Vec<Item>, Vec<Fault>)> {
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
        let object = merge::with_last_applied(&object);
        items.push(Item {
            document,
            object,
            resource,
            api,
            printed,
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

fn params(dry_run: bool) -> WriteParams {
    WriteParams {
        dry_run,
        field_manager: Some(MANAGER.to_owned()),
        field_validation: Some(FieldValidation::Strict),
    }
}

/// What applying an item would do, and the object that would come out.
///
/// # Errors
/// What is wrong with it.
pub async fn check(item: &Item, made_here: &BTreeSet<String>) -> Result<(Change, Value), Vec<Fault>> {
    match attempt(item, true).await {
        Ok(done) => Ok(done),
        Err(error) if error.is_not_found() && made_here.contains(item.namespace()) => {
            // Its namespace comes with the same command: nobody but this program can be asked.
            let faults = faults::of_this_program(&item.document, &item.object);
            if faults.is_empty() {
                Ok((Change::Created, item.object.clone()))
            } else {
                Err(faults)
            }
        }
        Err(error) => Err(faults::of_refusal(&item.document, error)),
    }
}

/// Applies an item.
///
/// # Errors
/// What is wrong with it.
pub async fn write(item: &Item) -> Result<(Change, Value), Vec<Fault>> {
    attempt(item, false)
        .await
        .map_err(|error| faults::of_refusal(&item.document, error))
}

async fn attempt(item: &Item, dry_run: bool) -> Result<(Change, Value), panda_client::Error> {
    let mut tries = 0;
    loop {
        tries += 1;
        match once(item, dry_run).await {
            // Somebody else made, changed or removed it meanwhile: look again.
            Err(error) if tries < TRIES && (error.is_conflict() || error.is_already_exists()) => {}
            other => return other,
        }
    }
}

async fn once(item: &Item, dry_run: bool) -> Result<(Change, Value), panda_client::Error> {
    let Some(live) = item.api.get_opt(item.name()).await? else {
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
