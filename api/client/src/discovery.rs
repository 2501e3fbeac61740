//! The kinds of a server, and the words people use for them.

use std::collections::BTreeMap;

use futures::future::try_join_all;
use serde::Deserialize;

use crate::client::Client;
use crate::error;
use crate::resource::ApiResource;

/// The kinds that a server offers, in its own order: core first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    resources: Vec<ApiResource>,
}

/// Why a word names no kind.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server could not be asked.
    #[error("cannot list the kinds of the server")]
    Request(#[source] error::Error),
    /// No kind is called that.
    #[error("the server doesn't have a resource type {word:?}{}", did_you_mean(.similar))]
    Unknown {
        /// The word.
        word: String,
        /// Plurals that look like it.
        similar: Vec<String>,
    },
}

fn did_you_mean(similar: &[String]) -> String {
    if similar.is_empty() {
        String::new()
    } else {
        format!("; did you mean {}?", similar.join(", "))
    }
}

#[derive(Deserialize)]
struct GroupList {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    name: String,
    preferred_version: Option<GroupVersion>,
    #[serde(default)]
    versions: Vec<GroupVersion>,
}

#[derive(Clone, Deserialize)]
struct GroupVersion {
    version: String,
}

#[derive(Deserialize)]
struct ResourceList {
    resources: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Entry {
    name: String,
    singular_name: String,
    namespaced: bool,
    kind: String,
    verbs: Vec<String>,
    short_names: Vec<String>,
    categories: Vec<String>,
}

impl Discovery {
    /// Asks the server for its kinds: of each group the preferred version.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn fetch(client: &Client) -> Result<Self, Error> {
        let groups: GroupList = client.get_json("/apis").await.map_err(Error::Request)?;
        let mut wanted = vec![(String::new(), "v1".to_owned())];
        for group in groups.groups {
            if let Some(version) = group
                .preferred_version
                .or_else(|| group.versions.first().cloned())
            {
                wanted.push((group.name, version.version));
            }
        }
        let lists = try_join_all(wanted.iter().map(|(group, version)| async move {
            let path = if group.is_empty() {
                format!("/api/{version}")
            } else {
                format!("/apis/{group}/{version}")
            };
            match client.get_json::<ResourceList>(&path).await {
                Ok(list) => Ok(list.resources),
                Err(error) if error.is_not_found() => Ok(Vec::new()),
                Err(error) => Err(Error::Request(error)),
            }
        }))
        .await?;
        let mut resources = Vec::new();
        for ((group, version), entries) in wanted.into_iter().zip(lists) {
            resources.extend(resources_of(&group, &version, entries));
        }
        Ok(Self { resources })
    }

    /// From kinds that are known.
    #[must_use]
    pub const fn from_resources(resources: Vec<ApiResource>) -> Self {
        Self { resources }
    }

    /// All kinds.
    #[must_use]
    pub fn resources(&self) -> &[ApiResource] {
        &self.resources
    }

    /// The kind that `word` names: plural, singular, short name or Kind, in any case, alone or followed by
    /// `.group` or `.version.group`.
    ///
    /// # Errors
    /// When no kind is called that.
    pub fn resolve(&self, word: &str) -> Result<&ApiResource, Error> {
        let lower = word.to_ascii_lowercase();
        let (name, rest) = match lower.split_once('.') {
            Some((name, rest)) => (name, Some(rest)),
            None => (lower.as_str(), None),
        };
        let in_group = |r: &&ApiResource| {
            rest.is_none_or(|rest| {
                rest == r.group || rest == r.version || rest == format!("{}.{}", r.version, r.group)
            })
        };
        let by = |matches: &dyn Fn(&ApiResource) -> bool| {
            self.resources.iter().filter(in_group).find(|r| matches(r))
        };
        by(&|r| r.plural == name)
            .or_else(|| by(&|r| r.singular == name || r.kind.eq_ignore_ascii_case(name)))
            .or_else(|| by(&|r| r.short_names.iter().any(|s| s == name)))
            .ok_or_else(|| Error::Unknown {
                word: word.to_owned(),
                similar: self.similar(name),
            })
    }

    /// The kind of a manifest.
    #[must_use]
    pub fn find(&self, api_version: &str, kind: &str) -> Option<&ApiResource> {
        self.resources
            .iter()
            .find(|r| r.kind == kind && r.api_version() == api_version)
    }

