//! Taking a run away from a device that is out of reach.
//!
//! 1. What counts is when *this observer* last saw the Run's Lease renewed, on its own monotonic clock. An observer
//!    that has just started has seen nothing, so it waits the whole bound first.
//! 2. Once the bound ([`Lost::bound`]) has passed, the Lease is taken by compare-and-swap: holder emptied,
//!    `leaseTransitions` one more. A renewal is checked against the same record, so one of the two fails.
//! 3. Then the Run becomes `Lost`, on the condition that it still is what the bound was computed for. A crash between
//!    the two leaves a taken Lease and a live Run: no report of the device counts any more, and the next observer
//!    waits the whole bound again before it finishes the work.
//! 4. The finalizer `panda.dev/device` stands on Run and Lease while something of the run may be alive. The server takes
//!    both away with the device's last report, taking the Lease takes away that of the Lease, and a Run that has ended
//!    loses its own once its Lease has none.
//! 5. A Lease whose Run is gone (somebody took the finalizer away) is taken after the bound as well. Until then no other
//!    run of its Task is bound.

mod plan;
pub(crate) mod wiring;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use plan::{Renewal, View, plan, plan_lease};
