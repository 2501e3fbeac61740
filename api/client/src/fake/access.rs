//! The back door: tests look at and change objects without requests, faults and lag of the wire.

use panda_api::Resource;
use panda_api::meta::Status;
use panda_api::scheme;
use serde_json::Value;

use super::Server;
use super::state::{State, Target, refusal};
use crate::params::DeleteParams;

impl Server {
    /// Does something to the state and wakes the watches.
    fn change<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let result = f(&mut self.state());
        self.shared.changed.notify_waiters();
        result
    }

    /// Creates an object; unlike a request, it may bring its status along.
    ///
    /// # Errors
    /// As the server refuses it.
    pub fn create<K: Resource>(&self, object: &K) -> Result<K, Box<Status>> {
        let meta = object.metadata();
        let target = Target {
            info: scheme::of::<K>(),
            namespace: &meta.namespace,
            name: &meta.name,
            dry_run: false,
        };
        let body = to_value(object)?;
        let status = body["status"].clone();
        let created = self.change(|state| {
            let mut created = state.create(&self.shared.config, target, body)?;
            let name = created["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            let target = Target {
                name: &name,
                ..target
            };
            if target.info.has_status && !status.is_null() && created["status"] != status {
                created["status"] = status;
                created = state.put(target, created);
            }
            Ok::<_, Box<Status>>(created)
        })?;
        from_value(created)
    }

    /// The object of that name; the namespace is empty for kinds without.
    #[must_use]
    pub fn get<K: Resource>(&self, namespace: &str, name: &str) -> Option<K> {
        let object = self.state().get(scheme::of::<K>(), namespace, name).ok()?;
        from_value((*object).clone()).ok()
    }

    /// All objects of a kind, by namespace and name.
    #[must_use]
    pub fn list<K: Resource>(&self) -> Vec<K> {
        let objects = self.state().list(scheme::of::<K>(), "");
        objects
            .into_iter()
            .filter_map(|o| from_value((*o).clone()).ok())
            .collect()
    }

    /// Changes an object, with its status, whatever its version is.
    ///
    /// # Errors
    /// As the server refuses it.
    pub fn update<K: Resource>(
        &self,
        namespace: &str,
        name: &str,
        f: impl FnOnce(&mut K),
    ) -> Result<K, Box<Status>> {
        let target = Target {
            info: scheme::of::<K>(),
            namespace,
            name,
            dry_run: false,
        };
        let updated = self.change(|state| {
            let old = state.get(target.info, namespace, name)?;
            let mut object: K = from_value((*old).clone())?;
            f(&mut object);
            let wanted = to_value(&object)?;
            let mut updated = state.update(target, wanted.clone(), None, false)?;
            let still_there = state.get(target.info, namespace, name).is_ok();
            if still_there && target.info.has_status && updated["status"] != wanted["status"] {
                updated["status"] = wanted["status"].clone();
                updated = state.put(target, updated);
            }
            Ok::<_, Box<Status>>(updated)
        })?;
        from_value(updated)
    }

    /// Deletes an object, or begins to if it has finalizers.
    ///
    /// # Errors
    /// When it does not exist.
    pub fn delete<K: Resource>(&self, namespace: &str, name: &str) -> Result<(), Box<Status>> {
        let target = Target {
            info: scheme::of::<K>(),
            namespace,
            name,
            dry_run: false,
        };
        self.change(|state| state.delete(&self.shared.config, target, &DeleteParams::default()))
            .map(drop)
    }

    /// Every state that objects of a kind ever had, in order; true: it is the last state of a deleted object.
    #[must_use]
    pub fn history<K: Resource>(&self) -> Vec<(bool, K)> {
        let resource = scheme::of::<K>().resource_name();
        let state = self.state();
        let entries = state.history.iter().filter(|e| e.key.0 == resource);
        entries
            .filter_map(|e| Some((e.deleted, from_value((*e.new).clone()).ok()?)))
            .collect()
    }

    /// The current version.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.state().revision
    }
}

fn to_value<K: Resource>(object: &K) -> Result<Value, Box<Status>> {
    serde_json::to_value(object).map_err(|e| bad(&e))
}

fn from_value<K: Resource>(value: Value) -> Result<K, Box<Status>> {
    serde_json::from_value(value).map_err(|e| bad(&e))
}

fn bad(error: &serde_json::Error) -> Box<Status> {
    refusal(panda_api::meta::Reason::BadRequest, error.to_string())
}
