//! The planner of one Agent.

use std::collections::BTreeMap;
use std::sync::Arc;

use panda_api::{Agent, AgentOnDevice, AgentStatus, Device, Run, RunPhase};

use crate::framework::{Basis, Plan, to_value};

/// What the agent planner sees.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Every Device, by name.
    pub devices: BTreeMap<String, Arc<Device>>,
    /// The Runs of the Agent's namespace.
    pub runs: Vec<Arc<Run>>,
}

/// Plans the status of an Agent.
#[must_use]
pub fn plan(view: &View, agent: &Agent) -> Plan {
    let meta = &agent.metadata;
    let devices = view.devices.values().flat_map(|device| {
        let ours = device
            .status
            .agents
            .iter()
            .filter(|a| a.namespace == meta.namespace && a.name == meta.name);
        ours.map(|found| {
            let logged_in = found.logged_in != Some(false) || agent.spec.brings_login(&[]);
            AgentOnDevice {
                name: device.metadata.name.clone(),
                version: found.version.clone(),
                driver: found.driver,
                ready: found.driver.is_some() && logged_in,
                reason: if found.driver.is_some() && !logged_in {
                    "not logged in".to_owned()
                } else {
                    found.reason.clone()
                },
            }
        })
    });
    let mut status = agent.status.clone();
    status.observed_generation = Some(meta.generation);
    status.devices = devices.collect();
    let live = |run: &&Arc<Run>| {
        let ended = run.status.phase.is_some_and(RunPhase::is_terminal);
        run.spec.agent.name == meta.name && !run.spec.device_name.is_empty() && !ended
    };
    status.running = u32::try_from(view.runs.iter().filter(live).count()).ok();
    let mut plan = Plan {
        basis: Some(Basis::of(agent)),
        ..Plan::default()
    };
    // That nobody has it and nothing runs needs no saying: whoever made it would only find it changed at once.
    let silent = |status: &AgentStatus| status.devices.is_empty() && status.running.unwrap_or(0) == 0;
    let unseen = agent.status.observed_generation.is_none() && silent(&agent.status);
    if status != agent.status && !(unseen && silent(&status)) {
        plan.status = Some(to_value(&Agent {
            status,
            ..agent.clone()
        }));
    }
    plan
}

#[cfg(test)]
mod tests {
    use panda_api::meta::ObjectMeta;
    use panda_api::{AgentChoice, DeviceAgent, DeviceStatus, DriverKind, RunSpec, RunStatus};

    use super::*;

    fn agent() -> Agent {
        Agent {
            metadata: ObjectMeta {
                generation: 2,
                ..ObjectMeta::namespaced("web", "a")
            },
            ..Agent::default()
        }
    }

    fn view() -> View {
        let found = |namespace: &str, logged_in| DeviceAgent {
            namespace: namespace.into(),
            name: "a".into(),
            version: "1.2".into(),
            driver: Some(DriverKind::Exec),
            logged_in,
            ..DeviceAgent::default()
        };
        let device = |name: &str, agents| Device {
            metadata: ObjectMeta::named(name),
            status: DeviceStatus {
                agents,
                ..DeviceStatus::default()
            },
            ..Device::default()
        };
        let run = |phase, device: &str| Run {
            spec: RunSpec {
                agent: AgentChoice {
                    name: "a".into(),
                    ..AgentChoice::default()
                },
                device_name: device.into(),
                ..RunSpec::default()
            },
            status: RunStatus {
                phase: Some(phase),
                ..RunStatus::default()
            },
            ..Run::default()
        };
        let devices = [
            device("mac", vec![found("web", None), found("other", None)]),
            device("pi", vec![found("web", Some(false))]),
            device("tv", vec![]),
        ];
        View {
            devices: devices
                .into_iter()
                .map(|d| (d.metadata.name.clone(), Arc::new(d)))
                .collect(),
            runs: [
                run(RunPhase::Running, "mac"),
                run(RunPhase::Succeeded, "mac"),
                run(RunPhase::Pending, ""),
            ]
            .map(Arc::new)
            .to_vec(),
        }
    }

    #[test]
    fn an_agent_that_nobody_has_is_left_alone_until_somebody_had_it() {
        assert!(plan(&View::default(), &agent()).is_idle());
        let mut gone = agent();
        gone.status.observed_generation = Some(1);
        let status = plan(&View::default(), &gone).status.unwrap();
        assert_eq!(status["status"]["observedGeneration"], 2);
    }

    #[test]
    fn an_agent_shows_where_it_was_found_and_then_plans_nothing() {
        let status = plan(&view(), &agent()).status.unwrap();
        let planned: Agent = serde_json::from_value(status).unwrap();
        let devices: Vec<_> = planned
            .status
            .devices
            .iter()
            .map(|d| (d.name.as_str(), d.ready, d.reason.as_str()))
            .collect();
        assert_eq!(devices, [("mac", true, ""), ("pi", false, "not logged in")]);
        assert_eq!(planned.status.running, Some(1));
        assert_eq!(planned.status.observed_generation, Some(2));
        assert!(plan(&view(), &planned).is_idle());
    }
}
