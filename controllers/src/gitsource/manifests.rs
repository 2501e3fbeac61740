//! From files to objects that are to be applied.

use std::collections::BTreeMap;

use panda_api::apply_set::PART_OF;
use panda_api::manifest::{self, Document};
use panda_api::meta::field_path::FieldPath;
use serde_json::{Value, json};

use crate::framework::{KINDS, Target, cut};

/// Most problems that are told.
const MAX_PROBLEMS: usize = 20;
/// Longest problem, in bytes.
const MAX_PROBLEM: usize = 400;
/// Most objects of one source.
pub const MAX_OBJECTS: usize = 10_000;

/// An object of a repository.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// Which one it is.
    pub target: Target,
    /// The object, with its namespace and the label of its set.
    pub object: Value,
}

/// What cannot be used, each with its file and line; 20 at most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(pub Vec<String>);

impl Problems {
    fn add(&mut self, what: &str) {
        if self.0.len() < MAX_PROBLEMS {
            self.0.push(cut(what.trim(), MAX_PROBLEM));
        }
    }
}

/// The objects of all files, in order. Objects without a namespace go to `namespace`; all become part of `set`.
///
/// # Errors
/// Everything that is wrong. A commit of which a part cannot be used is not used at all.
pub fn read(files: &[(String, Vec<u8>)], namespace: &str, set: &str) -> Result<Vec<Desired>, Problems> {
    let mut problems = Problems::default();
    let mut desired = Vec::new();
    let mut places: BTreeMap<Target, String> = BTreeMap::new();
    for (name, bytes) in files {
        let read = manifest::read(name, bytes);
        for error in &read.errors {
            problems.add(&error.to_string());
        }
        for document in read.documents {
            let place = format!("{}:{}", document.file(), document.start().line);
            match one(&document, namespace, set) {
                Ok(found) => {
                    if let Some(before) = places.insert(found.target.clone(), place) {
                        let what = format!("stands twice; the first time at {before}");
                        problems.add(&document.error(&field("metadata.name"), what).to_string());
                    } else {
                        desired.push(found);
                    }
                }
                Err((path, what)) => problems.add(&document.error(&field(path), what).to_string()),
            }
            if desired.len() > MAX_OBJECTS {
                problems.add(&format!("there are more than {MAX_OBJECTS} objects"));
                return Err(problems);
            }
        }
    }
    if problems.0.is_empty() {
        Ok(desired)
    } else {
        Err(problems)
    }
}

fn field(path: &str) -> FieldPath {
    path.parse().unwrap_or_default()
}

fn one(document: &Document, namespace: &str, set: &str) -> Result<Desired, (&'static str, String)> {
    let text = |key: &str| document.object[key].as_str().unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let known = KINDS
        .into_iter()
        .find(|known| known.api_version() == api_version && known.kind == kind);
    let Some(known) = known else {
        return Err(("kind", format!("there is no kind {kind:?} in {api_version:?}")));
    };
    let mut object = document.object.clone();
    manifest::without_server_fields(&mut object);
    let meta = &mut object["metadata"];
    let name = meta["name"].as_str().unwrap_or_default().to_owned();
    if name.is_empty() {
        return Err(("metadata", "the object has no name".to_owned()));
    }
    if !meta["labels"].is_object() {
        meta["labels"] = json!({});
    }
    meta["labels"][PART_OF] = set.into();
    let mut place = String::new();
    if known.namespaced {
        let written = meta["namespace"].as_str().filter(|written| !written.is_empty());
        place = written.unwrap_or(namespace).to_owned();
        meta["namespace"] = place.clone().into();
    }
    Ok(Desired {
        target: Target {
            kind: known,
            namespace: place,
            name,
        },
        object,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(texts: &[(&str, &str)]) -> Vec<(String, Vec<u8>)> {
        texts
            .iter()
            .map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec()))
            .collect()
    }

    #[test]
    fn objects_get_a_namespace_and_a_set() {
        let text = "apiVersion: panda.dev/v1alpha1\nkind: Task\nmetadata: {name: a, uid: x}\nspec: {prompt: p}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: web}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: web, labels: {a: b}}\n";
        let found = read(&files(&[("a.yaml", text)]), "default", "set").unwrap();
        let shown: Vec<String> = found.iter().map(|desired| desired.target.to_string()).collect();
        assert_eq!(shown, ["tasks/default/a", "namespaces/web", "configmaps/web/c"]);
        assert_eq!(
            found[2].object["metadata"],
            json!({"name": "c", "namespace": "web", "labels": {"a": "b", PART_OF: "set"}})
        );
        assert!(found[0].object["metadata"].get("uid").is_none());
    }

    #[test]
    fn what_is_wrong_has_a_place_and_spoils_the_commit() {
        let good = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n";
        for (text, word) in [
            ("kind: [\n", "b.yaml:"),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n",
                "no kind \"Pod\"",
            ),
            ("apiVersion: v1\nkind: ConfigMap\nmetadata: {}\n", "no name"),
            (good, "stands twice; the first time at a.yaml:1"),
        ] {
            let problems = read(&files(&[("a.yaml", good), ("b.yaml", text)]), "default", "set").unwrap_err();
            assert!(problems.0[0].contains(word), "{problems:?}");
            assert!(problems.0[0].contains("b.yaml"), "{problems:?}");
        }
        let many = "---\nkind: [\n".repeat(100);
        assert!(read(&files(&[("a.yaml", &many)]), "d", "s").unwrap_err().0.len() <= MAX_PROBLEMS);
    }
}
