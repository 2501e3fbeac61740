//! All controllers over one client, with shared caches.

use std::sync::Arc;
use std::time::Duration;

use panda_api::meta::{Clock, IdSource};
use panda_api::{Agent, ConfigMap, Device, GitSource, Lease, Namespace, Resource, Run, Secret, Task};
use panda_client::resource::{Object, PartialObject};
use panda_client::runtime::events::Limits;
use panda_client::runtime::{Informer, InformerHandle, Recorder, controller, informer};
use panda_client::{Api, Client};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::framework::{Kind, Runner, resource};
use crate::gc::wiring::Collector;
use crate::task::wiring::BY_NAMESPACE;
use crate::{agent, device, gitsource, namespace, scheduler, taint, task};

/// How the controllers behave.
#[derive(Clone, Debug)]
pub struct Config {
    /// How each controller works off its queue.
    pub controller: controller::Config,
    /// Every object is looked at again after about so long, whatever the watches say.
    pub resync: Option<Duration>,
    /// How many events are told.
    pub events: Limits,
    /// When a run is taken away from a device that is out of reach.
    pub lost: device::Lost,
    /// How the repositories of GitSources are fetched; none: they are not.
    pub git_sources: Option<gitsource::Settings>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            controller: controller::Config::default(),
            resync: Some(Duration::from_secs(600)),
            events: Limits::default(),
            lost: device::Lost::default(),
            git_sources: None,
        }
    }
}

/// All controllers. One at a time should run against a server, see [`panda_client::runtime::leader`]; two do no harm, for
/// every write has a precondition or a name that can exist once, but they get in each other's way.
#[derive(Debug)]
pub struct Manager {
    client: Client,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
    config: Config,
}

impl Manager {
    /// The controllers over `client`. Nothing happens until they run.
    #[must_use]
    pub fn build(client: Client, clock: Arc<dyn Clock>, ids: Arc<dyn IdSource>, config: Config) -> Self {
        Self {
            client,
            clock,
            ids,
            config,
        }
    }

    /// Runs all controllers until the token is cancelled and what is under way has ended.
    pub async fn run(self, token: CancellationToken) {
        // Informers, recorder and controllers end together: none of them is of use without the others.
        let token = token.child_token();
        let mut parts = Parts {
            set: JoinSet::new(),
            token: token.clone(),
            resync: self.config.resync,
        };
        let (recorder, worker) = Recorder::new(
            self.client.clone(),
            "panda-controllers",
            self.config.events,
            Arc::clone(&self.clock),
            Arc::clone(&self.ids),
        );
        parts.spawn(worker.run(token.clone()));
        self.start(&mut parts, &Runner::new(self.client.clone(), recorder));
        while let Some(ended) = parts.set.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a controller failed, all of them end");
            } else if !token.is_cancelled() {
                tracing::error!("a controller ended before its time, all of them end");
            }
            token.cancel();
        }
    }

    fn start(&self, parts: &mut Parts, runner: &Runner) {
        let client = &self.client;
        let tasks = parts.informer(Api::<Task>::all(client.clone()));
        let runs = parts.informer(Api::<Run>::all(client.clone()));
        let agents = parts.informer(Api::<Agent>::all(client.clone()));
        let devices = parts.informer(Api::<Device>::cluster(client.clone()));
        let leases = parts.informer(Api::<Lease>::all(client.clone()));
        let namespaces = parts.informer(Api::<Namespace>::cluster(client.clone()));
        let sources = parts.informer(Api::<GitSource>::all(client.clone()));
        let secrets = parts.informer(metadata::<Secret>(client));
        let config_maps = parts.informer(metadata::<ConfigMap>(client));
        let clock = || Arc::clone(&self.clock);
        let config = || self.config.controller.clone();
        let token = || parts.token.clone();

        let task = task::wiring::run(
            task::wiring::Informers {
                tasks: tasks.clone(),
                runs: runs.clone(),
                agents: agents.clone(),
                secrets: secrets.clone(),
            },
            runner.clone(),
            clock(),
            config(),
            token(),
        );
        let scheduler = scheduler::wiring::run(
            runs.clone(),
            devices.clone(),
            runner.clone(),
            clock(),
            config(),
            token(),
        );
        let device = device::wiring::run(
            devices.clone(),
            leases.clone(),
            runner.clone(),
            clock(),
            config(),
            token(),
        );
        let taint = taint::wiring::run(devices.clone(), runs.clone(), runner.clone(), config(), token());
        let lost = device::lost::wiring::run(
            device::lost::wiring::Caches {
                runs: runs.clone(),
                leases: leases.clone(),
                devices: devices.clone(),
            },
            self.config.lost.clone(),
            runner.clone(),
            clock(),
            config(),
            token(),
        );
        let agent = agent::wiring::run(
            agents.clone(),
            devices.clone(),
            runs.clone(),
            runner.clone(),
            config(),
            token(),
        );
        let namespace = namespace::wiring::run(
            namespaces.clone(),
            client.clone(),
            runner.clone(),
            clock(),
            config(),
            token(),
        );
        let git = self.config.git_sources.clone();
        let git = git.map(|settings| gitsource::git::Git::new(settings, Arc::clone(&self.ids)));
        let gitsource = gitsource::wiring::run(
            sources.clone(),
            git.map(|git| gitsource::sync::Syncer::new(client.clone(), git)),
            runner.clone(),
            clock(),
            config(),
            token(),
        );
        let gc = Collector::new()
            .add(Kind::of::<Task>(), &tasks)
            .add(Kind::of::<Run>(), &runs)
            .add(Kind::of::<Agent>(), &agents)
            .add(Kind::of::<Device>(), &devices)
            .add(Kind::of::<GitSource>(), &sources)
            .add(Kind::of::<Lease>(), &leases)
            .add(Kind::of::<Namespace>(), &namespaces)
            .add(Kind::of::<Secret>(), &secrets)
            .add(Kind::of::<ConfigMap>(), &config_maps)
            .run(runner.clone(), config(), token());
        parts.spawn(task);
        parts.spawn(scheduler);
        parts.spawn(device);
        parts.spawn(taint);
        parts.spawn(lost);
        parts.spawn(agent);
        parts.spawn(namespace);
        parts.spawn(gitsource);
        parts.spawn(gc);
    }
}

/// Metadata only: the values of Secrets do not come here.
fn metadata<K: Resource>(client: &Client) -> Api<PartialObject> {
    Api::metadata(client.clone(), resource(Kind::of::<K>()))
}

/// What runs.
struct Parts {
    set: JoinSet<()>,
    token: CancellationToken,
    resync: Option<Duration>,
}

impl Parts {
    fn spawn(&mut self, part: impl Future<Output = ()> + Send + 'static) {
        self.set.spawn(part);
    }

    fn informer<K: Object>(&mut self, api: Api<K>) -> InformerHandle<K> {
        let by_namespace = Arc::new(|object: &K| vec![object.meta().namespace.clone()]);
        let config = informer::Config {
            resync: self.resync,
            indexes: vec![(BY_NAMESPACE, by_namespace)],
            ..informer::Config::default()
        };
        let informer = Informer::new(api, config);
        let handle = informer.handle();
        let token = self.token.clone();
        self.spawn(informer.run(token));
        handle
    }
}

#[cfg(test)]
mod tests;
