use std::time::Duration;

use panda_api::meta::ObjectMeta;
use panda_api::{Device, Lease};
use proptest::prelude::*;

use super::{Heartbeat, View, plan};
use crate::testing::{Faults, World};

const TTL: Duration = Duration::from_secs(40);

fn device(world: &World) -> Device {
    world.get("", "pi").unwrap()
}

fn ready(world: &World) -> Option<String> {
    let device = device(world);
    let condition = device.status.conditions.iter().find(|c| c.type_ == "Ready")?;
    Some(condition.status.clone())
}

/// One observer and its memory.
struct Observer {
    began: Duration,
    beat: Option<Heartbeat>,
}

impl Observer {
    fn start(monotonic: Duration) -> Self {
        Self {
            began: monotonic,
            beat: None,
        }
    }

    fn look(&mut self, world: &World, monotonic: Duration) -> Option<Duration> {
        let lease: Option<Lease> = world.get("panda-system", "pi");
        if let Some(lease) = &lease {
            self.beat = Some(Heartbeat::observe(self.beat.as_ref(), lease, monotonic));
        }
        let view = View {
            lease,
            heartbeat: self.beat.clone(),
            began: self.began,
            monotonic,
        };
        let plan = plan(&view, &device(world), world.now());
        world.execute(&plan, Faults::default());
        plan.requeue
    }
}

fn world() -> World {
    let world = World::default();
    world.set_now("2026-03-01T12:00:00Z".parse().unwrap());
    world.put(&Device {
        metadata: ObjectMeta::named("pi"),
        ..Device::default()
    });
    world
}

/// The device renews, by a clock of its own.
fn renew(world: &World, clock: i64) {
    let mut lease: Lease = world.get("panda-system", "pi").unwrap_or(Lease {
        metadata: ObjectMeta::namespaced("panda-system", "pi"),
        ..Lease::default()
    });
    lease.spec.holder_identity = Some(device(world).metadata.uid);
    lease.spec.lease_duration_seconds = Some(40);
    let stamp = jiff::Timestamp::from_second(clock).unwrap();
    lease.spec.renew_time = Some(panda_api::meta::MicroTime(stamp));
    world.put(&lease);
}

fn at(secs: u64) -> Duration {
    Duration::from_secs(1000 + secs)
}

#[test]
fn the_first_lease_makes_a_device_ready_and_silence_unknown() {
    let world = world();
    let mut observer = Observer::start(at(0));
    observer.look(&world, at(0));
    assert_eq!(ready(&world), None, "nothing is known yet");
    renew(&world, 0);
    assert_eq!(observer.look(&world, at(1)), Some(TTL));
    assert_eq!(ready(&world).as_deref(), Some("True"));
    observer.look(&world, at(40));
    assert_eq!(ready(&world).as_deref(), Some("True"));
    observer.look(&world, at(41));
    assert_eq!(ready(&world).as_deref(), Some("Unknown"));
    renew(&world, 1);
    observer.look(&world, at(50));
    assert_eq!(ready(&world).as_deref(), Some("True"));
}

// B20: stamps of another clock decide nothing.
#[test]
fn the_devices_own_clock_decides_nothing() {
    for skew in [-600, 600, 3600, -3600] {
        let world = world();
        let mut observer = Observer::start(at(0));
        for beat in 0..6u32 {
            renew(&world, 10_000 + skew * i64::from(beat % 2) + i64::from(beat));
            observer.look(&world, at(u64::from(beat) * 10));
            assert_eq!(ready(&world).as_deref(), Some("True"), "skew {skew}");
        }
        observer.look(&world, at(50 + 40));
        assert_eq!(ready(&world).as_deref(), Some("Unknown"), "skew {skew}");
    }
}

#[test]
fn an_observer_that_restarts_waits_the_whole_bound_first() {
    let world = world();
    let mut first = Observer::start(at(0));
    renew(&world, 0);
    first.look(&world, at(0));
    // The device is silent; 30 s later another observer begins.
    let mut second = Observer::start(at(30));
    second.look(&world, at(30));
    second.look(&world, at(69));
    assert_eq!(ready(&world).as_deref(), Some("True"));
    second.look(&world, at(70));
    assert_eq!(ready(&world).as_deref(), Some("Unknown"));
    // And it does not take what it finds for a sign of life.
    let mut third = Observer::start(at(80));
    third.look(&world, at(80));
    assert_eq!(ready(&world).as_deref(), Some("Unknown"));
}

#[test]
fn a_lease_of_a_former_device_of_that_name_does_not_count() {
    let world = world();
    renew(&world, 0);
    let mut lease: Lease = world.get("panda-system", "pi").unwrap();
    lease.spec.holder_identity = Some("someone else".into());
    world.put(&lease);
    let mut observer = Observer::start(at(0));
    observer.look(&world, at(1));
    assert_eq!(ready(&world), None);
    observer.look(&world, at(60));
    assert_eq!(ready(&world).as_deref(), Some("Unknown"));
}

#[test]
fn another_lease_of_that_name_is_found_not_seen_to_change() {
    let lease = |uid: &str, version: &str| Lease {
        metadata: ObjectMeta {
            uid: uid.into(),
            resource_version: version.into(),
            ..ObjectMeta::namespaced("panda-system", "pi")
        },
        ..Lease::default()
    };
    let first = Heartbeat::observe(None, &lease("a", "1"), at(0));
    let renewed = Heartbeat::observe(Some(&first), &lease("a", "2"), at(1));
    assert!(!first.changed && renewed.changed);
    let other = Heartbeat::observe(Some(&renewed), &lease("b", "3"), at(2));
    assert!(!other.changed);
    assert_eq!(other.seen, at(2));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever was missed before, the verdict is that of the last 40 s, and then nothing is planned.
    #[test]
    fn the_verdict_converges(
        steps in proptest::collection::vec((0u64..30, any::<bool>(), any::<bool>(), any::<bool>()), 0..40),
        alive in any::<bool>(),
    ) {
        let world = world();
        let mut now = 0;
        let mut observer = Observer::start(at(0));
        for (wait, renews, looks, restarts) in steps {
            now += wait;
            if renews {
                renew(&world, i64::try_from(now).unwrap());
            }
            if restarts {
                observer = Observer::start(at(now));
            }
            if looks {
                observer.look(&world, at(now));
            }
        }
        renew(&world, -1);
        observer.look(&world, at(now));
        if alive {
            now += 10;
            renew(&world, -2);
        } else {
            now += 41;
        }
        observer.look(&world, at(now));
        let verdict = ready(&world);
        prop_assert_eq!(verdict.as_deref(), Some(if alive { "True" } else { "Unknown" }));
        let before = world.revision();
        observer.look(&world, at(now));
        prop_assert_eq!(world.revision(), before);
    }
}
