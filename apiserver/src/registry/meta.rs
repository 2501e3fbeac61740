//! What the server decides about names, preconditions and deletion, whatever the kind.

use jiff::Timestamp;
use panda_api::meta::{IdSource, Time};
use serde_json::{Map, Value, json};

use super::error::{MODIFIED, cause};
use super::{Error, Kind, kinds};

/// Longest prefix that `generateName` keeps, so that the random part always fits.
const MAX_PREFIX: usize = 248;
/// Characters that the server adds to `generateName`.
const SUFFIX: usize = 5;

/// A text of the metadata; empty when it is absent.
pub(crate) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object
        .get("metadata")
        .and_then(|m| m.get(field))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// The metadata, made when it is absent.
pub(crate) fn metadata(kind: Kind, object: &mut Value) -> Result<&mut Map<String, Value>, Error> {
    let malformed = |detail: &str| {
        Error::BadRequest(format!(
            "{} in version {:?} cannot be handled as a {}: {detail}",
            kind.kind, kind.version, kind.kind
        ))
    };
    let Value::Object(object) = object else {
        return Err(malformed("it is not an object"));
    };
    let slot = object.entry("metadata").or_insert(Value::Null);
    if slot.is_null() {
        *slot = json!({});
    }
    slot.as_object_mut()
        .ok_or_else(|| malformed("metadata is not an object"))
}

fn set(kind: Kind, object: &mut Value, field: &str, value: Value) -> Result<(), Error> {
    metadata(kind, object)?.insert(field.to_owned(), value);
    Ok(())
}

/// Whether anybody still has to finish something before the object may go.
pub(crate) fn is_held(kind: Kind, object: &Value) -> bool {
    let filled = |list: Option<&Value>| {
        list.and_then(Value::as_array)
            .is_some_and(|list| !list.is_empty())
    };
    filled(object.pointer("/metadata/finalizers"))
        || (kinds::is_namespace(kind) && filled(object.pointer("/spec/finalizers")))
}

pub(crate) fn is_deleting(object: &Value) -> bool {
    !text(object, "deletionTimestamp").is_empty()
}

/// Checks that the object has the namespace and name that the URL says, and fills in what is absent.
pub(crate) fn identify(
    kind: Kind,
    namespace: &str,
    name: Option<&str>,
    object: &mut Value,
) -> Result<(), Error> {
    let namespace = if kind.namespaced { namespace } else { "" };
    let metadata = metadata(kind, object)?;
    let found = metadata
        .get("namespace")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if found.is_empty() && !namespace.is_empty() {
        metadata.insert("namespace".to_owned(), namespace.into());
    } else if found != namespace {
        return Err(Error::BadRequest(format!(
            "the namespace of the provided object ({found}) does not match the namespace sent on the request \
             ({namespace})"
        )));
    } else if found.is_empty() {
        metadata.remove("namespace");
    }
    let Some(name) = name else { return Ok(()) };
    let found = metadata.get("name").and_then(Value::as_str).unwrap_or_default();
    if found.is_empty() {
        metadata.insert("name".to_owned(), name.into());
    } else if found != name {
        return Err(Error::BadRequest(format!(
            "the name of the object ({found}) does not match the name on the URL ({name})"
        )));
    }
    Ok(())
}

/// Makes the name of a new object that has none. Whether the server made it.
pub(crate) fn generate_name(kind: Kind, object: &mut Value, ids: &dyn IdSource) -> Result<bool, Error> {
    if !text(object, "name").is_empty() {
        return Ok(false);
    }
    let prefix = text(object, "generateName");
    if prefix.is_empty() {
        let text = "Required value: name or generateName is required";
        return Err(Error::invalid(
            kind,
            "",
            vec![cause("FieldValueRequired", "metadata.name", text)],
        ));
    }
    let kept: String = prefix.chars().take(MAX_PREFIX).collect();
    let name = format!("{kept}{}", ids.suffix(SUFFIX));
    set(kind, object, "name", name.into())?;
    Ok(true)
}

