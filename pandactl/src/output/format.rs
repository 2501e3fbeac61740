//! The formats of `-o`.

use std::io::Read as _;
use std::path::Path;

use panda_api::manifest;
use panda_client::ApiResource;
use serde_json::{Value, json};

use super::jsonpath::Template;
use super::{table, text};
use crate::error::{Error, Result};
use crate::session::object_name;

/// A format.
#[derive(Clone, Debug, PartialEq)]
pub enum Format {
    /// The server's table.
    Table {
        /// All columns.
        wide: bool,
    },
    /// JSON, indented.
    Json,
    /// YAML.
    Yaml,
    /// `task.panda.dev/x`.
    Name,
    /// A template.
    JsonPath(Template),
    /// Columns of one's own.
    Columns(Vec<(String, Template)>),
}

/// Longest template in a file, in bytes.
const MAX_FILE: u64 = 64 * 1024;

const KNOWN: &str = "json, yaml, wide, name, jsonpath=TEMPLATE, custom-columns=NAME:PATH,…, jsonpath-file=FILE, custom-columns-file=FILE";

impl Format {
    /// Reads the value of `-o`, where a template may be in a file.
    ///
    /// # Errors
    /// When there is no such format, or the file cannot be read.
    pub fn read(text: Option<&str>, cwd: &Path) -> Result<Self> {
        let file = |name: &str| -> Result<String> {
            let path = cwd.join(name);
            let mut text = String::new();
            std::fs::File::open(&path)
                .and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text))
                .map_err(|error| Error::file("read", Path::new(name), &error))?;
            if text.len() as u64 > MAX_FILE {
                return Err(
                    Error::user(format!("{name}: a template is no longer than {MAX_FILE} bytes"))
                        .hint("use -o json with a tool such as jq"),
                );
            }
            Ok(text)
        };
        match text.and_then(|text| text.split_once('=')) {
            Some(("jsonpath-file", name)) => Template::parse(file(name)?.trim_end_matches(['\n', '\r']))
                .map(Self::JsonPath)
                .map_err(|error| template_error(&error).during(name)),
            Some(("custom-columns-file", name)) => {
                columns_of_file(&file(name)?).map_err(|error| error.during(name))
            }
            _ => Self::parse(text),
        }
    }

    /// Reads the value of `-o`.
    ///
    /// # Errors
    /// When there is no such format.
    pub fn parse(text: Option<&str>) -> Result<Self> {
        let Some(text) = text else {
            return Ok(Self::Table { wide: false });
        };
        let (name, argument) = match text.split_once('=') {
            Some((name, argument)) => (name, Some(argument)),
            None => (text, None),
        };
        match (name, argument) {
            ("", None) => Ok(Self::Table { wide: false }),
            ("wide", None) => Ok(Self::Table { wide: true }),
            ("json", None) => Ok(Self::Json),
            ("yaml", None) => Ok(Self::Yaml),
            ("name", None) => Ok(Self::Name),
            ("jsonpath", Some(template)) => Template::parse(template)
                .map(Self::JsonPath)
                .map_err(|error| template_error(&error)),
            ("jsonpath", None) => {
                Err(Error::user("-o jsonpath needs a template")
                    .hint("for example -o jsonpath='{.status.phase}'"))
            }
            ("custom-columns", Some(columns)) => columns_of(columns),
            ("custom-columns", None) => Err(Error::user("-o custom-columns needs columns")
                .hint("for example -o custom-columns=NAME:.metadata.name,PHASE:.status.phase")),
            ("jsonpath-file" | "custom-columns-file", None) => {
                Err(Error::user(format!("-o {name} needs a file"))
                    .hint("for example -o custom-columns-file=columns.txt"))
            }
            ("jsonpath-file" | "custom-columns-file", _) => {
                Err(Error::user(format!("-o {name} is for `pandactl get`"))
                    .hint("give the template itself with -o jsonpath=TEMPLATE"))
            }
            (name, _) if name.starts_with("go-template") => {
                Err(Error::user(format!("-o {name} is not supported"))
                    .hint("use -o jsonpath='{.status.phase}', or -o json with a tool such as jq"))
            }
            _ => Err(Error::user(format!("unknown output format {text:?}"))
                .hint(format!("the formats are {KNOWN}"))),
        }
    }

    /// Whether programs read it.
    #[must_use]
    pub const fn is_table(&self) -> bool {
        matches!(self, Self::Table { .. })
    }

    /// A value as it is, in JSON or YAML; none for the other formats.
    #[must_use]
    pub fn machine(&self, value: &Value) -> Option<String> {
        match self {
            Self::Json => Some(pretty(value)),
            Self::Yaml => Some(manifest::to_yaml(value)),
            _ => None,
        }
    }

    /// The text of one object, as single objects and events of a watch are printed.
    ///
    /// # Errors
    /// When a template gives too much.
    pub fn one(&self, object: &Value, resource: &ApiResource) -> Result<String> {
        let object = shown(object);
        Ok(match self {
            Self::Json => pretty(&object),
            Self::Yaml => manifest::to_yaml(&object),
            Self::Name => format!("{}\n", object_name(resource, name_of(&object))),
            Self::JsonPath(template) => template.render(&object).map_err(|error| template_error(&error))?,
            Self::Columns(columns) => rows(columns, std::slice::from_ref(&object), true)?,
            Self::Table { .. } => String::new(),
        })
    }

    /// The text of many objects: a `List`.
    ///
    /// # Errors
    /// When a template gives too much.
    pub fn many(&self, objects: &[(ApiResource, Value)], headers: bool) -> Result<String> {
        let list = || {
            let items: Vec<Value> = objects.iter().map(|(_, object)| shown(object)).collect();
            json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items})
        };
        Ok(match self {
            Self::Json => pretty(&list()),
            Self::Yaml => manifest::to_yaml(&list()),
            Self::Name => objects
                .iter()
                .map(|(kind, object)| format!("{}\n", object_name(kind, name_of(object))))
                .collect(),
            Self::JsonPath(template) => template.render(&list()).map_err(|error| template_error(&error))?,
            Self::Columns(columns) => {
                let objects: Vec<Value> = objects.iter().map(|(_, object)| object.clone()).collect();
                rows(columns, &objects, headers)?
            }
            Self::Table { .. } => String::new(),
        })
    }

    /// Makes what a template gives safe for a terminal; other formats escape by themselves.
    #[must_use]
    pub fn safe(&self, output: String, terminal: bool) -> String {
        match self {
            Self::JsonPath(_) if terminal => text::lines(&output),
            _ => output,
        }
    }
}

