//! What is recorded of a request: `audit.k8s.io/v1` Event at level Metadata, so that tools for Kubernetes' logs read it.
//! No bodies, no values, no tokens.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use panda_api::meta::MicroTime;
use serde::Serialize;

use crate::authn::User;
use crate::request::{RequestInfo, Target};

/// Longest text that is taken from a request.
const MAX_TEXT: usize = 1024;
/// Most groups and keys of a user.
const MAX_LIST: usize = 64;

/// A record.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Event {
    kind: &'static str,
    api_version: &'static str,
    level: &'static str,
    #[serde(rename = "auditID")]
    audit_id: String,
    stage: &'static str,
    #[serde(rename = "requestURI")]
    request_uri: String,
    verb: &'static str,
    user: Who,
    #[serde(skip_serializing_if = "Option::is_none")]
    impersonated_user: Option<Who>,
    #[serde(rename = "sourceIPs", skip_serializing_if = "Vec::is_empty")]
    source_ips: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    user_agent: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    object_ref: Option<ObjectRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_status: Option<ResponseStatus>,
    request_received_timestamp: MicroTime,
    stage_timestamp: MicroTime,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<&'static str, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct Who {
    username: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: BTreeMap<String, Vec<String>>,
}

impl Who {
    fn of(user: &User) -> Self {
        Self {
            username: short(&user.name),
            uid: short(&user.uid),
            groups: user
                .groups
                .iter()
                .take(MAX_LIST)
                .map(|group| short(group))
                .collect(),
            extra: user.extra.clone().into_iter().take(MAX_LIST).collect(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ObjectRef {
    resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    api_group: String,
    api_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    resource_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    subresource: String,
}

impl ObjectRef {
    fn of(target: &Target) -> Self {
        Self {
            resource: short(&target.resource),
            namespace: short(&target.namespace),
            name: short(target.name.as_deref().unwrap_or_default()),
            api_group: short(&target.group),
            api_version: short(&target.version),
            resource_version: String::new(),
            subresource: short(target.subresource.as_deref().unwrap_or_default()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct ResponseStatus {
    metadata: BTreeMap<String, String>,
    code: u16,
}

/// Who made a request, as far as it is known; filled in once by authentication.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asking {
    /// Who proved to be who.
    pub(crate) user: Option<User>,
    /// As whom it acts, when that is another.
    pub(crate) acting: Option<User>,
}

/// What policies found about a request and only want recorded; in the extensions of the request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    pub(crate) fn add(&self, text: String) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < MAX_LIST && !notes.contains(&text) {
            notes.push(text);
        }
    }

    fn text(&self) -> Option<String> {
        let notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}

/// The object that a request wrote; handlers leave it in the extensions of their answer.
#[derive(Clone, Debug)]
pub(crate) struct WroteObject {
    /// Its name: a creation may have left it to the server.
    pub(crate) name: String,
    /// Its new version.
    pub(crate) resource_version: String,
}

/// What is known when a request arrives.
#[derive(Clone, Debug)]
pub(crate) struct Arrival<'a> {
    pub(crate) id: String,
    pub(crate) uri: String,
    pub(crate) info: &'a RequestInfo,
    pub(crate) source: Option<SocketAddr>,
    pub(crate) user_agent: String,
    pub(crate) at: MicroTime,
}

impl Event {
    pub(crate) fn begin(arrival: Arrival<'_>) -> Self {
        Self {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level: "Metadata",
            audit_id: arrival.id,
            stage: "ResponseComplete",
            request_uri: short(&arrival.uri),
            verb: arrival.info.verb.as_str(),
            user: Who::default(),
            impersonated_user: None,
            source_ips: arrival
                .source
                .map(|address| address.ip().to_string())
                .into_iter()
                .collect(),
            user_agent: short(&arrival.user_agent),
            object_ref: arrival.info.target.as_ref().map(ObjectRef::of),
            response_status: None,
            request_received_timestamp: arrival.at,
            stage_timestamp: arrival.at,
            annotations: BTreeMap::new(),
        }
    }

    /// The request was answered.
    pub(crate) fn answered(
        mut self,
        asking: &Asking,
        code: u16,
        wrote: Option<&WroteObject>,
        at: MicroTime,
    ) -> Self {
        self.by(asking);
        self.response_status = Some(ResponseStatus {
            metadata: BTreeMap::new(),
            code,
        });
        let decision = if code == 403 { "forbid" } else { "allow" };
        if asking.user.is_some() {
            self.annotations
                .insert("authorization.k8s.io/decision", decision.to_owned());
        }
        if let (Some(object), Some(wrote)) = (&mut self.object_ref, wrote) {
            object.name.clone_from(&wrote.name);
            object.resource_version.clone_from(&wrote.resource_version);
        }
        self.stage_timestamp = at;
        self
    }

    /// With what policies found.
    pub(crate) fn noted(self, notes: &Notes) -> Self {
        match notes.text() {
            None => self,
            Some(text) => self.with("validation.policy.admission.k8s.io/validation_failure", text),
        }
    }

    /// How many of its kind were not recorded before it.
    pub(crate) fn after_suppressed(self, count: u64) -> Self {
        match count {
            0 => self,
            count => self.with("panda.dev/suppressed-before", count.to_string()),
        }
    }

    /// The request ended without an answer: its client went away, or its handler panicked.
    pub(crate) fn abandoned(mut self, asking: &Asking, panicked: bool, at: MicroTime) -> Self {
        self.by(asking);
        if panicked {
            self.stage = "Panic";
        }
        self.annotations.insert(
            "panda.dev/outcome",
            "unknown: it ended without an answer".to_owned(),
        );
        self.stage_timestamp = at;
        self
    }

    fn by(&mut self, asking: &Asking) {
        self.user = asking.user.as_ref().map_or_else(
            || Who {
                username: "system:anonymous".to_owned(),
                ..Who::default()
            },
            Who::of,
        );
        self.impersonated_user = asking.acting.as_ref().map(Who::of);
    }

    /// Something about the log itself.
    pub(super) fn note(text: String, id: String, at: MicroTime) -> Self {
        Self {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level: "Metadata",
            audit_id: id,
            stage: "ResponseComplete",
            request_uri: String::new(),
            verb: "note",
            user: Who {
                username: "system:apiserver".to_owned(),
                ..Who::default()
            },
            impersonated_user: None,
            source_ips: Vec::new(),
            user_agent: String::new(),
            object_ref: None,
            response_status: None,
            request_received_timestamp: at,
            stage_timestamp: at,
            annotations: BTreeMap::from([(NOTE, text)]),
        }
    }

    pub(super) fn with(mut self, key: &'static str, value: String) -> Self {
        self.annotations.insert(key, value);
        self
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("our types serialise")
    }
}

/// Annotation of records about the log itself.
pub(super) const NOTE: &str = "panda.dev/note";

fn short(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_TEXT);
    text[..end].to_owned()
}
