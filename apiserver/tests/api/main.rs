//! The server as its clients see it: over TLS on loopback.

mod deleting;
mod harness;
mod hostile;
mod listing;
mod property;
mod refusals;
mod secrets;
mod smoke;
mod verbs;
mod watching;
