//! Where values stand in a text.

use std::collections::BTreeMap;

use crate::meta::field_path::{FieldPath, Segment};

/// A place in a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

/// The places of a value, of its key, and of all that is in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spans {
    /// Where the value starts.
    pub(crate) at: Mark,
    /// Where its key starts; the value's own place when it has none.
    pub(crate) key: Mark,
    pub(crate) inner: Inner,
}

#[derive(Clone, Debug, Default)]
pub(crate) enum Inner {
    #[default]
    Leaf,
    /// A scalar without quotes that is no text: its source.
    Plain(Box<str>),
    List(Vec<Spans>),
    Map(BTreeMap<String, Spans>),
}

impl Spans {
    pub(crate) fn leaf(at: Mark) -> Self {
        Self {
            at,
            key: at,
            inner: Inner::Leaf,
        }
    }

    /// The place of a field, or of the nearest that holds it; and whether it is the field itself.
    pub(crate) fn find(&self, path: &FieldPath) -> (&Self, bool) {
        let mut here = self;
        for segment in path.segments() {
            let next = match (&here.inner, segment) {
                (Inner::Map(entries), Segment::Key(key)) => entries.get(key),
                // A path that was read from text cannot tell a numeric key from an index.
                (Inner::Map(entries), Segment::Index(index)) => entries.get(&index.to_string()),
                (Inner::List(items), Segment::Index(index)) => items.get(*index),
                (Inner::List(_), Segment::Key(_)) | (Inner::Leaf | Inner::Plain(_), _) => None,
            };
            match next {
                Some(next) => here = next,
                None => return (here, false),
            }
        }
        (here, true)
    }
}
