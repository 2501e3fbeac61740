//! Transactions: what may change together.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use crate::{Entry, Error, Key, Revision};

/// Most operations in one transaction.
const MAX_OPS: usize = 1024;
/// Most bytes of bodies in one transaction.
const MAX_BYTES: usize = 32 << 20;

/// A serialised object with a gap for its revision.
///
/// The caller serialises on its own thread; the store only writes the decimal revision at `splice` once it
/// knows it. The quotes of `"resourceVersion": ""` are already there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// The object's JSON, without the digits of its revision.
    pub bytes: Vec<u8>,
    /// Where the digits go.
    pub splice: usize,
}

impl Body {
    /// A body whose revision goes to byte `splice`.
    #[must_use]
    pub fn new(bytes: Vec<u8>, splice: usize) -> Self {
        Self { bytes, splice }
    }

    /// The final bytes, at `revision`. `splice` has been validated; beyond the end it means the end.
    pub(crate) fn finish(&self, revision: Revision) -> Bytes {
        let digits = revision.to_string();
        let (head, tail) = self.bytes.split_at(self.splice.min(self.bytes.len()));
        let mut out = Vec::with_capacity(self.bytes.len() + digits.len());
        out.extend_from_slice(head);
        out.extend_from_slice(digits.as_bytes());
        out.extend_from_slice(tail);
        out.into()
    }
}

/// What must hold of a key for its transaction to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The key does not exist; otherwise [`Error::Exists`].
    Absent,
    /// The key exists at exactly this revision; otherwise [`Error::Conflict`].
    Revision(Revision),
    /// The key exists, at any revision; otherwise [`Error::Conflict`] without a current entry.
    Any,
}

/// What happens to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Creates or replaces it.
    Put(Body),
    /// Deletes it. The body, if given, is the last state shown in the event, with the delete's revision
    /// spliced in; otherwise the event shows the state as it was stored.
    Delete(Option<Body>),
    /// Nothing: only the precondition counts.
    Check,
}

/// One key's part of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// The key.
    pub key: Key,
    /// Its precondition.
    pub expect: Expect,
    /// Its change.
    pub change: Change,
}

impl Op {
    /// Creates a key that must not exist.
    #[must_use]
    pub fn create(key: Key, body: Body) -> Self {
        Self {
            key,
            expect: Expect::Absent,
            change: Change::Put(body),
        }
    }

    /// Replaces a key that must be at `revision`.
    #[must_use]
    pub fn update(key: Key, revision: Revision, body: Body) -> Self {
        Self {
            key,
            expect: Expect::Revision(revision),
            change: Change::Put(body),
        }
    }

    /// Deletes a key that must be at `revision`.
    #[must_use]
    pub fn delete(key: Key, revision: Revision, last: Option<Body>) -> Self {
        Self {
            key,
            expect: Expect::Revision(revision),
            change: Change::Delete(last),
        }
    }

    /// Requires a precondition without changing the key.
    #[must_use]
    pub fn check(key: Key, expect: Expect) -> Self {
        Self {
            key,
            expect,
            change: Change::Check,
        }
    }

    pub(crate) fn verify(&self, index: usize, current: Option<&Arc<Entry>>) -> Result<(), Error> {
        match (self.expect, current) {
            (Expect::Absent, None) | (Expect::Any, Some(_)) => Ok(()),
            (Expect::Absent, Some(entry)) => Err(Error::Exists {
                index,
                current: Arc::clone(entry),
            }),
            (Expect::Revision(wanted), Some(entry)) if entry.revision == wanted => Ok(()),
            (Expect::Revision(_) | Expect::Any, _) => Err(Error::Conflict {
                index,
                current: current.cloned(),
            }),
        }
    }

    fn body(&self) -> Option<&Body> {
        match &self.change {
            Change::Put(body) => Some(body),
            Change::Delete(body) => body.as_ref(),
            Change::Check => None,
        }
    }
}

/// Operations on distinct keys that happen together or not at all, each put and delete at its own revision,
/// in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// The operations.
    pub ops: Vec<Op>,
}

impl Txn {
    /// A transaction of these operations.
    #[must_use]
    pub fn new(ops: Vec<Op>) -> Self {
        Self { ops }
    }

    /// A transaction of one operation.
    #[must_use]
    pub fn one(op: Op) -> Self {
        Self { ops: vec![op] }
    }

    /// Bytes of all bodies.
    pub(crate) fn size(&self) -> usize {
        self.ops
            .iter()
            .filter_map(Op::body)
            .map(|body| body.bytes.len())
            .sum()
    }

    pub(crate) fn validate(&self) -> Result<(), Error> {
        if self.ops.len() > MAX_OPS {
            return Err(Error::TooLarge {
                what: "number of operations",
                actual: self.ops.len(),
                limit: MAX_OPS,
            });
        }
        let size = self.size();
        if size > MAX_BYTES {
            return Err(Error::TooLarge {
                what: "number of bytes",
                actual: size,
                limit: MAX_BYTES,
            });
        }
        for op in &self.ops {
            op.key.validate()?;
            if op.body().is_some_and(|body| body.splice > body.bytes.len()) {
                return Err(Error::invalid(format!(
                    "the revision's place in {} is beyond its end",
                    op.key
                )));
            }
            if op.expect == Expect::Absent && matches!(op.change, Change::Delete(_)) {
                return Err(Error::invalid(format!(
                    "{} cannot be both absent and deleted",
                    op.key
                )));
            }
        }
        if self.ops.len() > 1 {
            let distinct: BTreeSet<&Key> = self.ops.iter().map(|op| &op.key).collect();
            if distinct.len() != self.ops.len() {
                return Err(Error::invalid("a transaction names one key twice"));
            }
        }
        Ok(())
    }
}

impl From<Op> for Txn {
    fn from(op: Op) -> Self {
        Self::one(op)
    }
}

impl From<Vec<Op>> for Txn {
    fn from(ops: Vec<Op>) -> Self {
        Self { ops }
    }
}

/// What a transaction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The revision of its last change, or the store's newest when it changed nothing.
    pub revision: Revision,
    /// For each operation: the entry it put, the last state of the entry it deleted (at the delete's
    /// revision), nothing for a check.
    pub entries: Vec<Option<Arc<Entry>>>,
}
