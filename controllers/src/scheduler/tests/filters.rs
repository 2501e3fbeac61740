//! One row a reason.

use panda_api::meta::{LabelSelector, ObjectMeta};
use panda_api::{
    DetectSpec, Device, DeviceRequest, DeviceSandbox, EnvVar, GitSpec, LoggedIn, OwnerConfig, RefusalReason,
    Requirements, Run, SandboxProfile, SandboxSpec, Taint, Toleration, WorkspaceSpec,
};

use super::{Model, condition, device, resources, run};

/// Why the one device refuses the run; nothing when it is bound.
fn verdict(change: impl FnOnce(&mut Device, &mut Run)) -> Option<RefusalReason> {
    let (mut device, mut run) = (device("pi"), run("r"));
    change(&mut device, &mut run);
    let mut model = Model::new(&[device], &[run]);
    model.settle();
    let refusals = model.refusals("r");
    assert_eq!(refusals.is_empty(), !model.device_of("r").is_empty());
    for refusal in &refusals {
        assert!(
            !refusal.message.is_empty() && refusal.since.is_some(),
            "{refusal:?}"
        );
    }
    refusals.first().map(|r| r.reason)
}

fn wants(run: &mut Run) -> &mut DeviceRequest {
    run.spec.device.get_or_insert_with(DeviceRequest::default)
}

fn git(run: &mut Run, path: &str) {
    run.spec.workspace = Some(WorkspaceSpec {
        git: Some(GitSpec {
            path: path.into(),
            ..GitSpec::default()
        }),
        ..WorkspaceSpec::default()
    });
}

fn owner(device: &mut Device) -> &mut OwnerConfig {
    device.status.owner.get_or_insert_with(OwnerConfig::default)
}

fn profile(run: &mut Run, profile: SandboxProfile) {
    run.spec.sandbox = Some(SandboxSpec {
        profile: Some(profile),
        ..SandboxSpec::default()
    });
}

#[test]
fn a_device_that_fits_is_taken() {
    assert_eq!(verdict(|_, _| {}), None);
}

#[test]
fn every_filter_gives_its_reason() {
    use RefusalReason::*;
    let taint = Taint {
        key: "gpu".into(),
        value: "only".into(),
        effect: "NoSchedule".into(),
    };
    assert_eq!(verdict(|d, _| d.status.conditions.clear()), Some(DeviceNotReady));
    assert_eq!(
        verdict(|d, _| d.status.conditions = vec![condition("Ready", "Unknown")]),
        Some(DeviceNotReady)
    );
    assert_eq!(verdict(|d, _| d.spec.unschedulable = Some(true)), Some(Cordoned));
    assert_eq!(
        verdict(|d, _| d.spec.taints = vec![taint.clone()]),
        Some(TaintNotTolerated)
    );
    assert_eq!(
        verdict(|_, r| wants(r).name = "other".into()),
        Some(DeviceNotReady)
    );
    assert_eq!(
        verdict(|_, r| {
            let mut selector = LabelSelector::default();
            selector.match_labels.insert("room".into(), "attic".into());
            wants(r).selector = Some(selector);
        }),
        Some(SelectorMismatch)
    );
    assert_eq!(
        verdict(|_, r| {
            r.spec.requires = Some(Requirements {
                capabilities: vec!["fly".into()],
            });
        }),
        Some(MissingCapability)
    );
    assert_eq!(verdict(|d, _| d.status.agents.clear()), Some(AgentNotFound));
    assert_eq!(
        verdict(|d, _| d.status.agents[0].driver = None),
        Some(AgentNotFound)
    );
    assert_eq!(
        verdict(|d, _| d.status.agents[0].namespace = "x".into()),
        Some(AgentNotFound)
    );
    assert_eq!(
        verdict(|d, _| d.status.agents[0].logged_in = Some(false)),
        Some(AgentNotLoggedIn)
    );
    assert_eq!(
        verdict(|d, r| {
            d.status.agents[0].logged_in = Some(false);
            let agent = r.spec.agent_spec.get_or_insert_default();
            let logged_in = LoggedIn {
                env: vec!["KEY".into()],
                files: vec![],
            };
            agent.detect = Some(DetectSpec {
                logged_in: Some(logged_in),
                ..DetectSpec::default()
            });
            r.spec.env.push(EnvVar {
                name: "KEY".into(),
                ..EnvVar::default()
            });
        }),
        None,
        "a run that brings the key itself needs no login"
    );
    assert_eq!(
        verdict(|_, r| wants(r).resources = Some(resources("5", "1Gi"))),
        Some(InsufficientResources)
    );
    assert_eq!(verdict(|d, _| d.status.max_runs = Some(0)), Some(NoFreeSlot));
    assert_eq!(verdict(|d, _| d.spec.max_runs = Some(0)), Some(NoFreeSlot));
    assert_eq!(
        verdict(|_, r| r.spec.agent_spec.as_mut().unwrap().concurrency = Some(0)),
        Some(AgentBusy)
    );
    assert_eq!(
        verdict(|_, r| profile(r, SandboxProfile::Strict)),
        Some(SandboxUnavailable)
    );
    assert_eq!(
        verdict(|d, r| {
            owner(d).min_sandbox = SandboxProfile::Standard;
            profile(r, SandboxProfile::Off);
        }),
        Some(SandboxUnavailable)
    );
    assert_eq!(
        verdict(|d, _| owner(d).namespaces = vec!["prod".into()]),
        Some(NamespaceNotServed)
    );
    assert_eq!(verdict(|_, r| git(r, "/home/u/web")), Some(WorkspaceRootDenied));
    assert_eq!(
        verdict(|d, r| {
            owner(d).workspace_roots = vec!["/home/u/we".into()];
            git(r, "/home/u/web");
        }),
        Some(WorkspaceRootDenied)
    );
    assert_eq!(
        verdict(|d, _| d.status.conditions.push(condition("DiskPressure", "True"))),
        Some(DiskPressure)
    );
}

