//! A repository that no device has, as after a slip of the pen.

use std::process::Command;

use anyhow::ensure;
use panda_api::{FailureReason, RefusalReason, TaskPhase};
use panda_e2e::cluster::Cluster;
use serde_json::{Value, json};

use super::{once, runs, start};
use crate::support::ended;

#[tokio::test]
async fn a_task_for_a_repository_that_nobody_has_fails_at_once_and_can_be_retried() -> anyhow::Result<()> {
    let cluster = Cluster::start(&[]).await?;
    let path = cluster.dir().join("home/wbe");
    let more = json!({"workspace": {"git": {"path": path}}});
    start(&cluster, "slip", &["fakeagent", "--say", "up"], Value::Null, more)?;
    let task = ended(&cluster, "slip").await?;
    assert_eq!(task.status.phase, Some(TaskPhase::Failed), "{:#?}", task.status);
    let failure = task.status.failure.clone().unwrap_or_default();
    assert_eq!(failure.reason, FailureReason::WorkspaceFailed);
    assert_eq!(failure.refusal, Some(RefusalReason::RepositoryAbsent));
    assert_eq!(
        runs(&cluster, &task).await?.len(),
        2,
        "one asked, one found nobody left"
    );
    for command in ["describe", "explain-wait"] {
        let text = cluster.ok(&[command, "task/slip"])?;
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(words.contains("has the repository"), "{command}:\n{text}");
    }

    // Once it is there, a retry asks the device again without delay.
    for args in [
        &["init", "-q"][..],
        &[
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@localhost",
            "commit",
            "-q",
            "--allow-empty",
            "-m",
            "new",
        ],
    ] {
        std::fs::create_dir_all(&path)?;
        let done = Command::new("git").args(args).current_dir(&path).status()?;
        ensure!(done.success());
    }
    cluster.ok(&["retry", "task/slip"])?;
    let task = once(&cluster, "slip", |task| {
        task.status.rerun == Some(1) && task.status.phase.is_some_and(TaskPhase::is_terminal)
    })
    .await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Succeeded),
        "{:#?}",
        task.status
    );
    Ok(())
}
