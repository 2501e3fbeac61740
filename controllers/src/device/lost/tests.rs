use std::time::Duration;

use panda_api::meta::ObjectMeta;
use panda_api::{
    Device, DeviceRequest, DisconnectPolicy, FailureReason, Lease, OnDisconnect, Run, RunPhase, TaskRef,
};

mod holding;

use super::{Renewal, View, plan};
use crate::device::Lost;
use crate::framework::execute::Outcome;
use crate::framework::{Plan, Target};
use crate::testing::{Faults, World};

const NS: &str = "web";
const RUN: &str = "a-1";

fn at(secs: u64) -> Duration {
    Duration::from_secs(5000 + secs)
}

/// One observer and its memory.
struct Observer {
    began: Duration,
    renewal: Option<Renewal>,
}

impl Observer {
    fn start(secs: u64) -> Self {
        Self {
            began: at(secs),
            renewal: None,
        }
    }

    fn plan(&mut self, world: &World, secs: u64) -> Plan {
        let lease: Option<Lease> = world.get(NS, RUN);
        if let Some(lease) = &lease {
            self.renewal = Some(Renewal::observe(self.renewal.as_ref(), lease, at(secs)));
        }
        let run = run(world);
        let device: Option<Device> = world.get("", "pi");
        let view = View {
            lease,
            renewal: self.renewal.clone(),
            device: device.filter(|device| device.metadata.uid == run.spec.device_uid),
            heartbeat: world.get("panda-system", "pi"),
            began: self.began,
            monotonic: at(secs),
        };
        plan(&view, &run, &Lost::default(), world.now())
    }

    fn look(&mut self, world: &World, secs: u64, faults: Faults) -> Option<Outcome> {
        let plan = self.plan(world, secs);
        world.execute(&plan, faults)
    }
}

fn run(world: &World) -> Run {
    world.get(NS, RUN).unwrap()
}

fn lease(world: &World) -> Lease {
    world.get(NS, RUN).unwrap()
}

fn world(policy: DisconnectPolicy, phase: RunPhase) -> World {
    let world = World::default();
    world.set_now("2026-03-01T12:00:00Z".parse().unwrap());
    let device = world.put(&Device {
        metadata: ObjectMeta::named("pi"),
        ..Device::default()
    });
    let mut run = Run {
        metadata: ObjectMeta::namespaced(NS, RUN),
        ..Run::default()
    };
    run.spec.task_ref = TaskRef {
        name: "a".into(),
        uid: "task-uid".into(),
        generation: 1,
    };
    run.spec.attempt = 1;
    run.spec.device_name = "pi".into();
    run.spec.device_uid = device.metadata.uid;
    run.spec.lease_epoch = Some(1);
    run.spec.device = Some(DeviceRequest {
        on_disconnect: Some(OnDisconnect {
            policy,
            after: panda_api::meta::Duration::from_secs(100),
            ..OnDisconnect::default()
        }),
        ..DeviceRequest::default()
    });
    run.status.phase = Some(phase);
    world.put(&run);
    renew(&world, 0);
    world
}

/// The device renews, by a clock of its own.
fn renew(world: &World, clock: i64) {
    let mut lease: Lease = world.get(NS, RUN).unwrap_or_else(|| Lease {
        metadata: ObjectMeta::namespaced(NS, RUN),
        ..Lease::default()
    });
    lease.spec.holder_identity = Some(run(world).spec.device_uid);
    lease.spec.lease_duration_seconds = Some(40);
    lease.spec.lease_transitions = Some(1);
    let stamp = jiff::Timestamp::from_second(clock).unwrap();
    lease.spec.renew_time = Some(panda_api::meta::MicroTime(stamp));
    world.put(&lease);
}

