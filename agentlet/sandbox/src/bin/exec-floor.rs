//! The helper stage as a program of its own, for the tests of this crate.

fn main() -> std::process::ExitCode {
    panda_sandbox::exec_floor()
}
