//! The device daemon: takes the runs that are bound to its device, works on them, and reports what came out.
//!
//! It may depend on `panda-api`, `panda-client`, `panda-rpc` and `panda-sandbox`, never on a store, the server or the
//! controllers.
//!
//! | module | holds |
//! |---|---|
//! | [`artifact`] | what is taken out of a workspace: snapshots and outputs |
//! | [`config`] | what an agentlet is told about its device |
//! | [`program`], [`settings`], [`places`] | the program `agentlet`: its flags, its configuration file, the usual folders |
//! | [`credentials`] | the device's own key and certificate |
//! | [`join`], [`renewal`] | how the device gets its certificate, and another one in time |
//! | [`endpoints`] | the ways to the control plane |
//! | [`service`] | the agentlet as a whole: `build`, `run` |
//! | [`hidden`] | subcommands of the processes that the agentlet starts |
//! | [`boot`] | the clock of grants, and the identity of this boot |
//! | [`driver`] | how agents are talked to, and how the end of a turn is judged |
//! | [`git`] | the only place that starts git |
//! | [`outbox`] | reports, durable until the server has them |
//! | [`process`] | trees of processes on the floor, ended whole |
//! | [`publish`] | an accepted result becomes a branch of the user's repository |
//! | [`session`] | the connection to the server |
//! | [`supervisor`] | one process a run, which outlives the agentlet |
//! | [`verify`] | fresh extractions of a snapshot, for checks |
//! | [`workspace`] | where an agent works: folders, private clones, the proof before start |
//! | `daemon` | the dispatcher: one task that owns the truth about the runs |
//! | `runner` | one worker a run |
//! | `logship`, `blobship` | output and files on their way to the server |
//! | `disk` | full disks, and space held back for results |
//! | `detect`, `device_status` | what the device says about itself and its agents |

pub mod artifact;
mod blobship;
pub mod boot;
pub mod config;
pub mod credentials;
mod daemon;
mod detect;
mod device_status;
mod disk;
pub mod driver;
pub mod endpoints;
pub mod git;
pub mod hidden;
pub mod join;
mod logship;
mod mask;
pub mod outbox;
pub mod places;
pub mod process;
pub mod program;
pub mod publish;
pub mod renewal;
mod runner;
pub mod service;
pub mod session;
pub mod settings;
pub mod supervisor;
#[cfg(test)]
mod testing;
pub mod verify;
pub mod workspace;

pub use config::Config;
pub use daemon::{Error, Shutdown};
pub use service::{Agentlet, BuildError, Deps, build};
