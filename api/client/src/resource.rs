//! What a kind is called on the wire.

use std::fmt;

use panda_api::Resource;
use panda_api::meta::ObjectMeta;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Names of a kind, from a type or from discovery.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiResource {
    /// API group; empty for the core group.
    pub group: String,
    /// Version within the group.
    pub version: String,
    /// Kind, in CamelCase.
    pub kind: String,
    /// Plural, as in URLs.
    pub plural: String,
    /// Singular, as people say it.
    pub singular: String,
    /// Whether objects live in a namespace.
    pub namespaced: bool,
    /// Verbs that the server offers; empty when the names do not come from discovery.
    pub verbs: Vec<String>,
    /// Short names.
    pub short_names: Vec<String>,
    /// Categories, for example `all`.
    pub categories: Vec<String>,
    /// Names of its subresources, for example `status`.
    pub subresources: Vec<String>,
}

impl ApiResource {
    /// The names of a type.
    #[must_use]
    pub fn of<K: Resource>() -> Self {
        Self {
            group: K::GROUP.to_owned(),
            version: K::VERSION.to_owned(),
            kind: K::KIND.to_owned(),
            plural: K::PLURAL.to_owned(),
            singular: K::KIND.to_ascii_lowercase(),
            namespaced: K::NAMESPACED,
            ..Self::default()
        }
    }

    /// `group/version`, or the version alone for the core group.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Path of the collection; all namespaces when `namespace` is absent.
    #[must_use]
    pub fn path(&self, namespace: Option<&str>) -> String {
        let root = if self.group.is_empty() { "/api/" } else { "/apis/" };
        let api_version = self.api_version();
        match namespace {
            Some(ns) => format!(
                "{root}{api_version}/namespaces/{}/{}",
                encode_segment(ns),
                self.plural
            ),
            None => format!("{root}{api_version}/{}", self.plural),
        }
    }

    /// Whether the server offers `verb`, as far as is known.
    #[must_use]
    pub fn supports(&self, verb: &str) -> bool {
        self.verbs.is_empty() || self.verbs.iter().any(|v| v == verb)
    }
}

impl fmt::Display for ApiResource {
    /// `tasks.panda.dev`, as in the server's messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.plural)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        Ok(())
    }
}

/// Percent-encodes what may not stand in a path segment, so that no name can reach another path.
pub(crate) fn encode_segment(text: &str) -> String {
    encode(text, b"-._~:@!$'()*,;=&+")
}

/// Percent-encodes what may not stand in a query value.
pub(crate) fn encode_query(text: &str) -> String {
    encode(text, b"-._~:@!$'()*,;/")
}

fn encode(text: &str, keep: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for &byte in text.as_bytes() {
        if byte.is_ascii_alphanumeric() || keep.contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    // A segment of dots only would be taken as "here" or "up" by whatever normalises paths on the way.
    if matches!(out.as_str(), "." | "..") {
        out = out.replace('.', "%2E");
    }
    out
}

/// Anything with metadata: what caches and controllers need of an object.
pub trait Object: Serialize + DeserializeOwned + Clone + fmt::Debug + Send + Sync + 'static {
    /// The object's metadata.
    fn meta(&self) -> &ObjectMeta;
}

impl<K: Resource> Object for K {
    fn meta(&self) -> &ObjectMeta {
        self.metadata()
    }
}

/// The metadata of an object of any kind, for those who look at nothing else (garbage collection).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PartialObject {
    /// `group/version`.
    pub api_version: String,
    /// The kind.
    pub kind: String,
    /// Its metadata.
    pub metadata: ObjectMeta,
}

impl Object for PartialObject {
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_group_and_scope() {
        let task = ApiResource::of::<panda_api::Task>();
        assert_eq!(
            task.path(Some("web")),
            "/apis/panda.dev/v1alpha1/namespaces/web/tasks"
        );
        assert_eq!(task.path(None), "/apis/panda.dev/v1alpha1/tasks");
        let secret = ApiResource::of::<panda_api::Secret>();
        assert_eq!(secret.path(Some("web")), "/api/v1/namespaces/web/secrets");
        assert_eq!(task.to_string(), "tasks.panda.dev");
        assert_eq!(secret.to_string(), "secrets");
    }

    #[test]
    fn a_name_cannot_reach_another_path() {
        assert_eq!(encode_segment("../x?y#z"), "..%2Fx%3Fy%23z");
        assert_eq!(encode_segment(".."), "%2E%2E");
        assert_eq!(encode_query("a=b,c in (d e)"), "a%3Db,c%20in%20(d%20e)");
    }
}
