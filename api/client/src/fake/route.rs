//! From an HTTP request to a verb, and back.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, Request, Response, StatusCode};
use panda_api::meta::selector::{Fields, Labels};
use panda_api::meta::{Reason, Status};
use panda_api::scheme::{self, KindInfo};
use serde_json::{Value, json};

use super::faults::Seen;
use super::state::{State, Target, refusal};
use super::{Server, stream};
use crate::params::DeleteParams;
use crate::transport::Body;

/// A request, understood.
pub(super) struct Call {
    verb: &'static str,
    path: String,
    pub(super) info: Option<&'static KindInfo>,
    pub(super) namespace: String,
    name: String,
    subresource: String,
    pub(super) query: BTreeMap<String, String>,
}

/// What a list or watch selects.
#[derive(Clone, Default)]
pub(super) struct Selection {
    labels: Labels,
    fields: Fields,
}

impl Selection {
    fn read(info: &KindInfo, query: &BTreeMap<String, String>) -> Result<Self, Box<Status>> {
        let bad = |e: &dyn std::fmt::Display| refusal(Reason::BadRequest, e.to_string());
        let text = |key: &str| query.get(key).map(String::as_str).unwrap_or_default();
        let labels: Labels = text("labelSelector").parse().map_err(|e| bad(&e))?;
        let fields: Fields = text("fieldSelector").parse().map_err(|e| bad(&e))?;
        fields.check(info.selectable_fields).map_err(|e| bad(&e))?;
        Ok(Self { labels, fields })
    }

    pub(super) fn matches(&self, info: &KindInfo, object: &Value) -> bool {
        self.labels.matches_object(object)
            && self
                .fields
                .matches_with(|path| scheme::selectable_field(info, object, path))
    }
}

