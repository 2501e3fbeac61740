//! The agent controller: on which devices an Agent was found, and how many Runs of it are alive.
//!
//! Devices report what they found of each Agent; this is the same, seen from the Agent.

mod plan;
pub(crate) mod wiring;

pub use plan::{View, plan};
