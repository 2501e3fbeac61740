//! `panda-apiserver`: the API server as a process of its own.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use panda_api::component;
use panda_api::meta::{RandomIds, SystemClock};
use panda_apiserver::control_plane::{self, ControlPlane, kubeconfig_path, write_kubeconfig};
use panda_apiserver::pki::Subject;
use panda_apiserver::{Config, config, telemetry};
use serde_json::{Map, Value};
use tokio::signal::unix::{SignalKind, signal};

/// Serves Panda's API: objects over REST, devices over gRPC, on one TLS port.
///
/// The first start makes a certificate authority and keys in the data folder.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:
  panda-apiserver --data-dir /var/lib/panda --listen 0.0.0.0:7443 --tls-name panda.example.com
  pandactl --kubeconfig /var/lib/panda/admin.kubeconfig get devices"
)]
struct Args {
    /// Folder for everything that is kept
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Address to listen on; port 0 takes a free one [default: 127.0.0.1:7443]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Configuration file (config.panda.dev/v1alpha1 ApiServerConfiguration); flags win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Further host name or address that clients reach this server by; may be repeated
    #[arg(long = "tls-name", value_name = "NAME")]
    tls_names: Vec<String>,
    /// Also write the administrator's kubeconfig here
    #[arg(long, value_name = "FILE")]
    write_kubeconfig: Option<PathBuf>,
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
    #[error(transparent)]
    ControlPlane(#[from] control_plane::Error),
    #[error("the API server failed")]
    Server(#[from] panda_apiserver::server::Error),
    #[error("cannot set up logs")]
    Telemetry(#[from] telemetry::Error),
    #[error("cannot talk to the system")]
    Io(#[from] std::io::Error),
}

impl Error {
    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::ControlPlane(error) => error.hint(),
            Self::Server(error) => error.hint(),
            Self::Config(_) => Some("see panda-apiserver --help"),
            Self::Telemetry(_) => Some("check PANDA_LOG and OTEL_EXPORTER_OTLP_ENDPOINT"),
            _ => None,
        }
    }
}

fn main() -> ExitCode {
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

fn configuration(args: &Args) -> Result<Config, Error> {
    let mut flags = Map::new();
    if let Some(dir) = &args.data_dir {
        flags.insert("dataDir".into(), dir.display().to_string().into());
    }
    if let Some(listen) = args.listen {
        flags.insert("listen".into(), listen.to_string().into());
    }
    if !args.tls_names.is_empty() {
        let names = args.tls_names.iter().map(|name| Value::from(name.as_str()));
        flags.insert("tlsNames".into(), names.collect());
    }
    let file = match &args.config {
        None => None,
        Some(path) => {
            let bytes = std::fs::read(path).map_err(|source| Error::Read {
                path: path.clone(),
                source,
            })?;
            Some((path.display().to_string(), bytes))
        }
    };
    let file = file
        .as_ref()
        .map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
    Ok(component::read(config::KIND, file, flags)?)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a binary reads the environment for its libraries"
)]
async fn run(args: Args) -> Result<(), Error> {
    // Before anything is started, so that no signal finds us unprepared.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let config = configuration(&args)?;
    let var = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let settings = telemetry::Settings {
        service: "panda-apiserver".to_owned(),
        filter: var("PANDA_LOG").unwrap_or_default(),
        json: false,
        otlp_endpoint: var("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
            .or_else(|| var("OTEL_EXPORTER_OTLP_ENDPOINT")),
    };
    let _guard: telemetry::Guard = telemetry::init(&settings)?;
    let data_dir = config.data_dir.clone();
    let mut plane = ControlPlane::start(config, Arc::new(SystemClock), Arc::new(RandomIds)).await?;
    let mut out = std::io::stdout();
    let admin = plane.config_for("admin", &Subject::admin())?;
    let mut kubeconfigs = vec![("admin", kubeconfig_path(&data_dir, "admin"), &admin)];
    let controllers = plane.config_for("controllers", &Subject::controllers())?;
    kubeconfigs.push((
        "controllers",
        kubeconfig_path(&data_dir, "controllers"),
        &controllers,
    ));
    if let Some(path) = args.write_kubeconfig {
        kubeconfigs.push(("admin", path, &admin));
    }
    for (who, path, config) in kubeconfigs {
        write_kubeconfig(&path, config)?;
        writeln!(out, "kubeconfig of {who}: {}", path.display())?;
    }
    writeln!(out, "CA hash: {}", plane.pki().ca_hash())?;
    writeln!(out, "ready at https://{}", plane.address())?;
    out.flush()?;
    let failed = tokio::select! {
        _ = interrupt.recv() => None,
        _ = terminate.recv() => None,
        error = plane.failed() => Some(error),
    };
    tokio::select! {
        () = plane.stop() => {}
        // The second time at once; the store is whole at every moment.
        _ = interrupt.recv() => {}
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}
