//! `panda.dev/v1alpha1`.

mod agent;
mod device;
mod git_source;
mod hold;
mod run;
mod shared;
mod task;

pub use agent::*;
pub use device::*;
pub use git_source::*;
pub use hold::*;
pub use run::*;
pub use shared::*;
pub use task::*;
