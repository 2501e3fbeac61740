//! The scheduler: which device makes a Run.
//!
//! One round looks at all unbound Runs, the most urgent first, and binds each to the best of the devices that pass
//! every filter. A device that does not pass gives its reason, in a word that programs can read and a sentence for
//! people; they stand in the Run's status, each with the time since when it has stood.
//!
//! 1. A round is pure: the same view gives the same bindings.
//! 2. Runs bound a moment ago count, whether or not the cache shows it yet; so two quick rounds never overbook.
//! 3. Binding is a compare-and-swap of the server: a Run is bound once.
//! 4. What does not change is not written.
//! 5. Urgency is `priority` plus one for each minute of waiting, so nothing waits for ever behind more important work;
//!    a Run that has starved for resources gets a device held free for it.
//! 6. What no device has is said at once: see `absent`.

mod absent;
mod load;
mod memory;
mod plan;
mod plugins;
mod score;
pub(crate) mod wiring;

#[cfg(test)]
mod tests;

pub use plan::{View, plan};
pub(crate) use plugins::tolerates;
