//! A strict JSON reader for bytes that nobody vouches for.
//!
//! 1. Nesting is bounded by [`MAX_DEPTH`]; the caller bounds the size.
//! 2. A key that stands twice in an object is reported, with its path and both lines, all of them; the value keeps the
//!    last one, as other readers do, so that a caller may merely warn.
//! 3. Nothing but JSON is accepted: one value, UTF-8, no comments, no trailing commas, no lone surrogates, no numbers
//!    that do not fit.
//! 4. Every error has a line and a column, both from 1.

mod parser;
mod spans;

use serde_json::Value;

use crate::meta::field_path::FieldPath;

pub(crate) use parser::{parse_all_located, parse_located};
pub use spans::Mark;
pub(crate) use spans::{Inner, Spans};

/// Deepest nesting of objects and arrays.
pub const MAX_DEPTH: usize = 64;

/// A JSON text as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// The value.
    pub value: Value,
    /// Keys that stand twice.
    pub duplicates: Vec<Duplicate>,
}

/// A key that stands twice in one object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("duplicate field \"{path}\" (lines {first_line} and {line})")]
pub struct Duplicate {
    /// Path of the key.
    pub path: FieldPath,
    /// Line where it stands first, from 1.
    pub first_line: usize,
    /// Column there, from 1.
    pub first_column: usize,
    /// Line where it stands again.
    pub line: usize,
    /// Column there, from 1.
    pub column: usize,
}

/// Why bytes are not JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at line {line} column {column}")]
pub struct Error {
    /// What is wrong, as a lower-case fragment.
    pub what: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

/// Reads one JSON value.
///
/// # Errors
///
/// When the bytes are not exactly one JSON value within the bounds. Duplicate keys are no error here: see [`Document`].
pub fn parse(bytes: &[u8]) -> Result<Document, Error> {
    let (value, doubled) = parser::parse(bytes)?;
    if !doubled {
        return Ok(Document {
            value,
            duplicates: Vec::new(),
        });
    }
    // Positions are kept only when they are needed: most bodies have no duplicates.
    let located = parse_located(bytes)?;
    Ok(Document {
        value: located.value,
        duplicates: located.duplicates,
    })
}

#[cfg(test)]
mod tests;