    /// The kinds of a category (`all`, `panda`) that can be listed.
    pub fn category<'a>(&'a self, word: &'a str) -> impl Iterator<Item = &'a ApiResource> {
        self.resources
            .iter()
            .filter(move |r| r.supports("list") && r.categories.iter().any(|c| c == word))
    }

    fn similar(&self, name: &str) -> Vec<String> {
        let mut near: Vec<(usize, String)> = self
            .resources
            .iter()
            .map(|r| {
                let distance = distance(name, &r.plural).min(distance(name, &r.singular));
                (distance, r.plural.clone())
            })
            .filter(|(d, _)| *d <= 2)
            .collect();
        near.sort();
        near.dedup();
        near.into_iter().take(3).map(|(_, plural)| plural).collect()
    }
}

/// Turns the entries of a group into kinds; `tasks/status` becomes a subresource of `tasks`.
fn resources_of(group: &str, version: &str, entries: Vec<Entry>) -> Vec<ApiResource> {
    let mut subresources: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut kinds = Vec::new();
    for entry in entries {
        if let Some((parent, sub)) = entry.name.split_once('/') {
            subresources
                .entry(parent.to_owned())
                .or_default()
                .push(sub.to_owned());
            continue;
        }
        kinds.push(ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            singular: if entry.singular_name.is_empty() {
                entry.kind.to_ascii_lowercase()
            } else {
                entry.singular_name
            },
            kind: entry.kind,
            plural: entry.name,
            namespaced: entry.namespaced,
            verbs: entry.verbs,
            short_names: entry.short_names,
            categories: entry.categories,
            subresources: Vec::new(),
        });
    }
    for kind in &mut kinds {
        kind.subresources = subresources.remove(&kind.plural).unwrap_or_default();
    }
    kinds
}

/// Edits between two words, for suggestions. Long words are not compared.
fn distance(a: &str, b: &str) -> usize {
    if a.len() > 64 || b.len() > 64 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let cost = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn discovery() -> Discovery {
        let entries = |text: &str| serde_json::from_str::<Vec<Entry>>(text).unwrap();
        let mut all = resources_of(
            "",
            "v1",
            entries(
                r#"[{"name":"events","singularName":"event","namespaced":true,"kind":"Event","verbs":["list"],"shortNames":["ev"]}]"#,
            ),
        );
        all.extend(resources_of(
            "events.k8s.io",
            "v1",
            entries(r#"[{"name":"events","kind":"Event","namespaced":true}]"#),
        ));
        all.extend(resources_of(
            "panda.dev",
            "v1alpha1",
            entries(
                r#"[{"name":"tasks","singularName":"task","namespaced":true,"kind":"Task","verbs":["get","list"],"shortNames":["tk"],"categories":["all","panda"]},
                    {"name":"tasks/status","kind":"Task"},
                    {"name":"devices","kind":"Device","shortNames":["dev"],"verbs":["get"],"categories":["all"]}]"#,
            ),
        ));
        Discovery::from_resources(all)
    }

    #[test]
    fn every_word_for_a_kind_finds_it() {
        let d = discovery();
        for word in [
            "tasks",
            "task",
            "Task",
            "tk",
            "TASKS",
            "tasks.panda.dev",
            "tk.panda.dev",
            "task.v1alpha1.panda.dev",
        ] {
            assert_eq!(d.resolve(word).unwrap().plural, "tasks", "{word}");
        }
        assert_eq!(d.resolve("events").unwrap().group, "");
        assert_eq!(d.resolve("events.events.k8s.io").unwrap().group, "events.k8s.io");
        assert_eq!(d.resolve("tasks").unwrap().subresources, ["status"]);
        assert!(
            d.find("panda.dev/v1alpha1", "Device")
                .is_some_and(|r| !r.namespaced)
        );
    }

    #[test]
    fn an_unknown_word_says_what_is_near() {
        let error = discovery().resolve("taks").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the server doesn't have a resource type \"taks\"; did you mean tasks?"
        );
        assert!(discovery().resolve("tasks.other.dev").is_err());
        assert!(discovery().resolve("").is_err());
    }

    #[test]
    fn categories_hold_what_can_be_listed() {
        let d = discovery();
        let all: Vec<_> = d.category("all").map(|r| r.plural.as_str()).collect();
        assert_eq!(all, ["tasks"]);
    }
}
