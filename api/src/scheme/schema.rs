//! JSON Schema of a kind in the dialect that Kubernetes clients read (structural, OpenAPI 3.0).
//!
//! The derived schema is rewritten: references are put in place, `null` goes (an absent field says the same), enums
//! become one list, defaults go (the empty defaults of the types say nothing). What is published here is also what
//! decides about unknown fields and types, so that clients and server cannot disagree.

use schemars::JsonSchema;
use serde_json::{Map, Value, json};

/// The published schema of a type.
pub(crate) fn of<K: JsonSchema>() -> Value {
    let root = schemars::generate::SchemaSettings::draft2020_12()
        .into_generator()
        .into_root_schema_for::<K>()
        .to_value();
    let empty = Map::new();
    let defs = root.get("$defs").and_then(Value::as_object).unwrap_or(&empty);
    publish(&root, defs)
}

fn publish(node: &Value, defs: &Map<String, Value>) -> Value {
    let Some(node) = node.as_object() else {
        // `true`: anything goes.
        return json!({"x-kubernetes-preserve-unknown-fields": true});
    };
    if let Some(target) = node.get("$ref").and_then(Value::as_str) {
        let name = target.rsplit('/').next().unwrap_or(target);
        let inner = defs.get(name).map_or_else(|| json!({}), |d| publish(d, defs));
        return overlay(inner, node);
    }
    if let Some(options) = node.get("anyOf").and_then(Value::as_array) {
        let inner = options
            .iter()
            .find(|o| o.get("type") != Some(&json!("null")))
            .map_or_else(|| json!({}), |o| publish(o, defs));
        return overlay(inner, node);
    }
    if let Some(options) = node.get("oneOf").and_then(Value::as_array) {
        return overlay(enumeration(options), node);
    }
    let mut out = Map::new();
    for (key, value) in node {
        match key.as_str() {
            "$schema" | "$defs" | "title" | "default" => {}
            "type" => {
                if let Some(kind) = single_type(value) {
                    out.insert("type".into(), kind);
                }
            }
            "format" => integer_format(value, &mut out),
            "enum" => {
                let words: Vec<&Value> = value
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter(|w| !w.is_null())
                    .collect();
                out.insert("enum".into(), json!(words));
            }
            "properties" => {
                let inner: Map<String, Value> = value
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(name, p)| (name.clone(), publish(p, defs)))
                    .collect();
                out.insert("properties".into(), inner.into());
            }
            "items" | "additionalProperties" if !value.is_boolean() => {
                out.insert(key.clone(), publish(value, defs));
            }
            "items" | "additionalProperties" => {
                out.insert(key.clone(), publish(&Value::Bool(true), defs));
            }
            _ => {
                out.insert(key.clone(), value.clone());
            }
        }
    }
    key_defaults(&mut out);
    let untyped = !out.contains_key("type") && !out.contains_key("enum");
    if untyped {
        out.insert("x-kubernetes-preserve-unknown-fields".into(), true.into());
    }
    out.into()
}

/// A key of a list of objects that may be left out needs a default, so that every reader sees the same key.
fn key_defaults(list: &mut Map<String, Value>) {
    let keys = list
        .get("x-kubernetes-list-map-keys")
        .and_then(Value::as_array)
        .cloned();
    let Some(items) = list.get_mut("items") else {
        return;
    };
    let required = items["required"].as_array().cloned().unwrap_or_default();
    for key in keys.iter().flatten() {
        if !required.contains(key)
            && let Some(field) = key.as_str().and_then(|k| items["properties"].get_mut(k))
        {
            field["default"] = "".into();
        }
    }
}

/// What stands beside a reference wins over what it leads to.
fn overlay(inner: Value, outer: &Map<String, Value>) -> Value {
    let Value::Object(mut out) = inner else {
        return inner;
    };
    for (key, value) in outer {
        if key == "description" {
            // The words of an enum explain their list; the field's own sentence goes before it.
            let words = out
                .get("description")
                .and_then(Value::as_str)
                .and_then(|d| d.find(WORDS).map(|at| d[at..].to_owned()))
                .unwrap_or_default();
            let text = format!("{}{words}", value.as_str().unwrap_or_default());
            out.insert(key.clone(), text.into());
        } else if key.starts_with("x-") {
            out.insert(key.clone(), value.clone());
        }
    }
    out.into()
}

const WORDS: &str = "\n\nValues:";

fn enumeration(options: &[Value]) -> Value {
    let mut words = Vec::new();
    let mut text = WORDS.to_owned();
    for option in options {
        if let Some(word) = option.get("const") {
            words.push(word.clone());
            if let (Some(word), Some(what)) =
                (word.as_str(), option.get("description").and_then(Value::as_str))
            {
                text.push_str(&format!("\n- {word}: {what}"));
            }
        }
        for word in option.get("enum").and_then(Value::as_array).into_iter().flatten() {
            words.push(word.clone());
        }
    }
    json!({"type": "string", "enum": words, "description": text})
}

fn single_type(value: &Value) -> Option<Value> {
    match value {
        Value::Array(options) => options.iter().find(|o| *o != "null").cloned(),
        one => Some(one.clone()),
    }
}

fn integer_format(value: &Value, out: &mut Map<String, Value>) {
    match value.as_str() {
        Some("uint32") => {
            out.insert("format".into(), "int64".into());
            out.insert("maximum".into(), u32::MAX.into());
        }
        Some("uint64") => {
            out.insert("format".into(), "int64".into());
        }
        _ => {
            out.insert("format".into(), value.clone());
        }
    }
}
