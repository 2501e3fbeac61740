//! Every kind, and what is the same for all of them: names, schema, defaults, validation, columns, field selectors.
//!
//! The server, the clients and the printers ask here and hold no list of kinds of their own. Objects pass through as
//! [`serde_json::Value`], so that one code path serves every kind:
//!
//! 1. [`prepare`] takes a decoded body, finds unknown fields and type errors with their full paths, fills in defaults,
//!    carries over what may not change, validates, and answers the canonical object. It is idempotent.
//! 2. [`KindInfo::cells`] gives the row of a table; [`selectable_field`] the values that field selectors see.
//! 3. [`KindInfo::schema`] is the published JSON Schema; it is also what step 1 walks.

mod columns;
mod prepare;
mod registry;
mod schema;
mod shape;

pub use columns::{Column, human_duration};
pub use prepare::{Error, Operation, Prepared, desired_state_changed, prepare, unknown_fields};
pub use registry::{
    KindInfo, by_kind, by_plural, by_word, forms, kinds, of, reviews, selectable_field, served,
};

#[cfg(test)]
mod tests;