fn template_error(error: &super::jsonpath::Error) -> Error {
    Error::user(error.to_string())
        .hint("for example '{.items[*].metadata.name}' or '{range .items[*]}{.metadata.name}{\"\\n\"}{end}'")
}

/// Without what no person asked for.
fn shown(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        meta.remove("managedFields");
    }
    object
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn pretty(value: &Value) -> String {
    // A `Value` can always be written.
    let mut out = serde_json::to_string_pretty(value).unwrap_or_default();
    out.push('\n');
    out
}

fn columns_of(text: &str) -> Result<Format> {
    let mut columns = Vec::new();
    for part in split_columns(text) {
        let Some((name, path)) = part
            .split_once(':')
            .filter(|(name, path)| !name.is_empty() && !path.is_empty())
        else {
            return Err(Error::user(format!("custom-columns: {part:?} is not NAME:PATH"))
                .hint("for example NAME:.metadata.name,PHASE:.status.phase"));
        };
        let template = Template::path(path).map_err(|error| template_error(&error))?;
        columns.push((name.to_owned(), template));
    }
    Ok(Format::Columns(columns))
}

/// Columns of a file: names in the first line, paths in the second, apart by blanks.
fn columns_of_file(text: &str) -> Result<Format> {
    let wrong = |what: String| {
        Error::user(what).hint("write the names in the first line and below each its path, as in:\n  NAME            PHASE\n  .metadata.name  .status.phase")
    };
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let (Some(names), Some(paths), None) = (lines.next(), lines.next(), lines.next()) else {
        return Err(wrong("custom-columns: want two lines".to_owned()));
    };
    let (names, paths): (Vec<_>, Vec<_>) = (
        names.split_whitespace().collect(),
        paths.split_whitespace().collect(),
    );
    if names.len() != paths.len() {
        return Err(wrong(format!(
            "custom-columns: {} names and {} paths",
            names.len(),
            paths.len()
        )));
    }
    let columns = names.into_iter().zip(paths).map(|(name, path)| {
        let template = Template::path(path).map_err(|error| template_error(&error))?;
        Ok((name.to_owned(), template))
    });
    Ok(Format::Columns(columns.collect::<Result<_>>()?))
}

