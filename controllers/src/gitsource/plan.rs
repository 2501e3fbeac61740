//! What is to be done about the objects of a source: a pure function of what the repository wants and what is there.
//!
//! 1. An object of another set is never touched.
//! 2. An object that is there as it was left is not written again.
//! 3. What the set holds and the repository does not is removed only if pruning is wanted, everything could be listed, and
//!    the guard lets it pass. A repository without objects never removes anything.

use std::collections::{BTreeMap, BTreeSet};

use panda_api::apply_set::{self, Refused};

use crate::framework::Target;

/// An object that is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Its uid.
    pub uid: String,
    /// Its version.
    pub resource_version: String,
    /// The set that it belongs to.
    pub part_of: String,
    /// Whether it is being deleted.
    pub deleting: bool,
}

/// What the planner sees.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Id of the set.
    pub set: &'a str,
    /// What the repository wants.
    pub desired: &'a [Target],
    /// Every object that belongs to any set, of all kinds and namespaces that matter.
    pub live: &'a BTreeMap<Target, Live>,
    /// Whether `live` is all of it.
    pub complete: bool,
    /// The version in which each object was left, if the repository wants the same as then.
    pub left: &'a BTreeMap<Target, String>,
    /// Percent of the set that may be lost; absent: nothing is removed.
    pub prune: Option<u8>,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Apply these of the desired ones.
    pub apply: BTreeSet<Target>,
    /// These belong to another set, whose id is given.
    pub taken: BTreeMap<Target, String>,
    /// Remove these, with these uids.
    pub prune: BTreeMap<Target, String>,
    /// These are not wanted any more and stay.
    pub kept: BTreeSet<Target>,
    /// Why they stay, unless pruning is not wanted.
    pub refused: Option<Held>,
}

/// Why nothing is removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Held {
    /// By the guard.
    #[error("{0}; raise spec.prune.maxLostPercent to let it happen")]
    Guard(#[from] Refused),
    /// Not everything could be listed.
    #[error("not everything could be listed, so nothing is removed")]
    Incomplete,
}

/// Plans one look at a repository.
#[must_use]
pub fn plan(view: &View<'_>) -> Plan {
    let mut plan = Plan::default();
    let wanted: BTreeSet<&Target> = view.desired.iter().collect();
    for target in &wanted {
        match view.live.get(*target) {
            Some(live) if !live.part_of.is_empty() && live.part_of != view.set => {
                plan.taken.insert((*target).clone(), live.part_of.clone());
            }
            Some(live)
                if live.part_of == view.set && view.left.get(*target) == Some(&live.resource_version) => {}
            _ => {
                plan.apply.insert((*target).clone());
            }
        }
    }
    let members = || {
        view.live
            .iter()
            .filter(|(_, live)| live.part_of == view.set && !live.deleting)
    };
    let lost: BTreeMap<Target, String> = members()
        .filter(|(target, _)| !wanted.contains(target))
        .map(|(target, live)| (target.clone(), live.uid.clone()))
        .collect();
    let held = match view.prune {
        None => None,
        Some(_) if !view.complete => Some(Held::Incomplete),
        Some(limit) => match apply_set::guard(members().count(), lost.len(), wanted.len(), limit) {
            Ok(()) => {
                plan.prune = lost;
                return plan;
            }
            Err(refused) => Some(refused.into()),
        },
    };
    plan.refused = held.filter(|_| !lost.is_empty());
    plan.kept = lost.into_keys().collect();
    plan
}
