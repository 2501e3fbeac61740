//! Which changes concern which Task, and what its planner sees.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use panda_api::meta::Clock;
use panda_api::{Agent, FailureReason, Run, Task};
use panda_client::PartialObject;
use panda_client::runtime::controller::{Config, Controller};
use panda_client::runtime::{InformerHandle, ObjectRef, Outcome, Store};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use super::{Announced, View, plan, run_name};
use crate::framework::Runner;
use crate::framework::execute::Error;

/// Name of the index of objects by namespace.
pub(crate) const BY_NAMESPACE: &str = "namespace";

/// What Tasks are decided by.
pub(crate) struct Informers {
    pub(crate) tasks: InformerHandle<Task>,
    pub(crate) runs: InformerHandle<Run>,
    pub(crate) agents: InformerHandle<Agent>,
    pub(crate) secrets: InformerHandle<PartialObject>,
}

/// Reconciles every Task until the token is cancelled.
pub(crate) async fn run(
    informers: Informers,
    runner: Runner,
    clock: Arc<dyn Clock>,
    config: Config,
    token: CancellationToken,
) {
    let Informers {
        tasks,
        runs,
        agents,
        secrets,
    } = informers;
    let (waiting, lacking) = (tasks.store().clone(), tasks.store().clone());
    let caches = Caches {
        tasks: tasks.store().clone(),
        runs: runs.store().clone(),
        agents: agents.store().clone(),
        secrets: secrets.store().clone(),
        announced: Arc::default(),
    };
    let controller = Controller::new("task", config)
        .reconciles(&tasks)
        .owns::<Task, Run>(&runs)
        // An Agent may be what a Task without a live attempt waits for.
        .watches(&agents, move |agent: &Agent| {
            waiting
                .by_index(BY_NAMESPACE, &agent.metadata.namespace)
                .iter()
                .filter(|task| !task.status.phase.is_some_and(panda_api::TaskPhase::is_terminal))
                .map(|task| ObjectRef::of(&task.metadata))
                .collect()
        })
        .watches(&secrets, move |secret: &PartialObject| {
            lacking
                .by_index(BY_NAMESPACE, &secret.metadata.namespace)
                .iter()
                .filter(|task| lacks_secret(task))
                .map(|task| ObjectRef::of(&task.metadata))
                .collect()
        });
    controller
        .run(
            move |request| reconcile(request.key, caches.clone(), runner.clone(), Arc::clone(&clock)),
            token,
        )
        .await;
}

/// Whether the last attempt found a Secret missing.
fn lacks_secret(task: &Task) -> bool {
    let failure = task.status.failure.as_ref();
    failure.is_some_and(|failure| failure.reason == FailureReason::SecretUnavailable)
        && !task.status.phase.is_some_and(panda_api::TaskPhase::is_terminal)
}

#[derive(Clone, Debug)]
struct Caches {
    tasks: Store<Task>,
    runs: Store<Run>,
    agents: Store<Agent>,
    /// Their metadata.
    secrets: Store<PartialObject>,
    /// By Task; only of those for which there is something to know.
    announced: Arc<Mutex<BTreeMap<ObjectRef, Announced>>>,
}

impl Caches {
    fn view(&self, task: &Task, monotonic: Duration) -> View {
        let meta = &task.metadata;
        let mut runs = self.runs.owned_by(&meta.uid);
        // A name that the next attempt needs may be taken by a Run of another owner.
        let next = task.status.attempts.saturating_add(1);
        let reserved = ObjectRef::new(&meta.namespace, &task.status.current_run);
        let wanted = ObjectRef::new(&meta.namespace, &run_name(&meta.name, &meta.uid, next));
        runs.extend([reserved, wanted].iter().filter_map(|key| self.runs.get(key)));
        let announced = self.observe(&ObjectRef::of(meta), runs.iter().map(|run| &**run), monotonic);
        View {
            announced,
            runs: runs
                .into_iter()
                .filter(|run| run.metadata.namespace == meta.namespace)
                .map(|run| (run.metadata.name.clone(), run))
                .collect(),
            agents: self
                .agents
                .by_index(BY_NAMESPACE, &meta.namespace)
                .into_iter()
                .map(|agent| (agent.metadata.name.clone(), agent))
                .collect(),
            secrets: self.secrets(task),
        }
    }
}

impl Caches {
    /// Only an attempt that has failed for want of one makes it matter. The failure may be in the newest Run alone.
    fn secrets(&self, task: &Task) -> Option<BTreeSet<String>> {
        let run = ObjectRef::new(&task.metadata.namespace, &task.status.current_run);
        let failed = self.runs.get(&run).is_some_and(|run| {
            let failure = run.status.failure.as_ref();
            failure.is_some_and(|failure| failure.reason == FailureReason::SecretUnavailable)
        });
        (failed || lacks_secret(task)).then(|| {
            let all = self.secrets.by_index(BY_NAMESPACE, &task.metadata.namespace);
            all.iter().map(|secret| secret.metadata.name.clone()).collect()
        })
    }

    fn observe<'a>(
        &self,
        task: &ObjectRef,
        runs: impl Iterator<Item = &'a Run>,
        now: Duration,
    ) -> BTreeMap<String, Duration> {
        let mut all = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = all.remove(task).unwrap_or_default();
        let waited = known.observe(runs, now);
        if !known.is_empty() {
            all.insert(task.clone(), known);
        }
        waited
    }
}

async fn reconcile(
    key: ObjectRef,
    caches: Caches,
    runner: Runner,
    clock: Arc<dyn Clock>,
) -> Result<Outcome, Error> {
    let Some(task) = caches.tasks.get(&key) else {
        caches.observe(&key, std::iter::empty(), Duration::ZERO);
        return Ok(Outcome::Done);
    };
    let plan = plan(&caches.view(&task, clock.monotonic()), &task, clock.now());
    let meta = &task.metadata;
    let traceparent = meta.traceparent();
    let span = if plan.is_idle() {
        Span::none()
    } else {
        tracing::info_span!(
            "execute",
            kind = "Task",
            namespace = meta.namespace,
            name = meta.name,
            uid = meta.uid,
            traceparent
        )
    };
    runner.run(&plan, traceparent).instrument(span).await
}
