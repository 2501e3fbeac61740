//! What is true of values of Secrets wherever they go: which can be masked, and which a Run names.
//!
//! Server, command line and devices must agree on both, so they stand here.

use std::collections::BTreeSet;
use std::fmt;

use crate::v1alpha1::{EnvVar, FailureReason, RunPhase, RunSpec, SecretKeyRef};

/// Shorter values stand in too many innocent texts to be masked there.
pub const MIN_MASKED: usize = 8;
/// Fewer different bytes than this make a pattern, not a secret.
const MIN_DISTINCT: usize = 4;
/// Words that people put where a secret belongs. Masking them would make nonsense of every log.
const COMMON: &[&str] = &[
    "administrator",
    "anonymous",
    "application",
    "authorization",
    "changeit",
    "changeme",
    "changeme1",
    "changeme123",
    "configuration",
    "container",
    "credential",
    "credentials",
    "database",
    "default-value",
    "developer",
    "development",
    "disabled",
    "environment",
    "example.com",
    "example-secret",
    "firstoutput",
    "kubernetes",
    "landlock",
    "letmein1",
    "letmein123",
    "localhost",
    "localhost:8080",
    "mountnamespace",
    "nonewprivileges",
    "not-set!",
    "noterminal",
    "passw0rd",
    "password",
    "password1",
    "password12",
    "password123",
    "password1234",
    "placeholder",
    "postgres",
    "postgresql",
    "production",
    "qwertyui",
    "qwertyuiop",
    "replaceme",
    "repository",
    "secret-key",
    "secretkey",
    "security",
    "signalscope",
    "stoprequested",
    "superuser",
    "toolcall",
    "undefined",
    "unlimited",
    "username",
    "welcome1",
    "welcome123",
    "workspace",
    "12345678",
    "123456789",
    "1234567890",
    "0123456789",
    "0123456789abcdef",
];

/// Why a value is not masked in what leaves a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weakness {
    /// Shorter than [`MIN_MASKED`] bytes.
    Short,
    /// A common word.
    Common,
    /// Hardly any different bytes.
    Uniform,
}

impl fmt::Display for Weakness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => write!(f, "it is shorter than {MIN_MASKED} bytes"),
            Self::Common => f.write_str("it is a common word"),
            Self::Uniform => write!(f, "it has fewer than {MIN_DISTINCT} different characters"),
        }
    }
}

/// Why `value` is not masked where it turns up; none when it is.
#[must_use]
pub fn weakness(value: &[u8]) -> Option<Weakness> {
    let value = value.trim_ascii();
    if value.len() < MIN_MASKED {
        return Some(Weakness::Short);
    }
    if value.iter().collect::<BTreeSet<_>>().len() < MIN_DISTINCT {
        return Some(Weakness::Uniform);
    }
    let common = COMMON
        .iter()
        .any(|word| value.eq_ignore_ascii_case(word.as_bytes()));
    let text = String::from_utf8_lossy(value);
    let of_ours = serde_json::from_value::<FailureReason>(text.clone().into()).is_ok()
        || serde_json::from_value::<RunPhase>(text.into()).is_ok();
    (common || of_ours).then_some(Weakness::Common)
}

/// Every key of a Secret that a Run's frozen spec names, once. The server gives a device no others.
#[must_use]
pub fn named_by(spec: &RunSpec) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    let mut add = |reference: Option<&SecretKeyRef>| {
        if let Some(reference) = reference.filter(|r| !r.name.is_empty()) {
            found.insert((reference.name.clone(), reference.key.clone()));
        }
    };
    let mut env = |vars: &[EnvVar]| vars.iter().for_each(|var| add(var.secret_key_ref()));
    env(&spec.env);
    if let Some(agent) = &spec.agent_spec {
        env(&agent.env);
        agent.drivers.iter().for_each(|driver| env(&driver.env));
        agent.permissions.values().for_each(|level| env(&level.env));
        add(agent.credential().and_then(|c| c.secret_key_ref.as_ref()));
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn short_common_and_uniform_values_are_weak() {
        for (value, weak) in [
            ("", Some(Weakness::Short)),
            ("abcd", Some(Weakness::Short)),
            ("  abcd   \n", Some(Weakness::Short)),
            ("Production", Some(Weakness::Common)),
            ("password\n", Some(Weakness::Common)),
            ("Succeeded", Some(Weakness::Common)),
            ("ababababab", Some(Weakness::Uniform)),
            (r#"s3cr3t-"quoted""#, None),
            ("hunter22", None),
        ] {
            assert_eq!(weakness(value.as_bytes()), weak, "{value:?}");
        }
    }

    #[test]
    fn every_place_that_can_name_a_secret_is_found() {
        let var =
            |name: &str| json!([{"name": "X", "valueFrom": {"secretKeyRef": {"name": name, "key": "k"}}}]);
        let spec: RunSpec = serde_json::from_value(json!({
            "env": var("task"),
            "agentSpec": {
                "env": var("agent"), "drivers": [{"env": var("driver")}, {"env": var("agent")}],
                "permissions": {"all": {"env": var("level")}},
                "models": {"endpoint": {"credential": {"secretKeyRef": {"name": "model", "key": "k"}, "env": "K"}}},
            },
        }))
        .unwrap();
        let names: Vec<String> = named_by(&spec).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["agent", "driver", "level", "model", "task"]);
        let unset: RunSpec = serde_json::from_value(
            json!({"agentSpec": {"models": {"endpoint": {"credential": {"secretKeyRef": {"name": "", "key": ""}}}}}}),
        )
        .unwrap();
        assert!(named_by(&unset).is_empty());
    }
}
