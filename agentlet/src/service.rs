//! The agentlet as a whole: built from a configuration and its surroundings, run until told to stop.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use panda_api::meta::{Clock, IdSource};
use panda_client::connector::Connector;
use panda_rpc::v1::DeviceStatusUpdate;
use panda_sandbox::{Launcher, Report, User};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::boot::Boot;
use crate::config::Config;
use crate::credentials::Credentials;
use crate::daemon::{self, Parts, Settings};
use crate::detect::Detector;
use crate::device_status::StatusKeeper;
use crate::disk::Reserve;
use crate::endpoints::Endpoints;
use crate::git::Ids;
use crate::hidden;
use crate::outbox::{self, Outbox};
use crate::runner::{Env, Workers};
use crate::session::Session;
use crate::workspace::{self, Workspaces};

/// What an agentlet needs of its surroundings.
#[derive(Clone, Debug)]
pub struct Deps {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Random ids.
    pub ids: Arc<dyn IdSource>,
    /// The clock of grants.
    pub boot: Arc<dyn Boot>,
    /// The way to the server, with the device's own certificate.
    pub connector: Arc<dyn Connector>,
    /// A program whose `main` calls [`hidden::dispatch`]; usually [`hidden::RUNNING_IMAGE`].
    pub exe: PathBuf,
}

