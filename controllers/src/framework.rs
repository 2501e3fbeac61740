//! What all controllers share: a [`Plan`] and the one way to carry it out.

pub mod execute;
mod plan;
mod target;
mod text;

pub(crate) use plan::to_value;
pub use plan::{Action, Basis, Check, Notice, Plan, Severity};
pub use target::{KINDS, Kind, Target};
pub use text::{cut, fraction, short_hash};
