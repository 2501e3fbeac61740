//! Client of the Panda API and the runtime that controllers are made of.
//!
//! It may depend on `panda-api` only: no server crate, no environment, no home folder, no ambient time or
//! randomness. Transport, wall clock, ids and seeds come in as parameters; waiting uses tokio's clock, so that tests
//! with paused time run in virtual time.
//!
//! Start at [`Client`] (one server) and [`Api`] (one kind); a controller starts at [`runtime`].
//!
//! | module | holds |
//! |---|---|
//! | [`config`] | kubeconfig: reading, writing, resolving a context to a [`Config`] |
//! | [`connector`] | how a byte stream to the server is opened: TLS over TCP, or memory |
//! | [`transport`] | one HTTP exchange; pooled HTTP/1.1 over a connector |
//! | [`client`] | requests with timeouts, safe retries, typed errors |
//! | [`api`] | [`Api`]: verbs of one kind, typed or dynamic |
//! | [`params`] | options of the verbs |
//! | [`resource`] | what a kind is called ([`ApiResource`]), metadata-only objects |
//! | [`watch`] | decoding of lists and watch streams that one bad object cannot break |
//! | [`table`] | tables printed by the server |
//! | [`discovery`] | the kinds of a server, and the words people use for them |
//! | [`dialer`] | the one way by which servers reach addresses that users name |
//! | [`backoff`] | exponential back-off with seeded jitter |
//! | [`fake`] | an API server in memory with scripted faults, for tests |
//! | [`runtime`] | watcher, cache, informer, workqueue, controller, events |

pub mod api;
pub mod backoff;
pub mod client;
pub mod config;
pub mod connector;
pub mod dialer;
pub mod discovery;
pub mod error;
pub mod fake;
pub mod params;
pub mod resource;
pub mod runtime;
pub mod table;
pub mod transport;
pub mod watch;

pub use api::{Api, DynamicApi};
pub use client::{Client, Options};
pub use config::{Config, Identity};
pub use error::Error;
pub use resource::{ApiResource, Object, PartialObject};
