//! From a document to objects: lists become their items, and every object says what it is.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::build::Tree;
use super::{Document, Error, Source};
use crate::json::{Inner, Spans};
use crate::meta::field_path::{FieldPath, Path};
use crate::scheme;

/// Removes what a server put into an object that is written back: so that an object as `get -o yaml` prints it can be
/// applied again, however old it is.
pub fn without_server_fields(object: &mut Value) {
    let Value::Object(object) = object else { return };
    object.remove("status");
    if let Some(Value::Object(meta)) = object.get_mut("metadata") {
        for field in [
            "uid",
            "resourceVersion",
            "generation",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "managedFields",
            "selfLink",
        ] {
            meta.remove(field);
        }
    }
}

pub(super) fn flatten(source: &Arc<Source>, tree: Tree) -> Result<Vec<Document>, Vec<Error>> {
    let Tree {
        mut value,
        spans,
        number,
    } = tree;
    let spans = Arc::new(spans);
    let fault = |field: FieldPath, what: String| {
        let (here, _) = spans.find(&field);
        Error::new(source, number, here.key, what).field(field)
    };
    let root = Path::root();
    let mut errors = Vec::new();
    let Some(fields) = value.as_object_mut() else {
        return Err(vec![
            fault(
                FieldPath::root(),
                "a document must be an object with apiVersion and kind".to_owned(),
            )
            .remedy("start it with \"apiVersion:\" and \"kind:\""),
        ]);
    };
    identity(fields, &root, &fault, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    let document = |object, item| Document {
        object,
        number,
        item,
        spans: Arc::clone(&spans),
        source: Arc::clone(source),
    };
    let Some(item_kind) = list_of(fields) else {
        misread(source, number, &value, &spans, &root, &mut errors);
        return if errors.is_empty() {
            Ok(vec![document(value, None)])
        } else {
            Err(errors)
        };
    };
    let items = match fields.remove("items") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(items)) => items,
        Some(_) => {
            let field = FieldPath::root().key("items");
            return Err(vec![fault(field, "items must be a list of objects".to_owned())]);
        }
    };
    let items_path = root.key("items");
    let mut documents = Vec::new();
    for (index, mut item) in items.into_iter().enumerate() {
        let path = items_path.index(index);
        let Some(fields) = item.as_object_mut() else {
            errors.push(fault(
                path.to_field_path(),
                "an item must be an object with apiVersion and kind".to_owned(),
            ));
            continue;
        };
        if let Some((api_version, kind)) = &item_kind {
            // Typed lists leave out what the list itself says.
            fields
                .entry("apiVersion")
                .or_insert_with(|| api_version.as_str().into());
            fields.entry("kind").or_insert_with(|| kind.as_str().into());
        }
        let before = errors.len();
        identity(fields, &path, &fault, &mut errors);
        if errors.len() > before {
            continue;
        }
        if list_of(fields).is_some() {
            errors.push(
                fault(
                    path.to_field_path(),
                    "a list inside a list is not read".to_owned(),
                )
                .remedy("put its items into the outer list: lists are read one level deep"),
            );
            continue;
        }
        misread(
            source,
            number,
            &item,
            spans.find(&path.to_field_path()).0,
            &path,
            &mut errors,
        );
        documents.push(document(item, Some(index)));
    }
    if errors.is_empty() {
        Ok(documents)
    } else {
        Err(errors)
    }
}

/// What [`misread`] finds in a body, which is one object and no list of them.
pub(super) fn all_read(source: &Arc<Source>, tree: &Tree) -> Vec<Error> {
    let mut errors = Vec::new();
    misread(
        source,
        tree.number,
        &tree.value,
        &tree.spans,
        &Path::root(),
        &mut errors,
    );
    errors
}

/// `apiVersion` and `kind` must be there and be text.
fn identity(
    fields: &Map<String, Value>,
    path: &Path<'_>,
    fault: &impl Fn(FieldPath, String) -> Error,
    errors: &mut Vec<Error>,
) {
    for key in ["apiVersion", "kind"] {
        match fields.get(key) {
            Some(Value::String(text)) if !text.is_empty() => {}
            Some(_) => errors.push(fault(path.key(key).to_field_path(), format!("{key} must be text"))),
            None => errors.push(
                fault(path.to_field_path(), format!("{key} is missing"))
                    .remedy("every object needs apiVersion and kind, for example \"apiVersion: panda.dev/v1alpha1\" and \"kind: Task\""),
            ),
        }
    }
}

/// Whether this is a list; for a list of one known kind, `apiVersion` and kind of its items.
fn list_of(fields: &Map<String, Value>) -> Option<Option<(String, String)>> {
    let api_version = fields.get("apiVersion")?.as_str()?;
    let kind = fields.get("kind")?.as_str()?;
    if kind == "List" {
        return Some(None);
    }
    let item = kind.strip_suffix("List")?;
    match scheme::by_kind(api_version, item) {
        Some(_) => Some(Some((api_version.to_owned(), item.to_owned()))),
        None if fields.contains_key("items") => Some(None),
        None => None,
    }
}

/// Refuses scalars that are no text in fields that hold text.
fn misread(
    source: &Arc<Source>,
    number: usize,
    object: &Value,
    spans: &Spans,
    path: &Path<'_>,
    errors: &mut Vec<Error>,
) {
    let (Some(api_version), Some(kind)) = (object["apiVersion"].as_str(), object["kind"].as_str()) else {
        return;
    };
    let Some(info) = scheme::by_kind(api_version, kind) else {
        return;
    };
    let prefix = path.to_field_path();
    info.shape()
        .each_misread_text(object, &Path::root(), &mut |field, value, free| {
            let field = field.to_field_path();
            let (here, exact) = spans.find(&field);
            let plain = match &here.inner {
                Inner::Plain(text) if exact => Some(&**text),
                _ => None,
            };
            // In JSON `null` says plainly that the field is absent, and so it does for times and durations in YAML.
            if value.is_null() && (plain.is_none() || !free) {
                return;
            }
            let shown = plain.map_or_else(|| value.to_string(), str::to_owned);
            let is = match value {
                Value::Bool(_) => "a boolean",
                Value::Number(_) => "a number",
                _ => "null",
            };
            let (what, remedy) = if shown.is_empty() {
                (
                    "the value is missing (null), the field holds text".to_owned(),
                    "write \"\" for empty text, or leave the field out".to_owned(),
                )
            } else {
                (
                    format!("{shown} is {is}, the field holds text"),
                    format!("put it in quotes: {shown:?}"),
                )
            };
            let full = field
                .segments()
                .iter()
                .cloned()
                .fold(prefix.clone(), FieldPath::step);
            errors.push(
                Error::new(source, number, here.at, what)
                    .field(full)
                    .remedy(remedy),
            );
        });
}
