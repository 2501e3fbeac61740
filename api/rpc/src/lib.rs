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

impl std::fmt::Debug for v1::SecretValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretValue")
            .field("name", &self.name)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for v1::RunSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunSecrets")
            .field("values", &self.values)
            .field("missing", &self.missing)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::v1::{RunSecrets, SecretValue};

    #[test]
    fn values_are_never_printed() {
        let secrets = RunSecrets {
            values: vec![SecretValue {
                name: "gh".into(),
                key: "token".into(),
                value: b"hunter22".to_vec(),
            }],
            missing: Vec::new(),
            token: "bearer-1".into(),
        };
        let text = format!("{secrets:?}");
        assert!(text.contains("token"), "{text}");
        assert!(
            !text.contains("hunter22") && !text.contains("104, 117") && !text.contains("bearer-1"),
            "{text}"
        );
    }
}
