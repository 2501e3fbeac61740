//! What one write comes to: the rules of metadata, deletion and namespaces, applied to stored objects.

use std::sync::Arc;

use panda_api::meta::TRACEPARENT;
use panda_api::meta::field_path::FieldPath;
use panda_api::scheme::{self, Operation, Prepared};
use panda_api::validation::FieldError;
use panda_store::{Body, Entry, Expect, Key, Op};
use serde_json::{Value, json};

use super::error::cause;
use super::meta::Preconditions;
use super::write::{Admitting, Effect, FieldValidation, Part, Write, WriteOptions};
use super::{Error, Kind, Registry, encode, kinds, meta, strategy};

/// What one write comes to, against the objects as they are now. Nothing has happened yet.
pub(super) struct Plan {
    pub(super) op: Op,
    pub(super) effect: Effect,
    pub(super) warnings: Vec<String>,
    /// The namespace that must stay as it is, for a creation in it.
    pub(super) guard: Option<Op>,
    /// The stored object, for an effect that stores nothing.
    pub(super) current: Option<Arc<Entry>>,
    /// The next state, for a dry run.
    pub(super) next: Option<Value>,
}

impl Registry {
    /// Plans a write.
    pub(super) async fn plan(&self, write: &mut Write, options: &WriteOptions) -> Result<Plan, Error> {
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
                strategy::guard_deletion(kind, name)?;
                preconditions.check(kind, &old)?;
                self.plan_delete(kind, entry, old, options)
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
        admit(kind, namespace, None, &object, options)?;
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
                if part == Part::Spec && next != *old {
                    admit(kind, &key.namespace, Some(old), &next, options)?;
                }
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

    fn plan_delete(
        &self,
        kind: Kind,
        entry: Arc<Entry>,
        mut object: Value,
        options: &WriteOptions,
    ) -> Result<Plan, Error> {
        let changed = match options.propagation {
            Some(how) => meta::propagate(kind, &mut object, how)?,
            None => false,
        };
        if !meta::is_held(kind, &object) {
            return self.plan_removal(kind, &entry, object, Vec::new());
        }
        let began = meta::is_deleting(&object);
        if began && !changed {
            return Ok(unchanged(entry, Vec::new()));
        }
        if !began {
            meta::begin_deletion(kind, &mut object, self.clock().now())?;
            strategy::terminate(kind, &mut object);
        }
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
        let is_strict = options.field_validation == FieldValidation::Strict;
        let given = is_strict.then(|| object.clone());
        let prepared = scheme::prepare(kind, object, operation).map_err(|error| match error {
            scheme::Error::Invalid(faults) => {
                // As upstream: what cannot be decoded comes before what is invalid.
                let odd = given.map_or_else(Vec::new, |given| {
                    odd(&scheme::unknown_fields(kind, &given), options)
                });
                if !odd.is_empty() {
                    return undecodable(kind, &odd);
                }
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
        let odd = odd(&unknown_fields, options);
        match options.field_validation {
            FieldValidation::Ignore => {}
            FieldValidation::Warn => warnings.extend(odd),
            FieldValidation::Strict if odd.is_empty() => {}
            FieldValidation::Strict => return Err(undecodable(kind, &odd)),
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

/// Fields that are not known or given twice, in words.
fn odd(unknown: &[FieldPath], options: &WriteOptions) -> Vec<String> {
    let unknown = unknown.iter().map(|path| format!("unknown field \"{path}\""));
    unknown.chain(options.duplicates.iter().cloned()).collect()
}

fn undecodable(kind: Kind, odd: &[String]) -> Error {
    Error::BadRequest(format!(
        "{} in version {:?} cannot be handled as a {}: strict decoding error: {}",
        kind.kind,
        kind.version,
        kind.kind,
        odd.join(", ")
    ))
}

fn admit(
    kind: Kind,
    namespace: &str,
    old: Option<&Value>,
    new: &Value,
    options: &WriteOptions,
) -> Result<(), Error> {
    let write = Admitting {
        kind,
        namespace,
        old,
        new,
    };
    options
        .admission
        .as_ref()
        .map_or(Ok(()), |rules| rules.check(&write))
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
