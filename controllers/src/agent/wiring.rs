//! Which changes concern which Agent.

use std::sync::Arc;

use panda_api::{Agent, Device, Run};
use panda_client::runtime::controller::{Config, Controller};
use panda_client::runtime::{InformerHandle, ObjectRef, Outcome, Store};
use tokio_util::sync::CancellationToken;

use super::{View, plan};
use crate::framework::Runner;
use crate::framework::execute::Error;
use crate::task::wiring::BY_NAMESPACE;

/// Keeps the status of every Agent until the token is cancelled.
pub(crate) async fn run(
    agents: InformerHandle<Agent>,
    devices: InformerHandle<Device>,
    runs: InformerHandle<Run>,
    runner: Runner,
    config: Config,
    token: CancellationToken,
) {
    let keeper = Arc::new(Keeper {
        agents: agents.store().clone(),
        devices: devices.store().clone(),
        runs: runs.store().clone(),
        runner,
    });
    let controller = Controller::new("agent", config)
        .reconciles(&agents)
        .watches(&devices, |device: &Device| {
            let found = &device.status.agents;
            found
                .iter()
                .map(|agent| ObjectRef::new(&agent.namespace, &agent.name))
                .collect()
        })
        .watches(&runs, |run: &Run| {
            vec![ObjectRef::new(&run.metadata.namespace, &run.spec.agent.name)]
        });
    controller
        .run(
            move |request| {
                let keeper = Arc::clone(&keeper);
                async move { keeper.reconcile(&request.key).await }
            },
            token,
        )
        .await;
}

struct Keeper {
    agents: Store<Agent>,
    devices: Store<Device>,
    runs: Store<Run>,
    runner: Runner,
}

impl Keeper {
    async fn reconcile(&self, key: &ObjectRef) -> Result<Outcome, Error> {
        let Some(agent) = self.agents.get(key) else {
            return Ok(Outcome::Done);
        };
        let devices = self.devices.list();
        let view = View {
            devices: devices
                .into_iter()
                .map(|device| (device.metadata.name.clone(), device))
                .collect(),
            runs: self.runs.by_index(BY_NAMESPACE, key.namespace()),
        };
        self.runner.run(&plan(&view, &agent), None).await
    }
}
