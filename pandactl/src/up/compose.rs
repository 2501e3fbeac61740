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
use panda_apiserver::agentlet::{self as agentlet_service, Agentlets};
use panda_apiserver::pki::{Identity as Certificate, Pki, Subject};
use panda_apiserver::{Config as ServerConfig, Server};
use panda_client::config::Identity;
use panda_client::connector::TlsConnector;
use panda_client::params::WriteParams;
use panda_client::{Api, Client, Config as ClientConfig, Options};
use panda_controllers::Manager;
use panda_store::blob::{self, BlobStore};
use panda_store::{Cacher, Sqlite, Store, cacher, sqlite};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Error;

/// How long a stopping process waits for its runs to end and be reported.
const STOP_RUNS: Duration = Duration::from_secs(30);
/// How long the server may take to answer for the first time.
const READY: Duration = Duration::from_secs(30);

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
    devices: CancellationToken,
    rest: CancellationToken,
    device_tasks: TaskTracker,
    tasks: TaskTracker,
    storage: CancellationToken,
    storage_tasks: TaskTracker,
    store: Arc<Sqlite>,
}

/// Starts everything and waits until it is ready.
///
/// # Errors
/// When a part cannot be built, the port is taken, or the server does not become ready.
pub async fn start(settings: Settings) -> Result<Up, Error> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let ids: Arc<dyn IdSource> = Arc::new(RandomIds);
    let listener = TcpListener::bind(settings.listen)
        .await
        .map_err(|source| Error::Listen {
            address: settings.listen,
            source,
        })?;
    let address = listener.local_addr().map_err(|source| Error::Listen {
        address: settings.listen,
        source,
    })?;

    let sqlite = sqlite::Config::new(settings.data_dir.join("store"));
    let store = Arc::new(Sqlite::open(&sqlite, &ids.uuid().to_string())?);
    let (cache, feed) = Cacher::build(Arc::clone(&store), cacher::Config::default());
    let (storage, storage_tasks) = (CancellationToken::new(), TaskTracker::new());
    storage_tasks.spawn(feed.run(storage.clone()));
    let cache: Arc<dyn Store> = Arc::new(cache);
    let blobs: Arc<dyn BlobStore> = Arc::new(blob::Files::open(&blob::Config::new(
        settings.data_dir.join("blobs"),
    ))?);

    let metrics = panda_apiserver::SharedRegistry::default();
    let mut server_config = ServerConfig::new(settings.data_dir.clone());
    server_config.listen = address;
    let deps = panda_apiserver::Deps {
        store: Arc::clone(&cache),
        clock: Arc::clone(&clock),
        ids: Arc::clone(&ids),
        metrics: metrics.clone(),
    };
    let server = Server::build(server_config, deps)?;
    let pki = server.pki();
    let agentlets = Agentlets::build(
        agentlet_service::Deps {
            store: cache,
            blobs,
            clock: Arc::clone(&clock),
            ids: Arc::clone(&ids),
        },
        &metrics,
    );
    let server = server.with_routes(agentlets.routes());

    let (rest, tasks) = (CancellationToken::new(), TaskTracker::new());
    tasks.spawn(agentlets.run(rest.clone()));
    let stop = rest.clone();
    let (failed, failure) = oneshot::channel();
    tasks.spawn(async move {
        if let Err(error) = server.run(listener, stop).await {
            tracing::error!(error = &error as &dyn std::error::Error, "the API server ended");
            // Somebody listens only while the server comes up.
            let _: Result<(), _> = failed.send(error);
        }
    });

    let admin = pki.client("admin", &Subject::admin())?;
    let config = client_config(address, &pki, &admin)?;
    let client = Client::connect(&config, Options::default())?;
    let up = Up {
        config,
        client,
        devices: CancellationToken::new(),
        rest,
        device_tasks: TaskTracker::new(),
        tasks,
        storage,
        storage_tasks,
        store,
    };
    tokio::select! {
        ready = up.ready() => ready?,
        Ok(error) = failure => {
            up.stop().await;
            return Err(error.into());
        }
    }
    up.start_controllers(address, &pki, &clock, &ids)?;
    if settings.agentlet {
        up.start_agentlet(settings, address, &pki, clock, ids).await?;
    }
    Ok(up)
}

fn client_config(address: SocketAddr, pki: &Pki, identity: &Certificate) -> Result<ClientConfig, Error> {
    // A wildcard address is no address to dial.
    let host = match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => SocketAddr::from(([127, 0, 0, 1], v4.port())),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => {
            SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], v6.port()))
        }
        address => address,
    };
    Ok(ClientConfig {
        server: server(host)?,
        ca: pki.ca_certificate_pem().as_bytes().to_vec(),
        tls_server_name: None,
        identity: Identity::ClientCert {
            cert: identity.certificate_pem.clone().into_bytes(),
            key: identity.key_pem.clone().into_bytes(),
        },
        namespace: "default".into(),
    })
}

fn server(host: SocketAddr) -> Result<http::Uri, Error> {
    http::Uri::builder()
        .scheme("https")
        .authority(host.to_string())
        .path_and_query("/")
        .build()
        .map_err(|_| {
            let source = std::io::Error::from(std::io::ErrorKind::InvalidInput);
            Error::Listen {
                address: host,
                source,
            }
        })
}

impl Up {
    async fn ready(&self) -> Result<(), Error> {
        let deadline = tokio::time::Instant::now() + READY;
        loop {
            match self.client.get_text("/readyz").await {
                Ok(_) => return Ok(()),
                Err(error) if tokio::time::Instant::now() > deadline => {
                    return Err(Error::NotReady {
                        after: READY,
                        source: error,
                    });
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }

    fn start_controllers(
        &self,
        address: SocketAddr,
        pki: &Pki,
        clock: &Arc<dyn Clock>,
        ids: &Arc<dyn IdSource>,
    ) -> Result<(), Error> {
        let identity = pki.client("controllers", &Subject::controllers())?;
        let client = Client::connect(&client_config(address, pki, &identity)?, Options::default())?;
        let manager = Manager::build(
            client,
            Arc::clone(clock),
            Arc::clone(ids),
            panda_controllers::manager::Config::default(),
        );
        let stop = self.rest.clone();
        self.tasks.spawn(async move { manager.run(stop).await });
        Ok(())
    }

    async fn start_agentlet(
        &self,
        settings: Settings,
        address: SocketAddr,
        pki: &Pki,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn IdSource>,
    ) -> Result<(), Error> {
        let device = register(&self.client, &settings.device_name).await?;
        let uid = device.metadata.uid;
        let identity = pki.client(
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
        let connection = client_config(address, pki, &identity)?;
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
        self.rest.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.storage.cancel();
        self.storage_tasks.close();
        self.storage_tasks.wait().await;
        self.store.shutdown().await;
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
