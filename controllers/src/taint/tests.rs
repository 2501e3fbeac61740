use std::sync::Arc;

use panda_api::meta::ObjectMeta;
use panda_api::{Device, DeviceRequest, Run, RunPhase, Taint, Toleration};

use super::{View, plan};
use crate::testing::{Faults, World};

fn device(effect: &str) -> Device {
    let mut device = Device {
        metadata: ObjectMeta::named("d"),
        ..Device::default()
    };
    device.spec.taints = vec![Taint {
        key: "broken".into(),
        effect: effect.into(),
        ..Taint::default()
    }];
    device
}

fn run(world: &World, device: &Device, name: &str, phase: RunPhase) -> Run {
    let mut run = Run {
        metadata: ObjectMeta::namespaced("web", name),
        ..Run::default()
    };
    run.spec.device_name = device.metadata.name.clone();
    run.spec.device_uid = device.metadata.uid.clone();
    run.status.phase = Some(phase);
    world.put(&run)
}

fn evicted(world: &World, device: &Device) -> Vec<String> {
    for _ in 0..2 {
        let view = View { runs: world.list() };
        world.execute(&plan(&view, device), Faults::default());
    }
    let view = View { runs: world.list() };
    assert!(plan(&view, device).is_idle());
    let runs: Vec<Arc<Run>> = world.list();
    let evicted = runs.iter().filter(|run| run.spec.evict == Some(true));
    evicted
        .map(|run| {
            assert_eq!(run.spec.cancel, Some(true));
            run.metadata.name.clone()
        })
        .collect()
}

#[test]
fn live_runs_leave_and_what_ended_is_published_tolerates_or_is_elsewhere_stays() {
    let world = World::default();
    let tainted = world.put(&device("NoExecute"));
    run(&world, &tainted, "live", RunPhase::Running);
    run(&world, &tainted, "checked", RunPhase::Verifying);
    run(&world, &tainted, "ended", RunPhase::Succeeded);
    run(&world, &tainted, "published", RunPhase::Publishing);
    let mut tolerant = run(&world, &tainted, "tolerant", RunPhase::Running);
    tolerant.spec.device = Some(DeviceRequest {
        tolerations: vec![Toleration {
            operator: "Exists".into(),
            ..Toleration::default()
        }],
        ..DeviceRequest::default()
    });
    world.put(&tolerant);
    let mut elsewhere = tainted.clone();
    elsewhere.metadata.uid = "a former device of this name".into();
    run(&world, &elsewhere, "elsewhere", RunPhase::Running);
    assert_eq!(evicted(&world, &tainted), ["checked", "live"]);
}

#[test]
fn other_effects_leave_runs_alone() {
    for effect in ["NoSchedule", "PreferNoSchedule"] {
        let world = World::default();
        let tainted = world.put(&device(effect));
        run(&world, &tainted, "live", RunPhase::Running);
        assert!(evicted(&world, &tainted).is_empty());
    }
}
