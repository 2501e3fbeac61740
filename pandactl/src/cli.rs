//! Arguments, dispatch, and the one place where errors are shown.

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches};

use crate::commands;
use crate::error::{Error, Kind, Result};
use crate::io::Io;
use crate::output::text::{self, Style};
use crate::session::{Global, Session};

/// Exit code of a process.
pub type Exit = u8;

/// Width of help texts that go to no terminal.
const HELP_WIDTH: usize = 100;

/// Command line of Panda: agents on your own devices, driven by manifests.
#[derive(Debug, clap::Parser)]
#[command(
    name = "pandactl",
    version,
    disable_help_subcommand = false,
    after_help = "Start with `pandactl up --demo`, then `pandactl up` and `pandactl create task --help`.\n\
                  Exit codes: 0 done, 1 failed.\n\
                  With --exit-status: 0 succeeded, 2 failed, 3 cancelled, 5 in review."
)]
pub struct Cli {
    /// Flags of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run a control plane and this device in one process
    #[cfg(feature = "up")]
    Up(crate::up::UpArgs),
    /// Make objects be what files say
    Apply(commands::apply::ApplyArgs),
    /// Show what apply would change
    Diff(commands::diff::DiffArgs),
    /// Make a task, namespace, config map, secret, account or token
    Create(commands::create::CreateArgs),
    /// Show objects
    Get(commands::get::GetArgs),
    /// Tell all about one object
    Describe(commands::describe::DescribeArgs),
    /// Show what a task or run writes
    Logs(commands::logs::LogsArgs),
    /// Show what happened
    Events(commands::events::EventsArgs),
    /// Show, save or apply what a task brought
    Result(commands::result::ResultArgs),
    /// Tell why a task waits
    ExplainWait(commands::explain_wait::ExplainWaitArgs),
    /// Wait until objects are as wanted
    Wait(commands::wait::WaitArgs),
    /// Cancel tasks
    Cancel(commands::task_verbs::CancelArgs),
    /// Start finished tasks afresh
    Retry(commands::task_verbs::RetryArgs),
    /// Freeze tasks
    Pause(commands::task_verbs::PauseArgs),
    /// Let paused tasks go on
    Resume(commands::task_verbs::ResumeArgs),
    /// Delete objects
    Delete(commands::delete::DeleteArgs),
    /// Change an object in an editor
    Edit(commands::edit::EditArgs),
    /// Change fields of objects
    Patch(commands::patch::PatchArgs),
    /// Set or remove labels
    Label(commands::metadata::LabelArgs),
    /// Set or remove annotations
    Annotate(commands::metadata::AnnotateArgs),
    /// Bind nothing new to a device
    Cordon(commands::cordon::CordonArgs),
    /// Bind to a device again
    Uncordon(commands::cordon::UncordonArgs),
    /// Move all runs away from a device
    Drain(commands::drain::DrainArgs),
    /// Set or remove taints of devices
    Taint(commands::taint::TaintArgs),
    /// Show what is used of devices, and what tasks used
    Top(commands::top::TopArgs),
    /// Check what Panda needs, and say what helps
    Doctor(commands::doctor::DoctorArgs),
    /// Tell what the fields of a kind mean
    Explain(commands::explain::ExplainArgs),
    /// Let machines join as devices, list and remove them
    Device(commands::device::DeviceArgs),
    /// Decide about requests for certificates
    Certificate(commands::certificate::CertificateArgs),
    /// Tell who one is and what one may do
    Auth(commands::auth::AuthArgs),
    /// Read and verify a server's audit log
    #[cfg(feature = "up")]
    Audit(commands::audit::AuditArgs),
    /// Save a server's data folder as one file
    #[cfg(feature = "up")]
    Backup(commands::backup::BackupArgs),
    /// Put a backup in place of a stopped server's data
    #[cfg(feature = "up")]
    Restore(commands::backup::RestoreArgs),
    /// List the kinds of the server
    ApiResources(commands::api_resources::ApiResourcesArgs),
    /// Show and change the kubeconfig
    Config(commands::config::ConfigArgs),
    /// Print a script that completes commands in a shell
    Completion(commands::completion::CompletionArgs),
    /// Show the versions of client and server
    Version(commands::version::VersionArgs),
}

/// The whole command, for help texts.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Reads the arguments, program name first. Help and mistakes are shown here.
///
/// # Errors
/// The exit code when there is nothing to run.
pub fn parse(args: impl IntoIterator<Item = OsString>, io: &mut Io) -> Result<Cli, Exit> {
    let width = io
        .terminal
        .width
        .map_or(HELP_WIDTH, |width| width.clamp(40, HELP_WIDTH));
    let args: Vec<OsString> = args.into_iter().collect();
    let parsed = command()
        .color(clap::ColorChoice::Never)
        .term_width(width)
        .try_get_matches_from(&args)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let error = match parsed {
        Ok(cli) => return Ok(cli),
        Err(error) => error,
    };
    let words = error.render().to_string();
    if error.use_stderr() {
        // Arguments may hold anything.
        io.stderr.write(&text::lines(&words));
        return Err(misused(&args));
    }
    let shown = io.out(&words).and_then(|()| io.flush());
    Err(match shown {
        Ok(()) => 0,
        Err(error) => show(&error, io, false),
    })
}

