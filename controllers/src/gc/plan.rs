//! The planner of one object.

use std::collections::{BTreeMap, BTreeSet};

use panda_api::meta::{ObjectMeta, OwnerReference};
use panda_api::{Run, Task};
use serde_json::{Value, json};

use crate::framework::{Action, Basis, Check, Kind, Plan, Target, to_value};

/// Keeps an object until what blocks its deletion is gone.
const FOREGROUND: &str = "foregroundDeletion";
/// Keeps an object until its dependents have forgotten it.
const ORPHAN: &str = "orphan";
/// Dependents that one plan lets go.
const BATCH: usize = 100;

/// What the caches show around one object.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The owners that exist, each where its reference says, by uid; with whether it waits for its dependents.
    pub owners: BTreeMap<String, bool>,
    /// What names it as its owner.
    pub dependents: Vec<Dependent>,
    /// Uids of the dependents that wait, through others, for the object itself.
    pub circular: BTreeSet<String>,
}

/// An object of any kind.
#[derive(Clone, Debug)]
pub struct Dependent {
    /// The object.
    pub target: Target,
    /// Its metadata.
    pub metadata: ObjectMeta,
}

impl Dependent {
    /// Where a reference of this object points to. `None` when no object can be there: an unknown kind, or one in a
    /// namespace as owner of one without.
    #[must_use]
    pub fn resolve(&self, reference: &OwnerReference) -> Option<Target> {
        let kind = Kind::find(&reference.api_version, &reference.kind)?;
        if kind.namespaced && self.metadata.namespace.is_empty() {
            return None;
        }
        Some(Target {
            kind,
            namespace: if kind.namespaced {
                self.metadata.namespace.clone()
            } else {
                String::new()
            },
            name: reference.name.clone(),
        })
    }

    fn is_going(&self, finalizer: &str) -> bool {
        let meta = &self.metadata;
        meta.deletion_timestamp.is_some() && meta.finalizers.iter().any(|name| name == finalizer)
    }

    /// Whether its deletion waits for what it owns.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.is_going(FOREGROUND)
    }

    /// Whether its deletion involves what it owns.
    #[must_use]
    pub fn concerns_dependents(&self) -> bool {
        self.is_going(FOREGROUND) || self.is_going(ORPHAN)
    }

    fn basis(&self) -> Basis {
        Basis {
            target: self.target.clone(),
            uid: self.metadata.uid.clone(),
            resource_version: self.metadata.resource_version.clone(),
        }
    }

    /// Replaces a list of its metadata, in exactly this version.
    fn set(&self, field: &str, value: &Value) -> Action {
        let meta = &self.metadata;
        Action::Patch {
            target: self.target.clone(),
            body: json!({"metadata": {
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
                field: value,
            }}),
        }
    }

    /// Lets the object go, as far as `finalizer` is concerned.
    fn release(&self, finalizer: &str, check: Check) -> Plan {
        let rest: Vec<&String> = self
            .metadata
            .finalizers
            .iter()
            .filter(|name| *name != finalizer)
            .collect();
        Plan {
            basis: Some(self.basis()),
            checks: vec![check],
            actions: vec![self.set("finalizers", &to_value(&rest))],
            ..Plan::default()
        }
    }

    fn unowned(&self, blocking: bool, except: BTreeSet<String>) -> Check {
        Check::Unowned {
            owner: self.target.clone(),
            uid: self.metadata.uid.clone(),
            blocking,
            except,
        }
    }
}

/// Those of `dependents` from which one comes back to `uid` through objects that all wait for their dependents: a
/// circle, in which nobody would ever be the first to go.
#[must_use]
pub fn circular(
    uid: &str,
    dependents: &[Dependent],
    owned_by: &dyn Fn(&str) -> Vec<Dependent>,
) -> BTreeSet<String> {
    let comes_back = |from: &Dependent| {
        let mut seen = BTreeSet::new();
        let mut open = vec![from.clone()];
        while let Some(next) = open.pop() {
            if next.metadata.uid == uid {
                return true;
            }
            if next.is_waiting() && seen.insert(next.metadata.uid.clone()) {
                open.extend(owned_by(&next.metadata.uid));
            }
        }
        false
    };
    dependents
        .iter()
        .filter(|dependent| comes_back(dependent))
        .map(|dependent| dependent.metadata.uid.clone())
        .collect()
}

/// Plans what becomes of an object because of its owners, and of its dependents because of it.
#[must_use]
pub fn plan(view: &View, object: &Dependent) -> Plan {
    if object.is_going(ORPHAN) {
        return orphan(view, object);
    }
    if object.is_waiting() {
        return wait(view, object);
    }
    if object.metadata.deletion_timestamp.is_some() {
        return Plan::default();
    }
    collect(view, object)
}

/// Makes the dependents forget the object, then lets it go.
fn orphan(view: &View, object: &Dependent) -> Plan {
    if view.dependents.is_empty() {
        return object.release(ORPHAN, object.unowned(false, BTreeSet::new()));
    }
    let forget = |dependent: &Dependent| {
        let rest: Vec<&OwnerReference> = dependent
            .metadata
            .owner_references
            .iter()
            .filter(|reference| reference.uid != object.metadata.uid)
            .collect();
        let mut forget = dependent.set("ownerReferences", &to_value(&rest));
        if let Action::Patch { target, body } = &mut forget
            && target.kind == Kind::of::<Run>()
            && object.target.kind == Kind::of::<Task>()
        {
            // Nobody would end it, publish it or bind it any more: it stays as a record.
            body["spec"] = json!({"cancel": true});
        }
        forget
    };
    Plan {
        basis: Some(object.basis()),
        actions: view.dependents.iter().take(BATCH).map(forget).collect(),
        ..Plan::default()
    }
}

/// Lets the object go once nothing blocks it any more. Its dependents are deleted by plans of their own.
fn wait(view: &View, object: &Dependent) -> Plan {
    let uid = &object.metadata.uid;
    let blocked = view.dependents.iter().any(|dependent| {
        let mut references = dependent.metadata.owner_references.iter();
        !view.circular.contains(&dependent.metadata.uid)
            && references.any(|r| r.uid == *uid && r.block_owner_deletion == Some(true))
    });
    if blocked {
        return Plan::default();
    }
    object.release(FOREGROUND, object.unowned(true, view.circular.clone()))
}

/// Deletes an object that no owner keeps; takes away references to owners that do not, when another does.
fn collect(view: &View, object: &Dependent) -> Plan {
    let meta = &object.metadata;
    let mut keeping = Vec::new();
    let mut waited_for = false;
    let mut checks = Vec::new();
    for reference in &meta.owner_references {
        match view.owners.get(&reference.uid) {
            Some(false) => keeping.push(reference),
            Some(true) => waited_for = true,
            None => {
                let Some(target) = object.resolve(reference) else {
                    // Nothing can be proved about it.
                    return Plan::default();
                };
                checks.push(Check::Absent {
                    target,
                    uid: Some(reference.uid.clone()),
                });
            }
        }
    }
    if checks.is_empty() && !waited_for {
        return Plan::default();
    }
    let action = if keeping.is_empty() {
        Action::Delete {
            target: object.target.clone(),
            uid: meta.uid.clone(),
            resource_version: Some(meta.resource_version.clone()),
            // Who waits for this one waits for what it owns, too.
            foreground: waited_for && !view.dependents.is_empty(),
        }
    } else {
        object.set("ownerReferences", &to_value(&keeping))
    };
    Plan {
        basis: Some(object.basis()),
        checks,
        actions: vec![action],
        ..Plan::default()
    }
}
