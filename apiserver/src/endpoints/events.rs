//! `events.k8s.io/v1`: the events of `v1` under other names of their fields.
//!
//! A request is turned into one for the stored kind, and its answer back. Who may ask was decided before, by the group
//! that was asked for.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, StatusCode, Uri};
use http_body_util::BodyExt;
use panda_api::events::{Event, NAMES};
use panda_api::meta::Reason;
use panda_api::{Event as Stored, Resource};
use serde_json::{Map, Value};

use crate::body;
use crate::endpoints::Api;
use crate::filters::{BodyLimit, Warnings};
use crate::negotiate::{Encoding, content_type, encoding};
use crate::query::Params;
use crate::registry::FieldValidation;
use crate::request::{RequestInfo, Target, Verb};
use crate::respond::{Failure, JSON};

/// Whether a request is for this form.
pub(crate) fn is_meant(target: &Target) -> bool {
    target.group == Event::GROUP && target.version == Event::VERSION && target.resource == Event::PLURAL
}

/// Answers a request for this form.
pub(crate) async fn serve(
    api: &Arc<Api>,
    info: &RequestInfo,
    mut request: Request,
) -> Result<Response, Failure> {
    if let Some(query) = request.uri().query() {
        // Field selectors name stored fields.
        let query = query
            .replace("regarding.", "involvedObject.")
            .replace("reportingController", "reportingComponent");
        let uri = format!("{}?{query}", request.uri().path());
        *request.uri_mut() = uri.parse::<Uri>().map_err(|_| Failure::no_route())?;
    }
    let request = match info.verb {
        Verb::Create | Verb::Update | Verb::Patch => renamed(request).await?,
        _ => request,
    };
    let mut info = info.clone();
    if let Some(target) = &mut info.target {
        Stored::GROUP.clone_into(&mut target.group);
        Stored::VERSION.clone_into(&mut target.version);
    }
    match super::objects(api, &info, request).await {
        Ok(response) if info.verb == Verb::Watch => Ok(watched(response)),
        Ok(response) => answered(response).await,
        Err(failure) => Err(refused(&failure)),
    }
}

/// The request with the stored names in its body.
async fn renamed(request: Request) -> Result<Request, Failure> {
    let (mut parts, body) = request.into_parts();
    let limit = parts.extensions.get().copied().unwrap_or(BodyLimit(0));
    let bytes = body::read(body, limit).await?;
    let validation = Params::of(&parts.uri)?.field_validation()?;
    let media = content_type(&parts.headers);
    let patch = media.as_deref().is_some_and(|media| media.contains("patch+"));
    let how = match media.as_deref() {
        Some("application/apply-patch+yaml") => Encoding::Yaml,
        _ if patch => Encoding::Json,
        _ => encoding(&parts.headers)?,
    };
    let decoded = body::decode(&bytes, how, validation)?;
    let mut value = decoded.value;
    let mut odd = inwards(&mut value);
    odd.extend(decoded.duplicates);
    match validation.unwrap_or_default() {
        FieldValidation::Strict if !odd.is_empty() => {
            return Err(Failure::bad_request(format!(
                "Event in version \"v1\" cannot be handled as a Event: strict decoding error: {}",
                odd.join(", ")
            )));
        }
        FieldValidation::Warn => {
            if let Some(warnings) = parts.extensions.get::<Warnings>() {
                warnings.add(odd);
            }
        }
        _ => {}
    }
    let bytes = Bytes::from(value.to_string());
    // What was read as YAML or protobuf is JSON now, which YAML is, too.
    if !patch {
        parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    }
    parts
        .headers
        .insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
    Ok(Request::from_parts(parts, Body::from(bytes)))
}

fn stored_name(name: &str) -> &str {
    NAMES
        .iter()
        .find(|(here, _)| *here == name)
        .map_or(name, |(_, stored)| stored)
}

fn shown_name(name: &str) -> &str {
    NAMES
        .iter()
        .find(|(_, stored)| *stored == name)
        .map_or(name, |(here, _)| here)
}

fn rename(object: &mut Map<String, Value>, name: impl Fn(&str) -> &str) {
    let old = std::mem::take(object);
    object.extend(old.into_iter().map(|(key, value)| (name(&key).to_owned(), value)));
}

/// From what a client sends to what is stored: an object, a merge patch or a JSON patch. Answers which fields are
/// unknown, because only the stored form calls one so; they are dropped.
fn inwards(value: &mut Value) -> Vec<String> {
    let mut unknown = Vec::new();
    match value {
        Value::Array(operations) => {
            for operation in operations {
                for key in ["path", "from"] {
                    if let Some(Value::String(path)) = operation.get_mut(key) {
                        *path = stored_path(path);
                    }
                }
                if operation["path"] == "" && operation["value"].is_object() {
                    unknown.extend(inwards(&mut operation["value"]));
                }
            }
        }
        Value::Object(object) => {
            object.retain(|key, _| {
                let known = shown_name(key) == key;
                if !known {
                    unknown.push(format!("unknown field \"{key}\""));
                }
                known
            });
            rename(object, stored_name);
            if object.get("apiVersion").and_then(Value::as_str) == Some(&Event::api_version()) {
                object.insert("apiVersion".to_owned(), Stored::api_version().into());
            }
        }
        _ => {}
    }
    unknown
}

