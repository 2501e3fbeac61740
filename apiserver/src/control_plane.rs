//! One API server with everything it stands on, in this process: store, watch cache, blobs, server, agentlet service.
//!
//! `panda-apiserver` and `pandactl up` are both made of it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use panda_api::meta::{Clock, IdSource};
use panda_client::config::{Identity, Kubeconfig};
use panda_client::{Client, Config as ClientConfig, Options};
use panda_store::blob::{self, BlobStore};
use panda_store::{Cacher, Sqlite, Store, cacher, sqlite};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::agentlet::{self, Agentlets};
use crate::backup;
use crate::pki::{self, Pki, Subject};
use crate::{Config, Deps, Server, SharedRegistry, files, server};

/// How long the server may take to answer for the first time.
const READY: Duration = Duration::from_secs(30);

/// Why there is no control plane.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The port is taken, or not ours to take.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The store cannot be opened.
    #[error("cannot open the store")]
    Store(#[from] panda_store::Error),
    /// The blobs cannot be opened.
    #[error("cannot open the blob store")]
    Blobs(#[from] blob::Error),
    /// A restore was interrupted and cannot be brought to its end.
    #[error("cannot end the restore that was interrupted")]
    Restore(#[from] backup::Error),
    /// The server cannot be built or run.
    #[error("cannot start the API server")]
    Server(#[from] server::Error),
    /// A certificate cannot be had.
    #[error("cannot make a certificate")]
    Pki(#[from] pki::Error),
    /// A file cannot be used.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// The way to the server cannot be set up.
    #[error("cannot set up a client of the server")]
    Client(#[from] panda_client::Error),
    /// An address cannot stand in a URL.
    #[error("{0} cannot stand in an address")]
    Address(SocketAddr),
    /// A kubeconfig cannot be written.
    #[error("cannot make a kubeconfig")]
    Kubeconfig(#[from] panda_client::config::Error),
    /// The server did not become ready.
    #[error("the API server is not ready after {after:?}")]
    NotReady {
        /// How long was waited.
        after: Duration,
        /// The last answer.
        #[source]
        source: panda_client::Error,
    },
}

impl Error {
    /// What to do next, when that is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
                Some("another server may be running; stop it, or choose another port with --listen")
            }
            Self::Store(panda_store::Error::Locked { .. }) => Some(
                "another process uses this data folder; stop it, or choose another folder with --data-dir",
            ),
            Self::Server(error) => error.hint(),
            Self::Restore(error) => Some(error.hint()),
            Self::Files(_) | Self::Blobs(_) => Some("check its owner, its mode and the space left"),
            _ => None,
        }
    }

    /// Whether trying again, unchanged, may help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Listen { .. } | Self::NotReady { .. } => true,
            Self::Server(error) => error.is_retryable(),
            _ => false,
        }
    }
}

/// A running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    address: SocketAddr,
    pki: Arc<Pki>,
    client: Client,
    failure: oneshot::Receiver<server::Error>,
    serving: CancellationToken,
    tasks: TaskTracker,
    storage: CancellationToken,
    storage_tasks: TaskTracker,
    store: Arc<Sqlite>,
}

