//! The values that a run names: fetched when they are needed, kept in memory alone, handed to the run's supervisors.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use panda_api::secrets::named_by;
use panda_api::{FailureReason, FileFormat};
use panda_rpc::v1::{GetRunSecretsRequest, RunSecrets};
use tonic::Code;

use super::worker::{Halt, Worker, failed};
use crate::driver::render::escape::escape;
use crate::mask::{MAX_VALUES, Mask};
use crate::supervisor::{Handover, Part, SecretFile, SecretId, SecretUse};

/// Pause before a server that is out of reach is asked again.
const AGAIN: Duration = Duration::from_millis(500);

/// The values of one run. Dropped with its worker.
pub(super) struct Values {
    values: BTreeMap<SecretId, Vec<u8>>,
    /// The run's own; empty when it has none.
    token: String,
    pub(super) mask: Mask,
}

impl std::fmt::Debug for Values {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Values").finish_non_exhaustive()
    }
}

impl Values {
    fn new(answer: RunSecrets) -> Self {
        let mut values = BTreeMap::new();
        for value in answer.values {
            let id = SecretId {
                name: value.name,
                key: value.key,
            };
            values.insert(id, value.value);
        }
        Self {
            mask: Mask::new(masked(&values, &answer.token)),
            values,
            token: answer.token,
        }
    }

    fn size(&self) -> usize {
        masked(&self.values, &self.token).map(<[u8]>::len).sum()
    }

    fn get(&self, id: &SecretId) -> Result<&[u8], String> {
        let found = self.values.get(id).map(Vec::as_slice);
        found.ok_or_else(|| format!("{} does not exist; create it, or change the reference", say(id)))
    }

    fn text(&self, id: &SecretId) -> Result<&str, String> {
        let text = std::str::from_utf8(self.get(id)?)
            .ok()
            .filter(|text| !text.contains('\0'));
        text.ok_or_else(|| {
            format!(
                "{} is not text, and so can be neither a variable nor a part of a file",
                say(id)
            )
        })
    }

    /// What a supervisor is given: what the job uses, and everything that must not be printed.
    pub(super) fn handover(&self, wanted: &SecretUse) -> Result<Handover, String> {
        let file = |file: &SecretFile| {
            let mut content = String::new();
            for part in &file.parts {
                match part {
                    Part::Text(text) => content.push_str(text),
                    // A key that was made out of a file ends with that file's line break, which is none of it.
                    Part::Secret(id, FileFormat::Raw) => content.push_str(self.text(id)?.trim_end()),
                    Part::Secret(id, format) => content.push_str(&escape(self.text(id)?.trim_end(), *format)),
                }
            }
            Ok((file.path.clone(), file.mode, content))
        };
        let var = |(name, id): &(String, SecretId)| Ok((name.clone(), self.text(id)?.to_owned()));
        Ok(Handover {
            env: wanted.env.iter().map(var).collect::<Result<_, String>>()?,
            files: wanted.files.iter().map(file).collect::<Result<_, String>>()?,
            token: wanted
                .api
                .as_ref()
                .map(|_| self.token.clone())
                .unwrap_or_default(),
            masked: masked(&self.values, &self.token).map(<[u8]>::to_vec).collect(),
        })
    }
}

/// What must not stand in any output.
fn masked<'a>(values: &'a BTreeMap<SecretId, Vec<u8>>, token: &'a str) -> impl Iterator<Item = &'a [u8]> {
    let token = Some(token.as_bytes()).filter(|token| !token.is_empty());
    values.values().map(Vec::as_slice).chain(token)
}

fn say(id: &SecretId) -> String {
    format!("key {:?} of Secret {:?}", id.key, id.name)
}

impl Worker {
    /// Whether the run has anything to keep to itself.
    pub(super) fn has_secrets(&self) -> bool {
        let spec = &self.record.run.spec;
        spec.api_access == Some(true) || !named_by(spec).is_empty()
    }

