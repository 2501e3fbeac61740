//! A published schema, compiled for walking over objects.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::meta::Duration;
use crate::meta::field_path::{FieldPath, Path};
use crate::validation::{Checker, FieldReason, echo};

/// What messages call text.
const TEXT: &str = "a string";
/// Most unknown fields that are reported of one object.
const MAX_UNKNOWN: usize = 100;

/// What a value must look like.
#[derive(Debug)]
pub(crate) enum Shape {
    Any,
    Bool,
    Integer {
        min: i128,
        max: i128,
    },
    Number,
    Text(Format),
    Word(Vec<String>),
    List(Box<Self>),
    Map(Box<Self>),
    Object {
        fields: BTreeMap<String, Self>,
        required: Vec<String>,
    },
}

/// Texts with a form of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Free,
    Duration,
    Time,
}

/// What a walk found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Faults that make decoding impossible.
    pub(crate) faults: Checker,
    /// Fields that must be there and are not; decoding may still succeed.
    pub(crate) missing: Checker,
    /// Fields outside the schema, already removed.
    pub(crate) unknown: Vec<FieldPath>,
}

impl Shape {
    /// Compiles a published schema.
    pub(crate) fn compile(schema: &Value) -> Self {
        if let Some(words) = schema.get("enum").and_then(Value::as_array) {
            return Self::Word(
                words
                    .iter()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect(),
            );
        }
        match schema.get("type").and_then(Value::as_str) {
            Some("boolean") => Self::Bool,
            Some("number") => Self::Number,
            Some("integer") => {
                let (min, max) = match schema.get("format").and_then(Value::as_str) {
                    Some("int32") => (i128::from(i32::MIN), i128::from(i32::MAX)),
                    _ => (i128::from(i64::MIN), i128::from(i64::MAX)),
                };
                let bound = |key| schema.get(key).and_then(Value::as_i64).map(i128::from);
                Self::Integer {
                    min: bound("minimum").unwrap_or(min),
                    max: bound("maximum").unwrap_or(max),
                }
            }
            Some("string") => Self::Text(match schema.get("format").and_then(Value::as_str) {
                Some("duration") => Format::Duration,
                Some("date-time") => Format::Time,
                _ => Format::Free,
            }),
            Some("array") => Self::List(Box::new(schema.get("items").map_or(Self::Any, Self::compile))),
            Some("object") => {
                if let Some(fields) = schema.get("properties").and_then(Value::as_object) {
                    let required = schema.get("required").and_then(Value::as_array);
                    return Self::Object {
                        fields: fields
                            .iter()
                            .map(|(k, v)| (k.clone(), Self::compile(v)))
                            .collect(),
                        required: required
                            .into_iter()
                            .flatten()
                            .filter_map(Value::as_str)
                            .map(str::to_owned)
                            .collect(),
                    };
                }
                schema
                    .get("additionalProperties")
                    .map_or(Self::Any, |v| Self::Map(Box::new(Self::compile(v))))
            }
            _ => Self::Any,
        }
    }

