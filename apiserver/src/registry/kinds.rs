//! Where the objects of a kind live in the store.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use panda_api::scheme::{self, KindInfo};
use panda_store::{Key, Scope};

use super::error::Resource;

/// A served kind.
pub type Kind = &'static KindInfo;

/// The store's names of the resources, made once: they are part of every key.
static STORAGE: LazyLock<BTreeMap<(&str, &str), Arc<str>>> = LazyLock::new(|| {
    let name = |kind: &KindInfo| format!("{}/{}", kind.group, kind.plural).into();
    scheme::kinds()
        .iter()
        .map(|kind| ((kind.group, kind.plural), name(kind)))
        .collect()
});

fn storage(kind: Kind) -> Arc<str> {
    match STORAGE.get(&(kind.group, kind.plural)) {
        Some(name) => Arc::clone(name),
        None => format!("{}/{}", kind.group, kind.plural).into(),
    }
}

/// Where an object lives in the store.
#[must_use]
pub fn key(kind: Kind, namespace: &str, name: &str) -> Key {
    let namespace = if kind.namespaced { namespace } else { "" };
    Key::new(storage(kind), namespace, name)
}

/// The objects of a kind in one namespace, or all of them.
#[must_use]
pub fn scope(kind: Kind, namespace: Option<&str>) -> Scope {
    match namespace.filter(|namespace| kind.namespaced && !namespace.is_empty()) {
        Some(namespace) => Scope::namespace(storage(kind), namespace),
        None => Scope::resource(storage(kind)),
    }
}

/// Whether it is one of Panda's own; the others follow upstream's rules for built-in kinds.
#[must_use]
pub fn is_custom(kind: Kind) -> bool {
    kind.group == "panda.dev"
}

/// Whether its objects are encrypted at rest.
pub(crate) fn is_sealed(kind: Kind) -> bool {
    kind.group.is_empty() && kind.kind == "Secret"
}

pub(crate) fn is_namespace(kind: Kind) -> bool {
    kind.group.is_empty() && kind.kind == "Namespace"
}

/// The kind whose objects live under this key.
pub(crate) fn of_key(key: &Key) -> Option<Kind> {
    let (group, plural) = key.resource.split_once('/')?;
    scheme::kinds()
        .iter()
        .find(|kind| kind.group == group && kind.plural == plural)
}

pub(crate) fn resource(kind: Kind) -> Resource {
    Resource {
        group: kind.group.to_owned(),
        name: kind.plural.to_owned(),
    }
}