/// Splits at commas that stand outside brackets.
fn split_columns(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (at, c) in text.char_indices() {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn rows(columns: &[(String, Template)], objects: &[Value], headers: bool) -> Result<String> {
    let mut rows = Vec::new();
    if headers {
        rows.push(columns.iter().map(|(name, _)| name.clone()).collect());
    }
    for object in objects {
        let mut row = Vec::new();
        for (_, template) in columns {
            let values = template.values(object).map_err(|error| template_error(&error))?;
            let words: Vec<String> = values
                .iter()
                .filter(|value| !value.is_null())
                .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
                .collect();
            row.push(if words.is_empty() {
                "<none>".to_owned()
            } else {
                text::line(&words.join(","))
            });
        }
        rows.push(row);
    }
    Ok(table::align(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> (ApiResource, Value) {
        let resource = ApiResource::of::<panda_api::Task>();
        let object = json!({"kind": "Task", "metadata": {"name": "x", "managedFields": [], "labels": {"a,b": "c"}}, "status": {"phase": "Running"}});
        (resource, object)
    }

    #[test]
    fn formats_are_named_as_in_kubectl() {
        assert_eq!(Format::parse(Some("wide")).unwrap(), Format::Table { wide: true });
        assert!(Format::parse(Some("go-template={{.x}}")).unwrap_err().hints[0].contains("jsonpath"));
        assert!(Format::parse(Some("xml")).unwrap_err().hints[0].contains("yaml"));
        assert!(Format::parse(Some("jsonpath={.x")).is_err());
    }

    #[test]
    fn objects_are_printed_without_managed_fields() {
        let (resource, object) = task();
        assert!(
            !Format::Json
                .one(&object, &resource)
                .unwrap()
                .contains("managedFields")
        );
        assert_eq!(
            Format::Name.one(&object, &resource).unwrap(),
            "task.panda.dev/x\n"
        );
    }

    #[test]
    fn templates_may_stand_in_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let read = |text: &str| Format::read(Some(text), dir.path());
        file(
            "columns",
            "NAME            PHASE\n.metadata.name  {.status.phase}\n",
        );
        let text = read("custom-columns-file=columns")
            .unwrap()
            .many(&[task()], true)
            .unwrap();
        assert_eq!(text, "NAME  PHASE\nx     Running\n");
        file("path", "{.metadata.name}{\"\\n\"}\n");
        let (resource, object) = task();
        assert_eq!(
            read("jsonpath-file=path")
                .unwrap()
                .one(&object, &resource)
                .unwrap(),
            "x\n"
        );
        for (name, content) in [
            ("uneven", "A B\n.a\n"),
            ("short", "A\n"),
            ("long", "A\n.a\n.b\n"),
            ("bad", "A\n.a[\n"),
        ] {
            file(name, content);
            let error = read(&format!("custom-columns-file={name}")).unwrap_err();
            assert!(
                error.message.contains(name) && !error.hints.is_empty(),
                "{name}: {error:?}"
            );
        }
        file("large", &"x".repeat(70_000));
        assert!(read("jsonpath-file=large").unwrap_err().message.contains("large"));
        assert!(read("jsonpath-file=none").is_err() && read("jsonpath-file").is_err());
        assert!(
            Format::parse(Some("jsonpath-file=path"))
                .unwrap_err()
                .message
                .contains("get")
        );
    }

    #[test]
    fn custom_columns_take_paths_with_commas_in_brackets() {
        let format = Format::parse(Some(
            "custom-columns=NAME:.metadata.name,L:.metadata.labels['a,b'],NO:.spec.x",
        ))
        .unwrap();
        let text = format.many(&[task()], true).unwrap();
        assert_eq!(text, "NAME  L  NO\nx     c  <none>\n");
        assert!(Format::parse(Some("custom-columns=NAME")).is_err());
        let Ok(Format::Columns(columns)) = Format::parse(Some("custom-columns=A:.x,B:.y")) else {
            panic!()
        };
        assert_eq!(columns.len(), 2);
    }
}