/// Why an agentlet cannot work here.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A value of the configuration.
    #[error("{field}: {problem}")]
    Config {
        /// Which.
        field: &'static str,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// A folder of ours.
    #[error("cannot use {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: io::Error,
    },
    /// This process cannot be closed to others of its user.
    #[error("cannot keep other processes of this user out of this one")]
    Undumpable {
        /// What is wrong.
        #[source]
        source: io::Error,
    },
    /// The outbox.
    #[error(transparent)]
    Outbox(#[from] outbox::Error),
    /// The workspaces.
    #[error(transparent)]
    Workspaces(#[from] workspace::Error),
}

/// A device daemon that is ready to run.
#[derive(Debug)]
pub struct Agentlet {
    config: Arc<Config>,
    deps: Deps,
    env: Arc<Env>,
    floor: Result<Report, String>,
    client: watch::Sender<Option<crate::session::Client>>,
    renewals: Option<watch::Receiver<Arc<Credentials>>>,
    endpoints: Option<Arc<Endpoints>>,
}

/// Prepares an agentlet: makes its folders, opens what it kept, tries what the machine can enforce.
pub async fn build(config: Config, deps: Deps) -> Result<Agentlet, BuildError> {
    let user = check(&config)?;
    // An agent of the same user must not read our memory: it holds keys.
    panda_sandbox::make_undumpable().map_err(|source| BuildError::Undumpable { source })?;
    make_dir(&config.data_dir, 0o700)?;
    make_dir(&config.data_dir.join("runs"), 0o700)?;
    let workspaces = Workspaces::open(workspace::Config {
        state_dir: config.data_dir.join("state"),
        mirrors_dir: config.mirrors_dir(),
        work_dir: config.work_dir.join("tasks"),
        workspace_roots: config.owner.workspace_roots.iter().map(PathBuf::from).collect(),
        git: config.git.clone(),
        agent: user.map(|user| Ids {
            uid: user.uid,
            gid: user.gid,
        }),
        limits: workspace::Limits::default(),
        clock: Arc::clone(&deps.clock),
    });
    // They also see to it that one agentlet alone uses the folder.
    let workspaces = workspaces.await?;
    let outbox = Outbox::open(&config.data_dir.join(outbox::FILE), config.outbox_bytes)?;
    let reserve = Reserve::new(config.data_dir.join("reserve"), config.reserve_bytes);
    reserve.fill();
    let reserve = Arc::new(reserve);
    make_dir(&config.empty_dir(), 0o755)?;
    let helper = hidden::helper(deps.exe.as_os_str());
    let floor = probe(Launcher::new(helper.clone()), user, config.data_dir.clone()).await;
    let (client, seen) = watch::channel(None);
    let config = Arc::new(config);
    let env = Env {
        config: Arc::clone(&config),
        clock: Arc::clone(&deps.clock),
        ids: Arc::clone(&deps.ids),
        boot: Arc::clone(&deps.boot),
        outbox,
        reserve,
        workspaces,
        client: seen,
        supervise: hidden::supervise(deps.exe.as_os_str()),
        helper: helper
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .collect(),
        user,
    };
    Ok(Agentlet {
        config,
        env: Arc::new(env),
        floor,
        client,
        renewals: None,
        endpoints: None,
        deps,
    })
}

impl Agentlet {
    /// Learns of renewed certificates: from then on, requests other than those under way use new connections.
    #[must_use]
    pub fn with_renewals(mut self, renewals: watch::Receiver<Arc<Credentials>>) -> Self {
        self.renewals = Some(renewals);
        self
    }

    /// Leaves a server that opens no session for the next; `endpoints` is what the connector of [`Deps`] goes to.
    #[must_use]
    pub fn with_endpoints(mut self, endpoints: Arc<Endpoints>) -> Self {
        self.endpoints = Some(endpoints);
        self
    }

    /// Works until `token` is cancelled; what then becomes of live runs is said by [`Config::shutdown`].
    pub async fn run(self, token: CancellationToken) -> Result<(), daemon::Error> {
        let (events, session) = mpsc::channel(64);
        let (agents, agents_seen) = watch::channel(Vec::new());
        let (found, found_seen) = watch::channel(Vec::new());
        let (running, running_seen) = watch::channel(0);
        let (pressure, pressure_seen) = watch::channel(false);
        let (status, status_seen) = watch::channel::<Option<DeviceStatusUpdate>>(None);
        let inner = CancellationToken::new();
        // Also when this future is dropped, nothing is left behind.
        let _ended = inner.clone().drop_guard();
        let tasks = TaskTracker::new();
        let connection = Session {
            connector: Arc::clone(&self.deps.connector),
            ids: Arc::clone(&self.deps.ids),
            events,
            client: self.client,
            renewals: self.renewals.clone(),
            endpoints: self.endpoints,
        };
        tasks.spawn(connection.run(inner.clone()));
        let detector = Detector {
            config: Arc::clone(&self.config),
            launcher: Launcher::new(hidden::helper(self.deps.exe.as_os_str())),
            user: self.env.user,
            empty: self.config.empty_dir(),
        };
        tasks.spawn(detector.run(agents_seen, found, inner.clone()));
        let keeper = StatusKeeper {
            config: Arc::clone(&self.config),
            clock: Arc::clone(&self.deps.clock),
            boot: Arc::clone(&self.deps.boot),
            floor: self.floor,
            conditions: Vec::new(),
            certificate: self.renewals.clone(),
            pressure,
            reserve: Arc::clone(&self.env.reserve),
        };
        tasks.spawn(keeper.run(found_seen, running_seen, status, inner.clone()));
        let settings = Settings {
            device_uid: self.config.device_uid.clone(),
            max_runs: self.config.max_runs,
            namespaces: self.config.owner.namespaces.clone(),
            renew_every: self.config.renew_every,
            shutdown: self.config.shutdown,
        };
        let parts = Parts {
            outbox: self.env.outbox.clone(),
            boot: Arc::clone(&self.deps.boot),
            clock: Arc::clone(&self.deps.clock),
            runs: Arc::new(Workers(self.env)),
            session,
            status: status_seen,
            pressure: pressure_seen,
            agents,
            running,
        };
        let result = daemon::run(settings, parts, token).await;
        inner.cancel();
        tasks.close();
        tasks.wait().await;
        result
    }
}

/// Checks what can be wrong with a configuration. The user that agents run as, if not the agentlet's own.
fn check(config: &Config) -> Result<Option<User>, BuildError> {
    let bad = |field, problem: &str| BuildError::Config {
        field,
        problem: problem.to_owned(),
    };
    for (field, path) in [
        ("dataDir", &config.data_dir),
        ("workDir", &config.work_dir),
        ("git", &config.git),
    ] {
        if !path.is_absolute() {
            return Err(bad(field, "must be an absolute path"));
        }
    }
    if config.device_uid.is_empty() {
        return Err(bad("deviceUID", "the device has not joined yet: it has no uid"));
    }
    if config.max_runs == 0 {
        return Err(bad("maxRuns", "must be at least 1"));
    }
    let root = rustix::process::geteuid().is_root();
    match (root, config.agent_uid) {
        (true, 0) => Err(bad(
            "agentUID",
            "a root agentlet runs agents under another uid: name one that nothing else uses, for example 64000",
        )),
        (false, 0) => Ok(None),
        (true, uid) => Ok(Some(User { uid, gid: uid })),
        (false, _) => Err(bad(
            "agentUID",
            "only a root agentlet can run agents under another uid",
        )),
    }
}

fn make_dir(path: &Path, mode: u32) -> Result<(), BuildError> {
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(|source| BuildError::Folder {
            path: path.to_owned(),
            source,
        })
}

async fn probe(launcher: Launcher, user: Option<User>, hide: PathBuf) -> Result<Report, String> {
    let probed = tokio::task::spawn_blocking(move || panda_sandbox::probe(&launcher, user, &hide)).await;
    match probed {
        Ok(Ok(report)) => Ok(report),
        Ok(Err(error)) => Err(crate::runner::chain(&error)),
        Err(error) => Err(error.to_string()),
    }
}
