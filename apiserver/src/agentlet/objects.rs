//! The objects that the agentlet service reads and writes, typed, straight on the store.
//!
//! Only this service writes what devices report, so it needs no admission; it needs several objects in one
//! transaction instead (a report and its outbox number, a Run and its Lease).

use std::sync::Arc;

use panda_api::{DEVICE_FINALIZER, Lease, Resource, Run};
use panda_store::{Entry, Key, ListRequest, Op, Scope, Store, Txn};
use serde::{Deserialize, Serialize};

use crate::registry::encode;

/// Internal resource: one record a device, the outbox number up to which its reports are in the store.
const OUTBOXES: &str = "panda.internal/outboxes";

/// Why an object could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The store refused.
    #[error("the store refused")]
    Store(#[from] panda_store::Error),
    /// An object in the store is not what it should be.
    #[error("stored {key} cannot be read")]
    Decode {
        /// Which object.
        key: Key,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

impl Error {
    /// Whether somebody else was faster: read again and decide anew.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(
            self,
            Self::Store(panda_store::Error::Conflict { .. } | panda_store::Error::Exists { .. })
        )
    }
}

/// The part of a device's outbox that the store knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct OutboxRecord {
    /// Uid of the device.
    pub device_uid: String,
    /// Every report up to this number has been accepted or found stale.
    pub last_seq: u64,
    /// Digests of the last reports: a device whose disk was rolled back says something else under an old number.
    #[serde(skip_serializing_if = "std::collections::VecDeque::is_empty")]
    pub recent: std::collections::VecDeque<(u64, String)>,
    /// The boot that the device last named.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// Runs that are alive on the device and unknown to this store: their Tasks are not scheduled meanwhile.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub strangers: Vec<Stranger>,
}

/// A run that is alive on a device and unknown to the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Stranger {
    /// Uid of its Task.
    pub task_uid: String,
    /// Its uid.
    pub run_uid: String,
}

/// An object and what is needed to replace it.
#[derive(Clone, Debug)]
pub(crate) struct Stored<T> {
    /// The object.
    pub object: T,
    /// Where and at which revision; none when it does not exist yet.
    entry: Option<Arc<Entry>>,
    key: Key,
}

impl<T> Stored<T> {
    /// An object as it is in the store.
    pub(crate) fn existing(object: T, entry: Arc<Entry>) -> Self {
        let key = entry.key.clone();
        Self {
            object,
            entry: Some(entry),
            key,
        }
    }

    /// An object that is about to be created.
    pub(crate) fn absent(key: Key, object: T) -> Self {
        Self {
            object,
            entry: None,
            key,
        }
    }

    /// The operation that removes the object, provided that nobody has changed it; none when there is none.
    pub(crate) fn remove(&self) -> Option<Op> {
        let entry = self.entry.as_ref()?;
        Some(Op::delete(self.key.clone(), entry.revision, None))
    }
}

impl<T: Serialize> Stored<T> {
    /// The operation that writes the object as it is now, provided that nobody else has.
    pub(crate) fn write(&self) -> Op {
        let value = serde_json::to_value(&self.object).expect("our types serialise");
        let body = encode::body(&value);
        match &self.entry {
            Some(entry) => Op::update(self.key.clone(), entry.revision, body),
            None => Op::create(self.key.clone(), body),
        }
    }

    /// The operation that only makes sure that nobody has changed the object.
    pub(crate) fn unchanged(&self) -> Op {
        let expect = match &self.entry {
            Some(entry) => panda_store::Expect::Revision(entry.revision),
            None => panda_store::Expect::Absent,
        };
        Op::check(self.key.clone(), expect)
    }
}

impl<K: Resource> Stored<K> {
    /// The operation that writes the object as no longer held for its device; one that is being deleted goes with it.
    pub(crate) fn release(&mut self) -> Op {
        let meta = self.object.metadata_mut();
        meta.finalizers.retain(|name| name != DEVICE_FINALIZER);
        let goes = meta.deletion_timestamp.is_some() && meta.finalizers.is_empty();
        match &self.entry {
            Some(entry) if goes => {
                let last = serde_json::to_value(&self.object).expect("our types serialise");
                Op::delete(self.key.clone(), entry.revision, Some(encode::body(&last)))
            }
            _ => self.write(),
        }
    }
}

/// The key of an object of kind `K`.
pub(crate) fn key<K: Resource>(namespace: &str, name: &str) -> Key {
    Key::new(resource::<K>(), namespace, name)
}

