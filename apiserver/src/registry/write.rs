//! The one place through which everything is written.
//!
//! A write is planned against the stored objects without side effects, then all plans of a transaction are
//! committed together. When somebody was faster the plans are made again; what the caller demanded of the
//! objects (preconditions, versions) is checked in each plan, so a retry never overrides anybody knowingly.

use std::collections::BTreeSet;
use std::sync::Arc;

use panda_store::{self as store, Change, Entry, Key, Op, Txn};
use serde_json::Value;

use super::error::MODIFIED;
use super::meta::{Preconditions, Propagation};
use super::plan::Plan;
use super::{Error, Kind, Object, Registry, encode, kinds, meta, quota};

/// How often a transaction is planned anew after a lost race.
const ATTEMPTS: usize = 32;

/// What happens to unknown and duplicate fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// Refuse them.
    Strict,
    /// Drop them and say so.
    #[default]
    Warn,
    /// Drop them silently.
    Ignore,
}

/// A write by a client that is about to be stored.
#[derive(Clone, Copy, Debug)]
pub struct Admitting<'a> {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace; empty for cluster-scoped kinds.
    pub namespace: &'a str,
    /// The stored object; none for a creation.
    pub old: Option<&'a Value>,
    /// The complete new object.
    pub new: &'a Value,
}

/// Rules about what an object holds, for the client that writes it.
pub trait Admit: Send + Sync + std::fmt::Debug {
    /// Refuses what may not be stored.
    ///
    /// # Errors
    /// When it may not.
    fn check(&self, write: &Admitting<'_>) -> Result<(), Error>;
}

/// How a write is done.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// Rules for the client; none for the server's own writes.
    pub admission: Option<Arc<dyn Admit>>,
    /// Check everything, store nothing.
    pub dry_run: bool,
    /// What happens to unknown fields.
    pub field_validation: FieldValidation,
    /// Duplicate fields that the decoder of the body found, ready to print.
    pub duplicates: Vec<String>,
    /// The trace that new objects carry on.
    pub traceparent: Option<String>,
    /// For a deletion: what becomes of the dependents; absent: what was said before, or nothing in particular.
    pub propagation: Option<Propagation>,
}

/// Which part of an object an update may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything but `status` (for kinds that have a status subresource), as a client's PUT.
    Spec,
    /// Only `status`.
    Status,
    /// Both at once, binding included: for the server's own services only.
    All,
    /// Only `spec.finalizers` of a namespace.
    Finalize,
}

/// Makes the next state of an object from the stored one; may be called more than once.
pub type ModifyFn = Box<dyn FnMut(&Value) -> Result<Value, Error> + Send>;

/// One object's part of a transaction.
pub enum Write {
    /// A new object.
    Create {
        /// Its kind.
        kind: Kind,
        /// Its namespace; empty for cluster-scoped kinds.
        namespace: String,
        /// The object.
        object: Value,
    },
    /// A new state of an object; its `metadata.resourceVersion` and `uid`, if any, are preconditions.
    Update {
        /// Its kind.
        kind: Kind,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// What may change.
        part: Part,
        /// The object.
        object: Value,
    },
    /// A change of whatever is stored, made anew when somebody else was faster.
    Modify {
        /// Its kind.
        kind: Kind,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// What may change.
        part: Part,
        /// The change.
        change: ModifyFn,
    },
    /// Deletes an object, or begins to when it has finalizers.
    Delete {
        /// Its kind.
        kind: Kind,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// What must hold.
        preconditions: Preconditions,
    },
    /// Changes nothing; the transaction fails unless the object exists and the preconditions hold.
    Check {
        /// Its kind.
        kind: Kind,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// What must hold.
        preconditions: Preconditions,
    },
}

impl std::fmt::Debug for Write {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (verb, kind, namespace, name) = match self {
            Self::Create { kind, namespace, .. } => ("Create", kind, namespace, ""),
            Self::Update {
                kind,
                namespace,
                name,
                ..
            } => ("Update", kind, namespace, name.as_str()),
            Self::Modify {
                kind,
                namespace,
                name,
                ..
            } => ("Modify", kind, namespace, name.as_str()),
            Self::Delete {
                kind,
                namespace,
                name,
                ..
            } => ("Delete", kind, namespace, name.as_str()),
            Self::Check {
                kind,
                namespace,
                name,
                ..
            } => ("Check", kind, namespace, name.as_str()),
        };
        write!(f, "{verb} {} {namespace}/{name}", kind.kind)
    }
}

/// What a write did to its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It was made.
    Created,
    /// It was changed; a deletion that waits for finalizers is a change.
    Updated,
    /// It is as it was.
    Unchanged,
    /// It is gone.
    Deleted,
}

/// The outcome of one write.
#[derive(Clone, Debug)]
pub struct Written {
    /// The object now; for a deletion its last state.
    pub object: Object,
    /// What happened.
    pub effect: Effect,
    /// What the author should know.
    pub warnings: Vec<String>,
}

