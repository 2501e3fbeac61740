//! Options of the verbs, as query parameters and bodies.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::resource::encode_query;

/// Query parameters under construction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(String);

impl Query {
    pub(crate) fn push(&mut self, key: &str, value: &str) {
        if !self.0.is_empty() {
            self.0.push('&');
        }
        self.0.push_str(key);
        self.0.push('=');
        self.0.push_str(&encode_query(value));
    }

    fn push_some(&mut self, key: &str, value: Option<&str>) {
        if let Some(value) = value.filter(|v| !v.is_empty()) {
            self.push(key, value);
        }
    }

    pub(crate) fn on(&self, path: &str) -> String {
        if self.0.is_empty() {
            path.to_owned()
        } else {
            format!("{path}?{}", self.0)
        }
    }
}

/// How the server relates `resource_version` of a list to its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionMatch {
    /// Exactly that version, or 410.
    Exact,
    /// That version or a later one.
    NotOlderThan,
}

/// Options of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListParams {
    /// Label selector, for example `app=web,tier!=db`.
    pub label_selector: Option<String>,
    /// Field selector, for example `metadata.name=x`.
    pub field_selector: Option<String>,
    /// At most so many items a page.
    pub limit: Option<u32>,
    /// Token of the next page.
    pub continue_token: Option<String>,
    /// Version to read at; absent: the most recent.
    pub resource_version: Option<String>,
    /// How `resource_version` is meant.
    pub version_match: Option<VersionMatch>,
}

impl ListParams {
    /// Selects by labels.
    #[must_use]
    pub fn labels(selector: impl Into<String>) -> Self {
        Self {
            label_selector: Some(selector.into()),
            ..Self::default()
        }
    }

    /// Selects by fields.
    #[must_use]
    pub fn fields(selector: impl Into<String>) -> Self {
        Self {
            field_selector: Some(selector.into()),
            ..Self::default()
        }
    }

    pub(crate) fn query(&self) -> Query {
        let mut query = Query::default();
        query.push_some("labelSelector", self.label_selector.as_deref());
        query.push_some("fieldSelector", self.field_selector.as_deref());
        if let Some(limit) = self.limit {
            query.push("limit", &limit.to_string());
        }
        query.push_some("continue", self.continue_token.as_deref());
        query.push_some("resourceVersion", self.resource_version.as_deref());
        match self.version_match {
            Some(VersionMatch::Exact) => query.push("resourceVersionMatch", "Exact"),
            Some(VersionMatch::NotOlderThan) => query.push("resourceVersionMatch", "NotOlderThan"),
            None => {}
        }
        query
    }
}

/// Options of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchParams {
    /// Label selector.
    pub label_selector: Option<String>,
    /// Field selector.
    pub field_selector: Option<String>,
    /// Everything after this version; absent or `0`: the current objects first.
    pub resource_version: Option<String>,
    /// After so long the server ends the stream.
    pub timeout: Option<Duration>,
    /// Whether the server tells its version from time to time.
    pub bookmarks: bool,
}

impl Default for WatchParams {
    fn default() -> Self {
        Self {
            label_selector: None,
            field_selector: None,
            resource_version: None,
            timeout: None,
            bookmarks: true,
        }
    }
}

impl WatchParams {
    /// Everything after `version`.
    #[must_use]
    pub fn after(version: impl Into<String>) -> Self {
        Self {
            resource_version: Some(version.into()),
            ..Self::default()
        }
    }

    pub(crate) fn query(&self) -> Query {
        let mut query = Query::default();
        query.push("watch", "true");
        query.push_some("labelSelector", self.label_selector.as_deref());
        query.push_some("fieldSelector", self.field_selector.as_deref());
        query.push_some("resourceVersion", self.resource_version.as_deref());
        if let Some(timeout) = self.timeout {
            query.push("timeoutSeconds", &timeout.as_secs().max(1).to_string());
        }
        if self.bookmarks {
            query.push("allowWatchBookmarks", "true");
        }
        query
    }
}

