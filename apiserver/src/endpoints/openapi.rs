//! OpenAPI v3: a root document, and one document for each group and version, made from the kinds' schemas.

use std::collections::BTreeMap;

use axum::response::Response;
use http::HeaderMap;
use panda_api::scheme;
use serde_json::{Map, Value, json};

use crate::endpoints::discovery::Document;
use crate::endpoints::reviews;
use crate::registry::Kind;
use crate::respond::{Failure, JSON};

const ROOT: &str = "/openapi/v3";

/// All documents, by path.
#[derive(Debug)]
pub(crate) struct Documents(BTreeMap<String, Document>);

impl Documents {
    pub(crate) fn new() -> Self {
        let mut groups: BTreeMap<String, Vec<Kind>> = BTreeMap::new();
        for kind in scheme::served() {
            groups.entry(base(kind)).or_default().push(kind);
        }
        let mut documents = BTreeMap::new();
        let mut paths = Map::new();
        for (base, kinds) in groups {
            let document = Document::new(group(&base, &kinds).to_string().into_bytes());
            let hash = document.etag.trim_matches('"').to_owned();
            let url = format!("{ROOT}/{base}?hash={hash}");
            paths.insert(base.clone(), json!({"serverRelativeURL": url}));
            documents.insert(format!("{ROOT}/{base}"), document);
        }
        let root = json!({"paths": paths}).to_string();
        documents.insert(ROOT.to_owned(), Document::new(root.into_bytes()));
        Self(documents)
    }
}

/// `apis/panda.dev/v1alpha1`.
fn base(kind: Kind) -> String {
    if kind.group.is_empty() {
        format!("api/{}", kind.version)
    } else {
        format!("apis/{}/{}", kind.group, kind.version)
    }
}

fn group(base: &str, kinds: &[Kind]) -> Value {
    let mut paths = Map::new();
    let mut schemas = Map::new();
    for kind in kinds {
        schemas.insert(kind.definition_name.to_owned(), kind.schema().clone());
        let inside = if kind.namespaced {
            "namespaces/{namespace}/"
        } else {
            ""
        };
        let collection = format!("/{base}/{inside}{}", kind.plural);
        if reviews::is_review(kind) {
            let post = with_body(operation(kind, "post", &WRITE), kind, &[JSON]);
            paths.insert(
                collection,
                json!({"parameters": in_path(kind, false), "post": post}),
            );
            continue;
        }
        paths.insert(format!("{collection}/{{name}}"), one(kind));
        if kind.has_status {
            paths.insert(format!("{collection}/{{name}}/status"), status(kind));
        }
        paths.insert(collection, many(kind));
        if kind.namespaced {
            let all = json!({"get": operation(kind, "list", &LIST)});
            paths.insert(format!("/{base}/{}", kind.plural), all);
        }
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Panda", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "components": {"schemas": schemas},
    })
}

const LIST: [&str; 8] = [
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "timeoutSeconds",
    "watch",
];
const WRITE: [&str; 3] = ["dryRun", "fieldManager", "fieldValidation"];
const PATCH: [&str; 4] = ["dryRun", "fieldManager", "fieldValidation", "force"];
const DELETE: [&str; 3] = ["dryRun", "gracePeriodSeconds", "propagationPolicy"];
const BOOLEANS: [&str; 3] = ["allowWatchBookmarks", "force", "watch"];
const INTEGERS: [&str; 3] = ["gracePeriodSeconds", "limit", "timeoutSeconds"];
const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";

fn many(kind: Kind) -> Value {
    json!({
        "parameters": in_path(kind, false),
        "get": operation(kind, "list", &LIST),
        "post": with_body(operation(kind, "post", &WRITE), kind, &[JSON]),
        "delete": operation(kind, "deletecollection", &DELETE),
    })
}

fn one(kind: Kind) -> Value {
    json!({
        "parameters": in_path(kind, true),
        "get": operation(kind, "get", &[]),
        "put": with_body(operation(kind, "put", &WRITE), kind, &[JSON]),
        "patch": with_body(operation(kind, "patch", &PATCH), kind, &[JSON_PATCH, MERGE]),
        "delete": operation(kind, "delete", &DELETE),
    })
}

fn status(kind: Kind) -> Value {
    json!({
        "parameters": in_path(kind, true),
        "get": operation(kind, "get", &[]),
        "put": with_body(operation(kind, "put", &WRITE), kind, &[JSON]),
        "patch": with_body(operation(kind, "patch", &PATCH), kind, &[JSON_PATCH, MERGE]),
    })
}

fn in_path(kind: Kind, named: bool) -> Vec<Value> {
    let parameter = |name: &str| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "uniqueItems": true}});
    let namespace = kind.namespaced.then(|| parameter("namespace"));
    namespace
        .into_iter()
        .chain(named.then(|| parameter("name")))
        .collect()
}

fn operation(kind: Kind, action: &str, parameters: &[&str]) -> Value {
    let parameters: Vec<Value> = parameters
        .iter()
        .map(|name| {
            let type_ = if BOOLEANS.contains(name) {
                "boolean"
            } else if INTEGERS.contains(name) {
                "integer"
            } else {
                "string"
            };
            json!({"name": name, "in": "query", "schema": {"type": type_, "uniqueItems": true}})
        })
        .collect();
    let schema = json!({"$ref": format!("#/components/schemas/{}", kind.definition_name)});
    json!({
        "operationId": format!("{action}{}{}", kind.version, kind.kind),
        "tags": [format!("{}_{}", kind.group, kind.version)],
        "parameters": parameters,
        "responses": {"200": {"description": "OK", "content": {JSON: {"schema": schema}}}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
    })
}

fn with_body(mut operation: Value, kind: Kind, media: &[&str]) -> Value {
    let patch = media.contains(&MERGE);
    let schema = if patch {
        json!({"type": "object"})
    } else {
        json!({"$ref": format!("#/components/schemas/{}", kind.definition_name)})
    };
    let content: Map<String, Value> = media
        .iter()
        .map(|media| ((*media).to_owned(), json!({"schema": schema})))
        .collect();
    operation["requestBody"] = json!({"required": true, "content": content});
    operation
}

/// The document at this path, if there is one.
pub(crate) fn serve(
    documents: &Documents,
    path: &str,
    headers: &HeaderMap,
) -> Option<Result<Response, Failure>> {
    let document = documents.0.get(path.strip_suffix('/').unwrap_or(path))?;
    Some(Ok(document.answer(headers, JSON)))
}
