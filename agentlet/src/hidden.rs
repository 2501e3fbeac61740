//! Subcommands that are no commands for people: the programs of this workspace pass their arguments here first.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

/// Runs the hidden subcommand that `args` (without the program's name) ask for; `None` when they ask for none.
///
/// To be called first thing in `main`, before any thread, runtime or log exists.
#[must_use]
pub fn dispatch(args: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut args = args.into_iter();
    let name = args.next()?;
    match (name.to_str()?, args.next(), args.next()) {
        (EXEC_FLOOR, None, None) => Some(panda_sandbox::exec_floor()),
        (SUPERVISE, Some(dir), None) => Some(crate::supervisor::main(Path::new(&dir))),
        _ => None,
    }
}

/// The program that runs now, also when another version has taken its place on the disk: children of this process that are
/// started with it come from its own image.
pub const RUNNING_IMAGE: &str = "/proc/self/exe";

const EXEC_FLOOR: &str = "exec-floor";
const SUPERVISE: &str = "supervise";

/// Program and arguments that start a supervisor, but for the run folder.
pub(crate) fn supervise(exe: &OsStr) -> Vec<OsString> {
    vec![exe.into(), SUPERVISE.into()]
}

/// Program and arguments of the floor's helper stage.
pub(crate) fn helper(exe: &OsStr) -> Vec<OsString> {
    vec![exe.into(), EXEC_FLOOR.into()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_words_are_left_to_the_program() {
        for args in [
            vec![],
            vec!["up"],
            vec!["supervise"],
            vec!["exec-floor", "x"],
            vec!["supervise", "a", "b"],
        ] {
            assert!(dispatch(args.into_iter().map(OsString::from)).is_none());
        }
    }
}
