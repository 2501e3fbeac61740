//! Two holders of one Run after another, with clocks that run at different rates: they never overlap.
//!
//! A pure model of grants on the device and of taking by the observer, over the real [`Renewal`] and [`Lost`]. All times
//! are real seconds; each party sees them through its own clock.

use std::time::Duration;

use panda_api::meta::ObjectMeta;
use panda_api::{DeviceRequest, DisconnectPolicy, Lease, OnDisconnect, Run, RunPhase};
use proptest::prelude::*;

use super::Renewal;
use crate::device::Lost;

/// What happens to one renewal.
#[derive(Clone, Debug)]
struct Beat {
    /// Since the one before.
    pause: f64,
    /// On its way to the server.
    there: f64,
    /// The answer's way back; none: it is lost.
    back: Option<f64>,
    /// Until the observer sees it.
    seen: f64,
    /// The observer is made anew after this one.
    restart: bool,
}

#[derive(Clone, Debug)]
struct Schedule {
    device_rate: f64,
    observer_rate: f64,
    policy: DisconnectPolicy,
    ttl: u64,
    after: u64,
    /// How much of its kill grace the device needs, 0 to 1.
    kill: f64,
    beats: Vec<Beat>,
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let delay = || prop_oneof![4 => 0.0..0.2f64, 1 => 0.0..90.0f64];
    let back = prop_oneof![4 => delay().prop_map(Some), 1 => Just(None)];
    let beat = (
        0.5..30.0f64,
        delay(),
        back,
        delay(),
        proptest::bool::weighted(0.1),
    )
        .prop_map(|(pause, there, back, seen, restart)| Beat {
            pause,
            there,
            back,
            seen,
            restart,
        });
    let policy = proptest::sample::select(vec![
        DisconnectPolicy::Stop,
        DisconnectPolicy::Pause,
        DisconnectPolicy::Continue,
    ]);
    // Each within half a percent of real time, so within one percent of each other.
    let rate = || 0.9951..1.0049f64;
    (
        rate(),
        rate(),
        policy,
        1u64..120,
        0u64..4000,
        0.0..=1.0f64,
        proptest::collection::vec(beat, 1..12),
    )
        .prop_map(
            |(device_rate, observer_rate, policy, ttl, after, kill, beats)| Schedule {
                device_rate,
                observer_rate,
                policy,
                ttl,
                after,
                kill,
                beats,
            },
        )
}

fn lease(version: usize, ttl: u64) -> Lease {
    let mut lease = Lease {
        metadata: ObjectMeta {
            resource_version: version.to_string(),
            ..ObjectMeta::namespaced("web", "a-1")
        },
        ..Lease::default()
    };
    lease.spec.holder_identity = Some("dev".into());
    lease.spec.lease_duration_seconds = i32::try_from(ttl).ok();
    lease
}

/// When the first holder's processes have certainly ended, and when the next holder may begin; real seconds.
fn play(schedule: &Schedule) -> (f64, f64) {
    let lost = Lost::default();
    let mut run = Run::default();
    run.status.phase = Some(RunPhase::Running);
    run.spec.device = Some(DeviceRequest {
        on_disconnect: Some(OnDisconnect {
            policy: schedule.policy,
            after: panda_api::meta::Duration::from_secs(schedule.after),
            ..OnDisconnect::default()
        }),
        ..DeviceRequest::default()
    });
    let after = match schedule.policy {
        DisconnectPolicy::Stop => 0,
        _ => schedule.after,
    };
    let observed = |real: f64| Duration::from_secs_f64(real * schedule.observer_rate);
    // In the order in which the server commits and the observer sees: one stream each, so nothing overtakes.
    let (mut sent, mut committed, mut seen) = (0.0f64, 0.0f64, 0.0f64);
    let mut renewal: Option<Renewal> = None;
    let mut alive_until = 0.0f64;
    let mut taken: Option<f64> = None;
    for (version, beat) in schedule.beats.iter().enumerate() {
        sent += beat.pause;
        let arrives = (sent + beat.there).max(committed);
        // The observer takes the Lease as soon as its bound has passed since what it saw last. What was committed
        // before that makes the taking fail, seen or not.
        if let Some(at) = renewal.as_ref().map(|seen| due(seen, &lost, &run, schedule))
            && at <= arrives
            && seen.max(committed) <= at
        {
            taken = Some(at);
            break;
        }
        committed = arrives;
        seen = (committed + beat.seen).max(seen);
        if beat.restart {
            renewal = None;
        }
        renewal = Some(Renewal::observe(
            renewal.as_ref(),
            &lease(version, schedule.ttl),
            observed(seen),
        ));
        if beat.back.is_some() {
            // From when it was sent, on the device's clock; a later answer never shortens it.
            let kill = schedule.kill * (5.0 + 15.0);
            let local = schedule.ttl as f64 + after as f64 + kill;
            alive_until = alive_until.max(sent + local / schedule.device_rate);
        }
    }
    let start = taken.unwrap_or_else(|| {
        let last = renewal.as_ref().expect("there is at least one renewal");
        due(last, &lost, &run, schedule)
    });
    (alive_until, start)
}

/// When the observer's bound has passed, in real seconds.
fn due(renewal: &Renewal, lost: &Lost, run: &Run, schedule: &Schedule) -> f64 {
    (renewal.seen + lost.bound(run, renewal.ttl)).as_secs_f64() / schedule.observer_rate
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn two_holders_never_overlap(schedule in schedule()) {
        let (ended, next) = play(&schedule);
        prop_assert!(ended <= next, "the first ends at {ended}, the second begins at {next}");
    }
}

// B20: an observer whose clock runs at half speed only waits longer.
#[test]
fn a_slow_observer_waits_longer() {
    let beat = Beat {
        pause: 1.0,
        there: 0.0,
        back: Some(0.0),
        seen: 0.0,
        restart: false,
    };
    let mut schedule = Schedule {
        device_rate: 1.0,
        observer_rate: 1.0,
        policy: DisconnectPolicy::Stop,
        ttl: 40,
        after: 0,
        kill: 1.0,
        beats: vec![beat],
    };
    let (ended, next) = play(&schedule);
    assert!(ended <= next && next < 100.0);
    schedule.observer_rate = 0.5;
    assert!(play(&schedule).1 > 130.0);
    // And what the rule is for: one that runs a tenth too fast would be wrong.
    schedule.observer_rate = 1.5;
    let (ended, next) = play(&schedule);
    assert!(ended > next);
}
