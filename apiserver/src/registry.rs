//! Objects over the store: the in-process API that the REST endpoints and the agentlet service share.
//!
//! Everything is written through [`Registry::transact`] (see `write`, `plan`), where an object is checked, completed and
//! serialised; everything read comes as the stored bytes, never serialised anew. Kinds are handled alike, as JSON
//! values; what single kinds do differently is in `strategy`, and what their types say comes from
//! [`panda_api::scheme`].
//!
//! | module | holds |
//! |---|---|
//! | `write`, `plan` | transactions; what one write comes to |
//! | `read` | get, list, continue tokens |
//! | `filter` | label and field selectors over stored bytes |
//! | `meta`, `strategy` | rules for metadata, rules of single kinds |
//! | `quota` | how many objects there may be |
//! | `encode`, `seal` | bytes with a gap for the version; encryption at rest |
//! | `error` | refusals and their `Status` |

pub(crate) mod encode;
mod error;
mod filter;
mod kinds;
pub(crate) mod meta;
mod plan;
mod quota;
mod read;
mod seal;
mod strategy;
#[cfg(test)]
mod tests;
mod token;
mod write;

use std::sync::Arc;

use bytes::Bytes;
use panda_api::meta::{Clock, IdSource};
use panda_api::scheme::{self, KindInfo};
use panda_api::{Namespace, Resource as Typed};
use panda_store::{Entry, Key, Revision, Scope, Store, Watch, WatchRequest};
use serde_json::{Value, json};

pub(crate) use error::cause;
pub use error::{Error, Resource};
pub use filter::Filter;
pub use kinds::{Kind, is_custom, key, scope};
pub use meta::{Preconditions, Propagation};
pub use read::{AtVersion, ListOptions, ObjectList};
pub use seal::{KeyError, Sealer};
pub use write::{Admit, Admitting, Effect, FieldValidation, ModifyFn, Part, Write, WriteOptions, Written};

/// One version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Where it lives.
    pub key: Key,
    /// Its version.
    pub revision: Revision,
    /// Its JSON, `resourceVersion` included.
    pub json: Bytes,
}

impl Object {
    /// The object as a JSON value.
    ///
    /// # Errors
    /// When the stored bytes are damaged.
    pub fn value(&self) -> Result<Value, Error> {
        self.decode()
    }

    /// The object as its type.
    ///
    /// # Errors
    /// When it is of another kind, or damaged.
    pub fn typed<K: Typed>(&self) -> Result<K, Error> {
        self.decode()
    }

    fn decode<T: serde::de::DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.json).map_err(|error| Error::Damaged {
            key: self.key.to_string(),
            detail: error.to_string(),
        })
    }
}

/// The registry; cheap to clone.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    sealer: Sealer,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
    /// Creations under quotas, one after the other: at once they would only make each other count again.
    counting: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

