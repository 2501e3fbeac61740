//! Rounds against an oracle: the rules once more, written plainly over the objects, with nothing of the plugins.

use std::collections::BTreeMap;

use panda_api::meta::{LabelSelector, Time};
use panda_api::{
    DetectSpec, Device, DeviceRequest, DeviceSandbox, EnvVar, GitSpec, LoggedIn, OwnerConfig, RefusalReason,
    Requirements, ResourceRequest, Run, RunPhase, SandboxProfile, SandboxSpec, Taint, Toleration,
    WorkspaceSpec,
};
use proptest::prelude::*;
use proptest::sample::select;

use super::{Model, NS, condition, device, run};

use RefusalReason::*;

/// The order in which reasons are told: what lasts longest first.
const ORDER: [RefusalReason; 14] = [
    SelectorMismatch,
    DeviceNotReady,
    Cordoned,
    TaintNotTolerated,
    NamespaceNotServed,
    MissingCapability,
    AgentNotFound,
    AgentNotLoggedIn,
    SandboxUnavailable,
    WorkspaceRootDenied,
    DiskPressure,
    NoFreeSlot,
    AgentBusy,
    InsufficientResources,
];

/// Processors that a text asks for; the strategies below use whole numbers only.
fn cpus(request: Option<&ResourceRequest>) -> Option<u64> {
    request?.cpu.as_deref().map(|text| text.parse().unwrap())
}

fn wanted_cpus(run: &Run) -> u64 {
    let own = run.spec.device.as_ref().and_then(|d| d.resources.as_ref());
    let agent = run.spec.agent_spec.as_ref().and_then(|a| a.resources.as_ref());
    cpus(own).or_else(|| cpus(agent)).unwrap_or(0)
}

/// Every reason for which a device on which `others` live cannot take a Run, in order.
fn reasons(run: &Run, device: &Device, others: &[&Run]) -> Vec<RefusalReason> {
    let mut found = Vec::new();
    let mut when = |holds: bool, reason| {
        if holds {
            found.push(reason);
        }
    };
    let is = |type_: &str| {
        device
            .status
            .conditions
            .iter()
            .any(|c| c.type_ == type_ && c.status == "True")
    };
    let asks = run.spec.device.clone().unwrap_or_default();
    let agent_spec = run.spec.agent_spec.clone().unwrap();

    when(
        !asks.name.is_empty() && asks.name != device.metadata.name,
        SelectorMismatch,
    );
    let labels = asks.selector.unwrap_or_default().match_labels;
    let unlike = |(key, value): (&String, &String)| device.metadata.labels.get(key) != Some(value);
    when(labels.iter().any(unlike), SelectorMismatch);
    when(
        !is("Ready") || device.metadata.deletion_timestamp.is_some(),
        DeviceNotReady,
    );
    when(device.spec.unschedulable == Some(true), Cordoned);
    for taint in &device.spec.taints {
        let mut tolerated = taint.effect == "PreferNoSchedule";
        for t in &asks.tolerations {
            tolerated |= match t.operator.as_str() {
                "Exists" => t.key.is_empty() || t.key == taint.key,
                _ => t.key == taint.key && t.value == taint.value,
            };
        }
        when(!tolerated, TaintNotTolerated);
    }
    let owner = device.status.owner.clone();
    let served =
        |o: &OwnerConfig| o.namespaces.contains(&"*".to_owned()) || o.namespaces.contains(&NS.to_owned());
    when(owner.as_ref().is_some_and(|o| !served(o)), NamespaceNotServed);
    let needed = run
        .spec
        .requires
        .clone()
        .map_or_else(Vec::new, |r| r.capabilities);
    when(
        needed.iter().any(|c| !agent_spec.capabilities.contains(c)),
        MissingCapability,
    );
    match device
        .status
        .agents
        .iter()
        .find(|a| a.name == "a" && a.namespace == NS)
    {
        Some(agent) if agent.driver.is_some() => {
            when(
                agent.logged_in == Some(false) && run.spec.env.is_empty(),
                AgentNotLoggedIn,
            );
        }
        _ => when(true, AgentNotFound),
    }
    let sandbox = device.status.sandbox.clone().unwrap_or_default();
    let asked = run.spec.sandbox.as_ref().and_then(|s| s.profile);
    let profile = asked.or(sandbox.default).unwrap_or(SandboxProfile::Off);
    let least = owner.as_ref().map_or(SandboxProfile::Off, |o| o.min_sandbox);
    let able = profile == SandboxProfile::Off || sandbox.profiles.contains(&profile);
    let enough = match least {
        SandboxProfile::Off => true,
        SandboxProfile::Standard => profile != SandboxProfile::Off,
        SandboxProfile::Strict => profile == SandboxProfile::Strict,
    };
    when(!able || !enough, SandboxUnavailable);
    if let Some(git) = run.spec.workspace.as_ref().and_then(|w| w.git.as_ref()) {
        let roots = owner.map_or_else(Vec::new, |o| o.workspace_roots);
        let below = |root: &String| git.path.starts_with(&format!("{root}/"));
        when(!roots.iter().any(below), WorkspaceRootDenied);
    }
    when(is("DiskPressure"), DiskPressure);
    let live = others.len() as u32;
    for limit in [device.spec.max_runs, device.status.max_runs]
        .into_iter()
        .flatten()
    {
        when(live >= limit, NoFreeSlot);
    }
    // All runs here are of one agent.
    when(
        agent_spec.concurrency.is_some_and(|limit| live >= limit),
        AgentBusy,
    );
    let taken: u64 = others.iter().map(|other| wanted_cpus(other)).sum();
    let all = cpus(device.status.allocatable.as_ref()).unwrap_or(0);
    let wanted = wanted_cpus(run);
    when(wanted > 0 && taken + wanted > all, InsufficientResources);
    found.sort_by_key(|reason| ORDER.iter().position(|other| other == reason));
    found
}

