use std::sync::Arc;

use panda_api::meta::{ObjectMeta, OwnerReference};
use panda_api::{ConfigMap, Resource, Run, Task};
use proptest::prelude::*;

use super::{Dependent, View, circular, plan};

mod policies;
use crate::framework::execute::Outcome;
use crate::framework::{Plan, Target};
use crate::testing::{Faults, World};

fn task(name: &str) -> Task {
    Task {
        metadata: ObjectMeta::namespaced("web", name),
        ..Task::default()
    }
}

fn owned(name: &str, owners: &[&Task]) -> Run {
    let mut run = Run {
        metadata: ObjectMeta::namespaced("web", name),
        ..Run::default()
    };
    run.metadata.owner_references = owners.iter().map(|owner| owner.controller_reference()).collect();
    run
}

fn dependent<K: Resource>(object: &K) -> Dependent {
    Dependent {
        target: Target::of(object),
        metadata: object.metadata().clone(),
    }
}

/// Everything around an object as the cache showed it at `revision`.
fn view(world: &World, object: &Dependent, revision: u64) -> View {
    let tasks = world.list_at::<Task>(revision);
    let runs = world.list_at::<Run>(revision);
    let tasks = tasks.iter().map(|task| dependent(&**task));
    let all: Vec<Dependent> = tasks.chain(runs.iter().map(|run| dependent(&**run))).collect();
    let owner = |reference: &OwnerReference| {
        let target = object.resolve(reference)?;
        all.iter()
            .find(|o| o.metadata.uid == reference.uid && o.target == target)
            .map(|o| (reference.uid.clone(), o.is_waiting()))
    };
    let owned_by = |uid: &str| -> Vec<Dependent> {
        let names = |d: &&Dependent| d.metadata.owner_references.iter().any(|r| r.uid == uid);
        all.iter().filter(names).cloned().collect()
    };
    let uid = &object.metadata.uid;
    let dependents = owned_by(uid);
    View {
        owners: object
            .metadata
            .owner_references
            .iter()
            .filter_map(owner)
            .collect(),
        circular: circular(uid, &dependents, &owned_by),
        dependents,
    }
}

fn plan_for(world: &World, name: &str) -> Plan {
    let run: Run = world.get("web", name).unwrap();
    let dependent = dependent(&run);
    plan(&view(world, &dependent, world.revision()), &dependent)
}

fn collect(world: &World) {
    for _ in 0..40 {
        let tasks: Vec<Arc<Task>> = world.list();
        let runs: Vec<Arc<Run>> = world.list();
        let all = tasks
            .iter()
            .map(|task| dependent(&**task))
            .chain(runs.iter().map(|run| dependent(&**run)));
        let plans: Vec<Plan> = all
            .map(|object| plan(&view(world, &object, world.revision()), &object))
            .collect();
        if plans.iter().all(Plan::is_idle) {
            return;
        }
        for plan in &plans {
            world.execute(plan, Faults::default());
        }
    }
    panic!("collects without end");
}

#[test]
fn a_dependent_goes_with_its_owner_and_not_with_a_namesake() {
    let world = World::default();
    let owner = world.put(&task("t"));
    world.put(&owned("r", &[&owner]));
    assert!(plan_for(&world, "r").is_idle());
    world.remove(&Target::of(&owner));
    world.put(&task("t"));
    collect(&world);
    assert!(world.list::<Run>().is_empty());
}

#[test]
fn a_cache_that_lags_deletes_nothing() {
    let world = World::default();
    let before = world.revision();
    let owner = world.put(&task("t"));
    let run = world.put(&owned("r", &[&owner]));
    let dependent = dependent(&run);
    let stale = plan(&view(&world, &dependent, before), &dependent);
    assert!(!stale.is_idle());
    assert_eq!(
        world.execute(&stale, Faults::default()),
        Some(Outcome::Stale(Target::of(&owner)))
    );
    assert_eq!(world.list::<Run>().len(), 1);
}

