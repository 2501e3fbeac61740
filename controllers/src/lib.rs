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
//! | [`framework`] | plans, their one executor, object targets |
//! | [`task`] | Runs of a Task: attempts, retries, deadline, cancellation, acceptance, publication |

pub mod framework;
pub mod task;

#[cfg(test)]
mod testing;
