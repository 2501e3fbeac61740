//! The agents that a new control plane knows from the start.

use panda_api::meta::ObjectMeta;
use panda_api::{Agent, ConfigMap};
use panda_client::params::WriteParams;
use panda_client::{Api, Client};

use super::Error;

/// The shipped manifests, as they are.
pub(super) const AGENTS: &[(&str, &str)] = &[
    (
        "claude-code",
        include_str!("../../../manifests/agents/claude-code.yaml"),
    ),
    ("codex", include_str!("../../../manifests/agents/codex.yaml")),
    ("gemini", include_str!("../../../manifests/agents/gemini.yaml")),
    ("grok", include_str!("../../../manifests/agents/grok.yaml")),
    (
        "opencode",
        include_str!("../../../manifests/agents/opencode.yaml"),
    ),
    ("qwen", include_str!("../../../manifests/agents/qwen.yaml")),
];

/// Says that the catalogue was installed once: what a person deletes stays deleted.
const MARK: &str = "agent-catalogue";
const MARK_NAMESPACE: &str = "panda-system";

/// Creates the agents in namespace `default` of a control plane that has never had them.
pub(super) async fn install(client: &Client) -> Result<(), Error> {
    let marks: Api<ConfigMap> = Api::namespaced(client.clone(), MARK_NAMESPACE);
    if marks.get_opt(MARK).await?.is_some() {
        return Ok(());
    }
    let agents: Api<Agent> = Api::namespaced(client.clone(), "default");
    for (name, text) in AGENTS {
        let agent = match serde_yaml::from_str::<Agent>(text) {
            Ok(agent) => agent,
            Err(error) => {
                tracing::error!(name, %error, "shipped agent cannot be read");
                continue;
            }
        };
        match agents.create(&agent, &WriteParams::default()).await {
            Err(error) if !error.is_already_exists() => return Err(error.into()),
            _ => {}
        }
    }
    let mut mark = ConfigMap {
        metadata: ObjectMeta::namespaced(MARK_NAMESPACE, MARK),
        ..ConfigMap::default()
    };
    mark.data
        .insert("version".into(), env!("CARGO_PKG_VERSION").into());
    match marks.create(&mark, &WriteParams::default()).await {
        Err(error) if !error.is_already_exists() => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_agent_is_valid_and_bears_its_files_name() {
        let kind = panda_api::scheme::of::<Agent>();
        for (name, text) in AGENTS {
            let mut value: serde_json::Value = serde_yaml::from_str(text).unwrap();
            assert_eq!(value["metadata"]["name"], *name);
            value["metadata"]["namespace"] = "default".into();
            let prepared = panda_api::scheme::prepare(kind, value, panda_api::scheme::Operation::Create);
            let prepared = prepared.unwrap_or_else(|error| panic!("{name}: {error:?}"));
            assert!(
                prepared.unknown_fields.is_empty(),
                "{name}: {:?}",
                prepared.unknown_fields
            );
        }
    }
}
