//! From a decoded body to the object that is stored.

use serde_json::{Map, Value, json};

use super::registry::KindInfo;
use super::shape::Findings;
use crate::meta::field_path::{FieldPath, Path, Segment};
use crate::validation::{Checker, FieldError, Rules, metadata};

/// What is done with the object.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// A new object. What only the server may set is removed from `metadata`, and so is `status` of kinds that have a
    /// status subresource.
    Create,
    /// A new version of `old`. `status` stays that of `old` (for kinds with a status subresource), and so does all of
    /// `metadata` that nobody may change.
    Update {
        /// The object as it is stored.
        old: &'a Value,
    },
    /// A new status of `old`: everything else stays that of `old`.
    UpdateStatus {
        /// The object as it is stored.
        old: &'a Value,
    },
}

impl<'a> Operation<'a> {
    /// The object as it is stored, if there is one.
    #[must_use]
    pub const fn old(&self) -> Option<&'a Value> {
        match self {
            Self::Create => None,
            Self::Update { old } | Self::UpdateStatus { old } => Some(old),
        }
    }
}

/// An object that may be stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// The object in canonical form. `generation` is set: 1 for a new object, one more than `old` when the desired
    /// state changed. `uid`, `creationTimestamp` and `resourceVersion` are those of `old`, absent for a new object; so an
    /// update that changes nothing gives an object equal to `old`.
    pub object: Value,
    /// What the author should know, for `Warning` headers.
    pub warnings: Vec<String>,
    /// Fields outside the schema, which were removed; the caller refuses, warns or keeps silent (`fieldValidation`).
    pub unknown_fields: Vec<FieldPath>,
}

/// Why an object cannot be stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The object has faults (422).
    #[error("{} faults, first: {}", .0.len(), .0.first().map(ToString::to_string).unwrap_or_default())]
    Invalid(Vec<FieldError>),
    /// It is no such object at all (400).
    #[error("{0}")]
    Malformed(String),
}

impl Error {
    /// Whether the same call could succeed later: never, the object itself is at fault.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        false
    }
}

