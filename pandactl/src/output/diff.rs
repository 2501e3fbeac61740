//! What would change of an object, as a unified diff of its YAML. Values of Secrets are never shown.

use std::time::Duration;

use panda_api::manifest;
use serde_json::{Map, Value};
use similar::{Algorithm, TextDiff};

use super::text::{self, Style};
use crate::apply::merge::LAST_APPLIED;

/// Lines around a change.
const CONTEXT: usize = 3;
/// How long the shortest difference is looked for; then a longer one is good enough.
const PATIENCE: Duration = Duration::from_secs(5);

/// The two states of an object.
#[derive(Clone, Debug)]
pub struct Sides {
    /// What the server has; none: nothing.
    pub live: Option<Value>,
    /// What it would have; none: nothing.
    pub merged: Option<Value>,
}

impl Sides {
    /// The difference under the name of the object, with a break at its end; nothing when there is none.
    #[must_use]
    pub fn unified(mut self, name: &str, managed_fields: bool) -> Option<String> {
        mask(&mut self);
        for side in [&mut self.live, &mut self.merged].into_iter().flatten() {
            tidy(side, managed_fields);
        }
        let yaml = |side: &Option<Value>| side.as_ref().map(manifest::to_yaml).unwrap_or_default();
        let (old, new) = (yaml(&self.live), yaml(&self.merged));
        if old == new {
            return None;
        }
        let place = |side: &Option<Value>, word: &str| match side {
            Some(_) => format!("{word}/{name}"),
            None => "/dev/null".to_owned(),
        };
        let (before, after) = (place(&self.live, "live"), place(&self.merged, "merged"));
        let diff = TextDiff::configure()
            .algorithm(Algorithm::Myers)
            .timeout(PATIENCE)
            .diff_lines(&old, &new);
        let mut unified = diff.unified_diff();
        Some(
            unified
                .context_radius(CONTEXT)
                .header(&before, &after)
                .to_string(),
        )
    }
}

/// A unified diff for a terminal.
#[must_use]
pub fn paint(diff: &str, color: bool) -> String {
    let mut out = String::with_capacity(diff.len());
    for line in diff.lines() {
        let style = match line.as_bytes() {
            [b'+', b'+', b'+', ..] | [b'-', b'-', b'-', ..] => Some(Style::Bold),
            [b'+', ..] => Some(Style::Green),
            [b'-', ..] => Some(Style::Red),
            [b'@', ..] => Some(Style::Cyan),
            _ => None,
        };
        let line = text::line(line);
        out.push_str(&style.map_or(line.clone(), |style| text::paint(&line, style, color)));
        out.push('\n');
    }
    out
}

/// Takes away what differs without anybody having asked for it.
fn tidy(object: &mut Value, managed_fields: bool) {
    let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    for field in ["generation", "resourceVersion", "uid", "creationTimestamp"] {
        meta.remove(field);
    }
    if !managed_fields {
        meta.remove("managedFields");
    }
    if let Some(notes) = meta.get_mut("annotations").and_then(Value::as_object_mut) {
        notes.remove(LAST_APPLIED);
        if notes.is_empty() {
            meta.remove("annotations");
        }
    }
}

/// Puts stars for the values of Secrets: which of them differ is seen, and nothing else.
fn mask(sides: &mut Sides) {
    let is_secret = |side: &Option<Value>| {
        side.as_ref()
            .is_some_and(|object| object["kind"] == "Secret" && object["apiVersion"] == "v1")
    };
    if !is_secret(&sides.live) && !is_secret(&sides.merged) {
        return;
    }
    for field in ["data", "stringData"] {
        let old = sides.live.as_mut().and_then(|object| object.get_mut(field));
        let new = sides.merged.as_mut().and_then(|object| object.get_mut(field));
        match (old, new) {
            (Some(Value::Object(old)), Some(Value::Object(new))) => both(old, new),
            (old, new) => {
                for value in [old, new].into_iter().flatten() {
                    alone(value);
                }
            }
        }
    }
}

const HIDDEN: &str = "***";

fn both(old: &mut Map<String, Value>, new: &mut Map<String, Value>) {
    for (key, before) in &mut *old {
        match new.get_mut(key) {
            Some(after) if before != after => {
                *before = format!("{HIDDEN} (before)").into();
                *after = format!("{HIDDEN} (after)").into();
            }
            Some(after) => {
                *before = HIDDEN.into();
                *after = HIDDEN.into();
            }
            None => *before = HIDDEN.into(),
        }
    }
    for (_, after) in new.iter_mut().filter(|(key, _)| !old.contains_key(*key)) {
        *after = HIDDEN.into();
    }
}

fn alone(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(|value| *value = HIDDEN.into()),
        other => *other = HIDDEN.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sides(live: Value, merged: Value) -> Sides {
        let some = |value: Value| (!value.is_null()).then_some(value);
        Sides {
            live: some(live),
            merged: some(merged),
        }
    }

    #[test]
    fn what_the_server_counts_up_is_no_difference() {
        let object = |version: u32| json!({"kind": "Task", "metadata": {"name": "x", "generation": version, "resourceVersion": version.to_string(), "managedFields": [version], "annotations": {LAST_APPLIED: version.to_string()}}});
        assert_eq!(sides(object(1), object(2)).unified("x", false), None);
        assert!(sides(object(1), object(2)).unified("x", true).is_some());
    }

    #[test]
    fn a_change_shows_with_its_surroundings() {
        let object = |prompt: &str| json!({"kind": "Task", "spec": {"a": 1, "prompt": prompt}});
        assert_eq!(
            sides(object("p"), object("q")).unified("tasks/x", false).unwrap(),
            "--- live/tasks/x\n+++ merged/tasks/x\n@@ -1,4 +1,4 @@\n kind: Task\n spec:\n   a: 1\n-  prompt: p\n+  prompt: q\n"
        );
        let new = sides(Value::Null, object("p")).unified("tasks/x", false).unwrap();
        assert!(
            new.starts_with("--- /dev/null\n+++ merged/tasks/x\n@@ -0,0 +1,4 @@\n+kind: Task\n"),
            "{new}"
        );
    }

    #[test]
    fn values_of_secrets_are_hidden_on_both_sides() {
        let secret = |data: Value| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "annotations": {LAST_APPLIED: "c2VjcmV0"}}, "data": data});
        let same = json!({"a": "c2VjcmV0"});
        assert_eq!(
            sides(secret(same.clone()), secret(same)).unified("s", false),
            None
        );
        for (live, merged) in [
            (
                secret(json!({"a": "c2VjcmV0", "b": "c2VjcmV0"})),
                secret(json!({"a": "c2VjcmV0Mg==", "c": "c2VjcmV0"})),
            ),
            (Value::Null, secret(json!({"a": "c2VjcmV0"}))),
            (secret(json!({"a": "c2VjcmV0"})), Value::Null),
            (secret(json!("c2VjcmV0")), secret(json!({"a": "c2VjcmV0"}))),
        ] {
            let shown = sides(live, merged).unified("s", false).unwrap();
            assert!(!shown.contains("c2VjcmV0") && shown.contains(HIDDEN), "{shown}");
        }
    }

    #[test]
    fn colours_follow_the_first_character() {
        let painted = paint("--- a\n+x\u{1b}[2J\n y\n", true);
        assert!(
            painted.contains("\u{1b}[") && painted.contains("x\\x1b[2J") && painted.ends_with(" y\n"),
            "{painted:?}"
        );
        assert_eq!(paint("+x\n-y\n", false), "+x\n-y\n");
    }
}