impl Call {
    pub(super) fn read(request: &Request<Bytes>) -> Result<Self, Box<Status>> {
        let path = request.uri().path();
        let segments: Vec<String> = path.trim_matches('/').split('/').map(decode).collect();
        let query: BTreeMap<String, String> = request
            .uri()
            .query()
            .unwrap_or_default()
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(k, v)| (decode(k), decode(v)))
            .collect();
        let mut call = Self {
            verb: "other",
            path: path.to_owned(),
            info: None,
            namespace: String::new(),
            name: String::new(),
            subresource: String::new(),
            query,
        };
        let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return Ok(call),
        };
        // `namespaces` is both a kind and a scope.
        let (namespace, rest) = match rest {
            ["namespaces", namespace, inner @ ..]
                if inner.first().is_some_and(|first| *first != "status") =>
            {
                (*namespace, inner)
            }
            rest => ("", rest),
        };
        let [plural, rest @ ..] = rest else {
            return Ok(call);
        };
        let info = scheme::by_plural(group, version, plural).ok_or_else(unknown_route)?;
        if info.namespaced == namespace.is_empty() && (!info.namespaced || !rest.is_empty()) {
            return Err(unknown_route());
        }
        call.info = Some(info);
        namespace.clone_into(&mut call.namespace);
        if let [name, subresource @ ..] = rest {
            (*name).clone_into(&mut call.name);
            call.subresource = subresource.join("/");
        }
        call.verb = match (request.method(), call.name.is_empty()) {
            (&Method::GET, true) if call.query.get("watch").is_some_and(|w| w != "false" && w != "0") => {
                "watch"
            }
            (&Method::GET, true) => "list",
            (&Method::GET, false) => "get",
            (&Method::POST, _) => "create",
            (&Method::PUT, false) => "update",
            (&Method::PATCH, false) => "patch",
            (&Method::DELETE, false) => "delete",
            _ => {
                return Err(refusal(
                    Reason::MethodNotAllowed,
                    "the server does not allow this method",
                ));
            }
        };
        Ok(call)
    }

    pub(super) fn seen(&self) -> Seen {
        let plural = self.info.map_or(self.path.as_str(), |i| i.plural);
        Seen {
            verb: self.verb,
            resource: if self.subresource.is_empty() {
                plural.to_owned()
            } else {
                format!("{plural}/{}", self.subresource)
            },
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }

    fn target(&self, info: &'static KindInfo, dry_run: bool) -> Target<'_> {
        Target {
            info,
            namespace: &self.namespace,
            name: &self.name,
            dry_run: dry_run || self.query.contains_key("dryRun"),
        }
    }
}

fn unknown_route() -> Box<Status> {
    refusal(
        Reason::NotFound,
        "the server could not find the requested resource",
    )
}

impl Server {
    pub(super) fn answer(&self, call: Call, body: Bytes) -> Response<Body> {
        let Some(info) = call.info else {
            return match discovery(&call.path) {
                Some(document) => reply(StatusCode::OK, &document),
                None => refuse(&unknown_route()),
            };
        };
        if call.verb == "watch" {
            return match Selection::read(info, &call.query) {
                Ok(selection) => stream::open(self, &call, info, selection),
                Err(status) => refuse(&status),
            };
        }
        let result = {
            let mut state = self.state();
            self.perform(&mut state, &call, info, &body)
        };
        self.shared.changed.notify_waiters();
        match result {
            Ok(value) if call.verb == "create" => reply(StatusCode::CREATED, &value),
            Ok(value) => reply(StatusCode::OK, &value),
            Err(status) => refuse(&status),
        }
    }

    fn perform(
        &self,
        state: &mut State,
        call: &Call,
        info: &'static KindInfo,
        body: &Bytes,
    ) -> Result<Value, Box<Status>> {
        let config = &self.shared.config;
        let target = call.target(info, false);
        let has_subresource =
            matches!(call.subresource.as_str(), "") || (call.subresource == "status" && info.has_status);
        if call.verb == "create" && !call.name.is_empty() {
            return post(state, call, target, &json_body(body)?);
        }
        if !has_subresource {
            return Err(unknown_route());
        }
        let subresource = (!call.subresource.is_empty()).then_some(call.subresource.as_str());
        match call.verb {
            "get" => Ok((*state.get(info, &call.namespace, &call.name)?).clone()),
            "list" => list(state, call, info),
            "create" => state.create(config, target, json_body(body)?),
            "update" => state.update(target, json_body(body)?, subresource, true),
            "patch" => {
                let mut object = (*state.get(info, &call.namespace, &call.name)?).clone();
                // Without one of its own, a patch applies to whatever is there.
                if let Some(meta) = object["metadata"].as_object_mut() {
                    meta.remove("resourceVersion");
                }
                merge(&mut object, &json_body(body)?);
                state.update(target, object, subresource, false)
            }
            "delete" => {
                let options = if body.is_empty() {
                    json!({})
                } else {
                    json_body(body)?
                };
                let dry_run = !options["dryRun"].is_null();
                let params: DeleteParams = serde_json::from_value(options)
                    .map_err(|e| refusal(Reason::BadRequest, e.to_string()))?;
                state.delete(config, call.target(info, dry_run), &params)
            }
            _ => Err(unknown_route()),
        }
    }
}

fn post(state: &mut State, call: &Call, target: Target<'_>, body: &Value) -> Result<Value, Box<Status>> {
    let key = (target.info.plural.to_owned(), call.subresource.clone());
    let handler = state.post_handlers.get(&key).cloned().ok_or_else(unknown_route)?;
    let mut object = (*state.get(target.info, target.namespace, target.name)?).clone();
    let answer = handler(&mut object, body)?;
    state.put(target, object);
    Ok(answer)
}

fn list(state: &mut State, call: &Call, info: &'static KindInfo) -> Result<Value, Box<Status>> {
    let selection = Selection::read(info, &call.query)?;
    let limit = call
        .query
        .get("limit")
        .and_then(|l| l.parse::<usize>().ok())
        .filter(|l| *l > 0);
    let expired = || {
        refusal(
            Reason::Expired,
            "The provided continue parameter is too old to display a consistent list result.",
        )
    };
    let (revision, skip, all): (u64, usize, Vec<Arc<Value>>) = match call.query.get("continue") {
        Some(token) => {
            let parsed = token
                .split_once('.')
                .and_then(|(r, s)| Some((r.parse::<u64>().ok()?, s.parse::<usize>().ok()?)));
            let (revision, skip) =
                parsed.ok_or_else(|| refusal(Reason::BadRequest, "continue key is not valid"))?;
            let snapshot = state.snapshots.get(&revision).cloned().ok_or_else(expired)?;
            (revision, skip, snapshot)
        }
        None => (state.revision, 0, state.list(info, "")),
    };
    let selected: Vec<&Arc<Value>> = all
        .iter()
        .filter(|o| call.namespace.is_empty() || o["metadata"]["namespace"] == call.namespace.as_str())
        .filter(|o| selection.matches(info, o))
        .collect();
    let page: Vec<&Arc<Value>> = selected
        .iter()
        .copied()
        .skip(skip)
        .take(limit.unwrap_or(usize::MAX))
        .collect();
    let end = skip + page.len();
    let mut metadata = json!({"resourceVersion": revision.to_string()});
    if end < selected.len() {
        metadata["continue"] = Value::from(format!("{revision}.{end}"));
        let snapshot = all.clone();
        state.snapshots.insert(revision, snapshot);
    }
    let items: Vec<&Value> = page.iter().map(|o| o.as_ref()).collect();
    Ok(
        json!({"kind": info.list_kind(), "apiVersion": info.api_version(), "metadata": metadata, "items": items}),
    )
}

/// Merge patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            if let Some(map) = target.as_object_mut() {
                map.remove(key);
            }
        } else {
            merge(&mut target[key.as_str()], value);
        }
    }
}

