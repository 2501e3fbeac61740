//! What the program `agentlet` does, but for reading its arguments and environment.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use panda_api::component;
use panda_api::meta::{Clock, IdSource, RandomIds, SystemClock};
use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::boot::SystemBoot;
use crate::credentials::{self, Credentials};
use crate::endpoints::{DeviceConnector, Endpoints};
use crate::join::{self, Join};
use crate::outbox::{self, Outbox};
use crate::renewal::Renewal;
use crate::settings::{self, AgentletConfiguration};
use crate::{BuildError, Deps, daemon, places};

pub use crate::settings::Surroundings;

/// Addresses that the device joined with, in its data folder.
const SERVERS_FILE: &str = "servers.json";

/// The command line.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--config`
    pub config: Option<PathBuf>,
    /// `--server`
    pub servers: Vec<String>,
    /// `--token`
    pub token: Option<String>,
    /// `--token-file`
    pub token_file: Option<PathBuf>,
    /// `--ca-cert-hash`
    pub ca_cert_hash: Option<String>,
    /// `--data-dir`
    pub data_dir: Option<PathBuf>,
    /// `--name`
    pub name: Option<String>,
    /// `--label`
    pub labels: Vec<String>,
    /// `--max-runs`
    pub max_runs: Option<u32>,
    /// `--workspace-root`
    pub workspace_roots: Vec<PathBuf>,
    /// `--namespace`
    pub namespaces: Vec<String>,
}

