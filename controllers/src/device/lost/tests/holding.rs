//! The finalizer that keeps Run and Lease while something may be alive.

use panda_api::meta::Time;
use panda_api::{AFTER_GRANT, DEVICE_FINALIZER};

use super::super::plan_lease;
use super::*;

/// A world as the server leaves it after binding.
fn held(policy: DisconnectPolicy, phase: RunPhase) -> World {
    let world = world(policy, phase);
    let mut run = run(&world);
    run.metadata.finalizers = vec![DEVICE_FINALIZER.into(), "example.com/other".into()];
    let run = world.put(&run);
    let mut lease = lease(&world);
    lease.metadata.finalizers = vec![DEVICE_FINALIZER.into()];
    lease.metadata.owner_references = vec![panda_api::Resource::controller_reference(&run)];
    let after = panda_api::meta::Duration::from(run.after_grant());
    lease
        .metadata
        .annotations
        .insert(AFTER_GRANT.into(), after.to_string());
    world.put(&lease);
    world
}

fn plan_alone(observer: &mut Observer, world: &World, secs: u64) -> Plan {
    let lease = lease(world);
    observer.renewal = Some(Renewal::observe(observer.renewal.as_ref(), &lease, at(secs)));
    let view = View {
        renewal: observer.renewal.clone(),
        began: observer.began,
        monotonic: at(secs),
        ..View::default()
    };
    plan_lease(&view, &lease, &Lost::default())
}

#[test]
fn a_deleted_run_is_given_up_after_the_bound_and_only_then_let_go() {
    let world = held(DisconnectPolicy::Stop, RunPhase::Running);
    let mut deleted = run(&world);
    deleted.metadata.deletion_timestamp = Some(Time(world.now()));
    world.put(&deleted);
    let mut observer = Observer::start(0);
    observer.look(&world, 0, Faults::default());
    observer.look(&world, 69, Faults::default());
    assert!(run(&world).metadata.is_on_device());
    observer.look(&world, 70, Faults::default());
    assert_eq!(run(&world).status.phase, Some(RunPhase::Lost));
    assert!(!lease(&world).metadata.is_on_device());
    assert!(run(&world).metadata.is_on_device(), "one thing after another");
    observer.look(&world, 70, Faults::default());
    assert_eq!(run(&world).metadata.finalizers, ["example.com/other"]);
    assert!(observer.plan(&world, 71).is_idle());
}

#[test]
fn a_crash_anywhere_leaves_nothing_held_for_ever() {
    for crash in 0..4 {
        let world = held(DisconnectPolicy::Stop, RunPhase::Running);
        let mut observer = Observer::start(0);
        observer.look(&world, 0, Faults::default());
        let faults = Faults {
            crash_after: Some(crash),
            ..Faults::default()
        };
        observer.look(&world, 70, faults);
        let mut next = Observer::start(71);
        for secs in [71, 141, 142, 143] {
            next.look(&world, secs, Faults::default());
        }
        assert_eq!(run(&world).status.phase, Some(RunPhase::Lost), "{crash}");
        assert!(!run(&world).metadata.is_on_device(), "{crash}");
        assert!(!lease(&world).metadata.is_on_device(), "{crash}");
    }
}

#[test]
fn an_end_that_the_device_did_not_report_waits_for_the_bound() {
    let world = held(DisconnectPolicy::Stop, RunPhase::Running);
    let mut ended = run(&world);
    ended.status.phase = Some(RunPhase::Failed);
    world.put(&ended);
    let mut observer = Observer::start(0);
    observer.look(&world, 0, Faults::default());
    observer.look(&world, 69, Faults::default());
    assert!(run(&world).metadata.is_on_device());
    observer.look(&world, 70, Faults::default());
    observer.look(&world, 71, Faults::default());
    assert!(!run(&world).metadata.is_on_device());
    assert_eq!(run(&world).status.phase, Some(RunPhase::Failed));
}

#[test]
fn the_lease_of_a_run_that_is_gone_is_taken_after_the_bound_of_that_run() {
    // `after` is 100 s.
    for (policy, bound) in [(DisconnectPolicy::Stop, 70), (DisconnectPolicy::Continue, 170)] {
        let world = held(policy, RunPhase::Running);
        world.remove(&Target::of(&run(&world)));
        let mut observer = Observer::start(0);
        let plan = plan_alone(&mut observer, &world, 0);
        assert_eq!(plan.requeue, Some(Duration::from_secs(bound)), "{policy:?}");
        assert!(plan_alone(&mut observer, &world, bound - 1).is_idle());
        let plan = plan_alone(&mut observer, &world, bound);
        world.execute(&plan, Faults::default());
        let lease = lease(&world);
        assert_eq!(lease.spec.holder_identity, None);
        assert!(!lease.metadata.is_on_device());
        assert!(plan_alone(&mut observer, &world, bound + 1).is_idle());
    }
}

#[test]
fn a_lease_that_does_not_say_has_the_bound_of_a_run_that_says_nothing() {
    let (lost, ttl) = (Lost::default(), Duration::from_secs(40));
    let mut begun = Run::default();
    begun.status.phase = Some(RunPhase::Running);
    let mut lease = Lease::default();
    assert_eq!(lost.bound_of_lease(&lease, ttl), lost.bound(&begun, ttl));
    for text in ["", "-1s", "soon"] {
        lease.metadata.annotations.insert(AFTER_GRANT.into(), text.into());
        assert_eq!(
            lost.bound_of_lease(&lease, ttl),
            lost.bound(&begun, ttl),
            "{text}"
        );
    }
}
