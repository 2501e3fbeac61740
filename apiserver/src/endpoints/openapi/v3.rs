//! OpenAPI 3.0 documents.

use serde_json::{Map, Value, json};

use super::routes::{self, Body, Operation};
use super::{definitions, info};
use crate::registry::Kind;
use crate::respond::JSON;

const PLACE: &str = "#/components/schemas/";

/// The document of a group and version.
pub(super) fn document(kinds: &[Kind]) -> Value {
    let mut paths = Map::new();
    for route in kinds.iter().flat_map(|kind| routes::of(kind)) {
        let mut item = Map::new();
        let places: Vec<Value> = route.places.iter().map(|name| place(name)).collect();
        if !places.is_empty() {
            item.insert("parameters".to_owned(), places.into());
        }
        for operation in &route.operations {
            item.insert(operation.method.to_owned(), render(operation));
        }
        paths.insert(route.url, item.into());
    }
    json!({
        "openapi": "3.0.0",
        "info": info(),
        "paths": paths,
        "components": {"schemas": definitions::of(kinds, PLACE)},
    })
}

fn place(name: &str) -> Value {
    json!({
        "name": name, "in": "path", "required": true, "description": format!("{name} of the object"),
        "schema": {"type": "string", "uniqueItems": true},
    })
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("{PLACE}{name}")})
}

fn render(operation: &Operation) -> Value {
    let query = operation.query.iter().map(|query| {
        json!({
            "name": query.name, "in": "query", "description": query.description,
            "schema": {"type": query.type_, "uniqueItems": true},
        })
    });
    let answer = match &operation.answer {
        Some(name) => reference(name),
        None if operation.produces == JSON => json!({"type": "object"}),
        None => json!({"type": "string"}),
    };
    let mut content = Map::new();
    content.insert(operation.produces.to_owned(), json!({"schema": answer}));
    let success = json!({"description": "OK", "content": content});
    let mut responses: Map<String, Value> = operation
        .codes
        .iter()
        .map(|code| ((*code).to_owned(), success.clone()))
        .collect();
    let failure = json!({JSON: {"schema": reference(definitions::STATUS)}});
    responses.insert(
        "default".to_owned(),
        json!({"description": "Failure", "content": failure}),
    );
    let (group, version, kind) = operation.gvk();
    let mut out = json!({
        "operationId": operation.id,
        "tags": [tag(operation.kind)],
        "parameters": query.collect::<Vec<Value>>(),
        "responses": responses,
        "x-kubernetes-action": operation.action,
        "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
    });
    if let Some(body) = &operation.body {
        out["requestBody"] = sent(body);
    }
    out
}

fn sent(body: &Body) -> Value {
    let schema = body
        .definition
        .as_deref()
        .map_or_else(|| json!({"type": "object"}), reference);
    // A list of operations is a patch, too.
    let of = |media: &str| match media {
        "application/json-patch+json" => json!({"type": "array", "items": {"type": "object"}}),
        _ => schema.clone(),
    };
    let content: Map<String, Value> = body
        .media
        .iter()
        .map(|media| ((*media).to_owned(), json!({"schema": of(media)})))
        .collect();
    json!({"required": body.required, "content": content})
}

/// What the operations of a group and version are filed under.
pub(super) fn tag(kind: Kind) -> String {
    let group = if kind.group.is_empty() { "core" } else { kind.group };
    format!("{}_{}", group.replace(['.', '-'], "_"), kind.version)
}
