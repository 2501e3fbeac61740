//! Types shared by every kind, in the shapes of `meta.k8s.io/v1`.

mod ambient;
mod duration;
pub mod field_path;
mod object;
pub mod quantity;
pub mod selector;
mod status;
mod time;
mod trace;

pub use ambient::{Clock, IdSource, RandomIds, SystemClock};
pub use duration::{Duration, ParseDurationError};
pub use object::{
    Condition, LabelSelector, LabelSelectorRequirement, List, ListMeta, LocalObjectReference, ObjectMeta,
    OwnerReference, SelectorOperator, TypeMeta, set_condition,
};
pub use quantity::Quantity;
pub use status::{Reason, Status, StatusCause, StatusDetails};
pub use time::{MicroTime, Time};
pub use trace::{TRACEPARENT, is_traceparent, new_traceparent};
