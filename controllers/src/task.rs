//! The task controller: attempts, retries, deadline, cancellation, acceptance, publication.
//!
//! What it promises, whatever is stale, lost or cut short (the property test in `tests` holds it to this):
//!
//! 1. At most one attempt of a Task is live. An attempt's number and name are written to the status before its Run
//!    is made; the next number is taken only once the Run of the former one is terminal or proved absent live.
//! 2. A retry collides with itself: the Run's name derives from the task's uid and the attempt's number.
//! 3. Counters and the time of the next attempt are durable before the attempt they speak of.
//! 4. A failure counts once: the Run is booked in the same write that raises the counter.
//! 5. Nothing is started after `cancel`, while `suspend`, or when it cannot fit the deadline.
//! 6. A result is accepted by one write that needs `acceptedRun` empty, the Run's `rerun` current, `cancel` false.
//! 7. Success needs every check passed, whatever the Run says of itself.
//!
//! Deadline: it bounds attempts and waiting for them. Publication of an accepted result and a result in Review are
//! past it: nothing works there any more, and ending them would only throw a result away.

mod announced;
mod attempt;
mod candidates;
mod deadline;
mod failure;
mod observe;
mod plan;
mod result;
mod retry;
mod usage;
mod view;
pub(crate) mod wiring;

#[cfg(test)]
mod tests;

pub use announced::Announced;
pub use attempt::run_name;
pub use plan::plan;
pub use view::View;
