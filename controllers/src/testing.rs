//! An API in memory for the planners' tests: one history of all objects, views of any past version, faults.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::Timestamp;
use panda_api::Resource;
use panda_api::meta::{ObjectMeta, Time};
use serde_json::{Value, json};

use crate::framework::execute::{Api, Error, Outcome, Verb, execute};
use crate::framework::{KINDS, Kind, Plan, Target};

/// Plural, namespace, name.
type Key = (&'static str, String, String);

/// One change: its version and the object after it.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) revision: u64,
    pub(crate) plural: &'static str,
    pub(crate) object: Option<Value>,
    key: Key,
}

/// What goes wrong while a plan is carried out, counted in writes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// After so many writes the controller is gone.
    pub(crate) crash_after: Option<u32>,
    /// This write is done, but its answer is lost.
    pub(crate) lose_answer: Option<u32>,
}

#[derive(Debug, Default)]
struct State {
    revision: u64,
    /// Makes the uids of one world differ from those of another.
    seed: u32,
    now: Timestamp,
    monotonic: std::time::Duration,
    objects: BTreeMap<Key, Value>,
    log: Vec<Change>,
    faults: Faults,
    writes: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct World(Mutex<State>);

#[derive(Debug, thiserror::Error)]
#[error("fault")]
struct Fault;

impl World {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// A world whose uids depend on `seed`.
    pub(crate) fn seeded(seed: u32) -> Self {
        let world = Self::default();
        world.state().seed = seed;
        world
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.state().now
    }

    pub(crate) fn set_now(&self, now: Timestamp) {
        self.state().now = now;
    }

    pub(crate) fn advance(&self, by: std::time::Duration) {
        let now = self.now();
        self.set_now(now.checked_add(by).unwrap());
        self.state().monotonic += by;
    }

    /// Moves with `advance` alone.
    pub(crate) fn monotonic(&self) -> std::time::Duration {
        self.state().monotonic
    }

    pub(crate) fn revision(&self) -> u64 {
        self.state().revision
    }

    /// Changes after `revision`.
    pub(crate) fn changes(&self, revision: u64) -> Vec<Change> {
        let state = self.state();
        let from = state.log.partition_point(|change| change.revision <= revision);
        state.log[from..].to_vec()
    }

    /// Stores an object as a user or another component would. A change of the spec raises the generation.
    pub(crate) fn put<K: Resource>(&self, object: &K) -> K {
        let target = Target::of(object);
        let mut value = serde_json::to_value(object).unwrap();
        let mut state = self.state();
        let key = key(&target);
        let old = state.objects.get(&key).cloned();
        let stored = state.store(&target, &mut value, old.as_ref());
        serde_json::from_value(stored).unwrap()
    }

    pub(crate) fn remove(&self, target: &Target) {
        let mut state = self.state();
        state.drop_object(&key(target));
    }

    pub(crate) fn get<K: Resource>(&self, namespace: &str, name: &str) -> Option<K> {
        let key = (K::PLURAL, namespace.to_owned(), name.to_owned());
        let state = self.state();
        state
            .objects
            .get(&key)
            .map(|value| serde_json::from_value(value.clone()).unwrap())
    }

    pub(crate) fn list<K: Resource>(&self) -> Vec<Arc<K>> {
        self.list_at(u64::MAX)
    }

    /// All objects of a kind as they were at `revision`.
    pub(crate) fn list_at<K: Resource>(&self, revision: u64) -> Vec<Arc<K>> {
        let state = self.state();
        let mut then: BTreeMap<&Key, &Value> = BTreeMap::new();
        for change in state.log.iter().take_while(|change| change.revision <= revision) {
            if change.plural != K::PLURAL {
                continue;
            }
            match &change.object {
                Some(object) => then.insert(&change.key, object),
                None => then.remove(&change.key),
            };
        }
        then.values()
            .map(|value| Arc::new(serde_json::from_value((*value).clone()).unwrap()))
            .collect()
    }

