//! Dotted paths into JSON: `a.b.0.c`; `*` takes every item of an array or every value of an object.

use serde_json::Value;

/// Most values that one path with `*` finds.
const MAX: usize = 1000;

/// All values at a path, in order. The empty path finds nothing.
pub(super) fn all<'a>(value: &'a Value, path: &str) -> Vec<&'a Value> {
    if path.is_empty() {
        return Vec::new();
    }
    let mut found = vec![value];
    for part in path.split('.') {
        let mut next = Vec::new();
        for value in found {
            match (value, part) {
                (Value::Array(items), "*") => next.extend(items),
                (Value::Object(map), "*") => next.extend(map.values()),
                (Value::Array(items), _) => next.extend(part.parse().ok().and_then(|n: usize| items.get(n))),
                (Value::Object(map), _) => next.extend(map.get(part)),
                (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_), _) => {}
            }
            if next.len() > MAX {
                next.truncate(MAX);
                break;
            }
        }
        found = next;
    }
    found
}

/// The first value at a path.
pub(super) fn first<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    all(value, path).into_iter().next()
}

/// A value as the text that a person would write for it.
pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_go_through_objects_arrays_and_stars() {
        let v = json!({"a": {"b": [{"c": 1}, {"c": "x"}, 3]}});
        assert_eq!(first(&v, "a.b.1.c"), Some(&json!("x")));
        assert_eq!(all(&v, "a.b.*.c"), [&json!(1), &json!("x")]);
        for none in ["", "a.c", "a.b.9", "a.b.c", "x.*", "a.b.0.c.d"] {
            assert!(all(&v, none).is_empty(), "{none}");
        }
    }
}