/// The store's name for kind `K`.
pub(crate) fn resource<K: Resource>() -> String {
    format!("{}/{}", K::GROUP, K::PLURAL)
}

/// Reads an object out of a stored entry.
pub(crate) fn decode<K: Resource>(entry: &Entry) -> Result<K, Error> {
    serde_json::from_slice(&entry.value).map_err(|source| Error::Decode {
        key: entry.key.clone(),
        source,
    })
}

/// Typed access to the store.
#[derive(Clone)]
pub(crate) struct Objects {
    store: Arc<dyn Store>,
}

impl Objects {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self { store }
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The object, if there is one.
    pub(crate) async fn get<K: Resource>(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Stored<K>>, Error> {
        let key = key::<K>(namespace, name);
        let Some(entry) = self.store.get(key.clone()).await? else {
            return Ok(None);
        };
        Ok(Some(Stored {
            object: decode(&entry)?,
            entry: Some(entry),
            key,
        }))
    }

    /// The object, or a new one made by `new`.
    pub(crate) async fn get_or<K: Resource>(
        &self,
        namespace: &str,
        name: &str,
        new: impl FnOnce() -> K + Send,
    ) -> Result<Stored<K>, Error> {
        match self.get(namespace, name).await? {
            Some(stored) => Ok(stored),
            None => Ok(Stored {
                object: new(),
                entry: None,
                key: key::<K>(namespace, name),
            }),
        }
    }

    /// Every object of a kind that can be read, and the revision of the list. One broken object breaks no list.
    pub(crate) async fn list<K: Resource>(&self) -> Result<(Vec<K>, panda_store::Revision), Error> {
        let request = ListRequest {
            scope: Scope::resource(resource::<K>()),
            ..ListRequest::default()
        };
        let page = self.store.list(request).await?;
        let objects = page.items.iter().filter_map(|entry| match decode(entry) {
            Ok(object) => Some(object),
            Err(error) => {
                tracing::error!(key = %entry.key, %error, "stored object cannot be read");
                None
            }
        });
        Ok((objects.collect(), page.revision))
    }

    /// What is known of a device's outbox.
    pub(crate) async fn outbox(&self, device_uid: &str) -> Result<Stored<OutboxRecord>, Error> {
        let key = Key::new(OUTBOXES, "", device_uid);
        let new = OutboxRecord {
            device_uid: device_uid.to_owned(),
            ..OutboxRecord::default()
        };
        let stored = self.internal(key.clone()).await?;
        Ok(stored.unwrap_or_else(|| Stored::absent(key, new)))
    }

    /// What is known of the outboxes of all devices.
    pub(crate) async fn outboxes(&self) -> Result<Vec<Stored<OutboxRecord>>, Error> {
        let request = ListRequest {
            scope: Scope::resource(OUTBOXES),
            ..ListRequest::default()
        };
        let page = self.store.list(request).await?;
        let read = |entry: &Arc<Entry>| {
            let object = serde_json::from_slice(&entry.value).map_err(|source| Error::Decode {
                key: entry.key.clone(),
                source,
            })?;
            Ok(Stored::existing(object, Arc::clone(entry)))
        };
        page.items.iter().map(read).collect()
    }

    /// A record of ours, which is no object of the API.
    pub(crate) async fn internal<T: serde::de::DeserializeOwned>(
        &self,
        key: Key,
    ) -> Result<Option<Stored<T>>, Error> {
        let Some(entry) = self.store.get(key.clone()).await? else {
            return Ok(None);
        };
        // The spliced `metadata.resourceVersion` is ignored.
        let object = serde_json::from_slice(&entry.value).map_err(|source| Error::Decode { key, source })?;
        Ok(Some(Stored::existing(object, entry)))
    }

    /// The Lease of a Run.
    pub(crate) async fn run_lease(&self, run: &Run) -> Result<Option<Stored<Lease>>, Error> {
        self.get(&run.metadata.namespace, &run.metadata.name).await
    }

    /// All or nothing.
    pub(crate) async fn commit(&self, ops: Vec<Op>) -> Result<panda_store::Committed, Error> {
        Ok(self.store.commit(Txn::new(ops)).await?)
    }
}

/// An object that is about to be created.
pub(crate) fn new<K: Resource>(object: K) -> Stored<K> {
    let key = key::<K>(&object.metadata().namespace, &object.metadata().name);
    Stored {
        object,
        entry: None,
        key,
    }
}
