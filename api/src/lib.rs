//! Every kind that Panda's API serves, and the types they share.
//!
//! This crate has no I/O and no runtime: it may depend on no other crate of the workspace.
//!
//! | module | holds |
//! |---|---|
//! | [`meta`] | object metadata, conditions, selectors, `Status`, time, quantities, clocks and ids |
//! | [`logline`] | the framing of a run's log, and its text for people |
//! | [`resource`] | the [`Resource`] trait and the macro that defines a kind |
//! | [`v1alpha1`] | `panda.dev/v1alpha1`: Task, Run, Agent, Device |
//! | [`core`] | `v1`: Namespace, Secret, ConfigMap, Event |
//! | [`coordination`] | `coordination.k8s.io/v1`: Lease |
//! | [`json`] | a strict reader for untrusted JSON |
//! | [`manifest`] | the reader of YAML and JSON files, and the writer of `-o yaml` |
//! | [`scheme`] | the list of kinds; defaults, validation, schema, columns, field selectors for all of them |
//! | [`validation`] | faults of fields, and the rules of every kind |

pub mod coordination;
pub mod core;
pub mod json;
pub mod logline;
pub mod manifest;
pub mod meta;
pub mod resource;
pub mod scheme;
pub mod v1alpha1;
pub mod validation;

pub use coordination::{Lease, LeaseSpec};
pub use resource::Resource;
pub use v1alpha1::*;

pub use crate::core::{
    ConfigMap, Event, EventSource, Namespace, NamespaceSpec, NamespaceStatus, ObjectReference, Secret,
};