fn stored_path(path: &str) -> String {
    let Some(rest) = path.strip_prefix('/') else {
        return path.to_owned();
    };
    let (first, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    format!("/{}{rest}", stored_name(first))
}

/// From what is stored to what a client sees: an event, a list or table of them, anything else as it is.
fn outwards(value: &mut Value) {
    let stored = Stored::api_version();
    let is = |value: &Value, kind: &str| value["apiVersion"] == stored.as_str() && value["kind"] == kind;
    if is(value, Stored::KIND) {
        value["apiVersion"] = Event::api_version().into();
        if let Value::Object(object) = value {
            rename(object, shown_name);
        }
    } else if is(value, "EventList") {
        value["apiVersion"] = Event::api_version().into();
        each(&mut value["items"], outwards);
    } else if value["kind"] == "Table" {
        each(&mut value["rows"], |row| {
            if row.get("object").is_some() {
                outwards(&mut row["object"]);
            }
        });
    } else if is(value, "Status") && value["details"]["kind"] == Stored::PLURAL {
        value["details"]["group"] = Event::GROUP.into();
    }
}

fn each(list: &mut Value, change: impl Fn(&mut Value)) {
    list.as_array_mut().into_iter().flatten().for_each(change);
}

fn damaged() -> Failure {
    Failure::new(Reason::InternalError, "the answer cannot be read")
}

async fn answered(response: Response) -> Result<Response, Failure> {
    let (mut parts, body) = response.into_parts();
    let bytes = body.collect().await.map_err(|_| damaged())?.to_bytes();
    let bytes = shown(&bytes).ok_or_else(damaged)?;
    parts.headers.remove(CONTENT_LENGTH);
    Ok(Response::from_parts(parts, Body::from(bytes)))
}

fn shown(json: &[u8]) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(json).ok()?;
    outwards(&mut value);
    serde_json::to_vec(&value).ok()
}

fn refused(failure: &Failure) -> Failure {
    let mut status = failure.status().clone();
    if let Some(details) = &mut status.details
        && (details.kind == Stored::PLURAL || details.kind == Stored::KIND)
    {
        Event::GROUP.clone_into(&mut details.group);
        let full = format!("{}.{} \"", details.kind, Event::GROUP);
        status.message = status.message.replacen(&format!("{} \"", details.kind), &full, 1);
    }
    status.into()
}

/// A watch, line by line. A line that cannot be read ends it.
fn watched(response: Response) -> Response {
    if response.status() != StatusCode::OK {
        return response;
    }
    let (parts, body) = response.into_parts();
    let lines = futures::stream::unfold(
        Some((body.into_data_stream(), BytesMut::new())),
        |state| async move {
            let (mut body, mut rest) = state?;
            let chunk = body.next().await?.ok()?;
            rest.extend_from_slice(&chunk);
            let mut out = Vec::with_capacity(rest.len());
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line = rest.split_to(end + 1);
                let mut event: Value = serde_json::from_slice(&line).ok()?;
                outwards(&mut event["object"]);
                serde_json::to_writer(&mut out, &event).ok()?;
                out.push(b'\n');
            }
            Some((Ok::<_, Infallible>(Bytes::from(out)), Some((body, rest))))
        },
    );
    Response::from_parts(parts, Body::from_stream(lines))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_go_in_and_come_out() {
        let mut object = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "note": "n", "reason": "R",
            "regarding": {"kind": "Task"}, "message": "unknown here"});
        assert_eq!(inwards(&mut object), ["unknown field \"message\""]);
        assert_eq!(
            object,
            json!({"apiVersion": "v1", "kind": "Event", "message": "n", "reason": "R",
                "involvedObject": {"kind": "Task"}})
        );
        outwards(&mut object);
        assert_eq!(
            object,
            json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "note": "n", "reason": "R",
                "regarding": {"kind": "Task"}})
        );
        let mut list = json!({"apiVersion": "v1", "kind": "EventList",
            "items": [{"apiVersion": "v1", "kind": "Event", "count": 2}]});
        outwards(&mut list);
        assert_eq!(list["apiVersion"], "events.k8s.io/v1");
        assert_eq!(list["items"][0]["deprecatedCount"], 2);
        let mut patch = json!([{"op": "replace", "path": "/note", "value": "m"},
            {"op": "move", "from": "/deprecatedCount", "path": "/series/count"}]);
        inwards(&mut patch);
        assert_eq!(patch[0]["path"], "/message");
        assert_eq!(
            (&patch[1]["from"], &patch[1]["path"]),
            (&json!("/count"), &json!("/series/count"))
        );
    }
}
