//! One process out of the parts: store, API server, controllers, agentlet, joined over loopback TLS.
//!
//! No code path exists only here: the parts are the libraries that separate processes use, and they speak to each
//! other through the same port, with real certificates.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use panda_agentlet::Shutdown;
use panda_agentlet::boot::SystemBoot;
use panda_api::meta::{Clock, IdSource, ObjectMeta, RandomIds, SystemClock};
use panda_api::{Device, OwnerConfig};
use panda_apiserver::Config as ServerConfig;
use panda_apiserver::control_plane::ControlPlane;
use panda_apiserver::pki::Subject;
use panda_client::connector::TlsConnector;
use panda_client::params::WriteParams;
use panda_client::{Api, Client, Config as ClientConfig, Options};
use panda_controllers::Manager;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Error;

/// How long a stopping process waits for its runs to end and be reported.
const STOP_RUNS: Duration = Duration::from_secs(30);

/// What a one-process control plane is told; nothing is read from the environment here.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Data of the control plane and of the agentlet; made with mode 0700.
    pub data_dir: PathBuf,
    /// Where agents work; must be reachable by the user that they run as.
    pub work_dir: PathBuf,
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Whether this machine is a device, too.
    pub agentlet: bool,
    /// Whether runs go on when this process is told to stop.
    pub keep_runs: bool,
    /// Name of the device.
    pub device_name: String,
    /// The owner's home: repositories below it may be worked on.
    pub home: Option<PathBuf>,
    /// Further folders whose repositories may be worked on.
    pub workspace_roots: Vec<PathBuf>,
    /// Folders whose repositories a GitSource may name as `file://`.
    pub manifest_roots: Vec<PathBuf>,
    /// Hosts that a GitSource may name though their addresses are not public.
    pub git_hosts: Vec<String>,
    /// What agents must not see beside the data folder.
    pub hidden: Vec<PathBuf>,
    /// `PATH` of agents.
    pub path: String,
    /// The owner's environment, looked at for logins only.
    pub env: std::collections::BTreeMap<String, String>,
    /// Runs at one time.
    pub max_runs: u32,
    /// This program: it is also the supervisor and the floor's helper.
    pub exe: PathBuf,
    /// The git program, an absolute path.
    pub git: PathBuf,
    /// User and group that agents run as; 0: our own.
    pub agent_uid: u32,
}

/// A running control plane.
#[derive(Debug)]
pub struct Up {
    /// How clients reach it, as administrator.
    pub config: ClientConfig,
    /// A client as administrator.
    pub client: Client,
    plane: ControlPlane,
    devices: CancellationToken,
    controllers: CancellationToken,
    device_tasks: TaskTracker,
    tasks: TaskTracker,
}

/// Starts everything and waits until it is ready.
///
/// # Errors
/// When a part cannot be built, the port is taken, or the server does not become ready.
pub async fn start(settings: Settings) -> Result<Up, Error> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let ids: Arc<dyn IdSource> = Arc::new(RandomIds);
    let mut server = ServerConfig::new(settings.data_dir.clone());
    server.listen = settings.listen;
    let plane = ControlPlane::start(server, Arc::clone(&clock), Arc::clone(&ids)).await?;
    let up = Up {
        config: plane.config_for("admin", &Subject::admin())?,
        client: plane.admin().clone(),
        plane,
        devices: CancellationToken::new(),
        controllers: CancellationToken::new(),
        device_tasks: TaskTracker::new(),
        tasks: TaskTracker::new(),
    };
    up.start_controllers(&settings, &clock, &ids)?;
    if settings.agentlet {
        up.start_agentlet(settings, clock, ids).await?;
    }
    Ok(up)
}

impl Up {
    fn start_controllers(
        &self,
        settings: &Settings,
        clock: &Arc<dyn Clock>,
        ids: &Arc<dyn IdSource>,
    ) -> Result<(), Error> {
        let config = self.plane.config_for("controllers", &Subject::controllers())?;
        let client = Client::connect(&config, Options::default())?;
        let manager = Manager::build(
            client,
            Arc::clone(clock),
            Arc::clone(ids),
            panda_controllers::manager::Config {
                git_sources: Some(git_sources(settings)),
                ..panda_controllers::manager::Config::default()
            },
        );
        let stop = self.controllers.clone();
        self.tasks.spawn(async move { manager.run(stop).await });
        Ok(())
    }

