//! Taints with effect `NoExecute`: live Runs that do not tolerate one leave the device.
//!
//! A Run is evicted, which ends it through its device; its Task then goes on elsewhere without spending a retry. A Run
//! that is being published stays: its result is accepted, and only this device has it.

mod plan;
pub(crate) mod wiring;

#[cfg(test)]
mod tests;

pub use plan::{View, plan};
