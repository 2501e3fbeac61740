//! The one place through which everything is written.
//!
//! A write is planned against the stored objects without side effects, then all plans of a transaction are
//! committed together. When somebody was faster the plans are made again; what the caller demanded of the
//! objects (preconditions, versions) is checked in each plan, so a retry never overrides anybody knowingly.

use std::collections::BTreeSet;
use std::sync::Arc;

use panda_api::scheme::{self, Operation, Prepared};
use panda_api::validation::FieldError;
use panda_store::{self as store, Body, Change, Entry, Expect, Key, Op, Txn};
use serde_json::{Value, json};

use super::error::{MODIFIED, cause};
use super::meta::Preconditions;
use super::{Error, Kind, Object, Registry, encode, kinds, meta, strategy};

/// How often a transaction is planned anew after a lost race.
const ATTEMPTS: usize = 32;
/// Annotation in which the trace of the request that made an object travels on.
pub const TRACEPARENT: &str = "panda.dev/traceparent";

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

/// How a write is done.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// Check everything, store nothing.
    pub dry_run: bool,
    /// What happens to unknown fields.
    pub field_validation: FieldValidation,
    /// Duplicate fields that the decoder of the body found, ready to print.
    pub duplicates: Vec<String>,
    /// The trace that new objects carry on.
    pub traceparent: Option<String>,
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

