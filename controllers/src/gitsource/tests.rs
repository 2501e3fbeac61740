//! The planner against a model of the world, and the status.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use panda_api::apply_set::Refused;
use panda_api::meta::ObjectMeta;
use panda_api::{ConfigMap, GitSource, GitSourcePrune, GitSourceResult, Task};
use proptest::prelude::*;

use super::plan::{Held, Live, Plan, View, plan};
use super::status::{self, Outcome, Tried, due, set_of};
use crate::framework::Target;

const OURS: &str = "applyset-ours-v1";
const THEIRS: &str = "applyset-theirs-v1";

fn target(number: u8) -> Target {
    if number.is_multiple_of(2) {
        Target::new::<Task>("web", &format!("t{number}"))
    } else {
        Target::new::<ConfigMap>("web", &format!("c{number}"))
    }
}

/// Objects, as an API server would keep them.
#[derive(Clone, Debug, Default)]
struct World {
    objects: BTreeMap<Target, Live>,
    left: BTreeMap<Target, String>,
    clock: u64,
}

impl World {
    fn write(&mut self, target: &Target, set: &str) -> String {
        self.clock += 1;
        let live = self.objects.entry(target.clone()).or_default();
        if live.uid.is_empty() {
            live.uid = format!("uid-{}", self.clock);
        }
        set.clone_into(&mut live.part_of);
        live.resource_version = self.clock.to_string();
        live.resource_version.clone()
    }

    fn plan(&self, desired: &[Target], prune: Option<u8>, complete: bool) -> Plan {
        plan(&View {
            set: OURS,
            desired,
            live: &self.objects,
            complete,
            left: &self.left,
            prune,
        })
    }

    /// Does the first `steps` of a plan, then breaks off.
    fn carry_out(&mut self, plan: &Plan, steps: usize) {
        let mut steps = 0..steps;
        for target in &plan.apply {
            if steps.next().is_none() {
                return;
            }
            let version = self.write(target, OURS);
            self.left.insert(target.clone(), version);
        }
        for (target, uid) in &plan.prune {
            if steps.next().is_none() {
                return;
            }
            if self.objects.get(target).is_some_and(|live| live.uid == *uid) {
                self.objects.remove(target);
            }
        }
    }

    fn of(&self, set: &str) -> BTreeSet<Target> {
        let of = self.objects.iter().filter(|(_, live)| live.part_of == set);
        of.map(|(target, _)| target.clone()).collect()
    }
}

fn some(numbers: &BTreeSet<u8>) -> Vec<Target> {
    numbers.iter().map(|number| target(*number)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_converges_whatever_breaks_and_takes_nothing_of_others(
        theirs in proptest::collection::btree_set(0u8..20, 0..6),
        strangers in proptest::collection::btree_set(0u8..20, 0..6),
        commits in proptest::collection::vec((proptest::collection::btree_set(0u8..20, 1..12), 0usize..12), 1..5),
        drifts in proptest::collection::vec(0u8..20, 0..6),
    ) {
        let mut world = World::default();
        for target in some(&strangers) {
            world.write(&target, "");
        }
        for target in some(&theirs) {
            world.write(&target, THEIRS);
        }
        let before = world.of(THEIRS);
        for (wanted, steps) in &commits {
            world.left.clear();
            let plan = world.plan(&some(wanted), Some(100), true);
            world.carry_out(&plan, *steps);
        }
        let (last, _) = commits.last().unwrap();
        for number in drifts {
            // Somebody changes or removes what is ours.
            let target = target(number);
            if world.objects.get(&target).is_some_and(|live| live.part_of == OURS) {
                if number.is_multiple_of(3) {
                    world.objects.remove(&target);
                } else {
                    world.write(&target, OURS);
                }
            }
        }
        let settled = world.plan(&some(last), Some(100), true);
        world.carry_out(&settled, usize::MAX);
        let wanted: BTreeSet<Target> = some(last).into_iter().collect();
        let ours: BTreeSet<Target> = wanted.difference(&before).cloned().collect();
        prop_assert_eq!(world.of(OURS), ours);
        prop_assert_eq!(world.of(THEIRS), before.clone());
        prop_assert_eq!(settled.taken.keys().cloned().collect::<BTreeSet<_>>(), wanted.intersection(&before).cloned().collect());
        let again = world.plan(&some(last), Some(100), true);
        prop_assert!(again.apply.is_empty() && again.prune.is_empty() && again.kept.is_empty(), "{:?}", again);
    }

    #[test]
    fn nothing_is_lost_without_leave(
        held in proptest::collection::btree_set(0u8..20, 0..15),
        wanted in proptest::collection::btree_set(0u8..20, 0..15),
        limit in proptest::option::of(0u8..=100),
        complete: bool,
    ) {
        let mut world = World::default();
        for target in some(&held) {
            world.write(&target, OURS);
        }
        let plan = world.plan(&some(&wanted), limit, complete);
        let lost = held.difference(&wanted).count();
        prop_assert!(plan.prune.is_empty() || plan.kept.is_empty());
        prop_assert_eq!(plan.prune.len() + plan.kept.len(), lost);
        let allowed = complete
            && !wanted.is_empty()
            && limit.is_some_and(|limit| lost * 100 <= held.len() * usize::from(limit));
        prop_assert_eq!(!plan.prune.is_empty(), allowed && lost > 0);
        prop_assert_eq!(plan.refused.is_some(), lost > 0 && !allowed && limit.is_some());
    }
}

fn source() -> GitSource {
    let mut source = GitSource {
        metadata: ObjectMeta {
            generation: 3,
            uid: "u".into(),
            ..ObjectMeta::namespaced("web", "app")
        },
        ..GitSource::default()
    };
    source.spec.url = "https://git.example/app".into();
    source.spec.prune = Some(GitSourcePrune::default());
    source
}

fn now() -> Timestamp {
    "2030-01-01T00:00:00Z".parse().unwrap()
}

fn told(source: &GitSource, outcome: &Outcome) -> (GitSource, crate::framework::Plan) {
    let plan = status::plan(source, outcome, now());
    let told = plan
        .status
        .clone()
        .map_or_else(|| source.clone(), |value| serde_json::from_value(value).unwrap());
    (told, plan)
}

fn condition<'a>(source: &'a GitSource, kind: &str) -> (&'a str, &'a str) {
    let found = source.status.conditions.iter().find(|c| c.type_ == kind).unwrap();
    (&found.status, &found.reason)
}

