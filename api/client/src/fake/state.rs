//! The objects, their history, and what each verb does to them. No I/O, no waiting.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use panda_api::meta::{Reason, Status, StatusDetails, Time};
use panda_api::scheme::{self, KindInfo, Operation};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::faults::{Fault, Seen};
use super::{Config, PostHandler};
use crate::params::{DeleteParams, Propagation};

/// Resource (`plural.group`), namespace, name: the order of lists.
pub(super) type Key = (String, String, String);

/// One change.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) revision: u64,
    /// When watches may see it.
    pub(super) visible: Instant,
    pub(super) key: Key,
    pub(super) old: Option<Arc<Value>>,
    /// The new state; of a deletion the last state, with the revision of the deletion.
    pub(super) new: Arc<Value>,
    pub(super) deleted: bool,
}

pub(super) struct State {
    pub(super) objects: BTreeMap<Key, Arc<Value>>,
    pub(super) revision: u64,
    /// Changes since `compacted`, oldest first.
    pub(super) log: Vec<Entry>,
    /// Every change there ever was, for assertions.
    pub(super) history: Vec<Entry>,
    /// History up to here is forgotten.
    pub(super) compacted: u64,
    /// Snapshots that continue tokens refer to, by revision.
    pub(super) snapshots: BTreeMap<u64, Vec<Arc<Value>>>,
    pub(super) lag: Duration,
    /// Watches of an older epoch are cut.
    pub(super) epoch: u64,
    pub(super) faults: Vec<Fault>,
    pub(super) seen: Vec<Seen>,
    pub(super) post_handlers: BTreeMap<(String, String), PostHandler>,
}

impl Default for State {
    /// Versions start at 1, because 0 means "any" on the wire.
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            revision: 1,
            log: Vec::new(),
            history: Vec::new(),
            compacted: 0,
            snapshots: BTreeMap::new(),
            lag: Duration::ZERO,
            epoch: 0,
            faults: Vec::new(),
            seen: Vec::new(),
            post_handlers: BTreeMap::new(),
        }
    }
}

pub(super) fn key(info: &KindInfo, namespace: &str, name: &str) -> Key {
    (info.resource_name(), namespace.to_owned(), name.to_owned())
}

fn meta<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// A refusal that is about no object.
pub(super) fn refusal(reason: Reason, message: impl Into<String>) -> Box<Status> {
    Box::new(Status::failure(reason, message))
}

fn status(reason: Reason, info: &KindInfo, name: &str, message: String) -> Box<Status> {
    Box::new(Status {
        details: Some(StatusDetails {
            name: name.to_owned(),
            group: info.group.to_owned(),
            kind: info.plural.to_owned(),
            ..StatusDetails::default()
        }),
        ..Status::failure(reason, message)
    })
}

pub(super) fn not_found(info: &KindInfo, name: &str) -> Box<Status> {
    let message = format!("{} {name:?} not found", info.resource_name());
    status(Reason::NotFound, info, name, message)
}

fn conflict(info: &KindInfo, name: &str, why: &str) -> Box<Status> {
    let message = format!(
        "Operation cannot be fulfilled on {} {name:?}: {why}",
        info.resource_name()
    );
    status(Reason::Conflict, info, name, message)
}

const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// What a write is about.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) info: &'static KindInfo,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) dry_run: bool,
}

impl Target<'_> {
    fn key(&self) -> Key {
        key(self.info, self.namespace, self.name)
    }
}

impl State {
    pub(super) fn get(
        &self,
        info: &KindInfo,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<Value>, Box<Status>> {
        self.objects
            .get(&key(info, namespace, name))
            .cloned()
            .ok_or_else(|| not_found(info, name))
    }

    /// The objects of a kind, in a namespace or all.
    pub(super) fn list(&self, info: &KindInfo, namespace: &str) -> Vec<Arc<Value>> {
        let resource = info.resource_name();
        self.objects
            .range((resource.clone(), String::new(), String::new())..)
            .take_while(|((r, _, _), _)| *r == resource)
            .filter(|((_, ns, _), _)| namespace.is_empty() || ns == namespace)
            .map(|(_, object)| Arc::clone(object))
            .collect()
    }

    pub(super) fn create(
        &mut self,
        config: &Config,
        target: Target<'_>,
        body: Value,
    ) -> Result<Value, Box<Status>> {
        let Target { info, namespace, .. } = target;
        let mut object = body;
        object["metadata"]["namespace"] = Value::from(namespace);
        let mut object = prepare(info, object, Operation::Create)?;
        let name = match meta(&object, "name") {
            "" => format!("{}{}", meta(&object, "generateName"), config.ids.suffix(5)),
            name => name.to_owned(),
        };
        let key = key(info, namespace, &name);
        if self.objects.contains_key(&key) {
            let message = format!("{} {name:?} already exists", info.resource_name());
            return Err(status(Reason::AlreadyExists, info, &name, message));
        }
        object["metadata"]["name"] = Value::from(name);
        object["metadata"]["uid"] = Value::from(config.ids.uuid().to_string());
        object["metadata"]["creationTimestamp"] = json!(Time(config.clock.now()));
        Ok(self.commit(key, object, target.dry_run))
    }

    pub(super) fn update(
        &mut self,
        target: Target<'_>,
        body: Value,
        subresource: Option<&str>,
        need_version: bool,
    ) -> Result<Value, Box<Status>> {
        let Target {
            info,
            namespace,
            name,
            ..
        } = target;
        let old = self.get(info, namespace, name)?;
        let version = meta(&body, "resourceVersion");
        if version.is_empty() && need_version && info.group == "panda.dev" {
            let message = format!(
                "{}.{} {name:?} is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update",
                info.kind, info.group
            );
            return Err(status(Reason::Invalid, info, name, message));
        }
        if !version.is_empty() && version != meta(&old, "resourceVersion") {
            return Err(conflict(info, name, MODIFIED));
        }
        let uid = meta(&body, "uid");
        if !uid.is_empty() && uid != meta(&old, "uid") {
            let why = format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                meta(&old, "uid")
            );
            return Err(conflict(info, name, &why));
        }
        let mut object = body;
        object["metadata"]["namespace"] = Value::from(namespace);
        object["metadata"]["name"] = Value::from(name);
        let object = match subresource {
            Some("status") => prepare(info, object, Operation::UpdateStatus { old: &old })?,
            _ => prepare(info, object, Operation::Update { old: &old })?,
        };
        if object == *old {
            return Ok(object);
        }
        let finalized = object["metadata"]["finalizers"]
            .as_array()
            .is_none_or(Vec::is_empty);
        if !object["metadata"]["deletionTimestamp"].is_null() && finalized {
            return Ok(self.remove(target.key(), object, target.dry_run));
        }
        Ok(self.commit(target.key(), object, target.dry_run))
    }

