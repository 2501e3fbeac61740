//! Deletion in the foreground and without dependents.

use panda_api::meta::{ObjectMeta, Time};
use panda_api::{Resource, Run, Task};
use proptest::prelude::*;

use super::{collect, dependent, owned, task, view};
use crate::framework::Target;
use crate::gc::plan;
use crate::testing::{Faults, World};

/// What the server does at a deletion with a policy.
fn delete<K: Resource>(world: &World, name: &str, finalizer: &str) {
    let Some(mut object) = world.get::<K>("web", name) else {
        return;
    };
    let meta: &mut ObjectMeta = object.metadata_mut();
    meta.finalizers
        .retain(|f| f != "orphan" && f != "foregroundDeletion");
    meta.finalizers.push(finalizer.into());
    meta.deletion_timestamp.get_or_insert(Time(world.now()));
    world.put(&object);
}

fn runs(world: &World) -> Vec<String> {
    let runs = world.list::<Run>();
    runs.iter().map(|run| run.metadata.name.clone()).collect()
}

#[test]
fn in_the_foreground_the_owner_goes_last() {
    let world = World::default();
    let owner = world.put(&task("t"));
    let mut held = owned("r", &[&owner]);
    held.metadata.finalizers = vec!["example.com/work".into()];
    world.put(&held);
    world.put(&owned("s", &[&owner]));
    delete::<Task>(&world, "t", "foregroundDeletion");
    collect(&world);
    assert_eq!(runs(&world), ["r"]);
    assert!(world.get::<Task>("web", "t").is_some(), "it waits for r");
    let mut run: Run = world.get("web", "r").unwrap();
    assert!(run.metadata.deletion_timestamp.is_some());
    run.metadata.finalizers.clear();
    world.put(&run);
    world.remove(&Target::of(&run));
    collect(&world);
    assert!(world.list::<Task>().is_empty());
}

#[test]
fn what_does_not_block_is_not_waited_for_and_goes_all_the_same() {
    let world = World::default();
    let owner = world.put(&task("t"));
    let mut run = owned("r", &[&owner]);
    run.metadata.owner_references[0].block_owner_deletion = None;
    run.metadata.finalizers = vec!["example.com/work".into()];
    world.put(&run);
    delete::<Task>(&world, "t", "foregroundDeletion");
    collect(&world);
    assert!(world.list::<Task>().is_empty());
    assert!(
        world
            .get::<Run>("web", "r")
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_some()
    );
}

#[test]
fn another_owner_keeps_a_dependent_of_one_that_waits() {
    let world = World::default();
    let (a, b) = (world.put(&task("a")), world.put(&task("b")));
    world.put(&owned("r", &[&a, &b]));
    delete::<Task>(&world, "a", "foregroundDeletion");
    collect(&world);
    assert!(world.get::<Task>("web", "a").is_none());
    let run: Run = world.get("web", "r").unwrap();
    assert_eq!(run.metadata.owner_references, vec![b.controller_reference()]);
}

#[test]
fn orphans_stay_without_their_owner() {
    let world = World::default();
    let owner = world.put(&task("t"));
    world.put(&owned("r", &[&owner]));
    delete::<Task>(&world, "t", "orphan");
    collect(&world);
    assert!(world.list::<Task>().is_empty());
    let run: Run = world.get("web", "r").unwrap();
    assert!(run.metadata.owner_references.is_empty());
}

#[test]
fn a_cache_that_lags_lets_no_owner_go() {
    for finalizer in ["foregroundDeletion", "orphan"] {
        let world = World::default();
        let owner = world.put(&task("t"));
        delete::<Task>(&world, "t", finalizer);
        let before = world.revision();
        world.put(&owned("r", &[&owner]));
        let object = dependent(&world.get::<Task>("web", "t").unwrap());
        world.execute(&plan(&view(&world, &object, before), &object), Faults::default());
        assert!(world.get::<Task>("web", "t").is_some(), "{finalizer}");
    }
}

