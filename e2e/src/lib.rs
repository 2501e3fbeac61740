//! End-to-end tests: the harness, a scripted model server, and what only makes sense over everything together.
//!
//! May depend on every crate; nothing depends on it.
//!
//! | module | holds |
//! |---|---|
//! | [`model_server`] | a model on loopback that follows a script |

pub mod model_server;
