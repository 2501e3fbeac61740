//! One file a command.

pub mod api_resources;
pub mod apply;
pub mod delete;
pub mod get;
pub mod version;
pub mod wait;
