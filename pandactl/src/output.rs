//! How objects are shown.

pub mod format;
pub mod jsonpath;
pub mod table;
pub mod text;
