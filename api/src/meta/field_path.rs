//! Paths of fields, as `spec.agents[0].name`.

use std::fmt;
use std::str::FromStr;

/// One step of a [`FieldPath`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Segment {
    /// A field of an object, or a key of a map.
    Key(String),
    /// An item of a list.
    Index(usize),
}

/// Where a field stands in an object.
///
/// Printed as `spec.agents[0].name`. A key that is no plain word stands in brackets
/// (`metadata.labels[example.com/tier]`), in quotes where it could be misread (`data["0"]`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldPath(Vec<Segment>);

impl FieldPath {
    /// The path of the object itself.
    #[must_use]
    pub const fn root() -> Self {
        Self(Vec::new())
    }

    /// The steps, from the object inwards.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// Whether this is the object itself.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// One step further, to a field or key.
    #[must_use]
    pub fn key(mut self, name: impl Into<String>) -> Self {
        self.0.push(Segment::Key(name.into()));
        self
    }

    /// One step further, to an item.
    #[must_use]
    pub fn index(mut self, index: usize) -> Self {
        self.0.push(Segment::Index(index));
        self
    }

    /// One step further.
    #[must_use]
    pub fn step(mut self, segment: Segment) -> Self {
        self.0.push(segment);
        self
    }

    /// The path of what holds this field; `None` at the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let (_, rest) = self.0.split_last()?;
        Some(Self(rest.to_vec()))
    }
}

fn is_word(key: &str) -> bool {
    !key.is_empty()
        && key
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
        && !key.bytes().all(|b| b.is_ascii_digit())
}

fn needs_quotes(key: &str) -> bool {
    key.is_empty()
        || key.bytes().all(|b| b.is_ascii_digit())
        || key.starts_with('"')
        || key.chars().any(|c| c == ']' || c.is_control())
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Index(index) => write!(f, "[{index}]")?,
                Segment::Key(key) if is_word(key) => {
                    if at > 0 {
                        f.write_str(".")?;
                    }
                    f.write_str(key)?;
                }
                Segment::Key(key) if needs_quotes(key) => {
                    write!(f, "[{}]", serde_json::Value::from(key.as_str()))?;
                }
                Segment::Key(key) => write!(f, "[{key}]")?,
            }
        }
        Ok(())
    }
}

/// Why a text is not a field path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid field path {0:?}: want for example \"spec.agents[0].name\"")]
pub struct ParseFieldPathError(pub String);

impl FromStr for FieldPath {
    type Err = ParseFieldPathError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || ParseFieldPathError(text.chars().take(128).collect());
        let mut path = Self::root();
        // Server-side apply and kubectl also write a leading dot.
        let mut rest = text.strip_prefix('.').unwrap_or(text);
        let mut expect_word = !rest.is_empty();
        while !rest.is_empty() {
            if let Some(inner) = rest.strip_prefix('[') {
                if inner.starts_with('"') {
                    let mut stream = serde_json::Deserializer::from_str(inner).into_iter::<String>();
                    let key = stream.next().and_then(Result::ok).ok_or_else(fail)?;
                    let end = stream.byte_offset();
                    rest = inner[end..].strip_prefix(']').ok_or_else(fail)?;
                    path = path.key(key);
                } else {
                    let (key, after) = inner.split_once(']').ok_or_else(fail)?;
                    rest = after;
                    path = match key.parse::<usize>() {
                        Ok(index) if key.bytes().all(|b| b.is_ascii_digit()) => path.index(index),
                        _ if key.is_empty() => return Err(fail()),
                        _ => path.key(key),
                    };
                }
            } else {
                if !expect_word {
                    rest = rest.strip_prefix('.').ok_or_else(fail)?;
                }
                let end = rest.find(['.', '[']).unwrap_or(rest.len());
                if end == 0 {
                    return Err(fail());
                }
                path = path.key(&rest[..end]);
                rest = &rest[end..];
            }
            expect_word = false;
        }
        Ok(path)
    }
}

/// A path under construction during a walk: one step and a borrow of the rest, so that walking costs nothing.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    parent: Option<&'a Self>,
    step: Step<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Root,
    Key(&'a str),
    Index(usize),
}

impl<'a> Path<'a> {
    /// The object itself.
    #[must_use]
    pub const fn root() -> Self {
        Self {
            parent: None,
            step: Step::Root,
        }
    }

    /// One step further, to a field or key.
    #[must_use]
    pub const fn key(&'a self, name: &'a str) -> Self {
        Self {
            parent: Some(self),
            step: Step::Key(name),
        }
    }

    /// One step further, to an item.
    #[must_use]
    pub const fn index(&'a self, index: usize) -> Self {
        Self {
            parent: Some(self),
            step: Step::Index(index),
        }
    }

    /// The path, to keep.
    #[must_use]
    pub fn to_field_path(&self) -> FieldPath {
        let mut segments = Vec::new();
        let mut at = Some(self);
        while let Some(path) = at {
            match path.step {
                Step::Root => {}
                Step::Key(key) => segments.push(Segment::Key(key.to_owned())),
                Step::Index(index) => segments.push(Segment::Index(index)),
            }
            at = path.parent;
        }
        segments.reverse();
        FieldPath(segments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prints_and_reads_the_usual_forms() {
        let path = FieldPath::root().key("spec").key("agents").index(0).key("name");
        assert_eq!(path.to_string(), "spec.agents[0].name");
        assert_eq!("spec.agents[0].name".parse(), Ok(path.clone()));
        assert_eq!(".spec.agents[0].name".parse(), Ok(path));
        let label = FieldPath::root()
            .key("metadata")
            .key("labels")
            .key("example.com/tier");
        assert_eq!(label.to_string(), "metadata.labels[example.com/tier]");
        assert_eq!(FieldPath::root().key("data").key("0").to_string(), "data[\"0\"]");
    }

    #[test]
    fn refuses_what_is_no_path() {
        for bad in ["a..b", "a[", "a[\"x]", "a[]", "a]b[", "a.", "[\"x\"", "a[0]b"] {
            // `a]b[` is a word followed by an open bracket, which is refused too.
            assert!(bad.parse::<FieldPath>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(steps in proptest::collection::vec(
            prop_oneof![any::<String>().prop_map(Segment::Key), (0usize..1000).prop_map(Segment::Index)], 0..6,
        )) {
            let path = FieldPath(steps);
            prop_assert_eq!(path.to_string().parse::<FieldPath>(), Ok(path));
        }

        #[test]
        fn reading_never_panics(text in any::<String>()) {
            drop(text.parse::<FieldPath>());
        }
    }
}
