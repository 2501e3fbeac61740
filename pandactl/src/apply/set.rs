//! Apply sets (KEP-3659): a parent object names the set, a label on every member says that it belongs to it. What is in
//! the set and not in the files is pruned, behind [`apply_set::guard`].
//!
//! Before the first write the parent is widened to the kinds and namespaces that are to come; after the last prune it is
//! narrowed to what is there. So whatever is interrupted is found again the next time.

use std::collections::{BTreeMap, BTreeSet};

use panda_api::apply_set::{self, ID, KINDS, NAMESPACES, PART_OF, Refused, TOOLING};
use panda_client::params::{DeleteParams, ListParams, Propagation, WriteParams};
use panda_client::{ApiResource, DynamicApi};
use serde_json::{Value, json};

use super::plan::Item;
use crate::commands::apply::DryRun;
use crate::error::{Error, Result};
use crate::session::{Session, object_name};

/// Who manages the sets, for other tools.
const TOOL: &str = concat!("pandactl/v", env!("CARGO_PKG_VERSION"));
/// Namespaces that are never pruned.
const KEPT: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// A set, as its parent describes it.
#[derive(Debug)]
pub struct Set {
    parent: DynamicApi,
    name: String,
    namespace: String,
    id: String,
    exists: bool,
    kinds: BTreeSet<String>,
    namespaces: BTreeSet<String>,
}

/// What the files hold.
#[derive(Debug, Default)]
pub struct Members {
    kinds: BTreeMap<String, ApiResource>,
    namespaces: BTreeSet<String>,
    objects: BTreeSet<(String, String, String)>,
}

/// An object that is not in the files any more.
#[derive(Debug)]
pub struct Lost {
    api: DynamicApi,
    name: String,
    namespace: String,
    uid: String,
}

impl Lost {
    /// The object's kind.
    #[must_use]
    pub const fn resource(&self) -> &ApiResource {
        self.api.resource()
    }

    /// The object's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The whole object, or none when it is gone.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn object(&self) -> Result<Option<Value>> {
        Ok(self.api.get_opt(&self.name).await?)
    }
}

fn kind_of(resource: &ApiResource) -> String {
    apply_set::group_kind(&resource.kind, &resource.group)
}

impl Members {
    /// What these items come to.
    pub fn of<'a>(items: impl Iterator<Item = &'a Item>) -> Self {
        let mut members = Self::default();
        for item in items {
            let kind = kind_of(&item.resource);
            let namespace = item.namespace().to_owned();
            if !namespace.is_empty() {
                members.namespaces.insert(namespace.clone());
            }
            members
                .objects
                .insert((kind.clone(), namespace, item.name().to_owned()));
            members.kinds.insert(kind, item.resource.clone());
        }
        members
    }
}

impl Set {
    /// The set of a parent: `NAME` (of a Secret), `secret/NAME` or `configmap/NAME`, in the session's namespace. It need
    /// not exist.
    ///
    /// # Errors
    /// When the parent is of another kind, or exists and is no parent, or another tool manages the set.
    pub async fn open(session: &mut Session<'_>, reference: &str) -> Result<Self> {
        let (word, name) = reference.split_once('/').unwrap_or(("secret", reference));
        let resource = session.resolve(word).await?;
        if name.is_empty() || !resource.group.is_empty() || !matches!(&*resource.kind, "Secret" | "ConfigMap")
        {
            return Err(
                Error::user(format!("{reference:?} cannot be the parent of an apply set"))
                    .hint("use NAME, secret/NAME or configmap/NAME"),
            );
        }
        let namespace = session.namespace()?;
        let parent = session.api_in(&resource, Some(&namespace))?;
        let live = parent.clone().metadata_only().get_opt(name).await?;
        let id = apply_set::id(name, &namespace, &resource.kind, &resource.group);
        let shown = object_name(&resource, name);
        let mut set = Self {
            parent,
            name: name.to_owned(),
            namespace,
            id,
            exists: live.is_some(),
            kinds: BTreeSet::new(),
            namespaces: BTreeSet::new(),
        };
        if let Some(live) = live {
            let meta = &live["metadata"];
            if meta["labels"][ID] != *set.id {
                return Err(
                    Error::user(format!("{shown} exists and is no parent of an apply set"))
                        .hint("give the set another name with --applyset"),
                );
            }
            let tooling = meta["annotations"][TOOLING].as_str().unwrap_or_default();
            if tooling.split('/').next() != Some("pandactl") {
                return Err(
                    Error::user(format!("another tool manages this apply set: {tooling:?}"))
                        .hint("go on with that tool, or give the set another name with --applyset"),
                );
            }
            let words = |key: &str| apply_set::words(meta["annotations"][key].as_str().unwrap_or_default());
            set.kinds = words(KINDS);
            set.namespaces = words(NAMESPACES);
        }
        Ok(set)
    }