    /// Changes an object past all rules, as a subresource does. An unchanged object stays as it is.
    pub(super) fn put(&mut self, target: Target<'_>, object: Value) -> Value {
        match self.objects.get(&target.key()) {
            Some(old) if **old == object => object,
            _ => self.commit(target.key(), object, target.dry_run),
        }
    }

    pub(super) fn delete(
        &mut self,
        config: &Config,
        target: Target<'_>,
        params: &DeleteParams,
    ) -> Result<Value, Box<Status>> {
        let Target {
            info,
            namespace,
            name,
            ..
        } = target;
        let old = self.get(info, namespace, name)?;
        if let Some(wanted) = &params.preconditions {
            let holds =
                |wanted: &Option<String>, field: &str| wanted.as_ref().is_none_or(|w| w == meta(&old, field));
            if !holds(&wanted.uid, "uid") {
                return Err(conflict(
                    info,
                    name,
                    "Precondition failed: UID in precondition is another",
                ));
            }
            if !holds(&wanted.resource_version, "resourceVersion") {
                return Err(conflict(info, name, MODIFIED));
            }
        }
        let mut object = (*old).clone();
        let mut finalizers: Vec<Value> = object["metadata"]["finalizers"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let extra = match params.propagation_policy {
            Some(Propagation::Foreground) => Some(Value::from("foregroundDeletion")),
            Some(Propagation::Orphan) => Some(Value::from("orphan")),
            Some(Propagation::Background) | None => None,
        };
        if let Some(extra) = extra.filter(|e| !finalizers.contains(e)) {
            finalizers.push(extra);
        }
        if finalizers.is_empty() {
            let uid = meta(&old, "uid").to_owned();
            self.remove(target.key(), object, target.dry_run);
            let done = status(Reason::NotFound, info, name, String::new());
            return Ok(json!(Status {
                status: "Success".into(),
                reason: String::new(),
                code: 200,
                details: done.details.map(|d| StatusDetails { uid, ..d }),
                ..*done
            }));
        }
        object["metadata"]["finalizers"] = Value::from(finalizers);
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = json!(Time(config.clock.now()));
            object["metadata"]["deletionGracePeriodSeconds"] = Value::from(0);
            let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
            object["metadata"]["generation"] = Value::from(generation + 1);
        }
        Ok(self.put(target, object))
    }

    fn commit(&mut self, key: Key, object: Value, dry_run: bool) -> Value {
        if dry_run {
            return object;
        }
        let new = self.stamp(object);
        let old = self.objects.insert(key.clone(), Arc::clone(&new));
        self.remember(key, old, Arc::clone(&new), false);
        (*new).clone()
    }

    fn remove(&mut self, key: Key, object: Value, dry_run: bool) -> Value {
        if dry_run {
            return object;
        }
        let last = self.stamp(object);
        let old = self.objects.remove(&key);
        self.remember(key, old, Arc::clone(&last), true);
        (*last).clone()
    }

    fn stamp(&mut self, mut object: Value) -> Arc<Value> {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = Value::from(self.revision.to_string());
        Arc::new(object)
    }

    fn remember(&mut self, key: Key, old: Option<Arc<Value>>, new: Arc<Value>, deleted: bool) {
        // Watches see changes in order, even if the lag was made shorter meanwhile.
        let earliest = self.log.last().map_or_else(Instant::now, |e| e.visible);
        let entry = Entry {
            revision: self.revision,
            visible: (Instant::now() + self.lag).max(earliest),
            key,
            old,
            new,
            deleted,
        };
        self.history.push(entry.clone());
        self.log.push(entry);
    }

    pub(super) fn compact(&mut self) {
        self.compacted = self.revision;
        self.log.clear();
        self.snapshots.clear();
    }
}

fn prepare(info: &'static KindInfo, object: Value, operation: Operation<'_>) -> Result<Value, Box<Status>> {
    let name = meta(&object, "name").to_owned();
    let prepared = scheme::prepare(info, object, operation).map_err(|error| match error {
        scheme::Error::Malformed(why) => refusal(Reason::BadRequest, why),
        scheme::Error::Invalid(faults) => {
            let texts: Vec<String> = faults
                .iter()
                .map(|f| format!("{}: {}", f.field, f.message))
                .collect();
            let message = format!(
                "{}.{} {name:?} is invalid: {}",
                info.kind,
                info.group,
                texts.join(", ")
            );
            let mut status = status(Reason::Invalid, info, &name, message);
            if let Some(details) = &mut status.details {
                info.kind.clone_into(&mut details.kind);
                details.causes = faults
                    .iter()
                    .map(panda_api::validation::FieldError::cause)
                    .collect();
            }
            status
        }
    })?;
    Ok(prepared.object)
}