impl Registry {
    /// A registry over a store. Secrets are sealed with `sealer`.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, sealer: Sealer, clock: Arc<dyn Clock>, ids: Arc<dyn IdSource>) -> Self {
        Self(Arc::new(Inner {
            store,
            sealer,
            clock,
            ids,
            counting: tokio::sync::Mutex::default(),
        }))
    }

    /// The store below.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    /// The clock of all stamps.
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        self.0.clock.as_ref()
    }

    /// Where uids and random names come from.
    #[must_use]
    pub fn ids(&self) -> &dyn IdSource {
        self.0.ids.as_ref()
    }

    fn sealer(&self) -> &Sealer {
        &self.0.sealer
    }

    /// Makes the namespaces that are always there.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn bootstrap(&self) -> Result<(), Error> {
        for name in strategy::NAMESPACES {
            let object = json!({"metadata": {"name": name}});
            match self
                .create(scheme::of::<Namespace>(), "", object, &WriteOptions::default())
                .await
            {
                Ok(_) | Err(Error::AlreadyExists { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Stored bytes as an object: opened when they are sealed.
    pub(crate) fn open(&self, entry: &Entry) -> Result<Object, Error> {
        let json = self.open_value(&entry.key, &entry.value)?;
        Ok(Object {
            key: entry.key.clone(),
            revision: entry.revision,
            json,
        })
    }

    /// Stored bytes, opened when they are sealed.
    pub(crate) fn open_value(&self, key: &Key, value: &Bytes) -> Result<Bytes, Error> {
        match kinds::of_key(key) {
            Some(kind) if kinds::is_sealed(kind) => self.sealer().open_value(key, value),
            _ => Ok(value.clone()),
        }
    }

    /// Makes an object.
    ///
    /// # Errors
    /// When it is refused or exists.
    pub async fn create(
        &self,
        kind: Kind,
        namespace: &str,
        object: Value,
        options: &WriteOptions,
    ) -> Result<Written, Error> {
        self.write(
            Write::Create {
                kind,
                namespace: namespace.to_owned(),
                object,
            },
            options,
        )
        .await
    }

    /// Replaces an object (or, with [`Part::Status`], its status). The version in its metadata, if any, must be
    /// the stored one.
    ///
    /// # Errors
    /// When it is refused, does not exist, or has another version.
    pub async fn update(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        part: Part,
        object: Value,
        options: &WriteOptions,
    ) -> Result<Written, Error> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.write(
            Write::Update {
                kind,
                namespace,
                name,
                part,
                object,
            },
            options,
        )
        .await
    }

    /// Changes whatever is stored; `change` is called again when somebody else was faster.
    ///
    /// # Errors
    /// When the result is refused, or the object does not exist.
    pub async fn modify(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        part: Part,
        change: impl FnMut(&Value) -> Result<Value, Error> + Send + 'static,
        options: &WriteOptions,
    ) -> Result<Written, Error> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.write(
            Write::Modify {
                kind,
                namespace,
                name,
                part,
                change: Box::new(change),
            },
            options,
        )
        .await
    }

    /// Deletes an object, or begins to when it has finalizers.
    ///
    /// # Errors
    /// When it does not exist or a precondition does not hold.
    pub async fn delete(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        preconditions: Preconditions,
        options: &WriteOptions,
    ) -> Result<Written, Error> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.write(
            Write::Delete {
                kind,
                namespace,
                name,
                preconditions,
            },
            options,
        )
        .await
    }

    /// An object as its type; nothing when it does not exist.
    ///
    /// # Errors
    /// When the store fails or the object is damaged.
    pub async fn get_as<K: Typed>(&self, namespace: &str, name: &str) -> Result<Option<K>, Error> {
        match self.get(scheme::of::<K>(), namespace, name).await {
            Ok(object) => object.typed().map(Some),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All objects of a type, in one namespace or everywhere, and the version of that state.
    ///
    /// # Errors
    /// When the store fails or an object is damaged.
    pub async fn list_as<K: Typed>(&self, namespace: Option<&str>) -> Result<(Vec<K>, Revision), Error> {
        let options = ListOptions {
            namespace: namespace.map(ToOwned::to_owned),
            ..ListOptions::default()
        };
        let list = self.list(scheme::of::<K>(), &options).await?;
        let items = list.items.iter().map(Object::typed).collect::<Result<_, _>>()?;
        Ok((items, list.revision))
    }

    /// Makes an object from its type.
    ///
    /// # Errors
    /// When it is refused or exists.
    pub async fn create_as<K: Typed>(&self, object: &K) -> Result<K, Error> {
        let namespace = object.metadata().namespace.clone();
        let written = self
            .create(
                scheme::of::<K>(),
                &namespace,
                to_value(object)?,
                &WriteOptions::default(),
            )
            .await?;
        written.object.typed()
    }

    /// Changes an object of a type; `change` is called again when somebody else was faster. Returning false
    /// leaves the object as it is.
    ///
    /// # Errors
    /// When the result is refused, or the object does not exist.
    pub async fn modify_as<K: Typed>(
        &self,
        namespace: &str,
        name: &str,
        part: Part,
        change: impl FnMut(&mut K) -> bool + Send + 'static,
    ) -> Result<K, Error> {
        let change = modify_fn(change);
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let write = Write::Modify {
            kind: scheme::of::<K>(),
            namespace,
            name,
            part,
            change,
        };
        self.write(write, &WriteOptions::default()).await?.object.typed()
    }

    /// Every change of a scope after a version, as stored. Sealed kinds come sealed.
    ///
    /// # Errors
    /// When the version is too old, or from the future.
    pub async fn watch(&self, scope: Scope, from: Revision) -> Result<Watch, Error> {
        Ok(self.store().watch(WatchRequest { scope, from }).await?)
    }
}

/// A change of a typed object as one of a JSON value, for [`Write::Modify`].
pub fn modify_fn<K: Typed>(mut change: impl FnMut(&mut K) -> bool + Send + 'static) -> ModifyFn {
    Box::new(move |old| {
        let mut object: K = serde_json::from_value(old.clone())
            .map_err(|error| Error::BadRequest(format!("the stored object is no {}: {error}", K::KIND)))?;
        if change(&mut object) {
            to_value(&object)
        } else {
            Ok(old.clone())
        }
    })
}

fn to_value<K: Typed>(object: &K) -> Result<Value, Error> {
    serde_json::to_value(object)
        .map_err(|error| Error::BadRequest(format!("the {} cannot be written as JSON: {error}", K::KIND)))
}

/// The kind with this plural.
#[must_use]
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static KindInfo> {
    scheme::by_plural(group, version, plural)
}