fn discovery(path: &str) -> Option<Value> {
    let resources = |group: &str, version: &str| {
        let mut list = Vec::new();
        for k in scheme::kinds()
            .iter()
            .filter(|k| k.group == group && k.version == version)
        {
            list.push(
                json!({"name": k.plural, "singularName": k.singular, "namespaced": k.namespaced,
                "kind": k.kind, "verbs": k.verbs, "shortNames": k.short_names, "categories": k.categories}),
            );
            if k.has_status {
                list.push(json!({"name": format!("{}/status", k.plural), "singularName": "",
                    "namespaced": k.namespaced, "kind": k.kind, "verbs": ["get", "patch", "update"]}));
            }
        }
        (!list.is_empty()).then(|| json!({"kind": "APIResourceList", "resources": list}))
    };
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["api"] => Some(json!({"kind": "APIVersions", "versions": ["v1"]})),
        ["api", version] => resources("", version),
        ["apis"] => {
            let mut groups: Vec<(&str, &str)> = scheme::kinds()
                .iter()
                .filter(|k| !k.group.is_empty())
                .map(|k| (k.group, k.version))
                .collect();
            groups.sort_unstable();
            groups.dedup();
            let groups: Vec<Value> = groups
                .into_iter()
                .map(|(group, version)| {
                    let v = json!({"groupVersion": format!("{group}/{version}"), "version": version});
                    json!({"name": group, "versions": [v], "preferredVersion": v})
                })
                .collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["apis", group, version] => resources(group, version),
        ["version"] => Some(json!({"major": "1", "minor": "33", "gitVersion": "v1.33.0-fake"})),
        _ => None,
    }
}

fn json_body(body: &Bytes) -> Result<Value, Box<Status>> {
    serde_json::from_slice(body).map_err(|e| refusal(Reason::BadRequest, format!("the body is no JSON: {e}")))
}

fn reply(code: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::full(value.to_string()));
    *response.status_mut() = code;
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

pub(super) fn refuse(status: &Status) -> Response<Body> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    reply(code, &json!(status))
}

/// Percent-decoding; what is malformed stays as it is.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = (bytes[at] == b'%')
            .then(|| text.get(at + 1..at + 3))
            .flatten()
            .and_then(|h| u8::from_str_radix(h, 16).ok());
        match hex {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
