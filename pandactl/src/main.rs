//! `pandactl`: gathers what the process stands in, and runs the command.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;

use panda_api::meta::{RandomIds, SystemClock};
use pandactl::cli;
use pandactl::io::{Env, Io, Stderr, Terminal};

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    // Processes that the agentlet starts are this program, too; they must not start a runtime.
    #[cfg(feature = "up")]
    if let Some(code) = panda_agentlet::hidden::dispatch(args.iter().skip(1).cloned()) {
        return code;
    }
    // So does ssh, as its way to the repository of a GitSource.
    #[cfg(feature = "up")]
    if let Some(code) = ssh_proxy(&args) {
        return code;
    }
    let mut io = surroundings();
    let cli = match cli::parse(args, &mut io) {
        Ok(cli) => cli,
        Err(code) => return code.into(),
    };
    if let Err(error) = logging(&cli, &io) {
        return cli::show(&error, &io, false).into();
    }
    let runtime = match runtime(&cli) {
        Ok(runtime) => runtime,
        Err(error) => {
            io.stderr.line(&format!(
                "error: cannot start: {error}\nhint: check the limits of this user (`ulimit -a`)"
            ));
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(cli::execute(cli, &mut io));
    // A thread that still waits for a file or a name must not keep a finished command.
    runtime.shutdown_background();
    code.into()
}

#[cfg(feature = "up")]
#[expect(clippy::disallowed_methods, reason = "the binary reads the environment")]
fn ssh_proxy(args: &[OsString]) -> Option<ExitCode> {
    use panda_controllers::gitsource::proxy;
    let variable = std::env::var(proxy::VARIABLE).ok();
    proxy::hidden(args.iter().skip(1).cloned(), variable)
}

fn runtime(cli: &cli::Cli) -> std::io::Result<tokio::runtime::Runtime> {
    #[cfg(feature = "up")]
    if matches!(cli.command, cli::Command::Up(_)) {
        return tokio::runtime::Builder::new_multi_thread().enable_all().build();
    }
    let _: &cli::Cli = cli;
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Logs of client commands; `up` sets up its own, with traces.
fn logging(cli: &cli::Cli, io: &Io) -> Result<(), pandactl::error::Error> {
    #[cfg(feature = "up")]
    if matches!(cli.command, cli::Command::Up(_)) {
        return Ok(());
    }
    let level = match cli.global.verbosity {
        0 => "off",
        1 => "warn,panda_client=debug,pandactl=debug",
        _ => "debug,panda_client=trace,pandactl=trace",
    };
    let directives = io
        .env
        .var("PANDA_LOG")
        .filter(|_| cli.global.verbosity == 0)
        .unwrap_or(level);
    let filter = tracing_subscriber::EnvFilter::try_new(directives).map_err(|error| {
        pandactl::error::Error::user(format!("PANDA_LOG={directives:?} is no filter: {error}"))
            .hint("for example PANDA_LOG=info,panda_client=debug")
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    Ok(())
}

fn surroundings() -> Io {
    let (out, err) = (std::io::stdout(), std::io::stderr());
    let vars: std::collections::BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let columns = vars
        .get("COLUMNS")
        .and_then(|text| text.parse().ok())
        .filter(|width| *width > 0);
    let terminal = Terminal {
        stdout: out.is_terminal(),
        stderr: err.is_terminal(),
        width: None,
    };
    let width = columns.or_else(|| terminal_width(terminal));
    let env = Env {
        home: std::env::home_dir().filter(|home| !home.as_os_str().is_empty()),
        cwd: std::env::current_dir().unwrap_or_default(),
        hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        vars,
    };
    Io {
        stdout: Box::new(Stdout(out)),
        stderr: Stderr::new(Box::new(err)),
        stdin: Box::new(std::io::stdin()),
        terminal: Terminal { width, ..terminal },
        env,
        clock: Arc::new(SystemClock),
        ids: Arc::new(RandomIds),
        stdout_gone: Arc::new(reader_gone),
    }
}

fn terminal_width(terminal: Terminal) -> Option<usize> {
    let size = match terminal {
        Terminal { stdout: true, .. } => rustix::termios::tcgetwinsize(std::io::stdout()),
        Terminal { stderr: true, .. } => rustix::termios::tcgetwinsize(std::io::stderr()),
        _ => return None,
    };
    size.ok()
        .map(|size| usize::from(size.ws_col))
        .filter(|columns| *columns > 0)
}

/// Whether nobody can read standard output any more. Only a pipe or socket tells.
fn reader_gone() -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let stdout = std::io::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().intersects(PollFlags::ERR | PollFlags::NVAL)
}

/// Standard output, with one lock and one write a piece.
struct Stdout(std::io::Stdout);

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.lock().write_all(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.lock().flush()
    }
}
