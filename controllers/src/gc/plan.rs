//! The planner of one dependent.

use std::collections::BTreeSet;

use panda_api::meta::{ObjectMeta, OwnerReference};
use serde_json::json;

use crate::framework::{Action, Basis, Check, Kind, Plan, Target, to_value};

/// What the caches show of one object's owners.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Uids of the owners that exist, each where its reference says.
    pub owners: BTreeSet<String>,
}

/// An object that has owners.
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
}

/// Plans what becomes of an object that has owners.
#[must_use]
pub fn plan(view: &View, dependent: &Dependent) -> Plan {
    let meta = &dependent.metadata;
    if meta.deletion_timestamp.is_some() || meta.owner_references.is_empty() {
        return Plan::default();
    }
    let mut living = Vec::new();
    let mut checks = Vec::new();
    for reference in &meta.owner_references {
        if view.owners.contains(&reference.uid) {
            living.push(reference);
            continue;
        }
        let Some(target) = dependent.resolve(reference) else {
            // Nothing can be proved about it.
            return Plan::default();
        };
        checks.push(Check::Absent {
            target,
            uid: Some(reference.uid.clone()),
        });
    }
    if checks.is_empty() {
        return Plan::default();
    }
    let action = if living.is_empty() {
        Action::Delete {
            target: dependent.target.clone(),
            uid: meta.uid.clone(),
            resource_version: Some(meta.resource_version.clone()),
        }
    } else {
        Action::Patch {
            target: dependent.target.clone(),
            body: json!({"metadata": {
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
                "ownerReferences": to_value(&living),
            }}),
        }
    };
    Plan {
        basis: Some(Basis {
            target: dependent.target.clone(),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
        }),
        checks,
        actions: vec![action],
        ..Plan::default()
    }
}
