//! The controllers: they watch what is wanted and what is, and make the second follow the first.
//!
//! Every controller is a pure function `plan(view, object, now) -> Plan` and a thin wiring that builds the view
//! from informer caches; one executor ([`framework::execute`]) turns a plan into API calls. A planner has no clock,
//! no I/O, no randomness and ordered maps only, so a plan depends on its arguments alone.
//!
//! This crate may depend on `panda-api` and `panda-client`, never on the store, the API server or the agentlet: it
//! is a client like any other.
//!
//! | module | what it does |
//! |---|---|
//! | [`config`] | the configuration file of `panda-controllers`
//! | [`framework`] | plans, their one executor, object targets |
//! | [`manager`] | all controllers over one client: start here |
//! | [`device`] | whether a Device is Ready, by its heartbeat; runs of one that is out of reach |
//! | [`gc`] | dependents of what is gone |
//! | [`gitsource`] | repositories of manifests that are kept applied |
//! | [`namespace`] | emptying Namespaces that are being deleted |
//! | [`scheduler`] | which device makes a Run: filters, scores, bindings |
//! | [`taint`] | Runs that leave a device because of a `NoExecute` taint |
//! | [`task`] | Runs of a Task: attempts, retries, deadline, cancellation, acceptance, publication |

pub mod agent;
pub mod config;
pub mod device;
pub mod framework;
pub mod gc;
pub mod gitsource;
pub mod manager;
pub mod namespace;
pub mod scheduler;
pub mod taint;
pub mod task;

pub use config::ControllersConfiguration;
pub use manager::Manager;

#[cfg(test)]
mod testing;