fn taints() -> impl Strategy<Value = Vec<Taint>> {
    let taint = |effect: &str| Taint {
        key: "gpu".into(),
        value: "only".into(),
        effect: effect.into(),
    };
    select(vec![
        vec![],
        vec![],
        vec![taint("NoSchedule")],
        vec![taint("NoExecute")],
        vec![taint("PreferNoSchedule")],
    ])
}

fn owners() -> impl Strategy<Value = Option<OwnerConfig>> {
    let namespaces = select(vec![vec!["*"], vec![NS], vec!["prod", NS], vec!["prod"]]);
    let roots = select(vec![
        vec![],
        vec!["/home/u"],
        vec!["/home/u", "/srv"],
        vec!["/home/u/we"],
    ]);
    let least = select(vec![
        SandboxProfile::Off,
        SandboxProfile::Off,
        SandboxProfile::Standard,
    ]);
    let owner = (namespaces, roots, least).prop_map(|(namespaces, roots, min_sandbox)| OwnerConfig {
        namespaces: namespaces.into_iter().map(Into::into).collect(),
        workspace_roots: roots.into_iter().map(Into::into).collect(),
        min_sandbox,
        ..OwnerConfig::default()
    });
    proptest::option::weighted(0.7, owner)
}

fn sandboxes() -> impl Strategy<Value = Option<DeviceSandbox>> {
    use SandboxProfile::{Standard, Strict};
    let offered = |profiles: &[SandboxProfile], default| {
        Some(DeviceSandbox {
            profiles: profiles.to_vec(),
            default,
            ..DeviceSandbox::default()
        })
    };
    select(vec![
        None,
        offered(&[Standard], Some(Standard)),
        offered(&[Standard, Strict], None),
        offered(&[Standard, Strict], Some(Strict)),
    ])
}

