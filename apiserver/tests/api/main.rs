//! The server as its clients see it: over TLS on loopback.

#![expect(clippy::unwrap_used, reason = "a test ends where something is missing")]

mod audit;
mod conformance;
mod deleting;
mod dry_run;
mod flow;
mod frame;
mod harness;
mod hostile;
mod identity;
mod join;
mod listing;
mod policy;
mod property;
mod quota;
mod refusals;
mod secrets;
mod smoke;
mod verbs;
mod watching;
