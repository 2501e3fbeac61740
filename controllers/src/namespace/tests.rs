use std::sync::Arc;

use panda_api::meta::{ObjectMeta, Time};
use panda_api::{Namespace, Run, Task};
use proptest::prelude::*;

use super::{Item, View, plan};
use crate::framework::Target;
use crate::framework::execute::Outcome;
use crate::testing::{Faults, World};

fn namespace(world: &World) -> Option<Namespace> {
    world.get("", "web")
}

fn terminating(world: &World) {
    let mut namespace = Namespace {
        metadata: ObjectMeta::named("web"),
        ..Namespace::default()
    };
    namespace.spec.finalizers = vec!["kubernetes".into()];
    namespace.metadata.deletion_timestamp = Some(Time(world.now()));
    world.put(&namespace);
}

fn view(world: &World) -> View {
    let tasks: Vec<Arc<Task>> = world.list();
    let runs: Vec<Arc<Run>> = world.list();
    let item = |target: Target, meta: &ObjectMeta| Item {
        target,
        uid: meta.uid.clone(),
        deleting: meta.deletion_timestamp.is_some(),
        finalizers: meta.finalizers.clone(),
    };
    View {
        items: tasks
            .iter()
            .map(|task| item(Target::of(&**task), &task.metadata))
            .chain(runs.iter().map(|run| item(Target::of(&**run), &run.metadata)))
            .filter(|item| item.target.namespace == "web")
            .collect(),
    }
}

fn fill(world: &World, tasks: usize, kept: usize) {
    for i in 0..tasks {
        let mut task = Task {
            metadata: ObjectMeta::namespaced("web", format!("t{i}")),
            ..Task::default()
        };
        if i < kept {
            task.metadata.finalizers = vec!["panda.dev/keep".into()];
        }
        world.put(&task);
    }
}

#[test]
fn a_namespace_in_use_is_left_alone() {
    let world = World::default();
    fill(&world, 2, 0);
    let active = world.put(&Namespace {
        metadata: ObjectMeta::named("web"),
        ..Namespace::default()
    });
    assert!(plan(&view(&world), &active, world.now()).is_idle());
}

#[test]
fn it_goes_only_when_a_live_look_finds_nothing() {
    let world = World::default();
    terminating(&world);
    fill(&world, 1, 0);
    // The list missed the task.
    let blind = plan(&View::default(), &namespace(&world).unwrap(), world.now());
    let outcome = world.execute(&blind, Faults::default());
    assert!(matches!(outcome, Some(Outcome::Stale(_))), "{outcome:?}");
    assert!(namespace(&world).is_some());
}

#[test]
fn what_blocks_is_said_in_the_words_that_tools_look_for() {
    let world = World::default();
    terminating(&world);
    fill(&world, 3, 2);
    for _ in 0..3 {
        let plan = plan(&view(&world), &namespace(&world).unwrap(), world.now());
        world.execute(&plan, Faults::default());
    }
    let said: Vec<_> = namespace(&world)
        .unwrap()
        .status
        .conditions
        .into_iter()
        .map(|c| (c.type_, c.reason, c.message))
        .collect();
    let text = |words: [&str; 3]| (words[0].to_owned(), words[1].to_owned(), words[2].to_owned());
    assert_eq!(
        said,
        [
            text([
                "NamespaceContentRemaining",
                "SomeResourcesRemain",
                "Some resources are remaining: tasks.panda.dev has 2 resource instances",
            ]),
            text([
                "NamespaceFinalizersRemaining",
                "SomeFinalizersRemain",
                "Some content in the namespace has finalizers remaining: panda.dev/keep in 2 resource instances",
            ]),
        ]
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn it_empties_and_goes_whatever_breaks(
        tasks in 0usize..6,
        kept in 0usize..3,
        faults in proptest::collection::vec((0u32..4, 0u32..4), 0..10),
    ) {
        let world = World::default();
        terminating(&world);
        fill(&world, tasks, kept);
        for (crash, lose) in faults {
            let Some(namespace) = namespace(&world) else { break };
            let plan = plan(&view(&world), &namespace, world.now());
            world.execute(&plan, Faults { crash_after: Some(crash), lose_answer: Some(lose) });
        }
        for _ in 0..20 {
            let Some(namespace) = namespace(&world) else { break };
            let plan = plan(&view(&world), &namespace, world.now());
            if plan.is_idle() {
                // Someone lets go of the rest.
                for task in world.list::<Task>() {
                    world.remove(&Target::of(&*task));
                }
            }
            world.execute(&plan, Faults::default());
        }
        prop_assert!(namespace(&world).is_none());
        prop_assert!(world.list::<Task>().is_empty());
    }
}
