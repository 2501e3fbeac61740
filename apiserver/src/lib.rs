//! The API server: one TLS port that serves Panda's kinds over the wire of Kubernetes.
//!
//! It must not depend on controllers, the agentlet or the command line; it reaches storage only through the traits
//! of `panda-store`, and kinds only through [`panda_api::scheme`].
//!
//! | module | holds |
//! |---|---|
//! | [`agentlet`] | the service that devices dial; binding, logs and artifacts of runs |
//! | [`server`] | `Config` → [`Server::build`] → [`Server::run`] |
//! | [`audit`] | who wrote what, in a chain of hashes |
//! | [`backup`] | backups of a data folder, and their way back |
//! | [`config`] | the configuration object |
//! | [`registry`] | objects over the store, in process: what every endpoint and service reads and writes through |
//! | [`pki`], [`tls`] | the certificate authority, certificates, kubeconfigs |
//! | [`authn`], [`authz`] | who asks, and what they may do |
//! | [`request`], [`respond`] | what a request is about; answers and failures |
//! | [`patch`] | merge patch and JSON patch |
//! | [`telemetry`] | logs and traces of a process, for binaries |
//! | `certificates` | join tokens, requests for certificates, the signer of devices |
//! | `policy` | ValidatingAdmissionPolicies |
//! | `protobuf` | Kubernetes' protobuf bodies of the kinds that stock clients send so |
//! | `filters` | the chain that every request goes through, as a list |
//! | `endpoints` | the verbs, discovery, OpenAPI, health |
//! | `listener` | the accept loop |
//! | [`pressure`] | a disk that runs full |
//! | `housekeeping` | what ends by itself: old Events |

pub mod agentlet;
pub mod audit;
pub mod authn;
pub mod authz;
pub mod backup;
mod body;
mod certificates;
pub mod config;
pub mod control_plane;
mod endpoints;
mod files;
mod filters;
mod housekeeping;
mod listener;
mod metrics;
mod negotiate;
pub mod patch;
pub mod pki;
mod policy;
pub mod pressure;
mod protobuf;
mod query;
pub mod registry;
pub mod request;
pub mod respond;
pub mod server;
pub mod telemetry;
pub mod tls;

pub use config::Config;
pub use metrics::SharedRegistry;
pub use registry::Registry;
pub use server::{Deps, Server};
