//! The three-way merge: what was applied last, what is applied now, what the server has.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

/// Where the manifest that was applied last is kept; kubectl's own.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The manifest with the annotation that holds it.
#[must_use]
pub fn with_last_applied(manifest: &Value) -> Value {
    // kubectl writes empty annotations into its note, too: both leave the same text.
    let mut kept = manifest.clone();
    annotations(&mut kept).remove(LAST_APPLIED);
    let mut marked = kept.clone();
    if kept["kind"] == "Secret" && kept["apiVersion"] == "v1" {
        // The names are needed to remove what is left out later; the values are nobody's business.
        for value in kept
            .get_mut("data")
            .and_then(Value::as_object_mut)
            .into_iter()
            .flat_map(Map::values_mut)
        {
            *value = "".into();
        }
    }
    // These stand in strings only; kubectl escapes them.
    let mut text = kept.to_string();
    for (c, escaped) in [('&', "\\u0026"), ('<', "\\u003c"), ('>', "\\u003e")] {
        text = text.replace(c, escaped);
    }
    text.push('\n');
    annotations(&mut marked).insert(LAST_APPLIED.to_owned(), text.into());
    marked
}

fn annotations(object: &mut Value) -> &mut Map<String, Value> {
    fn inner<'a>(value: &'a mut Value, key: &str) -> &'a mut Value {
        if !value.is_object() {
            *value = json!({});
        }
        &mut value[key]
    }
    let found = inner(inner(object, "metadata"), "annotations");
    if !found.is_object() {
        *found = json!({});
    }
    // Made an object just above.
    found
        .as_object_mut()
        .expect("annotations were just made an object")
}

fn drop_empty_annotations(object: &mut Value) {
    if object["metadata"]["annotations"]
        .as_object()
        .is_some_and(Map::is_empty)
        && let Some(meta) = object["metadata"].as_object_mut()
    {
        meta.remove("annotations");
    }
}

/// Moves `stringData` of a Secret to `data`, where the server will put it: what is sent can then be compared.
pub fn settle_secret(object: &mut Value) {
    if object["kind"] != "Secret" || object["apiVersion"] != "v1" {
        return;
    }
    let Some(fields) = object.as_object_mut() else {
        return;
    };
    let texts = match fields.remove("stringData") {
        Some(Value::Object(texts)) if texts.values().all(Value::is_string) => texts,
        Some(other) => {
            // Not what it should be: the server says so.
            fields.insert("stringData".to_owned(), other);
            return;
        }
        None => return,
    };
    let data = fields.entry("data").or_insert_with(|| json!({}));
    if data.is_null() {
        *data = json!({});
    }
    if let Some(data) = data.as_object_mut() {
        for (key, text) in texts {
            data.insert(key, STANDARD.encode(text.as_str().unwrap_or_default()).into());
        }
    }
}

/// The JSON merge patch that brings `live` to `manifest` (which carries its annotation), without touching what others
/// set; empty when there is nothing to do.
#[must_use]
pub fn three_way(manifest: &Value, live: &Value) -> Value {
    let last = live["metadata"]["annotations"][LAST_APPLIED]
        .as_str()
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or(Value::Null);
    let mut patch = changes(manifest, live);
    removals(&last, manifest, live, &mut patch);
    Value::Object(patch)
}

/// What of `wanted` is not so in `live`; nothing is removed.
fn changes(wanted: &Value, live: &Value) -> Map<String, Value> {
    let mut patch = Map::new();
    for (key, wanted) in wanted.as_object().into_iter().flatten() {
        let live = &live[key];
        match (wanted, live) {
            // A null says that the field is absent.
            (Value::Null, Value::Null) => {}
            (Value::Object(_), Value::Object(_)) => {
                let inner = changes(wanted, live);
                if !inner.is_empty() {
                    patch.insert(key.clone(), Value::Object(inner));
                }
            }
            (Value::Object(inner), Value::Null) => {
                // An object whose every field is absent is written by nobody.
                if !inner.is_empty() {
                    patch.insert(key.clone(), wanted.clone());
                }
            }
            (wanted, live) if wanted == live => {}
            (wanted, _) => {
                patch.insert(key.clone(), wanted.clone());
            }
        }
    }
    patch
}

/// What was in `last`, is not in `wanted`, and still is in `live`.
fn removals(last: &Value, wanted: &Value, live: &Value, patch: &mut Map<String, Value>) {
    for (key, last) in last.as_object().into_iter().flatten() {
        if live[key].is_null() {
            continue;
        }
        match wanted.get(key) {
            None => {
                patch.insert(key.clone(), Value::Null);
            }
            Some(wanted @ Value::Object(_)) if last.is_object() && live[key].is_object() => {
                let mut inner = match patch.remove(key) {
                    Some(Value::Object(inner)) => inner,
                    Some(other) => {
                        patch.insert(key.clone(), other);
                        continue;
                    }
                    None => Map::new(),
                };
                removals(last, wanted, &live[key], &mut inner);
                if !inner.is_empty() {
                    patch.insert(key.clone(), Value::Object(inner));
                }
            }
            Some(_) => {}
        }
    }
}