    /// Checks types, removes unknown fields and those that are null.
    pub(crate) fn walk(&self, value: &mut Value, path: &Path<'_>, found: &mut Findings) {
        match (self, &mut *value) {
            (Self::Any, _) | (Self::Bool, Value::Bool(_)) | (Self::Number, Value::Number(_)) => {}
            (Self::Integer { min, max }, Value::Number(number)) => {
                let exact = number
                    .as_i64()
                    .map(i128::from)
                    .or_else(|| number.as_u64().map(i128::from));
                match exact {
                    Some(n) if n >= *min && n <= *max => {}
                    Some(n) => found.faults.invalid(
                        path,
                        &n.to_string(),
                        format_args!("must be between {min} and {max}"),
                    ),
                    None => type_error(path, "an integer", value, found),
                }
            }
            (Self::Text(format), Value::String(text)) => check_format(*format, text, path, found),
            (Self::Word(words), Value::String(text)) => {
                if !words.contains(text) {
                    let words: Vec<&str> = words.iter().map(String::as_str).collect();
                    found.faults.not_supported(path, text, &words);
                }
            }
            (Self::List(item), Value::Array(items)) => {
                for (index, value) in items.iter_mut().enumerate() {
                    item.walk(value, &path.index(index), found);
                }
            }
            (Self::Map(item), Value::Object(entries)) => {
                // A null field is an absent one, but a null value in a map is a value that its author did not mean.
                for (key, value) in entries.iter_mut() {
                    item.walk(value, &path.key(key), found);
                }
            }
            (Self::Object { fields, required }, Value::Object(entries)) => {
                entries.retain(|key, value| {
                    let known = fields.contains_key(key);
                    if !known && found.unknown.len() < MAX_UNKNOWN {
                        found.unknown.push(path.key(key).to_field_path());
                    }
                    known && !value.is_null()
                });
                for (key, value) in entries.iter_mut() {
                    if let Some(shape) = fields.get(key) {
                        shape.walk(value, &path.key(key), found);
                    }
                }
                for key in required {
                    if !entries.contains_key(key) {
                        found.missing.required(&path.key(key), "");
                    }
                }
            }
            (wanted, _) => type_error(path, wanted.name(), value, found),
        }
    }

    /// Calls `found` for every scalar that is no text where the schema wants text.
    pub(crate) fn each_misread_text(
        &self,
        value: &Value,
        path: &Path<'_>,
        found: &mut impl FnMut(&Path<'_>, &Value, bool),
    ) {
        match (self, value) {
            (Self::Text(format), Value::Null | Value::Bool(_) | Value::Number(_)) => {
                found(path, value, *format == Format::Free);
            }
            (Self::Word(_), Value::Null | Value::Bool(_) | Value::Number(_)) => found(path, value, true),
            (Self::List(item), Value::Array(items)) => {
                for (index, value) in items.iter().enumerate() {
                    item.each_misread_text(value, &path.index(index), found);
                }
            }
            (Self::Map(item), Value::Object(entries)) => {
                for (key, value) in entries {
                    item.each_misread_text(value, &path.key(key), found);
                }
            }
            (Self::Object { fields, .. }, Value::Object(entries)) => {
                for (key, value) in entries {
                    if let Some(shape) = fields.get(key) {
                        shape.each_misread_text(value, &path.key(key), found);
                    }
                }
            }
            _ => {}
        }
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Any => "anything",
            Self::Bool => "true or false",
            Self::Integer { .. } => "an integer",
            Self::Number => "a number",
            Self::Text(_) | Self::Word(_) => TEXT,
            Self::List(_) => "a list",
            Self::Map(_) | Self::Object { .. } => "an object",
        }
    }
}

fn type_error(path: &Path<'_>, wanted: &str, value: &Value, found: &mut Findings) {
    let (shown, is) = match value {
        Value::Null => ("null".to_owned(), "null"),
        Value::Bool(b) => (b.to_string(), "a boolean"),
        Value::Number(n) => (n.to_string(), "a number"),
        Value::String(s) => (echo(s), "a string"),
        Value::Array(_) => ("[...]".to_owned(), "a list"),
        Value::Object(_) => ("{...}".to_owned(), "an object"),
    };
    let remedy = match (wanted, value) {
        (TEXT, Value::Bool(_) | Value::Number(_)) => "; put it in quotes",
        _ => "",
    };
    found.faults.report(
        FieldReason::TypeInvalid,
        path,
        format!("Invalid value: {shown}: must be {wanted}, is {is}{remedy}"),
    );
}

fn check_format(format: Format, text: &str, path: &Path<'_>, found: &mut Findings) {
    let fault = match format {
        Format::Free => return,
        Format::Duration => text
            .parse::<Duration>()
            .err()
            .map(|_| "must be numbers with units h, m, s or ms, for example \"90s\" or \"1h30m\""),
        Format::Time => text
            .parse::<jiff::Timestamp>()
            .err()
            .map(|_| "must be an RFC 3339 time, for example \"2026-01-02T03:04:05Z\""),
    };
    if let Some(detail) = fault {
        found.faults.invalid(path, text, detail);
    }
}
