//! Templates of `-o jsonpath=`, in kubectl's dialect.
//!
//! Text stands as it is; `{…}` holds a path (`.a.b`, `['k']`, `[0]`, `[-1]`, `[0:2]`, `[*]`, `..name`, `[?(@.x=="y")]`),
//! a quoted text, or `range PATH` up to `{end}`. A field that is not there gives nothing. Bounded: templates of 64 KiB,
//! ranges 16 deep, a million values.

mod eval;
mod parse;

use serde_json::Value;

/// Longest template.
const MAX_TEMPLATE: usize = 64 * 1024;
/// Deepest nesting of ranges and filters.
const MAX_DEPTH: usize = 16;
/// Most values that a path may give.
const MAX_VALUES: usize = 1_000_000;

/// What is wrong with a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("jsonpath: {what}, at character {at}")]
    Syntax {
        /// What is wrong.
        what: String,
        /// Where, from 1.
        at: usize,
    },
    /// It gives more than anybody can read.
    #[error("jsonpath: the template gives more than {MAX_VALUES} values")]
    TooMany,
}

/// A template.
#[derive(Clone, Debug, PartialEq)]
pub struct Template(Vec<Node>);

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Text(String),
    Path(Vec<Step>),
    Range(Vec<Step>, Vec<Self>),
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Root,
    Current,
    Fields(Vec<String>),
    Indices(Vec<i64>),
    Slice(Option<i64>, Option<i64>, i64),
    All,
    Descend,
    Filter(Box<Operand>, Option<(Compare, Box<Operand>)>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compare {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Path(Vec<Step>),
    Literal(Value),
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(text: &str) -> Result<Self, Error> {
        parse::template(text).map(Self)
    }

    /// Reads one path: `{.a.b}`, `.a.b` or `a.b`.
    ///
    /// # Errors
    /// When it is none.
    pub fn path(text: &str) -> Result<Self, Error> {
        let inner = text.trim();
        let inner = inner
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'))
            .unwrap_or(inner);
        let dotted = if inner.starts_with(['.', '[', '$', '@']) {
            inner.to_owned()
        } else {
            format!(".{inner}")
        };
        Self::parse(&format!("{{{dotted}}}"))
    }

    /// What the template gives for an object.
    ///
    /// # Errors
    /// When it gives too much.
    pub fn render(&self, object: &Value) -> Result<String, Error> {
        let mut out = String::new();
        let mut left = MAX_VALUES;
        eval::nodes(&self.0, object, object, &mut out, &mut left)?;
        Ok(out)
    }

    /// The values that the template's first path gives.
    ///
    /// # Errors
    /// When there are too many.
    pub fn values<'a>(&self, object: &'a Value) -> Result<Vec<&'a Value>, Error> {
        let mut left = MAX_VALUES;
        for node in &self.0 {
            if let Node::Path(steps) = node {
                return eval::path(steps, object, object, &mut left);
            }
        }
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests;