#[test]
fn the_bound_is_that_of_the_policy() {
    use DisconnectPolicy::{Continue, Pause, Stop};
    // ttl 40 s, the agent's stop grace 5 s, the kill grace 15 s, margin 10 s; `after` is 100 s.
    for (policy, phase, bound) in [
        (Stop, RunPhase::Running, 70),
        (Pause, RunPhase::Running, 170),
        (Continue, RunPhase::Running, 170),
        (Continue, RunPhase::Preparing, 170),
        (Stop, RunPhase::Publishing, 70),
        (Stop, RunPhase::Pending, 40),
        (Continue, RunPhase::Pending, 40),
    ] {
        let world = world(policy, phase);
        let mut observer = Observer::start(0);
        assert_eq!(
            observer.plan(&world, 0).requeue,
            Some(Duration::from_secs(bound)),
            "{policy:?} {phase:?}"
        );
        observer.look(&world, bound - 1, Faults::default());
        assert_eq!(run(&world).status.phase, Some(phase), "{policy:?} {phase:?}");
        observer.look(&world, bound, Faults::default());
        let lost = run(&world);
        assert_eq!(lost.status.phase, Some(RunPhase::Lost), "{policy:?} {phase:?}");
        assert_eq!(lost.status.failure.unwrap().reason, FailureReason::DeviceLost);
        let lease = lease(&world);
        assert_eq!(lease.spec.holder_identity, None);
        assert_eq!(lease.spec.lease_transitions, Some(2));
    }
}

#[test]
fn a_hundredth_of_a_long_bound_is_more_than_the_margin() {
    let mut run = Run::default();
    run.status.phase = Some(RunPhase::Running);
    run.spec.device = Some(DeviceRequest {
        on_disconnect: Some(OnDisconnect {
            after: panda_api::meta::Duration::from_secs(9940),
            ..OnDisconnect::default()
        }),
        ..DeviceRequest::default()
    });
    let bound = Lost::default().bound(&run, Duration::from_secs(40));
    assert_eq!(bound, Duration::from_secs(10_100));
}

#[test]
fn run_task_and_device_are_told_why() {
    let world = world(DisconnectPolicy::Stop, RunPhase::Running);
    let mut observer = Observer::start(0);
    observer.plan(&world, 0);
    let plan = observer.plan(&world, 70);
    assert_eq!(plan.basis.as_ref().unwrap().target, Target::of(&run(&world)));
    assert_eq!(plan.events[0].reason, "DeviceLost");
    let told: Vec<_> = plan
        .elsewhere
        .iter()
        .map(|(about, notice)| (about.target.kind.kind, about.target.name.as_str(), notice.reason))
        .collect();
    assert_eq!(told, [("Task", "a", "RunLost"), ("Device", "pi", "RunLost")]);
    let text = &plan.elsewhere[0].1.message;
    assert!(
        text.contains("device pi has not renewed the lease for 1m10s"),
        "{text}"
    );
    assert!(text.contains("policy Stop"), "{text}");
}

#[test]
fn a_renewal_counts_from_when_it_was_seen_and_whatever_it_says() {
    for skew in [-600, 600, 3600, -3600] {
        let world = world(DisconnectPolicy::Stop, RunPhase::Running);
        let mut observer = Observer::start(0);
        observer.plan(&world, 0);
        for beat in 1..20u32 {
            renew(&world, 10_000 + skew * i64::from(beat % 2) + i64::from(beat));
            observer.look(&world, u64::from(beat) * 60, Faults::default());
            assert_eq!(run(&world).status.phase, Some(RunPhase::Running), "skew {skew}");
        }
        observer.look(&world, 19 * 60 + 70, Faults::default());
        assert_eq!(run(&world).status.phase, Some(RunPhase::Lost), "skew {skew}");
    }
}

#[test]
fn an_observer_that_restarts_waits_the_whole_bound_first() {
    let world = world(DisconnectPolicy::Stop, RunPhase::Running);
    Observer::start(0).plan(&world, 0);
    let mut second = Observer::start(60);
    for secs in [60, 100, 129] {
        second.look(&world, secs, Faults::default());
        assert_eq!(run(&world).status.phase, Some(RunPhase::Running));
    }
    second.look(&world, 130, Faults::default());
    assert_eq!(run(&world).status.phase, Some(RunPhase::Lost));
}