pub(super) type Finish = fn(Value, &Operation<'_>) -> Result<Prepared, Error>;

/// Checks, completes and canonicalises an object.
///
/// The caller has set `metadata.namespace` from the URL and, where the body names none, `metadata.name`; has compared
/// `resourceVersion` and `uid` with the stored object; and fills `uid` and `creationTimestamp` of a new object afterwards.
/// A new object may come with `generateName` and no name; the caller makes the name.
///
/// # Errors
///
/// [`Error::Malformed`] when the body is no object of this kind, [`Error::Invalid`] when fields are at fault.
pub fn prepare(info: &KindInfo, object: Value, operation: Operation<'_>) -> Result<Prepared, Error> {
    let Value::Object(mut object) = object else {
        return Err(Error::Malformed(format!(
            "{} must be an object with apiVersion, kind and metadata",
            info.kind
        )));
    };
    type_meta(info, &mut object)?;
    match operation {
        Operation::Create => {
            if info.has_status {
                object.remove("status");
            }
            if let Some(Value::Object(meta)) = object.get_mut("metadata") {
                for field in metadata::SERVER_OWNED {
                    meta.remove(*field);
                }
            }
        }
        Operation::Update { old } => {
            if info.has_status {
                put(&mut object, "status", old.get("status"));
            }
            carry_metadata(&mut object, old);
        }
        Operation::UpdateStatus { old } => {
            let status = object.remove("status");
            object = old.as_object().cloned().unwrap_or_default();
            put(&mut object, "status", status.as_ref());
        }
    }
    if let Some(Value::Object(meta)) = object.get_mut("metadata") {
        // Old clients still send it; it has had no meaning for years and is no mistake of theirs.
        meta.remove("selfLink");
    }
    let mut object = Value::Object(object);
    let mut found = Findings::default();
    info.shape().walk(&mut object, &Path::root(), &mut found);
    let (faults, _) = found.faults.finish();
    let (missing, _) = found.missing.finish();
    if !faults.is_empty() {
        let mut errors = [faults, missing].concat();
        if info.kind == "Secret" {
            hide_values(&mut errors);
        }
        return Err(Error::Invalid(errors));
    }
    match info.finish(object, &operation) {
        Ok(prepared) if missing.is_empty() => Ok(Prepared {
            unknown_fields: found.unknown,
            ..prepared
        }),
        Ok(_) => Err(Error::Invalid(missing)),
        Err(Error::Invalid(mut errors)) => {
            // A rule that knows the field says more about it than the schema, so its words come first.
            errors.extend(missing);
            let mut seen = std::collections::HashSet::new();
            errors.retain(|e| seen.insert((e.reason, e.field.clone())));
            Err(Error::Invalid(errors))
        }
        Err(Error::Malformed(_)) if !missing.is_empty() => Err(Error::Invalid(missing)),
        Err(malformed @ Error::Malformed(_)) => Err(malformed),
    }
}

/// Fields outside the schema, of an object that [`prepare`] refuses: a mistyped field is often why another is missing.
#[must_use]
pub fn unknown_fields(info: &KindInfo, object: &Value) -> Vec<FieldPath> {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut().filter(|_| info.has_status) {
        // A client's word about the status is not looked at.
        fields.remove("status");
    }
    let mut found = Findings::default();
    info.shape().walk(&mut object, &Path::root(), &mut found);
    found.unknown
}

/// Messages are logged and shown: they never repeat a value of a Secret.
fn hide_values(errors: &mut [FieldError]) {
    for error in errors {
        let in_data = matches!(error.field.segments().first(), Some(Segment::Key(key)) if key == "data" || key == "stringData");
        if in_data {
            error.message = "Invalid value: must be text".to_owned();
        }
    }
}

fn put(object: &mut Map<String, Value>, key: &str, value: Option<&Value>) {
    match value {
        Some(value) => object.insert(key.to_owned(), value.clone()),
        None => object.remove(key),
    };
}

/// `apiVersion` and `kind` must be those of the URL; upstream kinds may leave them out, as upstream's own clients do.
fn type_meta(info: &KindInfo, object: &mut Map<String, Value>) -> Result<(), Error> {
    let upstream = info.group != "panda.dev";
    for (key, wanted) in [("apiVersion", info.api_version()), ("kind", info.kind.to_owned())] {
        match object.get(key) {
            Some(Value::String(is)) if *is == wanted => {}
            None | Some(Value::Null) if upstream => {
                object.insert(key.into(), wanted.into());
            }
            Some(Value::String(is)) if is.is_empty() && upstream => {
                object.insert(key.into(), wanted.into());
            }
            None | Some(Value::Null) => {
                return Err(Error::Malformed(format!(
                    "the object must have {key:?}: {wanted:?}"
                )));
            }
            Some(is) => {
                let is: String = is.to_string().chars().take(128).collect();
                return Err(Error::Malformed(format!(
                    "the {key} in the object ({is}) is not the one that this URL takes ({wanted:?})"
                )));
            }
        }
    }
    Ok(())
}

/// Keeps what a client may send but never change.
fn carry_metadata(object: &mut Map<String, Value>, old: &Value) {
    let meta = object.entry("metadata").or_insert_with(|| json!({}));
    let Value::Object(meta) = meta else { return };
    let old = old.get("metadata");
    for field in metadata::SERVER_OWNED {
        put(meta, field, old.and_then(|m| m.get(*field)));
    }
    for field in ["generateName", "managedFields"] {
        if !meta.contains_key(field) {
            put(meta, field, old.and_then(|m| m.get(field)));
        }
    }
}

/// The typed half of [`prepare`].
pub(super) fn finish<K: Rules>(value: Value, operation: &Operation<'_>) -> Result<Prepared, Error> {
    let mut object: K = decode(value)?;
    let mut cx = Checker::default();
    match operation {
        Operation::Create => {
            object.normalise(&mut cx);
            object.set_defaults();
            metadata::check::<K>(object.metadata(), &mut cx);
            object.check(&mut cx);
        }
        Operation::Update { old } => {
            let old: K = decode((*old).clone())?;
            object.normalise(&mut cx);
            object.carry(&old, &mut cx);
            object.set_defaults();
            metadata::check::<K>(object.metadata(), &mut cx);
            metadata::check_update(object.metadata(), old.metadata(), &mut cx);
            object.check(&mut cx);
            object.check_update(&old, &mut cx);
        }
        Operation::UpdateStatus { old } => {
            let old: K = decode((*old).clone())?;
            object.check_status(&mut cx);
            object.check_status_update(&old, &mut cx);
        }
    }
    let (errors, warnings) = cx.finish();
    if !errors.is_empty() {
        return Err(Error::Invalid(errors));
    }
    let mut object = serde_json::to_value(&object)
        .map_err(|e| Error::Malformed(format!("the object cannot be written as JSON: {e}")))?;
    match operation {
        Operation::Create => set_generation(&mut object, 1),
        Operation::Update { old } => {
            let generation = old
                .pointer("/metadata/generation")
                .and_then(Value::as_i64)
                .unwrap_or(0);
            let changed = desired_state_changed(old, &object);
            set_generation(&mut object, generation.saturating_add(i64::from(changed)));
        }
        Operation::UpdateStatus { .. } => {}
    }
    Ok(Prepared {
        object,
        warnings,
        unknown_fields: Vec::new(),
    })
}

fn set_generation(object: &mut Value, generation: i64) {
    if let Some(Value::Object(meta)) = object.get_mut("metadata")
        && generation > 0
    {
        meta.insert("generation".into(), generation.into());
    }
}

/// Whether anything outside `metadata` and `status` differs: what makes `generation` grow.
#[must_use]
pub fn desired_state_changed(old: &Value, new: &Value) -> bool {
    let relevant = |object: &Value| -> Map<String, Value> {
        object
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(key, _)| !matches!(key.as_str(), "metadata" | "status" | "apiVersion" | "kind"))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    };
    relevant(old) != relevant(new)
}

fn decode<K: Rules>(value: Value) -> Result<K, Error> {
    // The walk over the schema has found every fault that a person can make; this is the net below it.
    serde_path_to_error::deserialize(value)
        .map_err(|error| Error::Malformed(format!("{}: {}", error.path(), error.inner())))
}
