//! Messages and stubs of the agentlet service: everything between a device and the control plane.
//!
//! Generated from `proto/agentlet.proto` at build time, without protoc. The bodies that travel as JSON are types of
//! [`panda_api`]; [`report`] holds the status change that a device reports.

pub mod report;

/// `panda.agentlet.v1`.
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::pedantic,
    unused_qualifications,
    reason = "generated code"
)]
pub mod v1 {
    tonic::include_proto!("panda.agentlet.v1");
}
