//! `pandactl completion`.

use crate::cli::{self, Exit};
use crate::error::Result;
use crate::session::Session;

/// Arguments of `completion`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  source <(pandactl completion bash)
  pandactl completion zsh > ~/.zfunc/_pandactl
  pandactl completion fish > ~/.config/fish/completions/pandactl.fish")]
pub struct CompletionArgs {
    /// bash, zsh, fish, elvish or powershell
    #[arg(value_enum, hide_possible_values = true)]
    pub shell: clap_complete::Shell,
}

pub(crate) fn run(args: &CompletionArgs, session: &mut Session<'_>) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::command(), "pandactl", &mut script);
    session.out(script)?;
    Ok(0)
}
