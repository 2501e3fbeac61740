//! JSON Patch, with the one leniency that clients rely on: `test` for null succeeds where nothing is.

use serde::Deserialize;
use serde_json::Value;

/// Most operations in a patch.
const MAX_OPERATIONS: usize = 10_000;
/// Most bytes that copies may add: a patch of copies doubles an object with each line.
const MAX_COPIED: usize = 3 << 20;

/// Why a patch cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is no patch.
    #[error("the body is not a JSON patch: {0}")]
    Malformed(String),
    /// A path leads nowhere.
    #[error("operation {index} ({op}): nothing at {path:?}")]
    Missing {
        /// Position in the patch.
        index: usize,
        /// The operation.
        op: &'static str,
        /// The path.
        path: String,
    },
    /// A `test` found something else.
    #[error("operation {index} (test): the value at {path:?} is another one")]
    Test {
        /// Position in the patch.
        index: usize,
        /// The path.
        path: String,
    },
    /// A value cannot be moved into itself.
    #[error("operation {index} (move): {path:?} lies inside what is moved")]
    Cycle {
        /// Position in the patch.
        index: usize,
        /// The path.
        path: String,
    },
    /// It would make too much.
    #[error("the patch is too large")]
    TooLarge,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Operation {
    Add {
        path: String,
        #[serde(default)]
        value: Value,
    },
    Remove {
        path: String,
    },
    Replace {
        path: String,
        #[serde(default)]
        value: Value,
    },
    Move {
        from: String,
        path: String,
    },
    Copy {
        from: String,
        path: String,
    },
    Test {
        path: String,
        #[serde(default)]
        value: Value,
    },
}

/// A parsed JSON patch.
#[derive(Debug)]
pub struct JsonPatch(Vec<Operation>);

impl JsonPatch {
    /// Reads a patch.
    ///
    /// # Errors
    /// When it is not a list of operations.
    pub fn parse(body: Value) -> Result<Self, Error> {
        let operations: Vec<Operation> =
            serde_json::from_value(body).map_err(|error| Error::Malformed(error.to_string()))?;
        if operations.len() > MAX_OPERATIONS {
            return Err(Error::TooLarge);
        }
        Ok(Self(operations))
    }

    /// Applies the patch, or nothing of it.
    ///
    /// # Errors
    /// When an operation does not fit.
    pub fn apply(&self, document: &Value) -> Result<Value, Error> {
        let mut out = document.clone();
        let mut copied = 0;
        for (index, operation) in self.0.iter().enumerate() {
            let missing = |op, path: &str| Error::Missing {
                index,
                op,
                path: path.to_owned(),
            };
            match operation {
                Operation::Add { path, value } => {
                    add(&mut out, path, value.clone()).ok_or_else(|| missing("add", path))?;
                }
                Operation::Remove { path } => {
                    remove(&mut out, path).ok_or_else(|| missing("remove", path))?;
                }
                Operation::Replace { path, value } => {
                    let slot = find_mut(&mut out, path).ok_or_else(|| missing("replace", path))?;
                    *slot = value.clone();
                }
                Operation::Move { from, path } => {
                    if path
                        .strip_prefix(from.as_str())
                        .is_some_and(|rest| rest.starts_with('/'))
                    {
                        return Err(Error::Cycle {
                            index,
                            path: path.clone(),
                        });
                    }
                    let value = remove(&mut out, from).ok_or_else(|| missing("move", from))?;
                    add(&mut out, path, value).ok_or_else(|| missing("move", path))?;
                }
                Operation::Copy { from, path } => {
                    let value = find(&out, from).ok_or_else(|| missing("copy", from))?.clone();
                    copied += value.to_string().len();
                    if copied > MAX_COPIED {
                        return Err(Error::TooLarge);
                    }
                    add(&mut out, path, value).ok_or_else(|| missing("copy", path))?;
                }
                Operation::Test { path, value } => {
                    let found = find(&out, path).unwrap_or(&Value::Null);
                    if found != value {
                        return Err(Error::Test {
                            index,
                            path: path.clone(),
                        });
                    }
                }
            }
        }
        Ok(out)
    }
}

/// The parts of a pointer, unescaped; the whole document has none.
fn parts(path: &str) -> Option<Vec<String>> {
    if path.is_empty() {
        return Some(Vec::new());
    }
    let path = path.strip_prefix('/')?;
    Some(
        path.split('/')
            .map(|part| part.replace("~1", "/").replace("~0", "~"))
            .collect(),
    )
}

/// A position in a list, without signs and leading zeros.
fn position(part: &str) -> Option<usize> {
    let plain = part.bytes().all(|byte| byte.is_ascii_digit()) && (part == "0" || !part.starts_with('0'));
    plain.then(|| part.parse().ok()).flatten()
}

