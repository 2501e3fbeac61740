//! The agentlet service over TLS and a real store: what a device may still say once things have moved on.

#![expect(clippy::unwrap_used, reason = "a test ends where something is missing")]

mod binding;
mod deleting;
mod devices;
mod harness;
mod leases;
mod past;
mod restored;
mod returns;
mod secrets;
mod snapshot;
