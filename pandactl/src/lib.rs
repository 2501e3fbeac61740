//! The command line of Panda, as a library: `main` gathers the environment and calls [`cli`].
//!
//! It may depend on the API types, the client and the wire of the agentlet service; only the one-process mode
//! (`up`, a feature) may know the server, the controllers and the agentlet. Nothing here reads the environment, the
//! terminal or the clock: they come in as [`io::Io`].
//!
//! | module | holds |
//! |---|---|
//! | [`cli`] | arguments, dispatch, the place where errors are shown |
//! | [`session`] | global flags, streams and the server of one invocation |
//! | [`commands`] | one file a command |
//! | [`apply`] | client-side apply: reading, checking, three-way merge, writing |
//! | [`follow`] | waiting for objects and tasks, across broken connections |
//! | [`output`] | tables, formats, JSONPath, text that is safe on a terminal |
//! | [`git`] | calls of git that run nothing of the repository's |
//! | [`args`], [`error`], [`io`] | targets and durations; errors with hints; streams |

pub mod apply;
pub mod args;
pub mod cli;
pub mod commands;
pub mod error;
pub mod follow;
pub mod git;
pub mod io;
pub mod output;
pub mod session;

#[cfg(feature = "up")]
pub mod up;