#[test]
fn a_crash_between_taking_and_giving_up_is_finished_by_the_next_observer() {
    let world = world(DisconnectPolicy::Stop, RunPhase::Running);
    let mut observer = Observer::start(0);
    observer.plan(&world, 0);
    let crash = Faults {
        crash_after: Some(1),
        ..Faults::default()
    };
    assert_eq!(observer.look(&world, 70, crash), None);
    assert_eq!(lease(&world).spec.holder_identity, None, "taken");
    assert_eq!(
        run(&world).status.phase,
        Some(RunPhase::Running),
        "not given up yet"
    );
    // The same one goes on at once, since it saw the silence itself; another one waits.
    let mut other = Observer::start(71);
    other.look(&world, 140, Faults::default());
    assert_eq!(run(&world).status.phase, Some(RunPhase::Running));
    observer.look(&world, 141, Faults::default());
    assert_eq!(run(&world).status.phase, Some(RunPhase::Lost));
    assert_eq!(lease(&world).spec.lease_transitions, Some(2), "taken once");
    assert!(other.plan(&world, 142).is_idle());
}

#[test]
fn a_renewal_that_comes_first_makes_the_taking_fail() {
    let world = world(DisconnectPolicy::Stop, RunPhase::Running);
    let mut observer = Observer::start(0);
    observer.plan(&world, 0);
    let late = observer.plan(&world, 70);
    renew(&world, 1);
    let outcome = world.execute(&late, Faults::default());
    assert!(matches!(outcome, Some(Outcome::Stale(_))), "{outcome:?}");
    assert_eq!(run(&world).status.phase, Some(RunPhase::Running));
    assert!(lease(&world).spec.holder_identity.is_some());
}

#[test]
fn a_report_that_comes_first_is_not_overwritten() {
    for (phase, ended) in [(RunPhase::Succeeded, true), (RunPhase::Preparing, false)] {
        let world = world(DisconnectPolicy::Stop, RunPhase::Pending);
        let mut observer = Observer::start(0);
        observer.plan(&world, 0);
        let late = observer.plan(&world, 40);
        let mut newer = run(&world);
        newer.status.phase = Some(phase);
        world.put(&newer);
        let outcome = world.execute(&late, Faults::default());
        assert!(matches!(outcome, Some(Outcome::Stale(_))), "{outcome:?}");
        assert_eq!(run(&world).status.phase, Some(phase));
        let next = observer.plan(&world, 41);
        assert!(next.is_idle(), "a run that began has the whole bound: {next:#?}");
        assert_eq!(next.requeue.is_none(), ended);
    }
}

#[test]
fn a_removed_device_loses_its_runs_after_the_same_bound() {
    let world = world(DisconnectPolicy::Stop, RunPhase::Running);
    let mut observer = Observer::start(0);
    observer.plan(&world, 0);
    world.remove(&Target::new::<Device>("", "pi"));
    observer.look(&world, 69, Faults::default());
    assert_eq!(run(&world).status.phase, Some(RunPhase::Running));
    // A device that took the name is not it.
    world.put(&Device {
        metadata: ObjectMeta::named("pi"),
        ..Device::default()
    });
    let plan = observer.plan(&world, 70);
    assert!(
        plan.events[0].message.contains("was removed"),
        "{:?}",
        plan.events
    );
    world.execute(&plan, Faults::default());
    assert_eq!(run(&world).status.phase, Some(RunPhase::Lost));
}

#[test]
fn a_lease_that_is_gone_is_proved_gone() {
    let world = world(DisconnectPolicy::Stop, RunPhase::Running);
    let mut observer = Observer::start(0);
    observer.plan(&world, 0);
    world.remove(&Target::new::<Lease>(NS, RUN));
    let plan = observer.plan(&world, 70);
    // It comes back while the plan is carried out.
    renew(&world, 5);
    assert!(matches!(
        world.execute(&plan, Faults::default()),
        Some(Outcome::Stale(_))
    ));
    world.remove(&Target::new::<Lease>(NS, RUN));
    observer.look(&world, 71, Faults::default());
    assert_eq!(run(&world).status.phase, Some(RunPhase::Lost));
}

#[test]
fn what_was_granted_for_longer_is_waited_for() {
    let world = world(DisconnectPolicy::Stop, RunPhase::Running);
    let mut observer = Observer::start(0);
    observer.plan(&world, 0);
    let mut shorter = lease(&world);
    shorter.spec.lease_duration_seconds = Some(5);
    world.put(&shorter);
    observer.plan(&world, 1);
    observer.look(&world, 69, Faults::default());
    assert_eq!(run(&world).status.phase, Some(RunPhase::Running));
    observer.look(&world, 70, Faults::default());
    assert_eq!(run(&world).status.phase, Some(RunPhase::Lost));
}