/// The exit code for arguments that cannot be read. For `diff`, 1 would say that there are differences.
fn misused(args: &[OsString]) -> Exit {
    let guess = command().ignore_errors(true).try_get_matches_from(args);
    match guess.ok().as_ref().and_then(clap::ArgMatches::subcommand_name) {
        Some("diff") => commands::diff::TROUBLE,
        _ => 1,
    }
}

/// Runs a command and shows its failure.
pub async fn execute(cli: Cli, io: &mut Io) -> Exit {
    let color = io.env.color(cli.global.color, io.terminal.stderr);
    let mut session = Session::new(cli.global, io);
    let result = dispatch(cli.command, &mut session).await;
    // What was printed before a failure must come out before it, and a full disk is a failure, too.
    let flushed = io.flush();
    match result.and_then(|exit| flushed.map(|()| exit)) {
        Ok(exit) => exit,
        Err(error) => show(&error, io, color),
    }
}

async fn dispatch(command: Command, session: &mut Session<'_>) -> Result<Exit> {
    match command {
        #[cfg(feature = "up")]
        Command::Up(args) => commands::up::run(args, session).await,
        Command::Apply(args) => commands::apply::run(args, session).await,
        Command::Diff(args) => commands::diff::run(args, session).await,
        Command::Create(args) => commands::create::run(args, session).await,
        Command::Get(args) => commands::get::run(args, session).await,
        Command::Describe(args) => commands::describe::run(args, session).await,
        Command::Logs(args) => commands::logs::run(args, session).await,
        Command::Events(args) => commands::events::run(args, session).await,
        Command::Result(args) => commands::result::run(args, session).await,
        Command::ExplainWait(args) => commands::explain_wait::run(args, session).await,
        Command::Wait(args) => commands::wait::run(args, session).await,
        Command::Cancel(args) => commands::task_verbs::cancel(args, session).await,
        Command::Retry(args) => commands::task_verbs::retry(args, session).await,
        Command::Pause(args) => commands::task_verbs::pause(args, session).await,
        Command::Resume(args) => commands::task_verbs::resume(args, session).await,
        Command::Delete(args) => commands::delete::run(args, session).await,
        Command::Label(args) => commands::metadata::label(args, session).await,
        Command::Annotate(args) => commands::metadata::annotate(args, session).await,
        Command::Cordon(args) => commands::cordon::cordon(args, session).await,
        Command::Uncordon(args) => commands::cordon::uncordon(args, session).await,
        Command::Drain(args) => commands::drain::run(args, session).await,
        Command::Taint(args) => commands::taint::run(args, session).await,
        Command::Edit(args) => commands::edit::run(args, session).await,
        Command::Patch(args) => commands::patch::run(args, session).await,
        Command::Top(args) => commands::top::run(args, session).await,
        Command::Doctor(args) => commands::doctor::run(args, session).await,
        Command::Explain(args) => commands::explain::run(args, session).await,
        Command::Device(args) => commands::device::run(args, session).await,
        Command::Certificate(args) => commands::certificate::run(args, session).await,
        Command::Auth(args) => commands::auth::run(args, session).await,
        #[cfg(feature = "up")]
        Command::Audit(args) => commands::audit::run(&args, session),
        #[cfg(feature = "up")]
        Command::Backup(args) => commands::backup::save(&args, session),
        #[cfg(feature = "up")]
        Command::Restore(args) => commands::backup::restore(&args, session).await,
        Command::ApiResources(args) => commands::api_resources::run(args, session).await,
        Command::Config(args) => commands::config::run(args, session),
        Command::Completion(args) => commands::completion::run(&args, session),
        Command::Version(args) => commands::version::run(args, session).await,
    }
}

/// Shows a failure on standard error.
pub fn show(error: &Error, io: &Io, color: bool) -> Exit {
    if error.kind != Kind::ClosedPipe {
        report(error, &io.stderr, color);
    }
    error.exit
}

/// Writes a failure with what to do next.
pub fn report(error: &Error, stderr: &crate::io::Stderr, color: bool) {
    let mut words = String::new();
    if !error.message.is_empty() {
        words.push_str(&format!(
            "{} {}\n",
            text::paint("error:", Style::Red, color),
            text::lines(&error.message)
        ));
    }
    for hint in &error.hints {
        words.push_str(&format!(
            "{} {}\n",
            text::paint("hint:", Style::Cyan, color),
            text::lines(hint)
        ));
    }
    stderr.write(&words);
}
