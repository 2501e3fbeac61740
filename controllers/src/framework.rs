//! What all controllers share: a [`Plan`] and the one way to carry it out.

mod client;
pub mod execute;
mod plan;
mod refusals;
mod runner;
mod target;
mod text;

pub use client::ClientApi;
pub(crate) use client::{resource, translate};
pub use panda_client::runtime::events::Severity;
pub(crate) use plan::to_value;
pub use plan::{Action, Basis, Check, Notice, Plan};
pub(crate) use refusals::since;
pub use runner::Runner;
pub use target::{KINDS, Kind, Target};
pub use text::{cut, fraction, short_hash};