    /// Carries out a plan under faults; `None` when the controller did not live to see the outcome.
    pub(crate) fn execute(&self, plan: &Plan, faults: Faults) -> Option<Outcome> {
        {
            let mut state = self.state();
            state.faults = faults;
            state.writes = 0;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let outcome = runtime.block_on(execute(self, plan));
        self.state().faults = Faults::default();
        match outcome {
            Ok(outcome) => Some(outcome),
            Err(error) => {
                assert!(error.is_retryable(), "{error:?} in {plan:#?}");
                None
            }
        }
    }
}

fn key(target: &Target) -> Key {
    (target.kind.plural, target.namespace.clone(), target.name.clone())
}

impl State {
    /// Stores `value` over `old`; what changes nothing leaves no trace.
    fn store(&mut self, target: &Target, value: &mut Value, old: Option<&Value>) -> Value {
        let meta = &mut value["metadata"];
        match old {
            None => {
                meta["uid"] = json!(format!("uid-{}-{}", self.seed, self.revision + 1));
                meta["generation"] = json!(1);
                meta["creationTimestamp"] = json!(Time(self.now));
            }
            Some(old) => {
                meta["uid"] = old["metadata"]["uid"].clone();
                meta["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
                meta["generation"] = old["metadata"]["generation"].clone();
                meta["creationTimestamp"] = old["metadata"]["creationTimestamp"].clone();
                if *value == *old {
                    return value.clone();
                }
                if value["spec"] != old["spec"] {
                    let generation = old["metadata"]["generation"].as_i64().unwrap_or_default();
                    value["metadata"]["generation"] = json!(generation + 1);
                }
            }
        }
        self.revision += 1;
        value["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.objects.insert(key(target), value.clone());
        self.log.push(Change {
            revision: self.revision,
            plural: target.kind.plural,
            object: Some(value.clone()),
            key: key(target),
        });
        value.clone()
    }

    fn drop_object(&mut self, key: &Key) {
        if self.objects.remove(key).is_some() {
            self.revision += 1;
            self.log.push(Change {
                revision: self.revision,
                plural: key.0,
                object: None,
                key: key.clone(),
            });
        }
    }

    fn call(&mut self, target: &Target, verb: Verb<'_>) -> Result<Value, Error> {
        let key = key(target);
        let old = self.objects.get(&key).cloned();
        let found = || old.clone().ok_or_else(|| Error::NotFound(target.to_string()));
        let conflict = || Error::Conflict(target.to_string());
        match verb {
            Verb::Get => found(),
            Verb::Create(object) => {
                if old.is_some() {
                    return Err(Error::AlreadyExists(target.to_string()));
                }
                let mut object = object.clone();
                if let Some(fields) = object.as_object_mut() {
                    // A server takes no status on creation.
                    fields.remove("status");
                }
                Ok(self.store(target, &mut object, None))
            }
            Verb::Put(subresource, object) => {
                let mut new = found()?;
                for field in ["uid", "resourceVersion"] {
                    if new["metadata"][field] != object["metadata"][field] {
                        return Err(conflict());
                    }
                }
                let part = if subresource == "finalize" {
                    "spec"
                } else {
                    "status"
                };
                new[part] = object[part].clone();
                let gone = subresource == "finalize" && new["metadata"]["deletionTimestamp"].is_string();
                if gone && new["spec"]["finalizers"].as_array().is_none_or(Vec::is_empty) {
                    self.drop_object(&key);
                    return Ok(new);
                }
                Ok(self.store(target, &mut new, old.as_ref()))
            }
            Verb::Patch(body) => {
                let mut new = found()?;
                for field in ["uid", "resourceVersion"] {
                    if body["metadata"][field].is_string()
                        && body["metadata"][field] != new["metadata"][field]
                    {
                        return Err(conflict());
                    }
                }
                merge(&mut new, body);
                let meta = &new["metadata"];
                let held = meta["finalizers"].as_array().is_some_and(|f| !f.is_empty());
                if meta["deletionTimestamp"].is_string() && !held {
                    self.drop_object(&key);
                    return Ok(new);
                }
                Ok(self.store(target, &mut new, old.as_ref()))
            }
            Verb::Delete {
                uid,
                resource_version,
                foreground,
            } => {
                let mut new = found()?;
                let meta = &new["metadata"];
                if meta["uid"] != uid || resource_version.is_some_and(|rv| meta["resourceVersion"] != rv) {
                    return Err(conflict());
                }
                if foreground {
                    let mut finalizers = new["metadata"]["finalizers"].take();
                    match finalizers.as_array_mut() {
                        Some(list) => list.push(json!("foregroundDeletion")),
                        None => finalizers = json!(["foregroundDeletion"]),
                    }
                    new["metadata"]["finalizers"] = finalizers;
                }
                let meta = &new["metadata"];
                if meta["finalizers"].as_array().is_some_and(|f| !f.is_empty()) {
                    new["metadata"]["deletionTimestamp"] = json!(Time(self.now));
                    return Ok(self.store(target, &mut new, old.as_ref()));
                }
                self.drop_object(&key);
                Ok(new)
            }
            Verb::Post(_, body) => {
                let mut new = found()?;
                if new["spec"]["deviceName"].is_string() || new["status"]["phase"] == "Cancelled" {
                    return Err(conflict());
                }
                new["spec"]["deviceName"] = body["deviceName"].clone();
                new["spec"]["leaseEpoch"] = json!(1);
                Ok(self.store(target, &mut new, old.as_ref()))
            }
        }
    }
}

fn merge(into: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (name, value) in fields {
        if value.is_null() {
            into.as_object_mut().unwrap().remove(name);
        } else {
            merge(&mut into[name], value);
        }
    }
}

impl Api for World {
    async fn call(&self, target: &Target, verb: Verb<'_>) -> Result<Value, Error> {
        let mut state = self.state();
        let fault = || Error::Request {
            target: target.to_string(),
            retryable: true,
            source: Box::new(Fault),
        };
        let writes = state.writes;
        if state.faults.crash_after.is_some_and(|n| writes >= n) {
            return Err(fault());
        }
        let is_write = verb != Verb::Get;
        let result = state.call(target, verb);
        if is_write {
            state.writes += 1;
            if state.faults.lose_answer == Some(writes) {
                return Err(fault());
            }
        }
        result
    }

    async fn dependents(&self, owner: &Target, uid: &str) -> Result<Vec<(Target, ObjectMeta)>, Error> {
        let state = self.state();
        let mut found = Vec::new();
        for ((plural, namespace, name), object) in &state.objects {
            let meta: ObjectMeta = serde_json::from_value(object["metadata"].clone()).unwrap();
            let within = owner.namespace.is_empty() || owner.namespace == *namespace;
            if within && meta.owner_references.iter().any(|r| r.uid == uid) {
                let kind = KINDS.into_iter().find(|kind| kind.plural == *plural).unwrap();
                let (namespace, name) = (namespace.clone(), name.clone());
                found.push((
                    Target {
                        kind,
                        namespace,
                        name,
                    },
                    meta,
                ));
            }
        }
        Ok(found)
    }

    async fn any(&self, kind: Kind, namespace: &str) -> Result<Option<String>, Error> {
        let state = self.state();
        let name = state
            .objects
            .keys()
            .find(|(plural, ns, _)| *plural == kind.plural && ns == namespace)
            .map(|(_, _, name)| name.clone());
        Ok(name)
    }
}
