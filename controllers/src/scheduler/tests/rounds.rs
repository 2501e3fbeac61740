//! Order, preference, bounds; and that rounds converge.

use std::collections::BTreeMap;

use panda_api::{DeviceRequest, Failure, FailureReason, RefusalReason, Run, RunPhase};
use proptest::prelude::*;

use super::{Model, NS, device, resources, run};
use crate::testing::Faults;

fn asking(name: &str, cpu: &str) -> Run {
    let mut run = run(name);
    run.spec.device = Some(DeviceRequest {
        resources: Some(resources(cpu, "1Gi")),
        ..DeviceRequest::default()
    });
    run
}

#[test]
fn runs_spread_over_devices() {
    let devices = [device("a"), device("b")];
    let runs: Vec<Run> = (0..4).map(|i| run(&format!("r{i}"))).collect();
    let mut model = Model::new(&devices, &runs);
    model.settle();
    let mut per: BTreeMap<String, u32> = BTreeMap::new();
    for i in 0..4 {
        *per.entry(model.device_of(&format!("r{i}"))).or_default() += 1;
    }
    assert_eq!(per, BTreeMap::from([("a".into(), 2), ("b".into(), 2)]));
}

#[test]
fn priority_goes_first_and_waiting_makes_up_for_it() {
    let mut single = device("a");
    single.status.max_runs = Some(1);
    let mut model = Model::new(std::slice::from_ref(&single), &[run("old")]);
    model.world.put(&run("busy"));
    model.edit_run("busy", |run| run.spec.device_name = "a".into());
    model.settle();
    model.secs(300);
    for (name, priority) in [("urgent", 10), ("less", 4)] {
        let mut run = run(name);
        run.spec.priority = Some(priority);
        model.world.put(&run);
    }
    model.end("busy");
    model.settle();
    assert_eq!(model.device_of("urgent"), "a");
    model.end("urgent");
    model.settle();
    // Five minutes of waiting are worth more than a priority of four.
    assert_eq!(model.device_of("old"), "a");
    assert_eq!(model.device_of("less"), "");
}

#[test]
fn a_run_that_starves_for_resources_gets_a_device_held_free() {
    let mut model = Model::new(&[device("a")], &[asking("small0", "1")]);
    model.settle();
    model.world.put(&asking("big", "4"));
    model.settle();
    assert_eq!(
        model.refusals("big")[0].reason,
        RefusalReason::InsufficientResources
    );
    // Small ones pass it by while it has not waited long.
    model.world.put(&asking("small1", "1"));
    model.settle();
    assert_eq!(model.device_of("small1"), "a");
    model.end("small1");
    model.secs(301);
    model.world.put(&asking("small2", "1"));
    model.settle();
    assert_eq!(model.device_of("small2"), "", "held for big");
    model.end("small0");
    model.settle();
    assert_eq!(model.device_of("big"), "a");
}

#[test]
fn the_next_attempt_prefers_where_the_workspace_is_unless_the_device_failed() {
    for (reason, expected) in [(FailureReason::Crashed, "b"), (FailureReason::DiskFull, "a")] {
        let mut model = Model::new(&[device("a"), device("b")], &[run("first")]);
        model.edit_run("first", |run| {
            run.spec.device_name = "b".into();
            run.status.phase = Some(RunPhase::Failed);
            run.status.failure = Some(Failure {
                reason,
                ..Failure::default()
            });
        });
        let mut second = run("second");
        second.spec.task_ref.uid = "task-of-first".into();
        second.spec.attempt = 2;
        model.world.put(&second);
        model.settle();
        assert_eq!(model.device_of("second"), expected, "{reason:?}");
    }
}

#[test]
fn a_reason_keeps_its_time_and_what_stands_is_not_written_again() {
    let mut full = device("a");
    full.spec.unschedulable = Some(true);
    let mut model = Model::new(&[full], &[run("r")]);
    model.settle();
    let first = model.refusals("r");
    model.secs(100);
    let before = model.world.revision();
    model.world.put(&run("other"));
    model.settle();
    assert_eq!(model.refusals("r"), first);
    assert_eq!(
        model.world.changes(before).len(),
        2,
        "the other run and its reasons"
    );
}

