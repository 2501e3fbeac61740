//! OpenAPI: version 3 (a root document, and one document for each group and version) and version 2 (one document, as
//! JSON and as protobuf), both made once from the kinds' schemas and the same list of routes.

mod definitions;
mod gnostic;
mod routes;
mod v2;
mod v3;

use std::collections::BTreeMap;

use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, LOCATION};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use panda_api::meta::Reason;
use panda_api::scheme;
use serde_json::{Map, Value, json};

use crate::endpoints::discovery::Document;
use crate::negotiate::accept;
use crate::registry::Kind;
use crate::respond::{Failure, JSON};

const V2: &str = "/openapi/v2";
const V3: &str = "/openapi/v3";
/// What kubectl up to 1.28 asks for, in the two spellings that are met, and what the answer is called.
const PROTOBUF_ASKED: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
];
const PROTOBUF: &str = PROTOBUF_ASKED[1];

/// All documents.
#[derive(Debug)]
pub(crate) struct Documents {
    /// Version 3, by path.
    v3: BTreeMap<String, Document>,
    v2_json: Document,
    v2_protobuf: Document,
}

impl Documents {
    pub(crate) fn new() -> Self {
        let mut groups: BTreeMap<String, Vec<Kind>> = BTreeMap::new();
        for kind in scheme::served() {
            groups.entry(routes::base(kind)).or_default().push(kind);
        }
        let mut v3 = BTreeMap::new();
        let mut paths = Map::new();
        for (base, kinds) in &groups {
            let document = Document::new(v3::document(kinds).to_string().into_bytes());
            let url = format!("{V3}/{base}?hash={}", hash(&document));
            paths.insert(base.clone(), json!({"serverRelativeURL": url}));
            v3.insert(format!("{V3}/{base}"), document);
        }
        let root = json!({"paths": paths}).to_string();
        v3.insert(V3.to_owned(), Document::new(root.into_bytes()));
        let all: Vec<Kind> = groups.into_values().flatten().collect();
        let v2 = v2::document(&all);
        Self {
            v3,
            v2_json: Document::new(v2.to_string().into_bytes()),
            v2_protobuf: Document::new(gnostic::document(&v2)),
        }
    }
}

fn hash(document: &Document) -> &str {
    document.etag.trim_matches('"')
}

/// The head of both versions' documents.
fn info() -> Value {
    json!({"title": "Panda", "version": env!("CARGO_PKG_VERSION")})
}

/// The document at this address, if there is one.
pub(crate) fn serve(
    documents: &Documents,
    uri: &Uri,
    headers: &HeaderMap,
) -> Option<Result<Response, Failure>> {
    let path = uri.path().strip_suffix('/').unwrap_or(uri.path());
    if path == V2 {
        return Some(version_2(documents, headers));
    }
    let document = documents.v3.get(path)?;
    let entries = accept(headers);
    if !entries.is_empty() && !entries.iter().any(|entry| entry.is_json()) {
        return Some(Err(not_acceptable(JSON)));
    }
    let asked = uri
        .query()
        .into_iter()
        .flat_map(|query| query.split('&'))
        .find_map(|pair| pair.strip_prefix("hash="))
        .filter(|_| path != V3);
    Some(Ok(match asked {
        None => document.answer(headers, JSON),
        // Under its hash a document never changes.
        Some(asked) if asked == hash(document) => {
            let mut response = document.answer(headers, JSON);
            let forever = HeaderValue::from_static("public, immutable");
            response.headers_mut().insert(CACHE_CONTROL, forever);
            response
        }
        Some(_) => moved(&format!("{path}?hash={}", hash(document))),
    }))
}

fn moved(to: &str) -> Response {
    let mut response = StatusCode::MOVED_PERMANENTLY.into_response();
    if let Ok(to) = HeaderValue::from_str(to) {
        response.headers_mut().insert(LOCATION, to);
    }
    response
}

fn version_2(documents: &Documents, headers: &HeaderMap) -> Result<Response, Failure> {
    let entries = accept(headers);
    if entries.is_empty() {
        return Ok(documents.v2_json.answer(headers, JSON));
    }
    for entry in &entries {
        let protobuf = |name: &&str| entry.media.eq_ignore_ascii_case(name);
        if PROTOBUF_ASKED.iter().any(protobuf) {
            return Ok(documents.v2_protobuf.answer(headers, PROTOBUF));
        }
        if entry.is_json() {
            return Ok(documents.v2_json.answer(headers, JSON));
        }
    }
    Err(not_acceptable(&format!("{JSON}, {PROTOBUF}")))
}

fn not_acceptable(possible: &str) -> Failure {
    Failure::new(
        Reason::NotAcceptable,
        format!("only the following media types can be produced: {possible}"),
    )
}
