//! Stock clients of other people against a server of ours: kubectl of three ages, Python, JavaScript, Rust.
//!
//! The server runs alone: what a client sees is what the client did, to the event.

#[path = "clients/follow.rs"]
mod follow;
#[path = "clients/kubectl.rs"]
mod kubectl;
#[path = "clients/libraries.rs"]
mod libraries;
#[path = "clients/server.rs"]
mod server;
