//! Configuration files of components: versioned objects, unknown fields refused, flags over the file; and how a component
//! says why it ends.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::manifest;

/// The only `apiVersion` of configuration files that is read.
pub const API_VERSION: &str = "config.panda.dev/v1alpha1";
/// A configuration file is no larger.
const MAX_BYTES: usize = 1 << 20;

/// An error and what caused it, in one line. What an error says at its end already is not said again.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        if !text.ends_with(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        source = cause.source();
    }
    text
}

/// What a component says on its standard error before it ends with a failure.
#[must_use]
pub fn complaint(error: &dyn std::error::Error, hint: Option<&str>) -> String {
    let hint = hint.map(|hint| format!("hint: {hint}\n")).unwrap_or_default();
    format!("error: {}\n{hint}", chain(error))
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is larger than any configuration.
    #[error("{file}: larger than {MAX_BYTES} bytes: not a configuration")]
    TooLarge {
        /// The file.
        file: String,
    },
    /// It is no YAML.
    #[error("{0}")]
    Syntax(manifest::Errors),
    /// It is something else.
    #[error("{file}: want apiVersion {API_VERSION} and kind {kind}, found {found}")]
    Kind {
        /// The file.
        file: String,
        /// The kind that is read.
        kind: &'static str,
        /// What it says it is.
        found: String,
    },
    /// A field is unknown, missing or wrong.
    #[error("{file}: {field}: {problem}")]
    Field {
        /// The file, or where else the value came from.
        file: String,
        /// Path of the field.
        field: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
}

/// Reads a configuration of this kind: the file, if there is one, with `flags` (by field name) over it.
///
/// # Errors
/// When the file is no YAML or another object, or a field is unknown, missing or wrong.
pub fn read<T: DeserializeOwned>(
    kind: &'static str,
    file: Option<(&str, &[u8])>,
    flags: Map<String, Value>,
) -> Result<T, Error> {
    let (name, mut object) = match file {
        Some((name, bytes)) => (name, parse(kind, name, bytes)?),
        None => ("flags", Map::new()),
    };
    object.insert("apiVersion".into(), API_VERSION.into());
    object.insert("kind".into(), kind.into());
    object.extend(flags);
    serde_path_to_error::deserialize(Value::Object(object)).map_err(|error| Error::Field {
        file: name.to_owned(),
        field: error.path().to_string(),
        problem: error.inner().to_string(),
    })
}

fn parse(kind: &'static str, name: &str, bytes: &[u8]) -> Result<Map<String, Value>, Error> {
    if bytes.len() > MAX_BYTES {
        return Err(Error::TooLarge {
            file: name.to_owned(),
        });
    }
    let other = |found: String| Error::Kind {
        file: name.to_owned(),
        kind,
        found,
    };
    match manifest::read_value(name, bytes).map_err(Error::Syntax)? {
        Value::Object(object) => {
            let says = |field: &str| {
                object
                    .get(field)
                    .and_then(Value::as_str)
                    .unwrap_or("nothing")
                    .to_owned()
            };
            let (version, found) = (says("apiVersion"), says("kind"));
            if version != API_VERSION || found != kind {
                return Err(other(format!("{version} and {found}")));
            }
            Ok(object)
        }
        _ => Err(other("no mapping".into())),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Thing {
        #[serde(rename = "apiVersion")]
        _version: String,
        #[serde(rename = "kind")]
        _kind: String,
        size: u32,
        #[serde(default)]
        owner: Owner,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Owner {
        #[serde(default)]
        roots: Vec<String>,
    }

    fn thing(text: &str, flags: Value) -> Result<Thing, String> {
        let Value::Object(flags) = flags else {
            panic!("flags are a mapping")
        };
        read("Thing", Some(("c.yaml", text.as_bytes())), flags).map_err(|error| error.to_string())
    }

    const HEAD: &str = "apiVersion: config.panda.dev/v1alpha1\nkind: Thing\n";

    #[test]
    fn flags_win_over_the_file_and_errors_name_file_and_field() {
        let ok = thing(
            &format!("{HEAD}size: 1\nowner: {{roots: [/a]}}\n"),
            serde_json::json!({"size": 2}),
        )
        .unwrap();
        assert_eq!((ok.size, ok.owner.roots), (2, vec!["/a".to_owned()]));
        let typo = thing(
            &format!("{HEAD}size: 1\nowner: {{rots: []}}\n"),
            serde_json::json!({}),
        )
        .unwrap_err();
        assert!(
            typo.contains("c.yaml") && typo.contains("owner") && typo.contains("rots"),
            "{typo}"
        );
        let wrong = thing(&format!("{HEAD}size: big\n"), serde_json::json!({})).unwrap_err();
        assert!(wrong.starts_with("c.yaml: size: "), "{wrong}");
        let twice = thing(&format!("{HEAD}size: 1\nsize: 2\n"), serde_json::json!({})).unwrap_err();
        assert!(twice.contains("size"), "{twice}");
    }

    #[test]
    fn another_object_is_refused() {
        for text in ["apiVersion: v1\nkind: Thing\n", "kind: Other\n", "- a\n", ""] {
            let error = thing(text, serde_json::json!({})).unwrap_err();
            assert!(error.contains("c.yaml"), "{error}");
        }
        assert!(
            read::<Thing>("Thing", None, Map::new())
                .unwrap_err()
                .to_string()
                .contains("size")
        );
    }
}
