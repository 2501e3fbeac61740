//! The server as its clients see it: over TLS on loopback.

mod harness;
mod smoke;
