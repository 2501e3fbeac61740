//! The values that a Run names, for the device that it is bound to and for nobody else.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use panda_api::secrets::named_by;
use panda_api::{Run, Secret};
use panda_rpc::v1::{RunSecrets, SecretKey, SecretValue};
use tonic::Status;

use super::Agentlets;

impl Agentlets {
    /// What the frozen spec of `run` names. The caller has gone through [`Agentlets::live_run`].
    pub(super) async fn secrets(&self, run: &Run) -> Result<RunSecrets, Status> {
        let namespace = &run.metadata.namespace;
        let mut answer = RunSecrets::default();
        let mut read: BTreeMap<String, Option<Secret>> = BTreeMap::new();
        for (name, key) in named_by(&run.spec) {
            if !read.contains_key(&name) {
                let secret = self.registry.get_as::<Secret>(namespace, &name).await;
                // A message of the registry may name what is wrong with an object, and so repeat it.
                let secret =
                    secret.map_err(|_| Status::unavailable(format!("Secret {name:?} cannot be read now")))?;
                read.insert(name.clone(), secret);
            }
            let value = read[&name].as_ref().and_then(|secret| secret.data.get(&key));
            match value.and_then(|value| STANDARD.decode(value).ok()) {
                Some(value) => answer.values.push(SecretValue { name, key, value }),
                None => answer.missing.push(SecretKey { name, key }),
            }
        }
        if run.spec.api_access == Some(true) {
            answer.token = self.run_tokens.mint(run);
        }
        Ok(answer)
    }
}
