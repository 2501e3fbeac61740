//! Devices and their Runs.

use panda_api::{Device, Run};
use panda_client::runtime::controller::{Config, Controller};
use panda_client::runtime::{InformerHandle, ObjectRef, Outcome};
use tokio_util::sync::CancellationToken;

use super::{View, plan};
use crate::framework::Runner;

/// Evicts Runs until the token is cancelled.
pub(crate) async fn run(
    devices: InformerHandle<Device>,
    runs: InformerHandle<Run>,
    runner: Runner,
    config: Config,
    token: CancellationToken,
) {
    let of_run = |run: &Run| {
        let device = &run.spec.device_name;
        let bound = !device.is_empty();
        bound.then(|| ObjectRef::new("", device)).into_iter().collect()
    };
    let controller = Controller::new("taint", config)
        .reconciles(&devices)
        .watches(&runs, of_run);
    let (devices, runs) = (devices.store().clone(), runs.store().clone());
    controller
        .run(
            move |request| {
                let (devices, runs, runner) = (devices.clone(), runs.clone(), runner.clone());
                async move {
                    let Some(device) = devices.get(&request.key) else {
                        return Ok(Outcome::Done);
                    };
                    // Looking through all Runs is for tainted devices only.
                    if !device.spec.taints.iter().any(|taint| taint.effect == "NoExecute") {
                        return Ok(Outcome::Done);
                    }
                    let view = View { runs: runs.list() };
                    runner.run(&plan(&view, &device), None).await
                }
            },
            token,
        )
        .await;
}
