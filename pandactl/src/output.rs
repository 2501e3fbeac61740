//! How objects are shown.

pub mod diff;
pub mod format;
pub mod jsonpath;
pub mod table;
pub mod text;
