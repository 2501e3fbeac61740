//! The floor under every agent process, and the only crate that may use `unsafe`.
//!
//! Whatever the profile, an agent runs with a scrubbed environment, without a terminal, without a way to gain
//! privileges, under another uid than a root agentlet, and without sight of the control plane's data and the
//! agentlet's state. It is made by a **helper stage**: the caller starts its own program again with a hidden
//! subcommand ([`exec_floor`]), sends it a [`FloorSpec`] over a socket, reads back what was really enforced, and only
//! then says go. So nothing is done between fork and exec of a large process, no secret lies on disk or in an argument,
//! and a layer that was demanded and could not be made means that the program never runs.
//!
//! This crate knows nothing of runs, drivers or the control plane, and must not: it depends on the kernel's
//! interfaces alone.
//!
//! | module | idea |
//! |---|---|
//! | `spec` | what is wanted and what was enforced |
//! | `launch` | the caller's side: start the helper, judge its report, let it go |
//! | `floor` | the helper's side: apply the layers, exec |
//! | `floor::hide` | Landlock: everything but the hidden paths |
//! | `floor::mounts` | a mount namespace with empty folders over the hidden paths |
//! | `raw` | the system calls that have no safe wrapper |
//! | `process` | properties of the calling process |

mod floor;
mod launch;
mod process;
mod raw;
mod spec;

pub use floor::exec_floor;
pub use launch::{LaunchError, Launcher, Prepared, Started, Stdin, probe};
pub use process::{become_subreaper, make_undumpable};
pub use spec::{FloorError, FloorSpec, Layer, LayerReport, Report, Strength, User};