/// What only the server knows of a new object.
pub(crate) fn stamp(kind: Kind, object: &mut Value, now: Timestamp, ids: &dyn IdSource) -> Result<(), Error> {
    set(kind, object, "uid", ids.uuid().to_string().into())?;
    set(kind, object, "creationTimestamp", Time(now).to_string().into())
}

/// What a writer knows of the object that it means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    /// Its uid.
    pub uid: Option<String>,
    /// Its version.
    pub resource_version: Option<String>,
}

impl Preconditions {
    /// Those that an object carries in its own metadata.
    pub(crate) fn of(object: &Value) -> Self {
        let field = |name| {
            Some(text(object, name))
                .filter(|text| !text.is_empty())
                .map(ToOwned::to_owned)
        };
        Self {
            uid: field("uid"),
            resource_version: field("resourceVersion"),
        }
    }

    pub(crate) fn check(&self, kind: Kind, current: &Value) -> Result<(), Error> {
        let name = text(current, "name");
        if let Some(wanted) = self.uid.as_deref().filter(|uid| *uid != text(current, "uid")) {
            let found = text(current, "uid");
            let detail =
                format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}");
            return Err(Error::conflict(kind, name, detail));
        }
        match &self.resource_version {
            Some(version) if version != text(current, "resourceVersion") => {
                Err(Error::conflict(kind, name, MODIFIED))
            }
            _ => Ok(()),
        }
    }
}

/// Refuses finalizers that join an object on its way out.
pub(crate) fn check_finalizers(kind: Kind, old: &Value, new: &Value) -> Result<(), Error> {
    if !is_deleting(old) {
        return Ok(());
    }
    let list = |object: &Value| -> Vec<String> {
        let list = object.pointer("/metadata/finalizers").and_then(Value::as_array);
        list.into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(ToOwned::to_owned)
            .collect()
    };
    let before = list(old);
    match list(new).into_iter().find(|name| !before.contains(name)) {
        None => Ok(()),
        Some(added) => {
            let text = format!(
                "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers \
                 []string{{{added:?}}}"
            );
            let causes = vec![cause("FieldValueForbidden", "metadata.finalizers", text)];
            Err(Error::invalid(kind, self::text(old, "name"), causes))
        }
    }
}

/// Marks the object as going.
pub(crate) fn begin_deletion(kind: Kind, object: &mut Value, now: Timestamp) -> Result<(), Error> {
    let metadata = metadata(kind, object)?;
    metadata.insert("deletionTimestamp".to_owned(), Time(now).to_string().into());
    metadata.insert("deletionGracePeriodSeconds".to_owned(), 0.into());
    let generation = metadata.get("generation").and_then(Value::as_i64).unwrap_or(0);
    metadata.insert("generation".to_owned(), generation.saturating_add(1).into());
    Ok(())
}

/// What becomes of the dependents of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They are collected once it is gone.
    Background,
    /// It stays until those that block it are gone.
    Foreground,
    /// It stays until they have forgotten it.
    Orphan,
}

/// Finalizers by which the collector knows what it has to do first.
const COLLECTOR: [&str; 2] = ["foregroundDeletion", "orphan"];

/// Sets the collector's finalizers; whether that changed anything.
pub(crate) fn propagate(kind: Kind, object: &mut Value, how: Propagation) -> Result<bool, Error> {
    let metadata = metadata(kind, object)?;
    let before = metadata.get("finalizers").cloned();
    let list = before
        .as_ref()
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let wanted = match how {
        Propagation::Background => None,
        Propagation::Foreground => Some(COLLECTOR[0]),
        Propagation::Orphan => Some(COLLECTOR[1]),
    };
    let mut after: Vec<Value> = list
        .into_iter()
        .filter(|name| {
            name.as_str()
                .is_none_or(|name| Some(name) == wanted || !COLLECTOR.contains(&name))
        })
        .collect();
    if let Some(wanted) = wanted.filter(|wanted| after.iter().all(|name| name != wanted)) {
        after.push(wanted.into());
    }
    if after.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".to_owned(), after.into());
    }
    Ok(before.as_ref() != metadata.get("finalizers"))
}
