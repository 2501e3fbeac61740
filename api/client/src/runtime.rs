//! What controllers are made of.
//!
//! Data flows one way: [`watcher`] (list and watch, made into one endless stream) → [`store`] (the cache, with one
//! writer) → [`informer`] (the cache shared, with handlers) → [`workqueue`] (keys to look at) → [`controller`]
//! (workers that reconcile one key at a time). [`events`] tells people what happened; [`leader`] lets one of
//! several work at a time.
//!
//! Decisions are synchronous and take the cache as it is; only waiting is async, on tokio's clock.

pub mod controller;
pub mod events;
pub mod informer;
mod key;
pub mod leader;
pub mod metrics;
pub mod store;
pub mod watcher;
pub mod workqueue;

pub use controller::{Controller, Outcome, Request};
pub use events::Recorder;
pub use informer::{Informer, InformerHandle};
pub use key::ObjectRef;
pub use metrics::{Metrics, NoMetrics};
pub use store::{Change, Store};
pub use workqueue::WorkQueue;