    async fn start_agentlet(
        &self,
        settings: Settings,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn IdSource>,
    ) -> Result<(), Error> {
        let device = register(&self.client, &settings.device_name).await?;
        let uid = device.metadata.uid;
        let connection = self.plane.config_for(
            &format!("device-{uid}"),
            &Subject::device(&settings.device_name, &uid),
        )?;
        let mut config =
            panda_agentlet::Config::new(&settings.device_name, &uid, settings.data_dir.join("agentlet"));
        config.work_dir = settings.work_dir;
        config.path = settings.path;
        config.env = settings.env;
        config.owner = owner(settings.home.as_deref(), &settings.workspace_roots);
        config.owner_home = settings.home;
        config.max_runs = settings.max_runs;
        config.hidden = settings.hidden;
        config.hidden.push(settings.data_dir);
        config.shutdown = if settings.keep_runs {
            Shutdown::KeepRuns
        } else {
            Shutdown::StopRuns { within: STOP_RUNS }
        };
        config.git = settings.git;
        config.agent_uid = settings.agent_uid;
        config.servers = vec![connection.server.to_string()];
        config.ca_pem = String::from_utf8_lossy(&connection.ca).into_owned();
        let connector = TlsConnector::http2(&connection, Duration::from_secs(10))?;
        let boot = SystemBoot::read().map_err(|source| Error::Path {
            path: "/proc".into(),
            source,
        })?;
        let deps = panda_agentlet::Deps {
            clock,
            ids,
            boot: Arc::new(boot),
            connector: Arc::new(connector),
            exe: settings.exe,
        };
        let agentlet = panda_agentlet::build(config, deps).await?;
        let stop = self.devices.clone();
        self.device_tasks.spawn(async move {
            if let Err(error) = agentlet.run(stop).await {
                tracing::error!(error = &error as &dyn std::error::Error, "the agentlet ended");
            }
        });
        Ok(())
    }

    /// Stops in order: the device first, while the server still takes its reports; then the rest; the store last.
    pub async fn stop(self) {
        self.devices.cancel();
        self.device_tasks.close();
        self.device_tasks.wait().await;
        self.controllers.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.plane.stop().await;
    }
}

fn git_sources(settings: &Settings) -> panda_controllers::gitsource::Settings {
    let folder = settings.data_dir.join("gitsources");
    panda_controllers::gitsource::Settings {
        // Not `/proc/self/exe`: it is ssh that starts it.
        exe: Some(format!("/proc/{}/exe", std::process::id()).into()),
        file_roots: settings.manifest_roots.clone(),
        allowed_hosts: settings.git_hosts.clone(),
        ..panda_controllers::gitsource::Settings::new(settings.git.clone(), settings.path.clone(), folder)
    }
}

/// The Device of this machine; a new one only when there is none of this name.
async fn register(client: &Client, name: &str) -> Result<Device, Error> {
    let devices: Api<Device> = Api::cluster(client.clone());
    if let Some(device) = devices.get_opt(name).await? {
        return Ok(device);
    }
    let device = Device {
        metadata: ObjectMeta::named(name),
        ..Device::default()
    };
    match devices.create(&device, &WriteParams::default()).await {
        Err(error) if error.is_already_exists() => Ok(devices.get(name).await?),
        created => Ok(created?),
    }
}

fn owner(home: Option<&Path>, further: &[PathBuf]) -> OwnerConfig {
    let roots = home
        .into_iter()
        .map(Path::to_owned)
        .chain(further.iter().cloned());
    // A root that does not exist allows nothing.
    let roots = roots.filter_map(|root| root.canonicalize().ok());
    OwnerConfig {
        workspace_roots: roots.map(|root| root.display().to_string()).collect(),
        ..OwnerConfig::default()
    }
}
