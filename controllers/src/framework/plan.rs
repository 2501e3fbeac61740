//! What a planner wants done.

use std::collections::BTreeSet;
use std::time::Duration;

use panda_api::Resource;
use panda_client::runtime::events::Severity;
use serde::Serialize;
use serde_json::{Value, json};

use super::Target;

/// What a planner wants done about one object.
///
/// The order is fixed, so that a crash at any point leaves a state from which the next plan goes on:
///
/// 1. `checks` are read live; the first that does not hold stops the plan.
/// 2. `status` is written, on the condition that the object still is the version in `basis`. What must survive a
///    crash (counters, the next attempt's number and time) is therefore durable before anything acts on it.
///    Without a `status`, a plan that has `actions` reads the object live instead and stops if it has changed.
/// 3. `actions` are performed in order; the first conflict stops the plan.
/// 4. `events` are told to people once all of it is done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The version of the object that the plan was made for; absent when actions carry their own preconditions.
    pub basis: Option<Basis>,
    /// What must be true of the live state first.
    pub checks: Vec<Check>,
    /// The object of `basis` with its new status.
    pub status: Option<Value>,
    /// What to do then.
    pub actions: Vec<Action>,
    /// What to tell people about the object of `basis`.
    pub events: Vec<Notice>,
    /// What to tell people about other objects; their versions mean nothing.
    pub elsewhere: Vec<(Basis, Notice)>,
    /// When to plan again even if nothing changes.
    pub requeue: Option<Duration>,
}

impl Plan {
    /// Whether nothing would be written.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.status.is_none() && self.actions.is_empty()
    }
}

/// The version of an object that a plan was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basis {
    /// The object.
    pub target: Target,
    /// Its uid.
    pub uid: String,
    /// Its version.
    pub resource_version: String,
}

impl Basis {
    /// The version at hand.
    #[must_use]
    pub fn of<K: Resource>(object: &K) -> Self {
        Self {
            target: Target::of(object),
            uid: object.metadata().uid.clone(),
            resource_version: object.metadata().resource_version.clone(),
        }
    }
}

/// A fact that a cache cannot prove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// The object does not exist; with a uid: or is another one of the same name.
    Absent {
        /// The object.
        target: Target,
        /// Its uid, when it was ever seen.
        uid: Option<String>,
    },
    /// No other object has taken the name of this one, which may be gone.
    NotReplaced {
        /// The object.
        target: Target,
        /// Its uid.
        uid: String,
    },
    /// No object names this owner any more; with `blocking`: none that blocks its deletion, but for `except`.
    Unowned {
        /// The owner.
        owner: Target,
        /// Its uid.
        uid: String,
        /// Whether only those count that block the deletion.
        blocking: bool,
        /// Uids that do not count.
        except: BTreeSet<String>,
    },
    /// The namespace holds no object of any kind.
    Empty {
        /// The namespace.
        namespace: String,
    },
}

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Creates a child. If it exists and has the same owner, that is success.
    Create {
        /// The child.
        target: Target,
        /// Uid of its managing owner.
        owner_uid: String,
        /// The child, whole.
        object: Value,
    },
    /// Writes the status of another object, on the condition that it still has the version that it carries.
    Status {
        /// The object.
        target: Target,
        /// The object with its new status.
        object: Value,
    },
    /// Merges into an object; `metadata.uid` and `metadata.resourceVersion` in the body are preconditions.
    Patch {
        /// The object.
        target: Target,
        /// The merge patch.
        body: Value,
    },
    /// Deletes an object; that it is gone already is success.
    Delete {
        /// The object.
        target: Target,
        /// Uid that it must have.
        uid: String,
        /// Version that it must have.
        resource_version: Option<String>,
        /// Whether it waits for what it owns.
        foreground: bool,
    },
    /// Posts to the `/binding` of a Run.
    Bind {
        /// The Run.
        target: Target,
        /// The binding.
        body: Value,
    },
    /// Puts to the `/finalize` of a Namespace.
    Finalize {
        /// The Namespace.
        target: Target,
        /// The Namespace without the finalizer.
        object: Value,
    },
}

impl Action {
    /// Creates `child`, which must carry a controller reference.
    #[must_use]
    pub fn create<K: Resource>(child: &K) -> Self {
        Self::Create {
            target: Target::of(child),
            owner_uid: child
                .metadata()
                .controller()
                .map(|r| r.uid.clone())
                .unwrap_or_default(),
            object: to_value(child),
        }
    }

    /// Writes the status of `object`.
    #[must_use]
    pub fn status<K: Resource>(object: &K) -> Self {
        Self::Status {
            target: Target::of(object),
            object: to_value(object),
        }
    }

    /// Merges `spec` into the spec of exactly this object, whatever its version.
    #[must_use]
    pub fn patch_spec<K: Resource>(object: &K, spec: &Value) -> Self {
        Self::Patch {
            target: Target::of(object),
            body: json!({"metadata": {"uid": object.metadata().uid}, "spec": spec}),
        }
    }

    /// Deletes exactly this version of `object`.
    #[must_use]
    pub fn delete<K: Resource>(object: &K) -> Self {
        Self::Delete {
            target: Target::of(object),
            uid: object.metadata().uid.clone(),
            resource_version: Some(object.metadata().resource_version.clone()),
            foreground: false,
        }
    }
}

/// An object as JSON.
pub(crate) fn to_value<T: Serialize>(object: &T) -> Value {
    serde_json::to_value(object).expect("API types have string keys only and serialise without fail")
}

/// Something to tell people about the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// How bad it is.
    pub severity: Severity,
    /// Stable CamelCase word.
    pub reason: &'static str,
    /// Sentence for people.
    pub message: String,
}
