//! The device controller: whether a Device is Ready, and what becomes of the runs of one that is out of reach.
//!
//! A device renews its Lease in `panda-system`. What counts is when *this observer* last saw the Lease change, on its
//! own monotonic clock; the stamps in the Lease are for people, since the clocks of two machines may differ.
//!
//! 1. A Lease that changed within its own duration: `Ready` is `True`.
//! 2. One that has not changed for its duration: `Ready` is `Unknown`, with reason `HeartbeatStopped`.
//! 3. An observer that has just started knows nothing: it changes no verdict before a whole duration has passed, or
//!    the Lease has changed. Only a Device without any verdict is taken for Ready because it has a Lease.
//!
//! | module | holds |
//! |---|---|
//! | `plan`, `wiring` | the verdict about a Device |
//! | `bound` | how long a run of a silent device may be alive |
//! | [`lost`] | taking such a run away |

mod bound;
pub mod lost;
mod plan;
pub(crate) mod wiring;

#[cfg(test)]
mod tests;

pub use bound::Lost;
pub use plan::{Heartbeat, View, plan};
