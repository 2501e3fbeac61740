//! The garbage collector: what belonged to something that is gone goes, too.
//!
//! 1. An owner is known by its uid. A new object of the same name is not the owner.
//! 2. A dependent goes when none of its owners exists; that is proved live before it is deleted.
//! 3. While one owner exists, references to others that do not are dropped.
//! 4. An owner that is being deleted exists until it is gone. Owners in a circle keep each other only as long as
//!    nobody deletes one of them.
//! 5. Deleted in the foreground, an owner stays until every dependent that blocks it is gone; dependents that another
//!    owner keeps only lose the reference. Objects that wait for each other in a circle do not block each other.
//! 6. Deleted as `Orphan`, an owner stays until no object names it any more.
//! 7. Both are proved live, over all kinds, before the owner goes.
//! 8. A namespaced owner counts only within its namespace. An owner of a kind that is not served proves nothing, and
//!    the dependent stays.
//!
//! Events have no owners and are left out; the server lets them expire.

mod plan;
pub(crate) mod wiring;

#[cfg(test)]
mod tests;

pub use plan::{Dependent, View, circular, plan};
