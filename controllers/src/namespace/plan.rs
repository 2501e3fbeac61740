//! The planner of one Namespace.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use panda_api::Namespace;
use panda_api::meta::{Condition, Time, set_condition};

use crate::framework::{Action, Basis, Check, Plan, Target, to_value};

/// Who must let go of a Namespace: this controller.
const FINALIZER: &str = "kubernetes";
const CONTENT: &str = "NamespaceContentRemaining";
const FINALIZERS: &str = "NamespaceFinalizersRemaining";
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
    /// Who holds it.
    pub finalizers: Vec<String>,
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

/// Says what keeps the Namespace, unless it is said already; in upstream's words, which tools look for.
fn blocked(view: &View, namespace: &Namespace, now: Timestamp) -> Option<serde_json::Value> {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    let mut finalizers: BTreeMap<&str, usize> = BTreeMap::new();
    for item in &view.items {
        let kind = &item.target.kind;
        let name = if kind.group.is_empty() {
            kind.plural.to_owned()
        } else {
            format!("{}.{}", kind.plural, kind.group)
        };
        *kinds.entry(name).or_default() += 1;
        for finalizer in &item.finalizers {
            *finalizers.entry(finalizer).or_default() += 1;
        }
    }
    let kinds = kinds
        .iter()
        .map(|(kind, count)| format!("{kind} has {count} resource instances"));
    let held = finalizers
        .iter()
        .map(|(finalizer, count)| format!("{finalizer} in {count} resource instances"));
    let mut changed = namespace.clone();
    let mut say = |type_: &str, reason: &str, message: String| {
        let condition = Condition {
            type_: type_.into(),
            status: "True".into(),
            observed_generation: None,
            last_transition_time: Time(Timestamp::from_second(now.as_second()).unwrap_or(now)),
            reason: reason.into(),
            message,
        };
        set_condition(&mut changed.status.conditions, condition);
    };
    let kinds = kinds.collect::<Vec<_>>().join(", ");
    say(
        CONTENT,
        "SomeResourcesRemain",
        format!("Some resources are remaining: {kinds}"),
    );
    let held = held.collect::<Vec<_>>().join(", ");
    if !held.is_empty() {
        let message = format!("Some content in the namespace has finalizers remaining: {held}");
        say(FINALIZERS, "SomeFinalizersRemain", message);
    }
    (changed.status != namespace.status).then(|| to_value(&changed))
}
