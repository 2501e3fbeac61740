//! `v1`: Namespace, Secret, ConfigMap, Event, in upstream's shapes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::meta::{Condition, MicroTime, Time};
use crate::resource;

resource! {
    /// A project: the scope of names.
    Namespace, "", "v1", "namespaces", namespaced: false {
        /// What keeps the namespace from going.
        #[serde(default)]
        spec: NamespaceSpec,
        /// Whether it is in use or going.
        #[serde(default)]
        status: NamespaceStatus,
    }
}

/// Spec of a [`Namespace`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceSpec {
    /// Who must finish before the namespace may go; `kubernetes` means that its contents must be gone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
}

/// Status of a [`Namespace`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceStatus {
    /// `Active` or `Terminating`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// What blocks deletion, if anything does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

resource! {
    /// Confidential values. Encrypted at rest; never printed; delivered only to a Run that names it.
    Secret, "", "v1", "secrets", namespaced: true {
        /// Values, base64.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        data: BTreeMap<String, String>,
        /// Values in plain text, for writing: moved to `data` by the server.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        string_data: BTreeMap<String, String>,
        /// What the values are for; `Opaque` by default.
        #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
        type_: String,
        /// True: the values can never change again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        immutable: Option<bool>,
    }
}

resource! {
    /// Values that are no secret.
    ConfigMap, "", "v1", "configmaps", namespaced: true {
        /// Values as text.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        data: BTreeMap<String, String>,
        /// Values as base64.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        binary_data: BTreeMap<String, String>,
        /// True: the values can never change again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        immutable: Option<bool>,
    }
}

resource! {
    /// Something that happened to an object, for people. Lives 24 hours.
    Event, "", "v1", "events", namespaced: true {
        /// The object it is about.
        #[serde(default)]
        involved_object: ObjectReference,
        /// Stable CamelCase word.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
        /// Sentence for people.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        message: String,
        /// `Normal` or `Warning`.
        #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
        type_: String,
        /// Who saw it.
        #[serde(default)]
        source: EventSource,
        /// When it was first seen.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        first_timestamp: Option<Time>,
        /// When it was last seen.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_timestamp: Option<Time>,
        /// How often it was seen.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        count: Option<i32>,
        /// When it was seen, exactly.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        event_time: Option<MicroTime>,
        /// What was done about it.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        action: String,
        /// Another object that it is about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        related: Option<ObjectReference>,
        /// The controller that reports it.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reporting_component: String,
        /// The instance of that controller.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reporting_instance: String,
        /// How it went on, when it was seen more than once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        series: Option<EventSeries>,
    }
}

/// The later sightings of an [`Event`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EventSeries {
    /// How often it was seen so far.
    pub count: i32,
    /// When it was last seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_observed_time: Option<MicroTime>,
}

/// A reference to any object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectReference {
    /// `group/version`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// Kind.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Uid.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Version that was seen.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Part of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field_path: String,
}

/// Who saw an [`Event`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EventSource {
    /// The component.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub component: String,
    /// The machine.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
}
