//! Rounds of the scheduler.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures::{FutureExt, StreamExt};
use panda_api::meta::Clock;
use panda_api::{Device, Run};
use panda_client::runtime::controller::{Config, Controller};
use panda_client::runtime::{InformerHandle, ObjectRef, Outcome, Store};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::plan::requeue;
use super::{View, plan};
use crate::framework::execute::Error;
use crate::framework::{Action, Plan, Runner};

/// Writes of one round that are under way at a time.
const PARALLEL: usize = 16;

/// Schedules Runs until the token is cancelled.
pub(crate) async fn run(
    runs: InformerHandle<Run>,
    devices: InformerHandle<Device>,
    runner: Runner,
    clock: Arc<dyn Clock>,
    config: Config,
    token: CancellationToken,
) {
    // One key: whatever changed, a round looks at everything. One worker: rounds build on each other.
    let round = |_: &_| vec![ObjectRef::new("", "round")];
    let controller = Controller::new("scheduler", Config { workers: 1, ..config })
        .watches(&runs, round)
        .watches(&devices, |_: &Device| vec![ObjectRef::new("", "round")]);
    let scheduler = Arc::new(Scheduler {
        runs: runs.store().clone(),
        devices: devices.store().clone(),
        assumed: Mutex::default(),
        runner,
        clock,
    });
    controller
        .run(
            move |_| {
                let scheduler = Arc::clone(&scheduler);
                async move { scheduler.round().await }
            },
            token,
        )
        .await;
}

struct Scheduler {
    runs: Store<Run>,
    devices: Store<Device>,
    /// Bindings that the cache may not show yet: uid of the Run, device.
    assumed: Mutex<BTreeMap<String, String>>,
    runner: Runner,
    clock: Arc<dyn Clock>,
}

impl Scheduler {
    fn view(&self) -> View {
        let runs = self.runs.list();
        let mut assumed = self.assumed.lock().unwrap_or_else(PoisonError::into_inner);
        // What the cache shows, or has forgotten, need not be assumed any more.
        let unbound: BTreeMap<&str, ()> = runs
            .iter()
            .filter(|run| run.spec.device_name.is_empty())
            .map(|run| (run.metadata.uid.as_str(), ()))
            .collect();
        assumed.retain(|uid, _| unbound.contains_key(uid.as_str()));
        let assumed = assumed.clone();
        View {
            runs,
            devices: self.devices.list(),
            assumed,
        }
    }

    async fn round(&self) -> Result<Outcome, Error> {
        let view = self.view();
        let plans = plan(&view, self.clock.now());
        let work: Vec<_> = plans
            .iter()
            .map(|plan| self.carry_out(&view, plan).boxed())
            .collect();
        let results: Vec<Result<Outcome, Error>> = futures::stream::iter(work)
            .buffer_unordered(PARALLEL)
            .collect()
            .await;
        let mut again = false;
        for result in results {
            again |= result? == Outcome::Again;
        }
        Ok(match (again, requeue(&view)) {
            (true, _) => Outcome::Again,
            (false, Some(wait)) => Outcome::After(wait),
            (false, None) => Outcome::Done,
        })
    }

    async fn carry_out(&self, view: &View, plan: &Plan) -> Result<Outcome, Error> {
        let Some(Action::Bind { target, body }) = plan.actions.first() else {
            return self.runner.run(plan, None).await;
        };
        let run = view
            .runs
            .iter()
            .find(|run| run.metadata.name == target.name && run.metadata.namespace == target.namespace);
        let traceparent = run.and_then(|run| run.metadata.traceparent());
        let span = tracing::info_span!(
            "schedule",
            kind = "Run",
            namespace = target.namespace,
            name = target.name,
            uid = run.map(|run| run.metadata.uid.as_str()),
            traceparent
        );
        let outcome = self.runner.run(plan, traceparent).instrument(span).await?;
        if let (Outcome::Done | Outcome::After(_), Some(run), Some(device)) =
            (&outcome, run, body["deviceName"].as_str())
        {
            let mut assumed = self.assumed.lock().unwrap_or_else(PoisonError::into_inner);
            assumed.insert(run.metadata.uid.clone(), device.to_owned());
        }
        Ok(outcome)
    }
}