#[test]
fn what_is_allowed_passes() {
    let gpu = |effect: &str| Taint {
        key: "gpu".into(),
        value: "only".into(),
        effect: effect.into(),
    };
    let tolerate = |operator: &str, key: &str, value: &str| Toleration {
        key: key.into(),
        operator: operator.into(),
        value: value.into(),
        effect: String::new(),
    };
    for toleration in [
        tolerate("", "gpu", "only"),
        tolerate("Equal", "gpu", "only"),
        tolerate("Exists", "gpu", ""),
        tolerate("Exists", "", ""),
    ] {
        let seen = verdict(|d, r| {
            d.spec.taints = vec![gpu("NoSchedule")];
            wants(r).tolerations = vec![toleration.clone()];
        });
        assert_eq!(seen, None, "{toleration:?}");
    }
    assert_eq!(
        verdict(|d, _| d.spec.taints = vec![gpu("PreferNoSchedule")]),
        None
    );
    assert_eq!(verdict(|_, r| wants(r).name = "pi".into()), None);
    assert_eq!(
        verdict(|d, r| {
            owner(d).workspace_roots = vec!["/home/u".into()];
            git(r, "/home/u/web");
        }),
        None
    );
    assert_eq!(
        verdict(|d, r| {
            d.status.sandbox = Some(DeviceSandbox {
                default: Some(SandboxProfile::Standard),
                profiles: vec![SandboxProfile::Standard],
                ..DeviceSandbox::default()
            });
            owner(d).min_sandbox = SandboxProfile::Standard;
            r.spec.sandbox = None;
        }),
        None
    );
}

#[test]
fn without_devices_there_is_one_reason() {
    let mut model = Model::new(&[], &[run("r")]);
    model.settle();
    let refusals = model.refusals("r");
    assert_eq!((refusals.len(), refusals[0].device.as_str()), (1, ""));
    assert_eq!(refusals[0].reason, RefusalReason::DeviceNotReady);
}

#[test]
fn a_device_that_is_going_takes_nothing() {
    let seen = verdict(|d, _| {
        d.metadata = ObjectMeta {
            deletion_timestamp: Some(panda_api::meta::Time(jiff::Timestamp::UNIX_EPOCH)),
            ..d.metadata.clone()
        };
    });
    assert_eq!(seen, Some(RefusalReason::DeviceNotReady));
}
