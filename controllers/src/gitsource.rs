//! GitSources: repositories of manifests that are kept applied.
//!
//! 1. The repository is fetched with git into a folder of its own ([`git`]), over a proxy on the loopback interface
//!    ([`proxy`]) that resolves, checks and dials by the one rule of [`panda_client::dialer`]. Nothing is ever checked out.
//! 2. Manifests are read out of git's objects, bounded ([`manifests`]).
//! 3. [`plan`] decides, purely: what is applied, what belongs to somebody else, what is removed, what is kept.
//! 4. It is done as the ServiceAccount that the source names ([`sync`]), by impersonation: this process's own rights are used
//!    for the source itself and nothing else.
//! 5. [`status`] says what came of it.

pub mod git;
pub mod manifests;
pub mod plan;
pub mod proxy;
pub mod status;
pub(crate) mod sync;
pub(crate) mod wiring;

pub use git::Settings;

#[cfg(test)]
mod tests;
