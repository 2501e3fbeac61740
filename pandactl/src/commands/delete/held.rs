//! What waits for a device to end it.

use std::time::Duration;

use panda_api::{DEVICE_FINALIZER, Run, TASK_UID};
use panda_client::Api;
use panda_client::params::ListParams;
use serde_json::Value;
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::session::Session;

/// How long the runs of a deleted Task are waited for when no time was given.
const COURTESY: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(300);
const HINT: &str =
    "a device that stays away loses its runs once it is certain that nothing of them works any more";

/// A Task that was deleted.
#[derive(Clone, Debug)]
pub(super) struct Deleted {
    pub(super) namespace: String,
    pub(super) uid: String,
}

/// What is said of a live object that stays because of its device.
pub(super) fn note(live: &Value) -> Option<String> {
    let meta = &live["metadata"];
    let held = meta["finalizers"]
        .as_array()
        .is_some_and(|list| list.iter().any(|name| name == DEVICE_FINALIZER));
    let device = live["spec"]["deviceName"].as_str()?;
    held.then(|| {
        let name = meta["name"].as_str().unwrap_or_default();
        format!("run {name} waits for device {device} to end it; --wait=false does not")
    })
}

/// Waits until the runs of deleted Tasks have ended on their devices, and says so. Without a deadline it gives up after
/// a while: the Tasks are gone, and the runs end without anybody watching.
pub(super) async fn wait(
    tasks: &[Deleted],
    deadline: Option<Instant>,
    session: &mut Session<'_>,
) -> Result<()> {
    if tasks.is_empty() {
        return Ok(());
    }
    let end = deadline.unwrap_or_else(|| Instant::now() + COURTESY);
    let client = session.client()?;
    let mut told = false;
    for task in tasks {
        let runs: Api<Run> = Api::namespaced(client.clone(), &task.namespace);
        let params = ListParams {
            label_selector: Some(format!("{TASK_UID}={}", task.uid)),
            ..ListParams::default()
        };
        loop {
            // Who may delete Tasks need not be allowed to read Runs.
            let Ok(list) = runs.list_all(&params).await else {
                break;
            };
            let Some(run) = list.items.into_iter().find(|run| run.metadata.is_on_device()) else {
                break;
            };
            let (name, device) = (&run.metadata.name, &run.spec.device_name);
            if !told {
                told = true;
                session.note(&format!("waiting for device {device} to end run {name}"));
            }
            if Instant::now() >= end {
                let text = format!("device {device} has not ended run {name} yet");
                if deadline.is_some() {
                    return Err(Error::user(format!("timed out: {text}")).hint(HINT));
                }
                session.note(&format!("{text}; it is not waited for any longer. {HINT}"));
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_its_device_holds_is_told_of() {
        let mut run = json!({
            "metadata": {"name": "a-1", "finalizers": ["x/y", DEVICE_FINALIZER]},
            "spec": {"deviceName": "pi"},
        });
        assert!(note(&run).is_some_and(|text| text.contains("a-1") && text.contains("device pi")));
        run["metadata"]["finalizers"] = json!(["x/y"]);
        assert_eq!(note(&run), None);
        assert_eq!(note(&json!({})), None);
    }
}
