//! Runs from binding to report: a scripted server, real supervisors, a real agent program.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod harness;
#[path = "../../src/testing.rs"]
#[expect(dead_code, reason = "shared with the unit tests")]
mod testing;

mod damage;
mod detect;
mod end;
mod full;
mod git;
mod grants;
mod restart;
mod upgrade;
