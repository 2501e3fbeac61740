//! The real program against a real server in this process.

#![cfg(feature = "up")]

mod apply;
mod get;
mod harness;
mod help;
mod logs;
mod objects;
mod repository;
mod streams;