#[test]
fn another_living_owner_keeps_it_without_the_dead_reference() {
    let world = World::default();
    let (a, b) = (world.put(&task("a")), world.put(&task("b")));
    world.put(&owned("r", &[&a, &b]));
    world.remove(&Target::of(&a));
    collect(&world);
    let run: Run = world.get("web", "r").unwrap();
    assert_eq!(run.metadata.owner_references, vec![b.controller_reference()]);
    world.remove(&Target::of(&b));
    collect(&world);
    assert!(world.list::<Run>().is_empty());
}

#[test]
fn a_circle_lives_until_it_is_cut_and_then_goes() {
    let world = World::default();
    let mut a = world.put(&owned("a", &[]));
    let mut b = world.put(&owned("b", &[]));
    a.metadata.owner_references = vec![b.controller_reference()];
    b.metadata.owner_references = vec![a.controller_reference()];
    let (a, _) = (world.put(&a), world.put(&b));
    collect(&world);
    assert_eq!(world.list::<Run>().len(), 2);
    world.remove(&Target::of(&a));
    collect(&world);
    assert!(world.list::<Run>().is_empty());
}

#[test]
fn an_owner_in_another_namespace_is_none() {
    let world = World::default();
    let mut elsewhere = task("t");
    elsewhere.metadata.namespace = "other".into();
    let owner = world.put(&elsewhere);
    world.put(&owned("r", &[&owner]));
    collect(&world);
    assert!(world.list::<Run>().is_empty());
    assert_eq!(world.list::<Task>().len(), 1);
}

#[test]
fn an_owner_of_an_unknown_kind_keeps_it() {
    let world = World::default();
    let mut map = ConfigMap {
        metadata: ObjectMeta::namespaced("web", "m"),
        ..ConfigMap::default()
    };
    map.metadata.owner_references = vec![OwnerReference {
        api_version: "example.org/v1".into(),
        kind: "Widget".into(),
        name: "w".into(),
        uid: "u".into(),
        ..OwnerReference::default()
    }];
    let map = world.put(&map);
    assert!(plan(&View::default(), &dependent(&map)).is_idle());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Stale views, crashes and lost answers in any order: nothing that has a living owner is ever deleted, and in
    /// the end exactly the rest is gone.
    #[test]
    fn what_has_an_owner_stays_and_the_rest_goes(
        owners in proptest::collection::vec(proptest::collection::vec(0usize..4, 1..3), 1..6),
        steps in proptest::collection::vec((0usize..4, 0usize..6, 0u64..10, 0u32..3, 0u32..3), 0..30),
    ) {
        let world = World::default();
        let tasks: Vec<Task> = (0..4).map(|i| world.put(&task(&format!("t{i}")))).collect();
        for (i, of) in owners.iter().enumerate() {
            let of: Vec<&Task> = of.iter().map(|owner| &tasks[*owner]).collect();
            world.put(&owned(&format!("r{i}"), &of));
        }
        let mut alive = [true; 4];
        let judge = |alive: &[bool; 4]| {
            for (i, of) in owners.iter().enumerate() {
                let wanted = of.iter().any(|owner| alive[*owner]);
                let there = world.get::<Run>("web", &format!("r{i}")).is_some();
                assert!(there || !wanted, "r{i} was deleted though an owner lives");
            }
        };
        for (kill, run, lag, crash, lose) in steps {
            if lag % 3 == 0 {
                world.remove(&Target::of(&tasks[kill]));
                alive[kill] = false;
            }
            if let Some(run) = world.get::<Run>("web", &format!("r{run}")) {
                let dependent = dependent(&run);
                let seen = view(&world, &dependent, world.revision().saturating_sub(lag));
                let faults = Faults { crash_after: Some(crash), lose_answer: Some(lose) };
                world.execute(&plan(&seen, &dependent), faults);
            }
            judge(&alive);
        }
        collect(&world);
        judge(&alive);
        for (i, of) in owners.iter().enumerate() {
            let wanted = of.iter().any(|owner| alive[*owner]);
            prop_assert_eq!(world.get::<Run>("web", &format!("r{i}")).is_some(), wanted);
        }
    }
}
