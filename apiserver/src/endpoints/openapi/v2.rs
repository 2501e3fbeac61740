//! The OpenAPI 2.0 document.

use serde_json::{Map, Value, json};

use super::routes::{self, Operation};
use super::v3::tag;
use super::{definitions, info};
use crate::registry::Kind;
use crate::respond::JSON;

const PLACE: &str = "#/definitions/";

/// The document of all groups.
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
        "swagger": "2.0",
        "info": info(),
        "paths": paths,
        "definitions": definitions::of(kinds, PLACE),
    })
}

fn place(name: &str) -> Value {
    json!({
        "name": name, "in": "path", "required": true, "type": "string", "uniqueItems": true,
        "description": format!("{name} of the object"),
    })
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("{PLACE}{name}")})
}

fn render(operation: &Operation) -> Value {
    let query = operation.query.iter().map(|query| {
        json!({
            "name": query.name, "in": "query", "type": query.type_, "uniqueItems": true,
            "description": query.description,
        })
    });
    let body = operation.body.as_ref().map(|body| {
        let schema = body
            .definition
            .as_deref()
            .map_or_else(|| json!({"type": "object"}), reference);
        json!({"name": "body", "in": "body", "required": body.required, "schema": schema})
    });
    let answer = match &operation.answer {
        Some(name) => reference(name),
        None if operation.produces == JSON => json!({"type": "object"}),
        None => json!({"type": "string"}),
    };
    let mut responses: Map<String, Value> = operation
        .codes
        .iter()
        .map(|code| {
            (
                (*code).to_owned(),
                json!({"description": "OK", "schema": answer.clone()}),
            )
        })
        .collect();
    responses.insert(
        "default".to_owned(),
        json!({"description": "Failure", "schema": reference(definitions::STATUS)}),
    );
    let media: &[&str] = operation.body.as_ref().map_or(&[], |body| &body.media);
    let (group, version, kind) = operation.gvk();
    json!({
        "operationId": operation.id,
        "tags": [tag(operation.kind)],
        "consumes": if media.is_empty() { &["*/*"] } else { media },
        "produces": [operation.produces],
        "schemes": ["https"],
        "parameters": body.into_iter().chain(query).collect::<Vec<Value>>(),
        "responses": responses,
        "x-kubernetes-action": operation.action,
        "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
    })
}
