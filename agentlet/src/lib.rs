//! The device daemon: takes the runs that are bound to its device, works on them, and reports what came out.
//!
//! It may depend on `panda-api`, `panda-client`, `panda-rpc` and `panda-sandbox`, never on a store, the server or the
//! controllers.
//!
//! | module | holds |
//! |---|---|
//! | [`boot`] | the clock of grants, and the identity of this boot |
//! | [`driver`] | how agents are talked to, and how the end of a turn is judged |
//! | [`git`] | the only place that starts git |
//! | [`outbox`] | reports, durable until the server has them |
//! | [`process`] | trees of processes on the floor, ended whole |
//! | [`session`] | the connection to the server |
//! | [`supervisor`] | one process a run, which outlives the agentlet |
//! | [`workspace`] | where an agent works: folders, private clones, the proof before start |
//! | `daemon` | the dispatcher: one task that owns the truth about the runs |
//! | `runner` | one worker a run |

mod blobship;
pub mod boot;
mod daemon;
pub mod driver;
pub mod git;
mod logship;
pub mod outbox;
pub mod process;
mod runner;
pub mod session;
pub mod supervisor;
#[cfg(test)]
mod testing;
pub mod workspace;

pub use daemon::Shutdown;