/// What the server does about fields it does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValidation {
    /// Refuses the object.
    Strict,
    /// Drops them and warns.
    Warn,
    /// Drops them.
    Ignore,
}

/// Options of a write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteParams {
    /// Everything is checked and nothing is stored.
    pub dry_run: bool,
    /// Who the fields belong to afterwards.
    pub field_manager: Option<String>,
    /// What happens to unknown fields.
    pub field_validation: Option<FieldValidation>,
    /// Server-side apply takes fields over from other managers; for no other write.
    pub force: bool,
}

impl WriteParams {
    pub(crate) fn query(&self) -> Query {
        let mut query = Query::default();
        if self.dry_run {
            query.push("dryRun", "All");
        }
        query.push_some("fieldManager", self.field_manager.as_deref());
        match self.field_validation {
            Some(FieldValidation::Strict) => query.push("fieldValidation", "Strict"),
            Some(FieldValidation::Warn) => query.push("fieldValidation", "Warn"),
            Some(FieldValidation::Ignore) => query.push("fieldValidation", "Ignore"),
            None => {}
        }
        if self.force {
            query.push("force", "true");
        }
        query
    }
}

/// What happens to the dependents of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Propagation {
    /// They are collected afterwards.
    Background,
    /// The object waits for them.
    Foreground,
    /// They stay, without the owner.
    Orphan,
}

/// What must still be true of the object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Preconditions {
    /// Its uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
}

/// Options of a delete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeleteParams {
    /// Seconds for a graceful end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_period_seconds: Option<u32>,
    /// What must still be true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preconditions: Option<Preconditions>,
    /// What happens to its dependents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub propagation_policy: Option<Propagation>,
    /// Everything is checked and nothing is deleted.
    #[serde(
        rename = "dryRun",
        skip_serializing_if = "is_false",
        serialize_with = "dry_run",
        skip_deserializing
    )]
    pub dry_run: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(b: &bool) -> bool {
    !*b
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn dry_run<S: serde::Serializer>(_: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    ["All"].serialize(serializer)
}

impl DeleteParams {
    /// Only the object with this uid.
    #[must_use]
    pub fn uid(uid: impl Into<String>) -> Self {
        Self {
            preconditions: Some(Preconditions {
                uid: Some(uid.into()),
                resource_version: None,
            }),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_hold_what_was_set_and_nothing_else() {
        assert_eq!(ListParams::default().query().on("/x"), "/x");
        let list = ListParams {
            limit: Some(500),
            version_match: Some(VersionMatch::NotOlderThan),
            resource_version: Some("7".into()),
            ..ListParams::labels("a=b")
        };
        assert_eq!(
            list.query().on("/x"),
            "/x?labelSelector=a%3Db&limit=500&resourceVersion=7&resourceVersionMatch=NotOlderThan"
        );
        assert_eq!(
            WatchParams::after("9").query().on("/x"),
            "/x?watch=true&resourceVersion=9&allowWatchBookmarks=true"
        );
        let write = WriteParams {
            dry_run: true,
            field_manager: Some("pandactl".into()),
            field_validation: Some(FieldValidation::Strict),
            force: true,
        };
        assert_eq!(
            write.query().on("/x"),
            "/x?dryRun=All&fieldManager=pandactl&fieldValidation=Strict&force=true"
        );
    }

    #[test]
    fn delete_options_are_written_as_upstream_writes_them() {
        let body = serde_json::to_value(DeleteParams {
            dry_run: true,
            propagation_policy: Some(Propagation::Background),
            ..DeleteParams::uid("u1")
        });
        assert_eq!(
            body.unwrap(),
            serde_json::json!({"preconditions": {"uid": "u1"}, "propagationPolicy": "Background", "dryRun": ["All"]})
        );
    }
}
