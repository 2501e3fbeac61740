//! One file a command.

pub mod api_resources;
pub mod apply;
pub mod completion;
pub mod config;
pub mod cordon;
pub mod create;
pub mod delete;
pub mod describe;
pub mod events;
pub mod explain_wait;
pub mod get;
pub mod logs;
pub mod metadata;
pub mod result;
pub mod task_verbs;
#[cfg(feature = "up")]
pub mod up;
pub mod version;
pub mod wait;