/// A device in which most things are well, so that much is bound, and each may be wrong.
fn devices() -> impl Strategy<Value = Device> {
    let rare = || proptest::bool::weighted(0.08);
    let limit = || select(vec![None, Some(0), Some(1), Some(2), Some(3), Some(3)]);
    let cpu = select(vec![None, Some("0"), Some("2"), Some("4"), Some("8")]);
    (
        (rare(), rare(), rare(), rare(), any::<bool>()),
        (taints(), owners(), sandboxes(), 0u8..14),
        (limit(), limit(), cpu),
    )
        .prop_map(
            |((away, going, cordoned, full, attic), (taints, owner, sandbox, agent), (a, b, cpu))| {
                let mut device = device("");
                if away {
                    device.status.conditions = vec![condition("Ready", "Unknown")];
                }
                if full {
                    device.status.conditions.push(condition("DiskPressure", "True"));
                }
                if going {
                    device.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
                }
                if attic {
                    device.metadata.labels.insert("room".into(), "attic".into());
                }
                device.spec.unschedulable = Some(cordoned);
                device.spec.taints = taints;
                (device.spec.max_runs, device.status.max_runs) = (a, b);
                device.status.owner = owner;
                device.status.sandbox = sandbox;
                match agent {
                    0 => device.status.agents.clear(),
                    1 => device.status.agents[0].driver = None,
                    2 => device.status.agents[0].namespace = "prod".into(),
                    3 | 4 => device.status.agents[0].logged_in = Some(false),
                    _ => {}
                }
                device.status.allocatable = cpu.map(|cpu| ResourceRequest {
                    cpu: Some(cpu.into()),
                    ..ResourceRequest::default()
                });
                device
            },
        )
}

fn requests() -> impl Strategy<Value = DeviceRequest> {
    let name = select(vec!["", "", "", "", "d0", "d1", "nowhere"]);
    let tolerate = |operator: &str, key: &str, value: &str| {
        vec![Toleration {
            key: key.into(),
            operator: operator.into(),
            value: value.into(),
            effect: String::new(),
        }]
    };
    let tolerations = select(vec![
        vec![],
        tolerate("Equal", "gpu", "only"),
        tolerate("", "gpu", "other"),
        tolerate("Exists", "gpu", ""),
        tolerate("Exists", "", ""),
    ]);
    let cpu = select(vec![None, None, Some("0"), Some("1"), Some("3")]);
    (name, proptest::bool::weighted(0.2), tolerations, cpu).prop_map(|(name, attic, tolerations, cpu)| {
        let mut selector = LabelSelector::default();
        selector.match_labels.insert("room".into(), "attic".into());
        DeviceRequest {
            name: name.into(),
            selector: attic.then_some(selector),
            tolerations,
            resources: cpu.map(|cpu| ResourceRequest {
                cpu: Some(cpu.into()),
                ..ResourceRequest::default()
            }),
            ..DeviceRequest::default()
        }
    })
}

