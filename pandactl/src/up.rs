//! `pandactl up`: a whole control plane and one device, in one process.

mod catalogue;
pub mod compose;
mod demo;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use panda_agentlet::places;
use panda_client::config::Kubeconfig;
use tokio::signal::unix::{SignalKind, signal};

use compose::Settings;

/// Why it did not come up, or did not stay up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The API server does not come up.
    #[error(transparent)]
    ControlPlane(#[from] panda_apiserver::control_plane::Error),
    /// A folder or file cannot be used.
    #[error("cannot use {}", path.display())]
    Path {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// A folder of the device cannot be used.
    #[error(transparent)]
    Place(#[from] places::Error),
    /// There is no home folder and no `--data-dir`.
    #[error("there is no home folder to keep data in")]
    NoHome,
    /// There is no git on the PATH.
    #[error("git was not found on the PATH")]
    NoGit,
    /// The way to the server cannot be set up.
    #[error("cannot set up TLS to the server")]
    Connector(#[from] panda_client::connector::Error),
    /// The API refused something that must work.
    #[error("the API refused")]
    Client(#[from] panda_client::Error),
    /// The agentlet cannot be built.
    #[error("cannot start the agentlet")]
    Agentlet(#[from] panda_agentlet::BuildError),
    /// The kubeconfig cannot be read or written.
    #[error("cannot write {}", path.display())]
    Config {
        /// Where.
        path: PathBuf,
        /// Why not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The demo did not end as it should.
    #[error("{0}")]
    Demo(String),
    /// Signals or output do not work.
    #[error("cannot talk to the terminal")]
    Io(#[from] std::io::Error),
}

impl Error {
    /// What to do next.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::ControlPlane(error) => error.hint().map(str::to_owned),
            Self::NoGit => Some("install git; workspaces are made with it".into()),
            Self::NoHome => Some("name a folder with --data-dir".into()),
            Self::Path { .. } | Self::Place(_) | Self::Config { .. } => {
                Some("check its owner, its mode and the space left".into())
            }
            _ => None,
        }
    }
}

/// Arguments of `pandactl up`.
#[derive(Clone, Debug, clap::Args)]
pub struct UpArgs {
    /// Folder for everything that is kept [default: $PANDA_DATA, or ~/.local/share/panda]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Folder that agents work in [default: below the data folder; for root below /var/lib/panda]
    #[arg(long, value_name = "DIR")]
    pub work_dir: Option<PathBuf>,
    /// Address to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7443")]
    pub listen: SocketAddr,
    /// Do not make this machine a device
    #[arg(long)]
    pub no_agentlet: bool,
    /// Leave runs alive when stopping; the next start adopts them
    #[arg(long)]
    pub keep_runs: bool,
    /// Run examples/first-task in a folder of its own, show what came out, and stop
    #[arg(long)]
    pub demo: bool,
    /// Folder whose git repositories tasks may work on, besides the home folder; may be repeated
    #[arg(long = "workspace-root", value_name = "DIR")]
    pub workspace_roots: Vec<PathBuf>,
    /// Folder whose git repositories a GitSource may name as file://; may be repeated
    #[arg(long = "manifest-root", value_name = "DIR")]
    pub manifest_roots: Vec<PathBuf>,
    /// Host that a GitSource may name though its address is not public; may be repeated
    #[arg(long = "git-host", value_name = "HOST")]
    pub git_hosts: Vec<String>,
    /// Runs at one time [default: one a processor, at least 4]
    #[arg(long, value_name = "N")]
    pub max_runs: Option<u32>,
    /// Name of this device [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub device_name: Option<String>,
}

/// What the process stands in; gathered by `main`, so that nothing here reads the environment.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// `HOME`.
    pub home: Option<PathBuf>,
    /// `PANDA_DATA`.
    pub panda_data: Option<PathBuf>,
    /// Where the kubeconfig goes: `PANDACONFIG`, or `~/.panda/config`.
    pub config: Option<PathBuf>,
    /// `PATH`.
    pub path: String,
    /// The whole environment, for finding out which agents are logged in.
    pub env: BTreeMap<String, String>,
    /// The host's name.
    pub hostname: String,
    /// Whether standard error is a terminal.
    pub terminal: bool,
}

/// Runs until it is told to stop.
///
/// # Errors
/// When it cannot come up, or the demo does not end well.
pub async fn run(args: UpArgs, around: Surroundings, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    // Before anything is started, so that no signal finds us unprepared.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    if args.demo {
        return demo::run(args, around, out, &mut interrupt, &mut terminate).await;
    }
    let settings = settings(&args, &around)?;
    let (with_agentlet, keep_runs) = (settings.agentlet, settings.keep_runs);
    let data_dir = settings.data_dir.clone();
    let up = compose::start(settings).await?;
    catalogue::install(&up.client).await?;
    let config = around.config.clone().ok_or(Error::NoHome)?;
    write_config(&config, &up.config)?;
    writeln!(out, "Panda is up at {}", up.config.server)?;
    writeln!(out, "  data    {}", data_dir.display())?;
    writeln!(out, "  config  {}", config.display())?;
    writeln!(
        out,
        "  try     pandactl get devices; kubectl --kubeconfig {} get tasks",
        config.display()
    )?;
    out.flush()?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    if with_agentlet && !keep_runs {
        writeln!(
            out,
            "stopping: runs are ended and reported first (again to stop at once; --keep-runs leaves them alive)"
        )?;
    } else {
        writeln!(out, "stopping")?;
    }
    out.flush()?;
    tokio::select! {
        () = up.stop() => Ok(()),
        // Supervisors hold what is still alive; the next start adopts it.
        _ = interrupt.recv() => Ok(()),
    }
}

fn settings(args: &UpArgs, around: &Surroundings) -> Result<Settings, Error> {
    let data_dir = match (&args.data_dir, &around.panda_data, &around.home) {
        (Some(dir), _, _) | (None, Some(dir), _) => dir.clone(),
        (None, None, Some(home)) => home.join(".local/share/panda"),
        (None, None, None) => return Err(Error::NoHome),
    };
    let data_dir = places::private_dir(&data_dir)?;
    let work_dir = places::work_dir(args.work_dir.as_deref(), &data_dir)?;
    let processors = std::thread::available_parallelism().map_or(4, |n| u32::try_from(n.get()).unwrap_or(4));
    let hidden = around
        .config
        .as_deref()
        .and_then(Path::parent)
        .map(Path::to_owned);
    Ok(Settings {
        work_dir,
        data_dir,
        listen: args.listen,
        agentlet: !args.no_agentlet,
        keep_runs: args.keep_runs,
        device_name: args
            .device_name
            .clone()
            .unwrap_or_else(|| places::device_name(&around.hostname)),
        home: around.home.clone(),
        workspace_roots: canonical(&args.workspace_roots)?,
        manifest_roots: canonical(&args.manifest_roots)?,
        git_hosts: args.git_hosts.clone(),
        hidden: hidden.into_iter().collect(),
        path: around.path.clone(),
        env: around.env.clone(),
        max_runs: args.max_runs.unwrap_or(processors.max(4)),
        exe: panda_agentlet::hidden::RUNNING_IMAGE.into(),
        git: places::program("git", &around.path).ok_or(Error::NoGit)?,
        agent_uid: places::agent_uid(),
    })
}

fn canonical(roots: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    let one = |root: &PathBuf| {
        root.canonicalize().map_err(|source| Error::Path {
            path: root.clone(),
            source,
        })
    };
    roots.iter().map(one).collect()
}

/// Puts the context `panda` into the kubeconfig and makes it the current one; other contexts stay.
fn write_config(path: &Path, config: &panda_client::Config) -> Result<(), Error> {
    let fail = |source: Box<dyn std::error::Error + Send + Sync>| Error::Config {
        path: path.to_owned(),
        source,
    };
    let mut kubeconfig = match std::fs::read_to_string(path) {
        Ok(text) if !text.trim().is_empty() => {
            Kubeconfig::parse(&text).map_err(|error| fail(error.into()))?
        }
        Ok(_) => Kubeconfig::default(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Kubeconfig::default(),
        Err(error) => return Err(fail(error.into())),
    };
    kubeconfig.set_all("panda", config);
    kubeconfig
        .set_current_context("panda")
        .map_err(|error| fail(error.into()))?;
    let text = kubeconfig.to_yaml().map_err(|error| fail(error.into()))?;
    places::write_private(path, text.as_bytes()).map_err(|error| fail(error.into()))
}

/// Everything of the environment that is text.
#[must_use]
pub fn text_environment(vars: impl Iterator<Item = (OsString, OsString)>) -> BTreeMap<String, String> {
    vars.filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}