#[test]
fn what_is_paused_or_cancelled_is_not_bound() {
    let mut model = Model::new(&[device("a")], &[run("paused"), run("cancelled")]);
    model.edit_run("paused", |run| run.spec.pause = Some(true));
    model.edit_run("cancelled", |run| run.spec.cancel = Some(true));
    assert!(model.plans(model.world.revision()).is_empty());
    model.edit_run("paused", |run| run.spec.pause = Some(false));
    model.settle();
    assert_eq!(model.device_of("paused"), "a");
}

#[test]
fn two_quick_rounds_do_not_overbook() {
    let mut model = Model::new(&[device("a")], &[run("r0"), run("r1")]);
    let before = model.world.revision();
    model.settle();
    for i in 2..6 {
        model.world.put(&run(&format!("r{i}")));
    }
    // The cache shows the new runs, but none of the bindings.
    let lag = model.world.revision() - before;
    model.round(lag - 1, Faults::default());
    model.round(0, Faults::default());
    let bound = (0..6)
        .filter(|i| !model.device_of(&format!("r{i}")).is_empty())
        .count();
    assert_eq!(bound, 2);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Stale caches, lost answers, crashes that forget what was assumed: every run is bound once, and when the
    /// faults stop, everything that fits is bound and then nothing is planned. While the scheduler remembers what it
    /// did, no device is overbooked.
    #[test]
    fn rounds_converge(
        steps in proptest::collection::vec((0u8..6, 0u64..6, 0u32..2), 0..40),
        slots in 1u32..4,
    ) {
        let devices: Vec<_> = ["a", "b"].map(|name| {
            let mut device = device(name);
            device.status.max_runs = Some(slots);
            device
        }).into();
        let mut model = Model::new(&devices, &[]);
        let mut runs = 0;
        let mut forgetful = false;
        let mut bound: BTreeMap<String, String> = BTreeMap::new();
        for (kind, lag, fault) in steps {
            match kind {
                0 | 1 => {
                    model.world.put(&run(&format!("r{runs}")));
                    runs += 1;
                }
                2 => {
                    let faults = Faults { lose_answer: Some(fault), ..Faults::default() };
                    // An answer that is lost may hide a binding.
                    forgetful = true;
                    model.round(lag, faults);
                }
                3 => {
                    model.assumed.clear();
                    forgetful = true;
                    model.round(lag, Faults::default());
                }
                4 if runs > 0 => {
                    let name = format!("r{}", lag % runs);
                    if !model.device_of(&name).is_empty() && model.run(&name).status.phase.is_none_or(|p| !p.is_terminal()) {
                        model.end(&name);
                    }
                }
                _ => { model.round(lag, Faults::default()); }
            }
            let mut load: BTreeMap<String, u32> = BTreeMap::new();
            for run in model.world.list::<Run>() {
                let device = run.spec.device_name.clone();
                if device.is_empty() {
                    continue;
                }
                let first = bound.entry(run.metadata.name.clone()).or_insert_with(|| device.clone());
                prop_assert_eq!(&*first, &device, "bound twice");
                if !run.status.phase.is_some_and(RunPhase::is_terminal) {
                    *load.entry(device).or_default() += 1;
                }
            }
            prop_assert!(forgetful || load.values().all(|n| *n <= slots), "{load:?} of {slots}");
        }
        model.settle();
        let live = |device: &str| model.world.list::<Run>().iter().filter(|run| {
            run.spec.device_name == device && !run.status.phase.is_some_and(RunPhase::is_terminal)
        }).count() as u32;
        let waiting = model.world.list::<Run>().iter().any(|run| {
            run.spec.device_name.is_empty() && run.metadata.namespace == NS
        });
        if waiting {
            prop_assert!(live("a") >= slots && live("b") >= slots);
        }
        prop_assert!(model.plans(model.world.revision()).is_empty());
    }
}
