//! `agentlet`: the device daemon as a process of its own.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use panda_agentlet::program::{self, Error, Flags, Surroundings};
use panda_api::component;

/// Makes this machine a device: joins a control plane once, then works on the runs that are bound to it.
///
/// The first start needs --server, --token and --ca-cert-hash; `pandactl device join-token` prints the whole command. From
/// then on the device has its own key and certificate in its data folder, and needs none of them.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:
  agentlet --server https://10.0.0.5:7443 --token-file /run/token --ca-cert-hash sha256:4f1e...
  agentlet                                   (a device that has joined)
  agentlet --config /etc/panda/agentlet.yaml
  agentlet --label room=lab --max-runs 2 --workspace-root /srv/repos --namespace web"
)]
struct Args {
    /// Configuration file (config.panda.dev/v1alpha1 AgentletConfiguration); flags win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Addresses of the control plane, tried in order [default: those that the device joined with]
    #[arg(long, value_name = "URL,...", value_delimiter = ',')]
    server: Vec<String>,
    /// Join token, once (visible to other users of this machine: prefer --token-file)
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    token: Option<String>,
    /// File that holds the join token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Digest of the public key of the control plane's authority
    #[arg(long, value_name = "sha256:HEX")]
    ca_cert_hash: Option<String>,
    /// Private state [default: /var/lib/panda/agentlet for root, else ~/.local/share/panda-agentlet]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Name to join under [default: the host's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Label that the device sets on itself; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// Runs at one time [default: one a processor, at least 4]
    #[arg(long, value_name = "N")]
    max_runs: Option<u32>,
    /// Folder whose git repositories tasks may work on; may be repeated
    #[arg(long = "workspace-root", value_name = "DIR")]
    workspace_roots: Vec<PathBuf>,
    /// Namespace that the device serves; may be repeated [default: all]
    #[arg(long = "namespace", value_name = "NAME")]
    namespaces: Vec<String>,
}

#[expect(
    clippy::disallowed_methods,
    reason = "a binary reads the environment for its libraries"
)]
fn main() -> ExitCode {
    // Processes that the agentlet starts are this program, too; they must not start a runtime.
    if let Some(code) = panda_agentlet::hidden::dispatch(std::env::args_os().skip(1)) {
        return code;
    }
    let args = Args::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.into()),
    };
    let directives = std::env::var("PANDA_LOG").unwrap_or_else(|_| "info".into());
    match tracing_subscriber::EnvFilter::try_new(&directives) {
        Ok(filter) => tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .init(),
        Err(error) => {
            return fail(&Error::Flag {
                flag: "PANDA_LOG",
                problem: error.to_string(),
            });
        }
    }
    let around = Surroundings {
        home: std::env::home_dir().filter(|home| !home.as_os_str().is_empty()),
        path: std::env::var("PATH").unwrap_or_default(),
        env: std::env::vars_os()
            .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
            .collect(),
        hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
    };
    let flags = Flags {
        config: args.config,
        servers: args.server,
        token: args.token,
        token_file: args.token_file,
        ca_cert_hash: args.ca_cert_hash,
        data_dir: args.data_dir,
        name: args.name,
        labels: args.labels,
        max_runs: args.max_runs,
        workspace_roots: args.workspace_roots,
        namespaces: args.namespaces,
    };
    let done = runtime.block_on(program::run(flags, around, &mut std::io::stdout()));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &Error) -> ExitCode {
    // Nobody may be left to read it; the exit code says it, too.
    let _: std::io::Result<()> = write!(std::io::stderr(), "{}", component::complaint(error, error.hint()));
    ExitCode::FAILURE
}
