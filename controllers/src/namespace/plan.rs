//! The planner of one Namespace.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use panda_api::Namespace;
use panda_api::meta::{Condition, Time, set_condition};

use crate::framework::{Action, Basis, Check, Plan, Target, to_value};

/// Who must let go of a Namespace: this controller.
const FINALIZER: &str = "kubernetes";
const REMAINING: &str = "NamespaceContentRemaining";
/// How often it is looked whether what has finalizers has gone.
const REVIEW: Duration = Duration::from_secs(1);

/// What a Namespace holds.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Its objects; not all of them when there are many.
    pub items: Vec<Item>,
}

/// An object in a Namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The object.
    pub target: Target,
    /// Its uid.
    pub uid: String,
    /// Whether it is being deleted already.
    pub deleting: bool,
}

/// Plans the next step of a Namespace.
#[must_use]
pub fn plan(view: &View, namespace: &Namespace, now: Timestamp) -> Plan {
    let meta = &namespace.metadata;
    if meta.deletion_timestamp.is_none() {
        return Plan::default();
    }
    let mut plan = Plan::default();
    if view.items.is_empty() {
        if namespace.spec.finalizers.iter().any(|f| f == FINALIZER) {
            let mut free = namespace.clone();
            free.spec.finalizers.retain(|f| f != FINALIZER);
            plan.checks.push(Check::Empty {
                namespace: meta.name.clone(),
            });
            plan.actions.push(Action::Finalize {
                target: Target::of(namespace),
                object: to_value(&free),
            });
        }
        return plan;
    }
    plan.requeue = Some(REVIEW);
    plan.actions = view
        .items
        .iter()
        .filter(|item| !item.deleting)
        .map(|item| Action::Delete {
            target: item.target.clone(),
            uid: item.uid.clone(),
            resource_version: None,
            foreground: false,
        })
        .collect();
    if plan.actions.is_empty() {
        plan.basis = Some(Basis::of(namespace));
        plan.status = blocked(view, namespace, now);
    }
    plan
}

/// Says what keeps the Namespace, unless it is said already.
fn blocked(view: &View, namespace: &Namespace, now: Timestamp) -> Option<serde_json::Value> {
    let kinds: BTreeSet<&str> = view.items.iter().map(|item| item.target.kind.plural).collect();
    let kinds: Vec<&str> = kinds.into_iter().collect();
    let mut changed = namespace.clone();
    set_condition(
        &mut changed.status.conditions,
        Condition {
            type_: REMAINING.into(),
            status: "True".into(),
            observed_generation: None,
            last_transition_time: Time(Timestamp::from_second(now.as_second()).unwrap_or(now)),
            reason: "FinalizersRemain".into(),
            message: format!("waits for finalizers of: {}", kinds.join(", ")),
        },
    );
    (changed.status != namespace.status).then(|| to_value(&changed))
}
