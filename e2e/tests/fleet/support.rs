//! What several tests need.

use std::time::Duration;

use anyhow::Context;
use panda_api::{Run, RunPhase, Task};
use panda_client::Api;
use panda_client::params::ListParams;
use panda_e2e::fleet::Fleet;
use panda_e2e::recorder::Recorder;
use panda_e2e::schedule::Work;
use panda_e2e::schedule::play;
use serde_json::json;

/// A device is given up only after the whole bound, and machines are busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Makes these tasks and their agents; from now on everything is recorded.
pub(crate) fn begin(fleet: &Fleet, works: &[Work]) -> anyhow::Result<Recorder> {
    let recorder = Recorder::start(&fleet.client()?);
    play::prepare(fleet, works)?;
    make(fleet, works)?;
    Ok(recorder)
}

/// Makes these tasks.
pub(crate) fn make(fleet: &Fleet, works: &[Work]) -> anyhow::Result<()> {
    let tasks: Vec<_> = works.iter().map(|work| work.task(&fleet.beats())).collect();
    fleet.apply(&json!({"apiVersion": "v1", "kind": "List", "items": tasks}))
}

/// The runs of a task, by attempt.
pub(crate) async fn runs(fleet: &Fleet, task: &str) -> anyhow::Result<Vec<Run>> {
    let runs: Api<Run> = Api::namespaced(fleet.client()?, "default");
    let mut runs = runs.list_all(&ListParams::default()).await?.items;
    runs.retain(|run| run.spec.task_ref.name == task);
    runs.sort_by_key(|run| run.spec.attempt);
    Ok(runs)
}

/// The task.
pub(crate) async fn task(fleet: &Fleet, name: &str) -> anyhow::Result<Task> {
    let tasks: Api<Task> = Api::namespaced(fleet.client()?, "default");
    Ok(tasks.get(name).await?)
}

/// Waits until an attempt is in a phase, and says which run that is.
pub(crate) async fn until(fleet: &Fleet, name: &str, attempt: u32, phase: RunPhase) -> anyhow::Result<Run> {
    let what = format!("attempt {attempt} of {name} is {phase:?}");
    let check = || async {
        let runs = runs(fleet, name).await.ok()?;
        runs.into_iter()
            .find(|run| run.spec.attempt == attempt && run.status.phase == Some(phase))
    };
    fleet.eventually(&what, PATIENCE, check).await
}

/// The number of the device that a run is bound to.
pub(crate) fn device_of(fleet: &Fleet, run: &Run) -> anyhow::Result<usize> {
    let at = fleet
        .devices()
        .iter()
        .position(|device| device.name == run.spec.device_name);
    at.with_context(|| format!("{} is bound to {:?}", run.metadata.name, run.spec.device_name))
}
