//! What a server says about an object, brought back to the lines of the file.

use std::sync::LazyLock;

use panda_api::manifest::{self, Document};
use panda_api::meta::field_path::FieldPath;
use panda_api::meta::{Reason, Status};
use panda_api::scheme::{self, Operation};
use panda_client::Error as ClientError;
use regex::Regex;
use serde_json::Value;

use crate::error::{Error, Kind};

/// Why a document cannot be applied.
#[derive(Debug)]
pub enum Fault {
    /// Something about the file, with its line.
    At(Box<manifest::Error>),
    /// Something else.
    Other(Box<Error>),
}

impl Fault {
    /// For a terminal.
    #[must_use]
    pub fn render(&self, color: bool) -> String {
        match self {
            Self::At(error) => error.render(color),
            Self::Other(error) => error.message.clone(),
        }
    }
}

static STRICT: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r#"(unknown|duplicate) field "((?:[^"\\]|\\.)*)""#).ok());

/// The faults that a refusal names.
#[must_use]
pub fn of_refusal(document: &Document, error: ClientError) -> Vec<Fault> {
    let Some(status) = error.status() else {
        return vec![Fault::Other(Box::new(error.into()))];
    };
    let found = of_status(document, status);
    if !found.is_empty() {
        return found;
    }
    let message = Error::from(error);
    match message.kind {
        Kind::Api => {
            let mut at = document.error(&FieldPath::root(), message.message);
            if let Some(hint) = message.hints.first() {
                at = at.remedy(hint.clone());
            }
            vec![Fault::At(Box::new(at))]
        }
        _ => vec![Fault::Other(Box::new(message))],
    }
}

fn of_status(document: &Document, status: &Status) -> Vec<Fault> {
    let at = |field: &str, what: String, remedy: Option<&str>| {
        let path: FieldPath = field.parse().unwrap_or_default();
        let mut error = document.error(&path, what);
        if let Some(remedy) = remedy {
            error = error.remedy(remedy);
        }
        Fault::At(Box::new(error))
    };
    if status.is(Reason::Invalid)
        && let Some(details) = &status.details
    {
        // Unknown fields are not mentioned beside others; but a misspelt field is often why another one is missing.
        let mut all = unknown_here(document, &document.object);
        let causes = details.causes.iter();
        all.extend(causes.map(|cause| at(&cause.field, cause.message.clone(), remedy(&cause.reason))));
        return all;
    }
    if is_between_managers(status)
        && let Some(details) = &status.details
    {
        let remedy = "leave the field out, or take it over with --force-conflicts";
        return details
            .causes
            .iter()
            .map(|cause| at(&cause.field, cause.message.clone(), Some(remedy)))
            .collect();
    }
    if status.is(Reason::BadRequest)
        && let Some(strict) = STRICT.as_ref()
    {
        return strict
            .captures_iter(&status.message)
            .map(|found| unknown(document, &found[2].replace("\\\"", "\""), &found[1]))
            .collect();
    }
    Vec::new()
}

/// Whether a refusal says that other managers want some fields otherwise: trying again changes nothing.
#[must_use]
pub fn is_of_managers(error: &ClientError) -> bool {
    error.status().is_some_and(is_between_managers)
}

fn is_between_managers(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.is(Reason::Conflict) && causes.clone().any(|cause| cause.reason == "FieldManagerConflict")
}

fn unknown(document: &Document, field: &str, how: &str) -> Fault {
    let path: FieldPath = field.parse().unwrap_or_default();
    let error = document.error(&path, format!("{how} field"));
    Fault::At(Box::new(match similar(document, &path) {
        Some(name) => error.remedy(format!("did you mean {name:?}?")),
        None => error.remedy("check its spelling and place, or leave it out"),
    }))
}

/// The field of the schema whose name looks like that of an unknown one.
fn similar(document: &Document, path: &FieldPath) -> Option<String> {
    let info = scheme::by_kind(
        document.object["apiVersion"].as_str()?,
        document.object["kind"].as_str()?,
    )?;
    let (panda_api::meta::field_path::Segment::Key(wrong), parents) = path.segments().split_last()? else {
        return None;
    };
    let mut schema = info.schema();
    for segment in parents {
        schema = match segment {
            panda_api::meta::field_path::Segment::Key(key) => schema.get("properties")?.get(key)?,
            panda_api::meta::field_path::Segment::Index(_) => schema.get("items")?,
        };
    }
    let names = schema.get("properties")?.as_object()?.keys();
    names
        .map(|name| (distance(&wrong.to_lowercase(), &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= 1 + name.len() / 4)
        .min()
        .map(|(_, name)| name.clone())
}

fn distance(a: &str, b: &str) -> usize {
    if a.len() > 64 || b.len() > 64 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let cost = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

fn remedy(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "FieldValueRequired" => "add the field",
        "FieldValueForbidden" => "leave the field out",
        "FieldValueNotSupported" => "use one of the values named",
        "FieldValueDuplicate" => "remove one of the two",
        "FieldValueTooLong" | "FieldValueTooMany" => "make it shorter",
        _ => return None,
    })
}

/// Fields that this program does not know.
fn unknown_here(document: &Document, object: &Value) -> Vec<Fault> {
    let (Some(api_version), Some(kind)) = (object["apiVersion"].as_str(), object["kind"].as_str()) else {
        return Vec::new();
    };
    let Some(info) = scheme::by_kind(api_version, kind) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    walk(info.schema(), object, FieldPath::root(), &mut found);
    found
        .iter()
        .map(|path| unknown(document, &path.to_string(), "unknown"))
        .collect()
}

/// Most unknown fields that are listed.
const MAX_UNKNOWN: usize = 20;

fn walk(schema: &Value, object: &Value, path: FieldPath, found: &mut Vec<FieldPath>) {
    if let (Some(properties), Some(fields)) = (schema["properties"].as_object(), object.as_object()) {
        for (key, value) in fields {
            let path = path.clone().key(key);
            match properties.get(key) {
                Some(schema) => walk(schema, value, path, found),
                None if found.len() < MAX_UNKNOWN => found.push(path),
                None => return,
            }
        }
    } else if let Some(items) = object.as_array().filter(|_| schema["items"].is_object()) {
        for (at, item) in items.iter().enumerate() {
            walk(&schema["items"], item, path.clone().index(at), found);
        }
    }
}

/// The faults that this program finds by itself, for when no server can be asked.
#[must_use]
pub fn of_this_program(document: &Document, object: &Value) -> Vec<Fault> {
    let (Some(api_version), Some(kind)) = (object["apiVersion"].as_str(), object["kind"].as_str()) else {
        return Vec::new();
    };
    let Some(info) = scheme::by_kind(api_version, kind) else {
        return Vec::new();
    };
    match scheme::prepare(info, object.clone(), Operation::Create) {
        Ok(prepared) => prepared
            .unknown_fields
            .iter()
            .map(|path| unknown(document, &path.to_string(), "unknown"))
            .collect(),
        Err(scheme::Error::Invalid(faults)) => faults
            .iter()
            .map(|fault| {
                let cause = fault.cause();
                let path: FieldPath = cause.field.parse().unwrap_or_default();
                let mut error = document.error(&path, cause.message);
                if let Some(remedy) = remedy(&cause.reason) {
                    error = error.remedy(remedy);
                }
                Fault::At(Box::new(error))
            })
            .collect(),
        Err(scheme::Error::Malformed(what)) => {
            vec![Fault::At(Box::new(document.error(&FieldPath::root(), what)))]
        }
    }
}
