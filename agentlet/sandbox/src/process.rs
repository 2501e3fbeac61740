//! Properties of the calling process.

use rustix::process::{DumpableBehavior, getpid, set_child_subreaper, set_dumpable_behavior};

/// Keeps other processes of the same user from reading this one's memory, environment and descriptors.
///
/// # Errors
///
/// What the kernel says.
pub fn make_undumpable() -> std::io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Makes every orphan below this process its child, so that no descendant escapes by a double fork.
///
/// # Errors
///
/// What the kernel says.
pub fn become_subreaper() -> std::io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}
