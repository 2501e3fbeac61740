//! The hidden subcommands as a program of its own: `supervise RUNDIR` and `exec-floor`. The tests of this crate use
//! it, and a device that wants its supervisors small may.

use std::process::ExitCode;

fn main() -> ExitCode {
    panda_agentlet::hidden::dispatch(std::env::args_os().skip(1)).unwrap_or(ExitCode::from(2))
}