/// Whether a patch changes nothing but the note of what was applied last.
#[must_use]
pub fn is_bookkeeping(patch: &Value) -> bool {
    let mut rest = patch.clone();
    if let Some(annotations) = rest
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.remove(LAST_APPLIED);
    }
    drop_empty_annotations(&mut rest);
    if rest["metadata"].as_object().is_some_and(Map::is_empty)
        && let Some(fields) = rest.as_object_mut()
    {
        fields.remove("metadata");
    }
    rest.as_object().is_some_and(Map::is_empty)
}

/// Whether two states of an object are the same in everything that a person wrote.
#[must_use]
pub fn same_content(a: &Value, b: &Value) -> bool {
    fn content(object: &Value) -> Value {
        let mut object = object.clone();
        if let Some(fields) = object.as_object_mut() {
            fields.remove("status");
        }
        if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["managedFields", "resourceVersion", "generation"] {
                meta.remove(field);
            }
        }
        object
    }
    content(a) == content(b)
}

/// Whether the same managers want the same fields, whenever they said so.
#[must_use]
pub fn same_managers(a: &Value, b: &Value) -> bool {
    fn entries(object: &Value) -> Vec<Value> {
        let mut entries = object["metadata"]["managedFields"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        for entry in entries.iter_mut().filter_map(Value::as_object_mut) {
            entry.remove("time");
        }
        entries
    }
    entries(a) == entries(b)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
                target.as_object_mut().unwrap().remove(key);
            } else {
                merge(&mut target[key], value);
            }
        }
    }

    fn task(labels: Value, spec: Value) -> Value {
        json!({"apiVersion": "panda.dev/v1alpha1", "kind": "Task", "metadata": {"name": "x", "labels": labels}, "spec": spec})
    }

    #[test]
    fn what_others_set_stays_and_what_was_left_out_goes() {
        let first = with_last_applied(&task(
            json!({"a": "1", "b": "2"}),
            json!({"prompt": "p", "priority": 3}),
        ));
        let mut live = first.clone();
        live["metadata"]["labels"]["c"] = "theirs".into();
        live["spec"]["retry"] = json!({"limit": 2});
        live["metadata"]["uid"] = "u".into();
        let second = with_last_applied(&task(json!({"a": "1"}), json!({"prompt": "q"})));
        let patch = three_way(&second, &live);
        merge(&mut live, &patch);
        assert_eq!(live["metadata"]["labels"], json!({"a": "1", "c": "theirs"}));
        assert_eq!(live["spec"], json!({"prompt": "q", "retry": {"limit": 2}}));
        assert_eq!(
            three_way(&second, &live),
            json!({}),
            "a second apply has nothing to do"
        );
    }

    #[test]
    fn values_of_secrets_are_in_no_annotation() {
        let mut secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": "hunter2"}, "data": {"l": "eA=="}});
        settle_secret(&mut secret);
        assert_eq!(secret["data"], json!({"k": "aHVudGVyMg==", "l": "eA=="}));
        let marked = with_last_applied(&secret);
        let kept = marked["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap();
        assert!(
            !kept.contains("aHVudGVyMg") && kept.contains("\"k\":\"\""),
            "{kept}"
        );
        let mut fewer = secret.clone();
        fewer["data"].as_object_mut().unwrap().remove("l");
        assert_eq!(
            three_way(&with_last_applied(&fewer), &marked)["data"],
            json!({"l": null})
        );
    }

    #[test]
    fn an_annotation_in_the_manifest_itself_is_not_taken_for_content() {
        let once = with_last_applied(&task(json!({}), json!({"prompt": "p"})));
        assert_eq!(with_last_applied(&once), once);
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!("s")),
            Just(json!("t")),
            (0..3).prop_map(|n| json!(n)),
            Just(json!([1, 2])),
            Just(json!([]))
        ];
        leaf.prop_recursive(3, 16, 3, |inner| {
            prop::collection::btree_map("[a-c]", inner, 1..3)
                .prop_map(|map| Value::Object(map.into_iter().collect()))
        })
    }

    proptest! {
        #[test]
        fn applying_brings_every_wanted_field_and_then_does_nothing(last in value(), wanted in value(), live in value()) {
            let object = |spec: &Value| task(json!({}), spec.clone());
            let mut live = object(&live);
            live["metadata"]["annotations"] = with_last_applied(&object(&last))["metadata"]["annotations"].clone();
            let wanted = with_last_applied(&object(&wanted));
            let patch = three_way(&wanted, &live);
            merge(&mut live, &patch);
            prop_assert_eq!(three_way(&wanted, &live), json!({}));
            prop_assert!(changes(&wanted, &live).is_empty());
        }
    }
}