    /// The id that members carry.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The objects of the set that are not among `members`, which are all that the files hold.
    ///
    /// # Errors
    /// When more than `limit` percent of the set would be lost, or when something of the set cannot be listed.
    pub async fn lost(&self, members: &Members, limit: u8, session: &mut Session<'_>) -> Result<Vec<Lost>> {
        let (before, lost) = self.compare(members, session).await?;
        apply_set::guard(before, lost.len(), members.objects.len(), limit).map_err(|refused| {
            let hint = match refused {
                Refused::Empty { .. } => {
                    "delete the objects with `pandactl delete` if you mean it".to_owned()
                }
                Refused::TooMany { .. } => {
                    "look with `pandactl diff --prune`; a higher --prune-limit confirms it (100: anything)"
                        .to_owned()
                }
            };
            Error::user(format!("nothing was applied: {refused}")).hint(hint)
        })?;
        Ok(lost)
    }

    async fn compare(&self, members: &Members, session: &mut Session<'_>) -> Result<(usize, Vec<Lost>)> {
        if !self.exists {
            return Ok((0, Vec::new()));
        }
        let mut kinds = members.kinds.clone();
        for word in &self.kinds {
            if !kinds.contains_key(word) {
                let resource = session.resolve(word).await.map_err(|error| {
                    error.during(&format!(
                        "the set holds objects of the kind {word}, which cannot be listed"
                    ))
                })?;
                kinds.insert(word.clone(), resource);
            }
        }
        let mut namespaces: BTreeSet<&str> = self.namespaces.iter().map(String::as_str).collect();
        namespaces.insert(&self.namespace);
        namespaces.extend(members.namespaces.iter().map(String::as_str));
        let params = ListParams::labels(format!("{PART_OF}={}", self.id));
        let (mut before, mut lost) = (0, Vec::new());
        for (kind, resource) in &kinds {
            let places: Vec<Option<&str>> = if resource.namespaced {
                namespaces.iter().map(|namespace| Some(*namespace)).collect()
            } else {
                vec![None]
            };
            for place in places {
                let api = session.api_in(resource, place)?;
                for object in api.clone().metadata_only().list_all(&params).await?.items {
                    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
                    let (name, namespace) = (text("name"), text("namespace"));
                    if object["metadata"]["deletionTimestamp"].is_string()
                        || (kind == "Namespace" && KEPT.contains(&&*name))
                    {
                        continue;
                    }
                    before += 1;
                    if !members
                        .objects
                        .contains(&(kind.clone(), namespace.clone(), name.clone()))
                    {
                        lost.push(Lost {
                            api: api.clone(),
                            name,
                            namespace,
                            uid: text("uid"),
                        });
                    }
                }
            }
        }
        // Namespaces go last, so that their objects are named one by one.
        lost.sort_by_key(|lost| lost.resource().kind == "Namespace" && lost.resource().group.is_empty());
        Ok((before, lost))
    }

    /// Makes the parent, or widens it to what is about to be written.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn widen(&self, members: &Members) -> Result<()> {
        let kinds = self.kinds.iter().chain(members.kinds.keys()).cloned().collect();
        let namespaces = self.namespaces.union(&members.namespaces).cloned().collect();
        self.record(kinds, namespaces).await
    }

    async fn record(&self, kinds: BTreeSet<String>, namespaces: BTreeSet<String>) -> Result<()> {
        let join = |words: BTreeSet<String>| words.into_iter().collect::<Vec<_>>().join(",");
        let others = namespaces
            .into_iter()
            .filter(|namespace| *namespace != self.namespace)
            .collect();
        let params = WriteParams {
            field_manager: Some("pandactl".to_owned()),
            ..WriteParams::default()
        };
        let mut object = json!({"metadata": {
            "labels": {ID: self.id},
            "annotations": {TOOLING: TOOL, KINDS: join(kinds), NAMESPACES: join(others)},
        }});
        let resource = self.parent.resource();
        if !self.exists {
            object["apiVersion"] = resource.api_version().into();
            object["kind"] = resource.kind.clone().into();
            object["metadata"]["name"] = self.name.clone().into();
            match self.parent.create(&object, &params).await {
                // Made by `widen` of this very command.
                Err(error) if error.is_already_exists() => {}
                other => return other.map(drop).map_err(Into::into),
            }
        }
        let patch = json!({"metadata": object["metadata"]});
        self.parent.patch_merge(&self.name, &patch, &params).await?;
        Ok(())
    }

    /// Removes what is lost, and narrows the parent to what is left. A dry run only says so.
    ///
    /// # Errors
    /// When the server refuses; the parent then stays as wide as it is.
    pub async fn prune(
        &self,
        lost: &[Lost],
        members: &Members,
        dry_run: DryRun,
        say: bool,
        session: &mut Session<'_>,
    ) -> Result<()> {
        for lost in lost {
            if dry_run != DryRun::Client {
                let params = DeleteParams {
                    propagation_policy: Some(Propagation::Background),
                    dry_run: dry_run == DryRun::Server,
                    ..DeleteParams::uid(&*lost.uid)
                };
                match lost.api.delete(&lost.name, &params).await {
                    Err(error) if error.is_not_found() => {}
                    // Another object of that name is not of this set.
                    Err(error) if error.is_conflict() => continue,
                    other => drop(other?),
                }
            }
            if say {
                let name = object_name(lost.resource(), &lost.name);
                session.out(format!("{name} pruned{}\n", dry_run.suffix()))?;
            }
        }
        if dry_run == DryRun::None {
            let kinds = members.kinds.keys().cloned().collect();
            self.record(kinds, members.namespaces.clone()).await?;
        }
        Ok(())
    }
}

impl Lost {
    /// The object's namespace; empty for kinds without.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
}