/// A run; the number says whether it is bound and lives already, or has ended there.
fn runs() -> impl Strategy<Value = (Run, u8)> {
    let profile = select(vec![
        None,
        None,
        Some(SandboxProfile::Off),
        Some(SandboxProfile::Standard),
        Some(SandboxProfile::Strict),
    ]);
    let capability = select(vec![None, None, None, Some("code.edit"), Some("fly")]);
    let path = select(vec![None, None, None, Some("/home/u/web"), Some("/srv/x")]);
    let concurrency = select(vec![None, None, Some(1), Some(2)]);
    let agent_cpu = select(vec![None, None, Some("2")]);
    (
        proptest::option::weighted(0.8, requests()),
        (profile, capability, path, concurrency, agent_cpu),
        (any::<bool>(), 0i32..3, 0u8..10),
    )
        .prop_map(
            |(asks, (profile, capability, path, concurrency, cpu), (key, priority, state))| {
                let mut run = run("");
                run.spec.device = asks;
                run.spec.priority = Some(priority);
                run.spec.sandbox = Some(SandboxSpec {
                    profile,
                    ..SandboxSpec::default()
                });
                run.spec.requires = capability.map(|capability| Requirements {
                    capabilities: vec![capability.into()],
                });
                run.spec.workspace = path.map(|path| WorkspaceSpec {
                    git: Some(GitSpec {
                        path: path.into(),
                        ..GitSpec::default()
                    }),
                    ..WorkspaceSpec::default()
                });
                let agent = run.spec.agent_spec.as_mut().unwrap();
                agent.concurrency = concurrency;
                agent.resources = cpu.map(|cpu| ResourceRequest {
                    cpu: Some(cpu.into()),
                    ..ResourceRequest::default()
                });
                agent.detect = Some(DetectSpec {
                    logged_in: Some(LoggedIn {
                        env: vec!["KEY".into()],
                        files: vec![],
                    }),
                    ..DetectSpec::default()
                });
                if key {
                    run.spec.env.push(EnvVar {
                        name: "KEY".into(),
                        ..EnvVar::default()
                    });
                }
                (run, state)
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() })]

    /// A run is bound exactly if the oracle finds a device for it, to one of those, and otherwise every device is told
    /// with the most lasting of its reasons.
    #[test]
    fn rounds_bind_exactly_what_the_rules_allow(
        devices in proptest::collection::vec(devices(), 1..5),
        runs in proptest::collection::vec(runs(), 1..8),
    ) {
        let mut devices = devices;
        for (n, device) in devices.iter_mut().enumerate() {
            device.metadata.name = format!("d{n}");
        }
        let mut model = Model::new(&devices, &[]);
        for (n, (run, state)) in runs.iter().enumerate() {
            let mut run = run.clone();
            run.metadata.name = format!("r{n}");
            run.spec.task_ref.uid = format!("task-{n}");
            if *state < 3 {
                run.spec.device_name = format!("d{}", usize::from(*state) % devices.len());
                run.status.phase = Some(if *state == 2 { RunPhase::Failed } else { RunPhase::Running });
            }
            model.world.put(&run);
        }
        let before = model.world.list::<Run>();
        model.settle();

        // The oracle's round: the most urgent first, then by age (all are of one moment), then by name.
        let mut on: BTreeMap<String, Vec<&Run>> = BTreeMap::new();
        for run in &before {
            if !run.spec.device_name.is_empty() && run.status.phase != Some(RunPhase::Failed) {
                on.entry(run.spec.device_name.clone()).or_default().push(run);
            }
        }
        let mut waiting: Vec<&Run> = before.iter().map(|run| &**run).filter(|run| run.spec.device_name.is_empty()).collect();
        waiting.sort_by_key(|run| (-run.spec.priority.unwrap(), run.metadata.name.clone()));
        for run in waiting {
            let name = &run.metadata.name;
            let verdicts: Vec<(&str, Vec<RefusalReason>)> = devices.iter().map(|device| {
                let others = on.get(&device.metadata.name).map_or(&[][..], Vec::as_slice);
                (device.metadata.name.as_str(), reasons(run, device, others))
            }).collect();
            let fit: Vec<&str> = verdicts.iter().filter(|(_, why)| why.is_empty()).map(|(name, _)| *name).collect();
            let bound = model.device_of(name);
            if fit.is_empty() {
                prop_assert_eq!(&bound, "", "{} is bound although {:?}", name, verdicts);
            } else {
                prop_assert!(fit.contains(&bound.as_str()), "{name} is on {bound:?}, and fits {fit:?}");
                on.entry(bound).or_default().push(run);
            }
        }
        // Reasons are those after the last round, when everything that fits is bound.
        for run in before.iter().filter(|run| model.device_of(&run.metadata.name).is_empty()) {
            let told: Vec<(String, RefusalReason)> =
                model.refusals(&run.metadata.name).into_iter().map(|r| (r.device, r.reason)).collect();
            let pin = run.spec.device.as_ref().map_or("", |asks| asks.name.as_str());
            let exists = devices.iter().any(|device| device.metadata.name == pin);
            let expected: Vec<(String, RefusalReason)> = if pin.is_empty() || exists {
                devices.iter().map(|device| {
                    let others = on.get(&device.metadata.name).map_or(&[][..], Vec::as_slice);
                    (device.metadata.name.clone(), reasons(run, device, others)[0])
                }).collect()
            } else {
                vec![(pin.to_owned(), DeviceNotReady)]
            };
            prop_assert_eq!(told, expected, "{}", run.metadata.name);
        }
    }
}