fn find<'a>(document: &'a Value, path: &str) -> Option<&'a Value> {
    parts(path)?.iter().try_fold(document, |at, part| match at {
        Value::Object(map) => map.get(part),
        Value::Array(list) => list.get(position(part)?),
        _ => None,
    })
}

fn find_mut<'a>(document: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    walk(document, &parts(path)?)
}

fn walk<'a>(document: &'a mut Value, parts: &[String]) -> Option<&'a mut Value> {
    parts.iter().try_fold(document, |at, part| match at {
        Value::Object(map) => map.get_mut(part),
        Value::Array(list) => list.get_mut(position(part)?),
        _ => None,
    })
}

fn add(document: &mut Value, path: &str, value: Value) -> Option<()> {
    let parts = parts(path)?;
    let Some((last, parents)) = parts.split_last() else {
        *document = value;
        return Some(());
    };
    match walk(document, parents)? {
        Value::Object(map) => {
            map.insert(last.clone(), value);
        }
        Value::Array(list) => {
            let at = if last == "-" { list.len() } else { position(last)? };
            if at > list.len() {
                return None;
            }
            list.insert(at, value);
        }
        _ => return None,
    }
    Some(())
}

fn remove(document: &mut Value, path: &str) -> Option<Value> {
    let parts = parts(path)?;
    let (last, parents) = parts.split_last()?;
    match walk(document, parents)? {
        Value::Object(map) => map.remove(last),
        Value::Array(list) => {
            let at = position(last)?;
            (at < list.len()).then(|| list.remove(at))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn apply(document: &Value, patch: Value) -> Result<Value, Error> {
        JsonPatch::parse(patch)?.apply(document)
    }

    #[test]
    fn every_operation_does_what_the_rfc_says() {
        let base = json!({"a": {"b": [1, 2]}, "x/y": 1, "m~n": 2});
        for (patch, want) in [
            (
                json!([{"op": "add", "path": "/a/b/1", "value": 9}]),
                json!({"a": {"b": [1, 9, 2]}, "x/y": 1, "m~n": 2}),
            ),
            (
                json!([{"op": "add", "path": "/a/b/-", "value": 9}]),
                json!({"a": {"b": [1, 2, 9]}, "x/y": 1, "m~n": 2}),
            ),
            (
                json!([{"op": "remove", "path": "/x~1y"}]),
                json!({"a": {"b": [1, 2]}, "m~n": 2}),
            ),
            (
                json!([{"op": "replace", "path": "/m~0n", "value": [] }]),
                json!({"a": {"b": [1, 2]}, "x/y": 1, "m~n": []}),
            ),
            (
                json!([{"op": "move", "from": "/a/b", "path": "/c"}]),
                json!({"a": {}, "c": [1, 2], "x/y": 1, "m~n": 2}),
            ),
            (
                json!([{"op": "copy", "from": "/a/b/0", "path": "/a/c"}]),
                json!({"a": {"b": [1, 2], "c": 1}, "x/y": 1, "m~n": 2}),
            ),
            (json!([{"op": "add", "path": "", "value": {}}]), json!({})),
        ] {
            assert_eq!(apply(&base, patch.clone()).unwrap(), want, "{patch}");
        }
    }

    #[test]
    fn a_finalizer_can_be_added_where_there_is_none() {
        let patch = json!([
            {"op": "test", "path": "/metadata/finalizers", "value": null},
            {"op": "add", "path": "/metadata/finalizers", "value": ["a"]},
        ]);
        let object = json!({"metadata": {}});
        let once = apply(&object, patch.clone()).unwrap();
        assert_eq!(once, json!({"metadata": {"finalizers": ["a"]}}));
        assert!(matches!(apply(&once, patch), Err(Error::Test { index: 0, .. })));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let base = json!({"a": [1], "b": {"c": {}}});
        for patch in [
            json!([{"op": "remove", "path": "/nope"}]),
            json!([{"op": "replace", "path": "/a/7", "value": 1}]),
            json!([{"op": "add", "path": "/a/3", "value": 1}]),
            json!([{"op": "add", "path": "/a/01", "value": 1}]),
            json!([{"op": "add", "path": "/x/y", "value": 1}]),
            json!([{"op": "add", "path": "a", "value": 1}]),
            json!([{"op": "move", "from": "/b", "path": "/b/c/d"}]),
            json!([{"op": "test", "path": "/a", "value": 2}]),
            json!([{"op": "frob", "path": "/a"}]),
            json!({"op": "add"}),
        ] {
            assert!(apply(&base, patch.clone()).is_err(), "{patch}");
        }
    }

    #[test]
    fn copies_cannot_grow_without_bound() {
        let mut patch = vec![json!({"op": "add", "path": "/a", "value": "x".repeat(1000)})];
        patch.extend((0..40).map(|n| json!({"op": "copy", "from": "", "path": format!("/c{n}")})));
        assert_eq!(apply(&json!({}), Value::Array(patch)), Err(Error::TooLarge));
    }
}
