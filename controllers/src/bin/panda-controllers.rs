//! `panda-controllers`: the controllers as a process of their own.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use panda_api::component;
use panda_api::meta::{Clock, IdSource, RandomIds, SystemClock};
use panda_client::config::Kubeconfig;
use panda_client::runtime::leader::{Elector, Ended};
use panda_client::{Client, Options};
use panda_controllers::gitsource::proxy;
use panda_controllers::{ControllersConfiguration, Manager, config};
use serde_json::Map;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Makes what is follow what is wanted: attempts of Tasks, placement, garbage collection.
///
/// Of several processes one works, and the next takes over when it ends or is cut off.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:
  panda-controllers --kubeconfig /var/lib/panda/controllers.kubeconfig"
)]
struct Args {
    /// How the API server is reached, and as whom
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// Configuration file (config.panda.dev/v1alpha1 ControllersConfiguration)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Config(#[from] component::Error),
    #[error("invalid configuration")]
    Value(#[from] config::Error),
    #[error("{} is no kubeconfig to use", path.display())]
    Kubeconfig {
        path: PathBuf,
        #[source]
        source: panda_client::config::Error,
    },
    #[error("cannot set up the connection to the API server")]
    Client(#[from] panda_client::Error),
    #[error("PANDA_LOG is no log filter")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    #[error("another process leads now")]
    Lost,
    #[error("cannot talk to the system")]
    Io(#[from] std::io::Error),
}

impl Error {
    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Read { .. } | Self::Kubeconfig { .. } => Some(
                "panda-apiserver writes controllers.kubeconfig into its data folder: name that file with --kubeconfig",
            ),
            Self::Config(_) | Self::Value(_) => Some("see panda-controllers --help"),
            Self::Lost => Some("start it again: it waits for its turn"),
            _ => None,
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a binary reads the environment for its libraries"
)]
fn main() -> ExitCode {
    // ssh calls this program as its way to a repository.
    let proxy = std::env::var(proxy::VARIABLE).ok();
    if let Some(code) = proxy::hidden(std::env::args_os().skip(1), proxy) {
        return code;
    }
    let args = Args::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.into()),
    };
    match runtime.block_on(run(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &Error) -> ExitCode {
    // Nobody may be left to read it; the exit code says it, too.
    let _: std::io::Result<()> = write!(std::io::stderr(), "{}", component::complaint(error, error.hint()));
    ExitCode::FAILURE
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })
}

fn configuration(path: Option<&Path>) -> Result<ControllersConfiguration, Error> {
    let file = match path {
        Some(path) => Some((path.display().to_string(), read(path)?)),
        None => None,
    };
    let file = file
        .as_ref()
        .map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
    let config: ControllersConfiguration = component::read(config::KIND, file, Map::new())?;
    config.validate()?;
    Ok(config)
}

fn connect(path: &Path) -> Result<Client, Error> {
    let fail = |source| Error::Kubeconfig {
        path: path.to_owned(),
        source,
    };
    let text = String::from_utf8_lossy(&read(path)?).into_owned();
    let beside = |name: &str| std::fs::read(path.parent().unwrap_or(Path::new(".")).join(name));
    let config = Kubeconfig::parse(&text)
        .and_then(|kubeconfig| kubeconfig.resolve(None, &beside))
        .map_err(fail)?;
    Ok(Client::connect(&config, Options::default())?)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a binary reads the environment for its libraries"
)]
async fn run(args: Args) -> Result<(), Error> {
    // Before anything is started, so that no signal finds us unprepared.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let directives = std::env::var("PANDA_LOG").unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::try_new(directives)?)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
    let config = configuration(args.config.as_deref())?;
    let client = connect(&args.kubeconfig)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let ids: Arc<dyn IdSource> = Arc::new(RandomIds);
    // A name for people, made unique: two processes of one host are two candidates.
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let identity = format!("{host}_{}", ids.uuid());
    let elector = Elector::new(client.clone(), Arc::clone(&clock), config.election(identity));
    let path = std::env::var("PATH").unwrap_or_default();
    // The image that runs, whatever is put in its place.
    let this = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
    let mut behaviour = config.manager();
    behaviour.git_sources = config.git_sources(&path, Some(this));
    let manager = Manager::build(client, clock, ids, behaviour);
    let token = CancellationToken::new();
    let mut out = std::io::stdout();
    writeln!(out, "ready; waiting to lead")?;
    out.flush()?;
    let work = elector.run(token.clone(), |stop| async move { manager.run(stop).await });
    let mut work = std::pin::pin!(work);
    let ended = tokio::select! {
        ended = &mut work => ended,
        _ = interrupt.recv() => stopped(&token, work).await,
        _ = terminate.recv() => stopped(&token, work).await,
    };
    match ended {
        // Started again, it is a candidate anew.
        Ended::Lost => Err(Error::Lost),
        Ended::Done if !token.is_cancelled() => {
            Err(std::io::Error::other("a controller ended before its time").into())
        }
        Ended::Done => Ok(()),
    }
}

async fn stopped(token: &CancellationToken, work: std::pin::Pin<&mut impl Future<Output = Ended>>) -> Ended {
    token.cancel();
    work.await
}