impl ControlPlane {
    /// Starts everything and waits until it is ready. Port 0 in `config.listen` takes a free one.
    ///
    /// # Errors
    /// When a part cannot be built, the port is taken, another process uses the data folder, or the server does not
    /// become ready.
    pub async fn start(
        mut config: Config,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn IdSource>,
    ) -> Result<Self, Error> {
        let listen = |source| Error::Listen {
            address: config.listen,
            source,
        };
        let listener = TcpListener::bind(config.listen).await.map_err(listen)?;
        config.listen = listener.local_addr().map_err(listen)?;
        let address = config.listen;
        files::private_dir(&config.data_dir)?;

        backup::finish(&config.data_dir)?;
        let sqlite = sqlite::Config::new(backup::store_dir(&config.data_dir));
        let store = Arc::new(Sqlite::open(&sqlite, &ids.uuid().to_string())?);
        let (cache, feed) = Cacher::build(Arc::clone(&store), cacher::Config::default());
        let (storage, storage_tasks) = (CancellationToken::new(), TaskTracker::new());
        storage_tasks.spawn(feed.run(storage.clone()));
        let cache: Arc<dyn Store> = Arc::new(cache);
        let blobs = blob::Config::new(backup::blob_dir(&config.data_dir));
        let blobs: Arc<dyn BlobStore> = Arc::new(blob::Files::open(&blobs)?);

        let metrics = SharedRegistry::default();
        let deps = Deps {
            store: Arc::clone(&cache),
            clock: Arc::clone(&clock),
            ids: Arc::clone(&ids),
            metrics: metrics.clone(),
        };
        let leases = config.leases.clone();
        let server = Server::build(config, deps)?;
        let pki = server.pki();
        let deps = agentlet::Deps {
            store: cache,
            blobs,
            clock,
            ids,
            registry: server.registry(),
            run_tokens: server.run_tokens(),
            pressure: server.pressure(),
        };
        let agentlets = Agentlets::build(&leases, deps, &metrics);
        let server = server.with_routes(agentlets.routes());

        let (serving, tasks) = (CancellationToken::new(), TaskTracker::new());
        tasks.spawn(agentlets.run(serving.clone()));
        let stop = serving.clone();
        let (failed, failure) = oneshot::channel();
        tasks.spawn(async move {
            if let Err(error) = server.run(listener, stop).await {
                tracing::error!(error = &error as &dyn std::error::Error, "the API server ended");
                // Nobody may be left to hear it.
                let _: Result<(), _> = failed.send(error);
            }
        });
        let admin = pki.client("admin", &Subject::admin())?;
        let client = Client::connect(&client_config(address, &pki, &admin)?, Options::default())?;
        let mut plane = Self {
            address,
            pki,
            client,
            failure,
            serving,
            tasks,
            storage,
            storage_tasks,
            store,
        };
        match plane.ready().await {
            Ok(()) => Ok(plane),
            Err(error) => {
                plane.stop().await;
                Err(error)
            }
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its certificate authority.
    #[must_use]
    pub fn pki(&self) -> &Arc<Pki> {
        &self.pki
    }

    /// A client as administrator.
    #[must_use]
    pub fn admin(&self) -> &Client {
        &self.client
    }

    /// How a client reaches it as `subject`; the certificate is kept in the data folder as `file`.
    ///
    /// # Errors
    /// When the certificate cannot be had.
    pub fn config_for(&self, file: &str, subject: &Subject) -> Result<ClientConfig, Error> {
        client_config(self.address, &self.pki, &self.pki.client(file, subject)?)
    }

    /// Resolves when the server has failed after it was ready.
    pub async fn failed(&mut self) -> server::Error {
        match (&mut self.failure).await {
            Ok(error) => error,
            // It ended in good order, which is no failure.
            Err(_) => std::future::pending().await,
        }
    }

    /// Lets open requests end, then closes the store.
    pub async fn stop(self) {
        self.serving.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.storage.cancel();
        self.storage_tasks.close();
        self.storage_tasks.wait().await;
        self.store.shutdown().await;
    }

    async fn ready(&mut self) -> Result<(), Error> {
        let deadline = tokio::time::Instant::now() + READY;
        loop {
            let answer = tokio::select! {
                answer = self.client.get_text("/readyz") => answer,
                Ok(error) = &mut self.failure => return Err(error.into()),
            };
            match answer {
                Ok(_) => return Ok(()),
                Err(source) if tokio::time::Instant::now() > deadline => {
                    return Err(Error::NotReady { after: READY, source });
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }
}

/// Writes a kubeconfig for one client whole, mode 0600. On a full disk the one of an earlier start stays, which is as good
/// as the new one for a long time: the server must come up, so that people can see what fills the disk.
///
/// # Errors
/// When it cannot be written, and on a full disk only if there is none.
pub fn write_kubeconfig(path: &Path, config: &ClientConfig) -> Result<(), Error> {
    let mut kubeconfig = Kubeconfig::default();
    kubeconfig.set_all("panda", config);
    kubeconfig.set_current_context("panda")?;
    let text = kubeconfig.to_yaml()?;
    match files::write_atomic(path, text.as_bytes(), 0o600) {
        Err(error) if error.is_disk_full() && path.exists() => {
            tracing::warn!(path = %path.display(), "the disk is full: the kubeconfig of an earlier start stays");
            Ok(())
        }
        written => Ok(written?),
    }
}

/// Where `panda-apiserver` puts the kubeconfig of this name.
#[must_use]
pub fn kubeconfig_path(data_dir: &Path, name: &str) -> PathBuf {
    data_dir.join(format!("{name}.kubeconfig"))
}

fn client_config(address: SocketAddr, pki: &Pki, identity: &pki::Identity) -> Result<ClientConfig, Error> {
    // A wildcard address is no address to dial.
    let host = match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => SocketAddr::from(([127, 0, 0, 1], v4.port())),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => {
            SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], v6.port()))
        }
        address => address,
    };
    let server = http::Uri::builder()
        .scheme("https")
        .authority(host.to_string())
        .path_and_query("/")
        .build()
        .map_err(|_| Error::Address(host))?;
    Ok(ClientConfig {
        server,
        ca: pki.ca_certificate_pem().as_bytes().to_vec(),
        tls_server_name: None,
        identity: Identity::ClientCert {
            cert: identity.certificate_pem.clone().into_bytes(),
            key: identity.key_pem.clone().into_bytes(),
        },
        namespace: "default".into(),
    })
}
