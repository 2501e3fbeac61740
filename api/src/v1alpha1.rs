//! `panda.dev/v1alpha1`.

mod agent;
mod device;
mod run;
mod shared;
mod task;

pub use agent::*;
pub use device::*;
pub use run::*;
pub use shared::*;
pub use task::*;