    /// Has the values in memory, asking the server for them if need be, however long that takes.
    pub(super) async fn load_secrets(&mut self) -> Result<(), Halt> {
        if self.values.is_some() || !self.has_secrets() {
            return Ok(());
        }
        let values = Values::new(self.guarded(self.ask_for_secrets()).await??);
        if values.size() > MAX_VALUES {
            let why = format!(
                "the values of Secrets that the run names are larger than {MAX_VALUES} bytes in all, which is more than can be masked"
            );
            return Err(Halt::End(failed(FailureReason::SecretUnavailable, why)));
        }
        self.logs.mask_with(values.mask.clone());
        self.values = Some(values);
        Ok(())
    }

    async fn ask_for_secrets(&self) -> Result<RunSecrets, Halt> {
        let mut client = self.env.client.clone();
        loop {
            let open = client
                .wait_for(Option::is_some)
                .await
                .ok()
                .and_then(|c| c.clone());
            let Some(mut open) = open else {
                return Err(Halt::Trouble(io::Error::other("the session's task is gone")));
            };
            let request = GetRunSecretsRequest {
                fence: Some(self.fence.clone()),
            };
            let status = match open.get_run_secrets(request).await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => status,
            };
            let reason = match status.code() {
                // The run is not this device's any more.
                Code::FailedPrecondition => FailureReason::DeviceLost,
                Code::PermissionDenied | Code::Unimplemented => FailureReason::SecretUnavailable,
                _ => {
                    tracing::debug!(
                        run = self.uid(),
                        why = status.message(),
                        "secrets are asked for again"
                    );
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
            };
            let why = format!("the values of Secrets were refused: {}", status.message());
            return Err(Halt::End(failed(reason, why)));
        }
    }

    /// What the supervisor of a job is given; none when the job uses no Secrets.
    pub(super) async fn handover(&mut self, wanted: Option<&SecretUse>) -> Result<Option<Handover>, Halt> {
        let Some(wanted) = wanted else {
            return Ok(None);
        };
        self.load_secrets().await?;
        let Some(values) = &self.values else {
            return Ok(Some(Handover::default()));
        };
        let handover = values.handover(wanted);
        handover
            .map(Some)
            .map_err(|why| Halt::End(failed(FailureReason::SecretUnavailable, why)))
    }

    /// The mask of the run, as far as the values are known.
    pub(super) fn mask(&self) -> Mask {
        self.values
            .as_ref()
            .map(|values| values.mask.clone())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use panda_rpc::v1::SecretValue;

    use super::*;

    fn values() -> Values {
        let value = |name: &str, value: &[u8]| SecretValue {
            name: name.into(),
            key: "k".into(),
            value: value.to_vec(),
        };
        Values::new(RunSecrets {
            values: vec![value("gh", b"hunter\"22\n"), value("raw", b"\xff\xfe12345678")],
            ..RunSecrets::default()
        })
    }

    fn id(name: &str) -> SecretId {
        SecretId {
            name: name.into(),
            key: "k".into(),
        }
    }

    #[test]
    fn a_job_gets_what_it_uses_and_masks_everything() {
        let values = values();
        let wanted = SecretUse {
            env: vec![("T".into(), id("gh"))],
            files: vec![SecretFile {
                path: "a.json".into(),
                mode: 0o600,
                parts: vec![
                    Part::Text("{\"k\": \"".into()),
                    Part::Secret(id("gh"), FileFormat::Json),
                    Part::Text("\"}".into()),
                ],
            }],
            ..SecretUse::default()
        };
        let handover = values.handover(&wanted).unwrap();
        assert_eq!(handover.env, [("T".to_owned(), "hunter\"22\n".to_owned())]);
        assert_eq!(handover.files[0].2, r#"{"k": "hunter\"22"}"#);
        assert_eq!(handover.masked.len(), 2);
        assert_eq!(values.mask.text(r#"hunter"22"#), "[masked]");
    }

    #[test]
    fn what_is_missing_or_no_text_is_named_and_never_shown() {
        let env = |name: &str| SecretUse {
            env: vec![("T".into(), id(name))],
            ..SecretUse::default()
        };
        let missing = values().handover(&env("other")).unwrap_err();
        assert!(
            missing.starts_with(r#"key "k" of Secret "other" does not exist"#),
            "{missing}"
        );
        let binary = values().handover(&env("raw")).unwrap_err();
        assert!(
            binary.contains("is not text") && !binary.contains("12345678"),
            "{binary}"
        );
        assert!(!format!("{:?}", values()).contains("hunter"));
    }
}
