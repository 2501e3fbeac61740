//! The real program against a real server in this process.

#![cfg(feature = "up")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod apply;
mod audit;
mod backup;
mod change;
mod diff;
mod get;
mod harness;
mod help;
mod logs;
mod objects;
mod repository;
mod streams;