#[test]
fn a_good_look_is_told_once_and_repeated_after_the_interval() {
    let tried = Tried {
        commit: "c".repeat(40),
        desired: vec![target(0), target(1)],
        ..Tried::default()
    };
    let outcome = Outcome::Tried(Box::new(tried));
    let (told, plan) = told(&source(), &outcome);
    assert_eq!(condition(&told, "Ready"), ("True", "Applied"));
    assert_eq!(told.status.applied_commit, "c".repeat(40));
    assert_eq!(told.status.apply_set, set_of(&source()));
    let counts = told.status.counts.unwrap();
    assert_eq!((counts.total, counts.applied, counts.failed), (2, 2, 0));
    assert_eq!(plan.requeue, Some(Duration::from_secs(300)));
    assert_eq!(plan.events.len(), 1);
    let again = status::plan(&told, &outcome, now());
    assert!(again.is_idle() && again.events.is_empty());
    assert_eq!(due(&told, now()), Some(Duration::from_secs(300)));
    let later = |seconds| now() + SignedDuration::from_secs(seconds);
    assert_eq!(due(&told, later(299)), Some(Duration::from_secs(1)));
    assert_eq!(due(&told, later(300)), None);
    assert_eq!(
        due(&told, later(-1000)),
        Some(Duration::ZERO).filter(|left| !left.is_zero())
    );
    let mut changed = told;
    changed.metadata.generation += 1;
    assert_eq!(due(&changed, now()), None);
}

#[test]
fn an_unreadable_repository_keeps_what_was_applied_and_is_tried_again_soon() {
    let mut before = source();
    before.status.applied_commit = "old".into();
    before.status.observed_commit = "old".into();
    let outcome = |commit: Option<&str>, reason| Outcome::Stopped {
        commit: commit.map(str::to_owned),
        reason,
        message: "no".into(),
    };
    let (unread, plan) = told(&before, &outcome(None, "FetchFailed"));
    assert_eq!(condition(&unread, "Fetched"), ("False", "FetchFailed"));
    assert_eq!(condition(&unread, "Ready"), ("False", "FetchFailed"));
    assert_eq!(
        (&*unread.status.applied_commit, &*unread.status.observed_commit),
        ("old", "old")
    );
    assert_eq!(plan.requeue, Some(Duration::from_secs(60)));
    let (empty, _) = told(&before, &outcome(Some("new"), "Empty"));
    assert_eq!(condition(&empty, "Fetched"), ("True", "Fetched"));
    assert_eq!(condition(&empty, "Ready"), ("False", "Empty"));
    assert_eq!(
        (&*empty.status.applied_commit, &*empty.status.observed_commit),
        ("old", "new")
    );
    let (suspended, plan) = told(&before, &Outcome::Suspended);
    assert_eq!(condition(&suspended, "Ready"), ("Unknown", "Suspended"));
    assert_eq!(plan.requeue, None);
}

#[test]
fn what_needs_a_look_comes_first_and_the_list_is_bounded() {
    let desired: Vec<Target> = (0..3000)
        .map(|n| Target::new::<Task>("web", &format!("t{n}")))
        .collect();
    let mut decided = Plan::default();
    decided.taken.insert(desired[1].clone(), THEIRS.into());
    decided.kept.insert(target(7));
    decided.refused = Some(Held::Guard(Refused::TooMany {
        before: 4,
        lost: 3,
        limit: 50,
    }));
    let tried = Tried {
        commit: "c".repeat(40),
        failed: vec![(desired[0].clone(), "Invalid".into(), "x".repeat(5000))],
        desired,
        decided,
        ..Tried::default()
    };
    let (told, _) = told(&source(), &Outcome::Tried(Box::new(tried)));
    assert_eq!(condition(&told, "Ready"), ("False", "ApplyFailed"));
    let rows: Vec<_> = told
        .status
        .objects
        .iter()
        .map(|row| (row.result, &*row.reason))
        .take(4)
        .collect();
    assert_eq!(
        rows,
        [
            (GitSourceResult::Failed, "Invalid"),
            (GitSourceResult::Failed, "OwnedByOther"),
            (GitSourceResult::Kept, "PruneRefused"),
            (GitSourceResult::Applied, ""),
        ]
    );
    assert_eq!(told.status.objects.len(), 250);
    let counts = told.status.counts.unwrap();
    assert_eq!(
        (counts.total, counts.applied, counts.failed, counts.kept),
        (3000, 2998, 2, 1)
    );
    assert!(told.status.objects[0].message.len() < 600);
    assert_eq!(told.status.applied_commit, "");
}
