//! The reader of manifests, and the writer of `-o yaml`.
//!
//! Any bytes may come in; what comes out is objects with the places of their fields, and errors that a person can act
//! on. The rules:
//!
//! 1. UTF-8 or UTF-16 with a byte order mark; CRLF and CR count as LF, also inside block scalars.
//! 2. YAML documents end at a line that starts with `---` or `...`; each is read on its own, so that a fault in one
//!    hides no other. JSON is read as such, several values may follow each other.
//! 3. Scalars are those of the YAML 1.2 core schema: `no`, `on`, `y` and dates are text. Numbers with leading zeros are
//!    text too, since readers disagree about them. A scalar that is no text (`~`, `1.10`, `true`) in a field that holds
//!    text is refused with the advice to quote it: it is never turned into text and back. Keys are their source text.
//! 4. A key that stands twice is refused, with both lines, however it is quoted. So are merge keys, keys that are no
//!    scalars, tags outside the core schema, and tabs in the indentation.
//! 5. Bounded: [`MAX_FILE_BYTES`], [`MAX_DOCUMENT_BYTES`], [`MAX_DOCUMENTS`], [`MAX_DEPTH`], and [`MAX_NODES`] once
//!    aliases are put in place.
//! 6. `kind: List` and lists of a known kind (`TaskList`) are replaced by their items, one level deep; a list inside a
//!    list is refused. `items: null` is no object at all.

mod build;
mod decode;
mod error;
mod lists;
mod scalar;
mod split;
mod writer;

use std::sync::Arc;

use serde_json::Value;

pub use error::{Error, Errors};
pub use lists::without_server_fields;
pub use writer::to_yaml;

use crate::json::Spans;
pub use crate::json::{MAX_DEPTH, Mark};
use crate::meta::field_path::FieldPath;

/// Largest file.
pub const MAX_FILE_BYTES: usize = 64 * 1024 * 1024;
/// Largest document.
pub const MAX_DOCUMENT_BYTES: usize = 3 * 1024 * 1024;
/// Most documents in a file.
pub const MAX_DOCUMENTS: usize = 10_000;
/// Most values in a document, once aliases are put in place.
pub const MAX_NODES: usize = 200_000;

/// A text with its name, for messages.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) text: String,
    /// There may be a Secret in it, so that its lines are not to be shown as they are.
    pub(crate) has_secrets: bool,
}

/// Whether a file that may be damaged seems to hold a Secret, in YAML or JSON.
fn has_secrets(text: &str) -> bool {
    text.match_indices("kind").any(|(at, word)| {
        let rest = text[at + word.len()..].trim_start_matches(['"', '\'', ' ', '\t', ':']);
        rest.strip_prefix("Secret")
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
    })
}

/// An object from a file.
#[derive(Clone, Debug)]
pub struct Document {
    /// The object as it was written: nothing is added.
    pub object: Value,
    /// Number of the document in its file, from 1; empty documents do not count.
    pub number: usize,
    /// Place in the document's `items`, when it is a list.
    pub item: Option<usize>,
    spans: Arc<Spans>,
    source: Arc<Source>,
}

/// What a file holds.
#[derive(Debug, Default)]
pub struct Manifest {
    /// The objects that could be read, in order.
    pub documents: Vec<Document>,
    /// What could not, in order.
    pub errors: Errors,
}

impl Manifest {
    /// The objects, if there is no error at all.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with the file.
    pub fn into_result(self) -> Result<Vec<Document>, Errors> {
        if self.errors.is_empty() {
            Ok(self.documents)
        } else {
            Err(self.errors)
        }
    }
}

impl Document {
    /// The file that it comes from.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.source.name
    }

    /// Where the object starts.
    #[must_use]
    pub fn start(&self) -> Mark {
        self.spans_here().at
    }

    /// Where a field stands: its key, or, when the file does not have the field, what would hold it.
    #[must_use]
    pub fn locate(&self, field: &FieldPath) -> Mark {
        let (spans, exact) = self.spans_here().find(field);
        if exact { spans.key.min(spans.at) } else { spans.key }
    }

    /// An error about a field of this object, for what others found out about it (a server, for example).
    #[must_use]
    pub fn error(&self, field: &FieldPath, what: impl Into<String>) -> Error {
        Error::new(&self.source, self.number, self.locate(field), what).field(field.clone())
    }

    fn spans_here(&self) -> &Spans {
        match self.item {
            None => &self.spans,
            Some(index) => self.spans.find(&FieldPath::root().key("items").index(index)).0,
        }
    }
}

/// Reads a file. `name` is what messages call it.
#[must_use]
pub fn read(name: &str, bytes: &[u8]) -> Manifest {
    let mut manifest = Manifest::default();
    let source = match source(name, bytes) {
        Ok(source) => source,
        Err(error) => {
            manifest.errors.push(*error);
            return manifest;
        }
    };
    let mut number = 0;
    for chunk in split::split(&source.text) {
        if manifest.documents.len() >= MAX_DOCUMENTS || manifest.errors.len() >= error::MAX_ERRORS {
            let at = Mark {
                line: chunk.line,
                column: 1,
            };
            let what = format!(
                "reading stops here: too many errors, or more than {MAX_DOCUMENTS} objects in a file"
            );
            manifest.errors.push(Error::new(&source, number + 1, at, what));
            break;
        }
        for tree in build::Reader::new(&source, chunk).read(&mut number) {
            match tree.and_then(|tree| lists::flatten(&source, tree)) {
                Ok(documents) => manifest.documents.extend(documents),
                Err(errors) => manifest.errors.extend(errors),
            }
        }
    }
    manifest
}

/// Reads a text that holds exactly one value, for the body of a request. Nothing is asked of the value itself, except that
/// an object of a known kind has text where its fields hold text: only here is it known how a scalar was written.
///
/// # Errors
///
/// Everything that is wrong with the text, doubled keys included.
pub fn read_value(name: &str, bytes: &[u8]) -> Result<Value, Errors> {
    let mut errors = Errors::default();
    let source = source(name, bytes).map_err(|error| Errors::from(*error))?;
    let mut values = Vec::new();
    let mut number = 0;
    for chunk in split::split(&source.text) {
        for tree in build::Reader::new(&source, chunk).read(&mut number) {
            match tree {
                Ok(tree) => match lists::all_read(&source, &tree) {
                    faults if faults.is_empty() => values.push(tree.value),
                    faults => errors.extend(faults),
                },
                Err(more) => errors.extend(more),
            }
        }
        if number > 1 {
            let at = Mark {
                line: chunk.line,
                column: 1,
            };
            errors.push(Error::new(&source, number, at, "only one document is read here"));
            break;
        }
    }
    match values.pop() {
        Some(value) if errors.is_empty() => Ok(value),
        Some(_) => Err(errors),
        None => {
            if errors.is_empty() {
                errors.push(Error::new(
                    &source,
                    1,
                    Mark { line: 1, column: 1 },
                    "there is no document",
                ));
            }
            Err(errors)
        }
    }
}

fn source(name: &str, bytes: &[u8]) -> Result<Arc<Source>, Box<Error>> {
    let source = |text: String| {
        Arc::new(Source {
            name: name.to_owned(),
            has_secrets: has_secrets(&text),
            text,
        })
    };
    decode::decode(bytes).map(source).map_err(|fault| {
        Box::new(Error::new(&source(fault.text), 1, fault.at, fault.what).remedy(fault.remedy))
    })
}

#[cfg(test)]
mod tests;
