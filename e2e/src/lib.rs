//! End-to-end tests: the harness, a scripted model server, and what only makes sense over everything together.
//!
//! May depend on every crate; nothing depends on it.
//!
//! | module | holds |
//! |---|---|
//! | [`canary`] | looks for values that must be nowhere, in every encoding |
//! | [`checker`] | was anything lost, doubled, left behind? from evidence that the product does not judge |
//! | [`cluster`] | a real `pandactl up`, killed and started at will |
//! | [`dice`] | randomness that a seed gives back |
//! | [`faults`] | everything that is done to a fleet, by name |
//! | [`fleet`] | several machines: servers, controllers and agentlets as processes of their own |
//! | [`link`] | a network link that can be cut, slow or lossy |
//! | [`model_server`] | a model on loopback that follows a script |
//! | [`processes`] | what lives on this machine |
//! | [`recorder`] | everything that the server told a watcher |
//! | [`schedule`] | tasks and faults out of one number, played and judged |

pub mod canary;
pub mod checker;
pub mod cluster;
pub mod dice;
pub mod faults;
pub mod fleet;
pub mod link;
pub mod model_server;
pub mod processes;
pub mod recorder;
pub mod schedule;
