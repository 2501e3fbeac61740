//! Trees of processes: started on the floor, watched, frozen, and ended whole.
//!
//! A tree is held by a control group (version 2) where one can be made. Everywhere it is also found again by what the
//! kernel keeps: descent (the supervisor is a subreaper, so orphans come back to it), session, a mark in the
//! environment, and the uid where it belongs to one run alone. "Ended" means that all of these find nothing.

mod cgroup;
mod report;
mod run;
mod scan;
mod tree;

pub use cgroup::Cgroup;
pub use report::{device_sandbox, run_sandbox};
pub(crate) use run::DRAIN;
pub use run::{Finished, Request, RunError, run};
pub use scan::{Proc, stat};
pub use tree::{Exit, Membership, ProcessTree, Sample, StopPolicy, StopTarget};