impl Registry {
    /// Does all writes, or none.
    ///
    /// # Errors
    /// When one of them is refused, or races do not end.
    pub async fn transact(
        &self,
        mut writes: Vec<Write>,
        options: &WriteOptions,
    ) -> Result<Vec<Written>, Error> {
        let mut lost = None;
        let _counting = if self.has_quotas(quota::created_in(&writes)).await? {
            Some(self.0.counting.lock().await)
        } else {
            None
        };
        for _ in 0..ATTEMPTS {
            let mut plans = Vec::with_capacity(writes.len());
            for write in &mut writes {
                plans.push(self.plan(write, options).await?);
            }
            let charged = self.charge(&plans).await?;
            if options.dry_run {
                return plans.into_iter().map(|plan| self.would_be(plan)).collect();
            }
            match self.commit(plans, charged).await {
                Ok(written) => return Ok(written),
                Err(store::Error::Conflict { index, current }) => {
                    lost = Some((index, current.map(|entry| entry.key.clone())));
                }
                Err(store::Error::Exists { index, current }) => {
                    if let Some(Write::Create { kind, object, .. }) = writes.get(index)
                        && !meta::text(object, "name").is_empty()
                    {
                        let (resource, name) = (kinds::resource(kind), current.key.name.to_string());
                        return Err(Error::AlreadyExists { resource, name });
                    }
                    lost = Some((index, Some(current.key.clone())));
                }
                Err(error) => return Err(error.into()),
            }
        }
        let (index, key) = lost.unwrap_or_default();
        tracing::warn!(index, key = ?key, "a transaction lost every race");
        let kind = key.as_ref().and_then(kinds::of_key);
        let name = key.as_ref().map(|key| key.name.to_string()).unwrap_or_default();
        Err(match kind {
            Some(kind) => Error::conflict(kind, &name, MODIFIED),
            None => Error::Store(store::Error::Conflict { index, current: None }),
        })
    }

    /// One write.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn write(&self, write: Write, options: &WriteOptions) -> Result<Written, Error> {
        let key = match &write {
            Write::Create { kind, namespace, .. } => kinds::key(kind, namespace, "?"),
            Write::Update {
                kind,
                namespace,
                name,
                ..
            }
            | Write::Modify {
                kind,
                namespace,
                name,
                ..
            }
            | Write::Delete {
                kind,
                namespace,
                name,
                ..
            }
            | Write::Check {
                kind,
                namespace,
                name,
                ..
            } => kinds::key(kind, namespace, name),
        };
        let done = self.transact(vec![write], options).await?.pop();
        done.ok_or_else(|| Error::Damaged {
            key: key.to_string(),
            detail: "a write has no outcome".to_owned(),
        })
    }

    async fn commit(&self, plans: Vec<Plan>, charged: Vec<Op>) -> Result<Vec<Written>, store::Error> {
        if let [plan] = plans.as_slice()
            && matches!(plan.op.change, Change::Check)
        {
            // One reading needs no commit: it has seen the newest version.
            return plans.into_iter().map(|plan| self.finish(plan, None)).collect();
        }
        let mut ops: Vec<Op> = plans.iter().map(|plan| plan.op.clone()).collect();
        let mut taken: BTreeSet<Key> = ops.iter().map(|op| op.key.clone()).collect();
        for guard in plans.iter().filter_map(|plan| plan.guard.clone()) {
            if taken.insert(guard.key.clone()) {
                ops.push(guard);
            }
        }
        ops.extend(charged);
        let committed = self.store().commit(Txn::new(ops)).await?;
        plans
            .into_iter()
            .zip(committed.entries)
            .map(|(plan, entry)| self.finish(plan, entry))
            .collect()
    }

    fn finish(&self, plan: Plan, entry: Option<Arc<Entry>>) -> Result<Written, store::Error> {
        let not_found = || store::Error::NotFound {
            key: plan.op.key.clone(),
        };
        let entry = entry.or(plan.current).ok_or_else(not_found)?;
        let object = self.open(&entry).map_err(|error| store::Error::Invalid {
            reason: error.to_string(),
        })?;
        Ok(Written {
            object,
            effect: plan.effect,
            warnings: plan.warnings,
        })
    }

    fn would_be(&self, plan: Plan) -> Result<Written, Error> {
        let object = match (plan.next, plan.current) {
            (Some(next), _) => {
                let mut json = encode::body(&next);
                let version = meta::text(&next, "resourceVersion");
                json.bytes = encode::fill(&json.bytes, json.splice, version);
                let revision = version.parse().unwrap_or_default();
                Object {
                    key: plan.op.key,
                    revision,
                    json: json.bytes.into(),
                }
            }
            (None, Some(current)) => self.open(&current)?,
            (None, None) => {
                return Err(Error::Damaged {
                    key: plan.op.key.to_string(),
                    detail: "a dry run has no outcome".to_owned(),
                });
            }
        };
        Ok(Written {
            object,
            effect: plan.effect,
            warnings: plan.warnings,
        })
    }
}