#[test]
fn circles_of_any_length_do_not_wait_for_themselves() {
    for length in 1..5 {
        let world = World::default();
        let name = |i: usize| format!("r{}", i % length);
        let made: Vec<Run> = (0..length).map(|i| world.put(&owned(&name(i), &[]))).collect();
        for (i, run) in made.iter().enumerate() {
            let mut run = run.clone();
            run.metadata.owner_references = vec![made[(i + 1) % length].controller_reference()];
            world.put(&run);
        }
        delete::<Run>(&world, "r0", "foregroundDeletion");
        collect(&world);
        assert!(world.list::<Run>().is_empty(), "circle of {length}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Any graph of owners, circles included; any deletions; stale views, crashes and lost answers. In the end nothing
    /// waits, what was orphaned names no owner that was deleted so, and every owner that is named exists.
    #[test]
    fn every_state_converges(
        graph in proptest::collection::vec(proptest::collection::vec((0usize..6, any::<bool>()), 0..3), 6),
        deletions in proptest::collection::vec((0usize..6, any::<bool>()), 0..5),
        steps in proptest::collection::vec((0usize..6, 0u64..8, 0u32..3, 0u32..3), 0..30),
    ) {
        let world = World::default();
        let name = |i: usize| format!("r{i}");
        let made: Vec<Run> = (0..6).map(|i| world.put(&owned(&name(i), &[]))).collect();
        for (run, owners) in made.iter().zip(&graph) {
            let mut run = run.clone();
            for (owner, blocks) in owners {
                let mut reference = made[*owner].controller_reference();
                reference.block_owner_deletion = blocks.then_some(true);
                if run.metadata.owner_references.iter().all(|r| r.uid != reference.uid) {
                    run.metadata.owner_references.push(reference);
                }
            }
            world.put(&run);
        }
        let mut deletions = deletions.into_iter();
        for (i, lag, crash, lose) in steps {
            if lag % 4 == 0 && let Some((victim, orphan)) = deletions.next() {
                delete::<Run>(&world, &name(victim), if orphan { "orphan" } else { "foregroundDeletion" });
            }
            if let Some(run) = world.get::<Run>("web", &name(i)) {
                let object = dependent(&run);
                let seen = view(&world, &object, world.revision().saturating_sub(lag));
                let faults = Faults { crash_after: Some(crash), lose_answer: Some(lose) };
                world.execute(&plan(&seen, &object), faults);
            }
        }
        for (victim, orphan) in deletions {
            delete::<Run>(&world, &name(victim), if orphan { "orphan" } else { "foregroundDeletion" });
        }
        collect(&world);
        let left = world.list::<Run>();
        for run in &left {
            prop_assert!(run.metadata.deletion_timestamp.is_none(), "{} waits for ever", run.metadata.name);
            for reference in &run.metadata.owner_references {
                prop_assert!(left.iter().any(|owner| owner.metadata.uid == reference.uid));
            }
        }
    }
}

#[test]
fn a_live_run_holds_the_task_that_waits_for_it_and_is_cancelled_when_it_is_orphaned() {
    for (finalizer, cancelled) in [("foregroundDeletion", false), ("orphan", true)] {
        let world = World::default();
        let owner = world.put(&task("t"));
        let mut run = owned("r", &[&owner]);
        run.metadata.finalizers = vec![panda_api::DEVICE_FINALIZER.into()];
        world.put(&run);
        delete::<Task>(&world, "t", finalizer);
        collect(&world);
        let run: Run = world.get("web", "r").unwrap();
        assert!(run.metadata.is_on_device(), "{finalizer}");
        assert_eq!(run.spec.cancel == Some(true), cancelled, "{finalizer}");
        assert_eq!(
            run.metadata.deletion_timestamp.is_some(),
            !cancelled,
            "{finalizer}"
        );
        assert_eq!(world.get::<Task>("web", "t").is_some(), !cancelled, "{finalizer}");
    }
}