/// Why the program ends.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error("cannot use {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// A flag makes no sense.
    #[error("{flag}: {problem}")]
    Flag {
        /// Which.
        flag: &'static str,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// The configuration cannot be read.
    #[error(transparent)]
    Config(#[from] component::Error),
    /// A value of the configuration.
    #[error(transparent)]
    Settings(#[from] settings::Error),
    /// A folder.
    #[error(transparent)]
    Place(#[from] places::Error),
    /// The device's identity cannot be used.
    #[error(transparent)]
    Credentials(#[from] credentials::Error),
    /// There is no identity yet, and no way to get one.
    #[error("this device has not joined yet: {missing} missing")]
    NotJoined {
        /// Flags that joining needs.
        missing: String,
    },
    /// The device does not join.
    #[error("cannot join")]
    Join(#[from] join::Error),
    /// The agentlet cannot work here.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The agentlet ended.
    #[error(transparent)]
    Daemon(#[from] daemon::Error),
    /// The system.
    #[error("cannot talk to the system")]
    Io(#[from] std::io::Error),
}

impl Error {
    /// What to do next, when that is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotJoined { .. } => Some(
                "`pandactl device join-token`, where the control plane is managed, prints the whole command",
            ),
            Self::Join(error) => error.hint(),
            Self::Config(_) | Self::Settings(_) | Self::Flag { .. } => Some("see agentlet --help"),
            Self::Credentials(credentials::Error::Damaged { .. }) => {
                Some("restore the file; or remove it, run `pandactl device remove NAME`, and join again")
            }
            _ => None,
        }
    }
}

/// Joins if the device has not, then works until SIGINT or SIGTERM. Runs go on under their supervisors.
///
/// # Errors
/// When the configuration is no good, the device cannot join, or the agentlet cannot work here.
pub async fn run(flags: Flags, around: Surroundings, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    // Before anything is started, so that no signal finds us unprepared.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = CancellationToken::new();
    let mut work = std::pin::pin!(work(flags, around, out, stop.clone()));
    tokio::select! {
        done = &mut work => return done,
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    stop.cancel();
    tokio::select! {
        done = work => done,
        // The second time at once; supervisors hold what is alive.
        _ = interrupt.recv() => Ok(()),
    }
}

async fn work(
    flags: Flags,
    around: Surroundings,
    out: &mut (dyn Write + Send),
    stop: CancellationToken,
) -> Result<(), Error> {
    let settings = configuration(&flags)?;
    let data_dir = places::private_dir(&settings.data_dir(&around)?)?;
    let start = Start {
        flags,
        settings,
        around,
        data_dir,
        clock: Arc::new(SystemClock),
        ids: Arc::new(RandomIds),
    };
    let identity = tokio::select! {
        identity = start.identity() => identity?,
        () = stop.cancelled() => return Ok(()),
    };
    let named = start.settings.device_name(&start.around);
    if start.settings.name.is_some() && named != identity.name {
        tracing::warn!(
            configured = named,
            device = %identity.name,
            "this device keeps the name that it joined under; to rename it, remove it (pandactl device remove) and join it anew"
        );
    }
    let endpoints = Endpoints::new(start.servers()?);
    let mut config = start
        .settings
        .config(&identity, start.data_dir.clone(), &start.around)?;
    config.servers = endpoints.servers().iter().map(ToString::to_string).collect();
    config.ca_pem.clone_from(&identity.ca_pem);
    writeln!(out, "device {} ({})", identity.name, identity.uid)?;
    out.flush()?;
    let renewal = start.renewal(Arc::clone(&endpoints), identity);
    let connector = DeviceConnector::http2(Arc::clone(&endpoints), renewal.credentials.subscribe());
    let deps = Deps {
        clock: Arc::clone(&start.clock),
        ids: Arc::clone(&start.ids),
        boot: Arc::new(SystemBoot::read()?),
        connector: Arc::new(connector),
        exe: crate::hidden::RUNNING_IMAGE.into(),
    };
    let agentlet = crate::build(config, deps).await?;
    let agentlet = agentlet
        .with_renewals(renewal.credentials.subscribe())
        .with_endpoints(endpoints);
    // The renewal has nothing to wait for once the work has ended, for whatever reason: the process must end then, too.
    let both = stop.child_token();
    let work = async {
        let worked = agentlet.run(both.clone()).await;
        both.cancel();
        worked
    };
    let (worked, ()) = tokio::join!(work, renewal.run(both.clone()));
    Ok(worked?)
}

/// A start of the program, up to when the device has its identity.
struct Start {
    flags: Flags,
    settings: AgentletConfiguration,
    around: Surroundings,
    data_dir: PathBuf,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
}

impl Start {
    fn servers(&self) -> Result<Vec<http::Uri>, Error> {
        servers(&self.settings, &self.data_dir)
    }

    fn renewal(&self, endpoints: Arc<Endpoints>, identity: Credentials) -> Renewal {
        Renewal {
            endpoints,
            credentials: watch::Sender::new(Arc::new(identity)),
            data_dir: self.data_dir.clone(),
            clock: Arc::clone(&self.clock),
            ids: Arc::clone(&self.ids),
        }
    }

    /// The identity that is kept, or a new one.
    async fn identity(&self) -> Result<Credentials, Error> {
        let token = token(&self.flags)?;
        let Some(kept) = Credentials::load(&self.data_dir)? else {
            return self.join(token).await;
        };
        // Asked to join with a token, a device that was removed joins anew; any other has no need to.
        if token.is_some() {
            let renewal = self.renewal(Endpoints::new(self.servers()?), kept.clone());
            if renewal.is_removed().await {
                tracing::warn!(device = %kept.name, "this device was removed from the control plane, it joins anew");
                // Before the new identity is there: it must never be seen with the memory of the old one.
                Outbox::retire(&self.data_dir.join(outbox::FILE)).map_err(BuildError::from)?;
                return self.join(token).await;
            }
            tracing::info!(device = %kept.name, "this device has joined already, the token is not used");
        }
        Ok(kept)
    }

    async fn join(&self, token: Option<String>) -> Result<Credentials, Error> {
        let servers = self.settings.servers()?;
        let hash = self.flags.ca_cert_hash.as_deref();
        let (Some(token), Some(hash), false) = (&token, hash, servers.is_empty()) else {
            let missing = [
                ("--server", servers.is_empty()),
                ("--token or --token-file", token.is_none()),
                ("--ca-cert-hash", hash.is_none()),
            ];
            let missing: Vec<_> = missing
                .iter()
                .filter(|(_, is)| *is)
                .map(|(flag, _)| *flag)
                .collect();
            return Err(Error::NotJoined {
                missing: missing.join(", "),
            });
        };
        let name = self.settings.device_name(&self.around);
        let join = Join {
            servers: &servers,
            token,
            ca_hash: hash,
            name: &name,
            data_dir: &self.data_dir,
            ids: self.ids.as_ref(),
        };
        // Kept first: a device that has an identity must know where to go with it.
        let texts: Vec<String> = servers.iter().map(ToString::to_string).collect();
        let path = self.data_dir.join(SERVERS_FILE);
        let text = serde_json::to_vec(&texts).unwrap_or_default();
        places::write_private(&path, &text).map_err(|source| Error::File { path, source })?;
        Ok(join.run().await?)
    }
}

/// The token of the command line, from a file rather than from what every user of the machine can see.
fn token(flags: &Flags) -> Result<Option<String>, Error> {
    match &flags.token_file {
        None => Ok(flags.token.clone()),
        Some(path) => Ok(Some(String::from_utf8_lossy(&read(path)?).trim().to_owned())),
    }
}

fn configuration(flags: &Flags) -> Result<AgentletConfiguration, Error> {
    let mut over = Map::new();
    if !flags.servers.is_empty() {
        over.insert("servers".into(), json!(flags.servers));
    }
    if let Some(dir) = &flags.data_dir {
        over.insert("dataDir".into(), json!(dir));
    }
    if let Some(name) = &flags.name {
        over.insert("name".into(), json!(name));
    }
    if let Some(runs) = flags.max_runs {
        over.insert("maxRuns".into(), json!(runs));
    }
    let file = match &flags.config {
        None => None,
        Some(path) => Some((path.display().to_string(), read(path)?)),
    };
    let file = file
        .as_ref()
        .map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
    let mut config: AgentletConfiguration = component::read(settings::KIND, file, over)?;
    config.labels.extend(labels(&flags.labels)?);
    if !flags.workspace_roots.is_empty() {
        config.owner.workspace_roots.clone_from(&flags.workspace_roots);
    }
    if !flags.namespaces.is_empty() {
        config.owner.namespaces = Some(flags.namespaces.clone());
    }
    config.validate()?;
    Ok(config)
}

fn labels(texts: &[String]) -> Result<BTreeMap<String, String>, Error> {
    let parse = |text: &String| match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(Error::Flag {
            flag: "--label",
            problem: format!("want KEY=VALUE, found {text:?}"),
        }),
    };
    texts.iter().map(parse).collect()
}

/// The configured addresses, or those that the device joined with.
fn servers(settings: &AgentletConfiguration, data_dir: &Path) -> Result<Vec<http::Uri>, Error> {
    let configured = settings.servers()?;
    if !configured.is_empty() {
        return Ok(configured);
    }
    let path = data_dir.join(SERVERS_FILE);
    let kept: Value = match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Value::Null,
        Err(source) => return Err(Error::File { path, source }),
    };
    let kept: Vec<http::Uri> = kept
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|text| settings::parse_server(text.as_str()?))
        .collect();
    if kept.is_empty() {
        return Err(Error::NotJoined {
            missing: "--server".into(),
        });
    }
    Ok(kept)
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::File {
        path: path.to_owned(),
        source,
    })
}