struct Plan {
    op: Op,
    effect: Effect,
    warnings: Vec<String>,
    /// The namespace that must stay as it is, for a creation in it.
    guard: Option<Op>,
    /// The stored object, for an effect that stores nothing.
    current: Option<Arc<Entry>>,
    /// The next state, for a dry run.
    next: Option<Value>,
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
        for _ in 0..ATTEMPTS {
            let mut plans = Vec::with_capacity(writes.len());
            for write in &mut writes {
                plans.push(self.plan(write, options).await?);
            }
            if options.dry_run {
                return plans.into_iter().map(|plan| self.would_be(plan)).collect();
            }
            match self.commit(plans).await {
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

    async fn commit(&self, plans: Vec<Plan>) -> Result<Vec<Written>, store::Error> {
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

    async fn plan(&self, write: &mut Write, options: &WriteOptions) -> Result<Plan, Error> {
        match write {
            Write::Create {
                kind,
                namespace,
                object,
            } => self.plan_create(kind, namespace, object.clone(), options).await,
            Write::Update {
                kind,
                namespace,
                name,
                part,
                object,
            } => {
                let (entry, old) = self.stored(kind, namespace, name).await?;
                self.plan_update(kind, *part, entry, &old, object.clone(), options)
            }
            Write::Modify {
                kind,
                namespace,
                name,
                part,
                change,
            } => {
                let (entry, old) = self.stored(kind, namespace, name).await?;
                let object = change(&old)?;
                self.plan_update(kind, *part, entry, &old, object, options)
            }
            Write::Delete {
                kind,
                namespace,
                name,
                preconditions,
            } => {
                let (entry, old) = self.stored(kind, namespace, name).await?;
                preconditions.check(kind, &old)?;
                self.plan_delete(kind, entry, old)
            }
            Write::Check {
                kind,
                namespace,
                name,
                preconditions,
            } => {
                let (entry, old) = self.stored(kind, namespace, name).await?;
                preconditions.check(kind, &old)?;
                Ok(unchanged(entry, Vec::new()))
            }
        }
    }

    async fn stored(&self, kind: Kind, namespace: &str, name: &str) -> Result<(Arc<Entry>, Value), Error> {
        let found = self.store().get(kinds::key(kind, namespace, name)).await?;
        let entry = found.ok_or_else(|| Error::not_found(kind, name))?;
        let value = self.open(&entry)?.value()?;
        Ok((entry, value))
    }

    async fn plan_create(
        &self,
        kind: Kind,
        namespace: &str,
        mut object: Value,
        options: &WriteOptions,
    ) -> Result<Plan, Error> {
        meta::identify(kind, namespace, None, &mut object)?;
        let guard = self
            .namespace_guard(kind, namespace, meta::text(&object, "name"))
            .await?;
        meta::generate_name(kind, &mut object, self.ids())?;
        if let Some(trace) = options.traceparent.as_deref().filter(|_| kinds::is_custom(kind)) {
            let annotations = meta::metadata(kind, &mut object)?
                .entry("annotations")
                .or_insert(json!({}));
            if let Value::Object(annotations) = annotations {
                annotations.entry(TRACEPARENT).or_insert_with(|| trace.into());
            }
        }
        let (mut object, warnings) = self.prepare(kind, object, Operation::Create, options)?;
        let now = self.clock().now();
        meta::stamp(kind, &mut object, now, self.ids())?;
        strategy::complete(kind, &mut object)?;
        let key = kinds::key(kind, namespace, meta::text(&object, "name"));
        if options.dry_run && self.store().get(key.clone()).await?.is_some() {
            return Err(Error::AlreadyExists {
                resource: kinds::resource(kind),
                name: key.name.to_string(),
            });
        }
        let op = Op::create(key.clone(), self.encode(kind, &key, &object)?);
        Ok(Plan {
            op,
            effect: Effect::Created,
            warnings,
            guard,
            current: None,
            next: Some(object),
        })
    }

    fn plan_update(
        &self,
        kind: Kind,
        part: Part,
        entry: Arc<Entry>,
        old: &Value,
        mut object: Value,
        options: &WriteOptions,
    ) -> Result<Plan, Error> {
        let key = entry.key.clone();
        Preconditions::of(&object).check(kind, old)?;
        meta::identify(kind, &key.namespace, Some(&key.name), &mut object)?;
        let (next, warnings) = match part {
            Part::Finalize => {
                let mut next = old.clone();
                let wanted = object
                    .pointer("/spec/finalizers")
                    .cloned()
                    .unwrap_or_else(|| json!([]));
                next["spec"]["finalizers"] = wanted;
                (next, Vec::new())
            }
            Part::All => {
                let status = object.get("status").cloned();
                let (mut next, mut warnings) =
                    self.prepare(kind, object, strategy::operation(Part::Spec, old), options)?;
                if kind.has_status {
                    let mut with_status = next.clone();
                    with_status["status"] = status.unwrap_or_else(|| json!({}));
                    let operation = strategy::operation(Part::Status, &next);
                    let (changed, more) = self.prepare(kind, with_status, operation, options)?;
                    next = changed;
                    warnings.extend(more);
                }
                (next, warnings)
            }
            Part::Spec | Part::Status => {
                let (mut next, warnings) =
                    self.prepare(kind, object, strategy::operation(part, old), options)?;
                strategy::guard(kind, part, old, &mut next)?;
                (next, warnings)
            }
        };
        meta::check_finalizers(kind, old, &next)?;
        if meta::is_deleting(&next) && !meta::is_held(kind, &next) {
            // The write that lets go of the object is the one that ends it.
            return self.plan_removal(kind, &entry, next, warnings);
        }
        if next == *old {
            return Ok(unchanged(entry, warnings));
        }
        let body = self.encode(kind, &key, &next)?;
        let op = Op::update(key, entry.revision, body);
        Ok(Plan {
            op,
            effect: Effect::Updated,
            warnings,
            guard: None,
            current: None,
            next: Some(next),
        })
    }

    fn plan_delete(&self, kind: Kind, entry: Arc<Entry>, mut object: Value) -> Result<Plan, Error> {
        if !meta::is_held(kind, &object) {
            return self.plan_removal(kind, &entry, object, Vec::new());
        }
        if meta::is_deleting(&object) {
            return Ok(unchanged(entry, Vec::new()));
        }
        meta::begin_deletion(kind, &mut object, self.clock().now())?;
        strategy::terminate(kind, &mut object);
        let key = entry.key.clone();
        let op = Op::update(key.clone(), entry.revision, self.encode(kind, &key, &object)?);
        Ok(Plan {
            op,
            effect: Effect::Updated,
            warnings: Vec::new(),
            guard: None,
            current: None,
            next: Some(object),
        })
    }

    fn plan_removal(
        &self,
        kind: Kind,
        entry: &Entry,
        last: Value,
        warnings: Vec<String>,
    ) -> Result<Plan, Error> {
        let body = self.encode(kind, &entry.key, &last)?;
        let op = Op::delete(entry.key.clone(), entry.revision, Some(body));
        Ok(Plan {
            op,
            effect: Effect::Deleted,
            warnings,
            guard: None,
            current: None,
            next: Some(last),
        })
    }

    /// A new object needs a namespace that exists and is not going, until it is committed.
    async fn namespace_guard(&self, kind: Kind, namespace: &str, name: &str) -> Result<Option<Op>, Error> {
        if !kind.namespaced {
            return Ok(None);
        }
        let namespaces = scheme::of::<panda_api::Namespace>();
        let key = kinds::key(namespaces, "", namespace);
        let entry = self.store().get(key.clone()).await?;
        let entry = entry.ok_or_else(|| Error::not_found(namespaces, namespace))?;
        if meta::is_deleting(&self.open(&entry)?.value()?) {
            let text = format!("namespace {namespace} is being terminated");
            let detail = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            let causes = vec![cause("NamespaceTerminating", "metadata.namespace", text)];
            let (resource, name) = (kinds::resource(kind), name.to_owned());
            return Err(Error::Forbidden {
                resource,
                name,
                detail,
                causes,
            });
        }
        Ok(Some(Op::check(key, Expect::Revision(entry.revision))))
    }

    fn prepare(
        &self,
        kind: Kind,
        object: Value,
        operation: Operation<'_>,
        options: &WriteOptions,
    ) -> Result<(Value, Vec<String>), Error> {
        let name = meta::text(&object, "name").to_owned();
        let prepared = scheme::prepare(kind, object, operation).map_err(|error| match error {
            scheme::Error::Invalid(faults) => {
                Error::invalid(kind, &name, faults.iter().map(FieldError::cause).collect())
            }
            scheme::Error::Malformed(detail) => Error::BadRequest(format!(
                "{} in version {:?} cannot be handled as a {}: {detail}",
                kind.kind, kind.version, kind.kind
            )),
        })?;
        let Prepared {
            object,
            mut warnings,
            unknown_fields,
            ..
        } = prepared;
        let unknown = unknown_fields
            .iter()
            .map(|path| format!("unknown field \"{path}\""));
        let odd: Vec<String> = unknown.chain(options.duplicates.iter().cloned()).collect();
        match options.field_validation {
            FieldValidation::Ignore => {}
            FieldValidation::Warn => warnings.extend(odd),
            FieldValidation::Strict if odd.is_empty() => {}
            FieldValidation::Strict => {
                return Err(Error::BadRequest(format!(
                    "{} in version {:?} cannot be handled as a {}: strict decoding error: {}",
                    kind.kind,
                    kind.version,
                    kind.kind,
                    odd.join(", ")
                )));
            }
        }
        Ok((object, warnings))
    }

    fn encode(&self, kind: Kind, key: &Key, object: &Value) -> Result<Body, Error> {
        let body = encode::body(object);
        if kinds::is_sealed(kind) {
            return self.sealer().seal(key, meta::text(object, "uid"), &body);
        }
        Ok(body)
    }
}

fn unchanged(entry: Arc<Entry>, warnings: Vec<String>) -> Plan {
    Plan {
        op: Op::check(entry.key.clone(), Expect::Revision(entry.revision)),
        effect: Effect::Unchanged,
        warnings,
        guard: None,
        current: Some(entry),
        next: None,
    }
}
