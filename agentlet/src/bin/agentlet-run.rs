//! The hidden subcommands as a program of its own: `supervise RUNDIR` and `exec-floor`. The tests of this crate use
//! it, and a device that wants its supervisors small may.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    match (args.first().and_then(|a| a.to_str()), args.get(1)) {
        (Some("exec-floor"), None) => panda_sandbox::exec_floor(),
        (Some("supervise"), Some(dir)) => panda_agentlet::supervisor::main(Path::new(dir)),
        _ => ExitCode::from(2),
    }
}
