//! End-to-end tests: the harness, a scripted model server, and what only makes sense over everything together.
//!
//! May depend on every crate; nothing depends on it.
//!
//! | module | holds |
//! |---|---|
//! | [`checker`] | what supervisors journalled: did any task run twice at a time? |
//! | [`cluster`] | a real `pandactl up`, killed and started at will |
//! | [`model_server`] | a model on loopback that follows a script |

pub mod checker;
pub mod cluster;
pub mod model_server;
