//! `events.k8s.io/v1`: Event, the newer way to write and read the same events as those of `v1`.

use crate::core::{EventSeries, EventSource, ObjectReference};
use crate::meta::{MicroTime, Time};
use crate::resource;

resource! {
    /// Something that happened to an object, for people. Lives 24 hours. The same object as the `v1` Event of its name.
    Event, "events.k8s.io", "v1", "events", namespaced: true {
        /// When it was first seen, exactly.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        event_time: Option<MicroTime>,
        /// How it went on, when it was seen more than once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        series: Option<EventSeries>,
        /// The controller that reports it.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reporting_controller: String,
        /// The instance of that controller.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reporting_instance: String,
        /// What was done about it.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        action: String,
        /// Stable CamelCase word.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
        /// The object it is about.
        #[serde(default)]
        regarding: ObjectReference,
        /// Another object that it is about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        related: Option<ObjectReference>,
        /// Sentence for people.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        note: String,
        /// `Normal` or `Warning`.
        #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
        type_: String,
        /// Who saw it, as `v1` says it.
        #[serde(default)]
        deprecated_source: EventSource,
        /// When it was first seen, as `v1` says it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deprecated_first_timestamp: Option<Time>,
        /// When it was last seen, as `v1` says it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deprecated_last_timestamp: Option<Time>,
        /// How often it was seen, as `v1` says it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deprecated_count: Option<i32>,
    }
}

/// The fields that have another name here, with their names in `v1`; all others are called the same.
pub const NAMES: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];
