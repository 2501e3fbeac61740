mod filters;
mod oracle;
mod repositories;
mod rounds;

use std::collections::BTreeMap;
use std::time::Duration;

use panda_api::meta::{Condition, ObjectMeta, Time};
use panda_api::{
    AgentChoice, AgentSpec, Device, DeviceAgent, DriverKind, Refusal, ResourceRequest, Run, RunPhase,
};

use super::{View, plan};
use crate::framework::{Action, Plan};
use crate::testing::{Faults, World};

const NS: &str = "web";

fn condition(type_: &str, status: &str) -> Condition {
    Condition {
        type_: type_.into(),
        status: status.into(),
        observed_generation: None,
        last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
        reason: "Test".into(),
        message: String::new(),
    }
}

/// A device that takes everything.
fn device(name: &str) -> Device {
    let mut device = Device {
        metadata: ObjectMeta::named(name),
        ..Device::default()
    };
    device.status.conditions = vec![condition("Ready", "True")];
    device.status.max_runs = Some(2);
    device.status.agents = vec![DeviceAgent {
        namespace: NS.into(),
        name: "a".into(),
        driver: Some(DriverKind::Exec),
        ..DeviceAgent::default()
    }];
    device.status.allocatable = Some(resources("4", "8Gi"));
    device
}

fn resources(cpu: &str, memory: &str) -> ResourceRequest {
    ResourceRequest {
        cpu: Some(cpu.into()),
        memory: Some(memory.into()),
        ..ResourceRequest::default()
    }
}

fn run(name: &str) -> Run {
    let mut run = Run {
        metadata: ObjectMeta::namespaced(NS, name),
        ..Run::default()
    };
    run.spec.agent = AgentChoice {
        name: "a".into(),
        ..AgentChoice::default()
    };
    run.spec.agent_spec = Some(AgentSpec {
        capabilities: vec!["code.edit".into()],
        ..AgentSpec::default()
    });
    run.spec.task_ref.uid = format!("task-of-{name}");
    run.spec.attempt = 1;
    run
}

/// A world and the scheduler's memory.
struct Model {
    world: World,
    assumed: BTreeMap<String, String>,
}

impl Model {
    fn new(devices: &[Device], runs: &[Run]) -> Self {
        let world = World::default();
        world.set_now("2026-03-01T12:00:00Z".parse().unwrap());
        for device in devices {
            world.put(device);
        }
        for run in runs {
            world.put(run);
        }
        Self {
            world,
            assumed: BTreeMap::new(),
        }
    }

    fn plans(&self, revision: u64) -> Vec<Plan> {
        let view = View {
            runs: self.world.list_at(revision),
            devices: self.world.list_at(revision),
            assumed: self.assumed.clone(),
        };
        plan(&view, self.world.now())
    }

    /// One round, from a cache that is `lag` changes behind.
    fn round(&mut self, lag: u64, faults: Faults) -> usize {
        let revision = self.world.revision().saturating_sub(lag);
        let shown = self.world.list_at::<Run>(revision);
        self.assumed.retain(|uid, _| {
            shown
                .iter()
                .any(|run| run.metadata.uid == *uid && run.spec.device_name.is_empty())
        });
        let plans = self.plans(revision);
        for plan in &plans {
            let outcome = self.world.execute(plan, faults);
            if let Some(Action::Bind { target, body }) = plan.actions.first()
                && outcome == Some(crate::framework::execute::Outcome::Done)
            {
                let run: Run = self.world.get(NS, &target.name).unwrap();
                let device = body["deviceName"].as_str().unwrap().to_owned();
                self.assumed.insert(run.metadata.uid, device);
            }
        }
        plans.len()
    }

    fn settle(&mut self) {
        for _ in 0..20 {
            if self.round(0, Faults::default()) == 0 {
                return;
            }
        }
        panic!("rounds without end");
    }

    fn run(&self, name: &str) -> Run {
        self.world.get(NS, name).unwrap()
    }

    fn device_of(&self, name: &str) -> String {
        self.run(name).spec.device_name
    }

    fn refusals(&self, name: &str) -> Vec<Refusal> {
        self.run(name).status.unschedulable
    }

    fn edit_run(&self, name: &str, change: impl FnOnce(&mut Run)) {
        let mut run = self.run(name);
        change(&mut run);
        self.world.put(&run);
    }

    fn end(&self, name: &str) {
        self.edit_run(name, |run| run.status.phase = Some(RunPhase::Succeeded));
    }

    fn secs(&self, secs: u64) {
        self.world.advance(Duration::from_secs(secs));
    }
}
