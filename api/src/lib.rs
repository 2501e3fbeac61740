//! Every kind that Panda's API serves, and the types they share.
//!
//! This crate has no I/O and no runtime: it may depend on no other crate of the workspace.
//!
//! | module | holds |
//! |---|---|
//! | [`apply_set`] | sets of objects that are applied and pruned together, and the guard of every prune |
//! | [`meta`] | object metadata, conditions, selectors, `Status`, time, quantities, clocks and ids |
//! | [`logline`] | the framing of a run's log, and its text for people |
//! | [`resource`] | the [`Resource`] trait and the macro that defines a kind |
//! | [`v1alpha1`] | `panda.dev/v1alpha1`: Task, Run, Agent, Device |
//! | [`core`] | `v1`: Namespace, Secret, ConfigMap, Event |
//! | [`rbac`] | `rbac.authorization.k8s.io/v1`: roles and bindings |
//! | [`access`] | ServiceAccount, TokenRequest, and the reviews of `authentication` and `authorization.k8s.io/v1` |
//! | [`events`] | `events.k8s.io/v1`: Event, another form of that of `v1` |
//! | [`coordination`] | `coordination.k8s.io/v1`: Lease |
//! | [`admission`] | `admissionregistration.k8s.io/v1` policies, and quotas |
//! | [`cel`] | the expressions of policies, bounded |
//! | [`certificates`] | `certificates.k8s.io/v1`: CertificateSigningRequest |
//! | [`component`] | configuration files of components |
//! | [`json`] | a strict reader for untrusted JSON |
//! | [`manifest`] | the reader of YAML and JSON files, and the writer of `-o yaml` |
//! | [`secrets`] | which values of Secrets can be masked, and which a Run names |
//! | [`room`] | what devices have to give, and what Runs take of it |
//! | [`scheme`] | the list of kinds; defaults, validation, schema, columns, field selectors for all of them |
//! | [`validation`] | faults of fields, and the rules of every kind |

pub mod access;
pub mod admission;
pub mod apply_set;
pub mod cel;
pub mod certificates;
pub mod component;
pub mod coordination;
pub mod core;
pub mod events;
pub mod json;
pub mod logline;
pub mod manifest;
pub mod meta;
pub mod rbac;
pub mod resource;
pub mod room;
pub mod scheme;
pub mod secrets;
pub mod v1alpha1;
pub mod validation;

pub use access::ServiceAccount;
pub use admission::{ResourceQuota, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
pub use certificates::CertificateSigningRequest;
pub use coordination::{Lease, LeaseSpec};
pub use rbac::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
pub use resource::Resource;
pub use v1alpha1::*;

pub use crate::core::{
    ConfigMap, Event, EventSeries, EventSource, Namespace, NamespaceSpec, NamespaceStatus, ObjectReference,
    Secret,
};
