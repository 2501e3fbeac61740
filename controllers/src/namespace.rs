//! The namespace controller: empties a Namespace that is being deleted, then lets it go.
//!
//! 1. Only a Namespace with a deletion timestamp is touched.
//! 2. Everything in it is deleted; what has finalizers is waited for.
//! 3. The finalizer `kubernetes` is taken off only when a live look at every kind found nothing.

mod plan;
pub(crate) mod wiring;

#[cfg(test)]
mod tests;

pub use plan::{Item, View, plan};
