//! What several tests need.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use panda_api::{Task, TaskPhase};
use panda_client::Api;
use panda_e2e::cluster::{Cluster, PATIENCE};

/// The workspace's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("e2e lies in the workspace")
        .to_owned()
}

/// The example repository, committed, in a folder of the cluster.
pub(crate) fn example_repository(cluster: &Cluster, name: &str) -> anyhow::Result<PathBuf> {
    let target = cluster.dir().join("home").join(name);
    copy(&root().join("examples/first-task/repo"), &target)?;
    git(&target, &["init", "--quiet", "--initial-branch=main"])?;
    git(&target, &["add", "--all"])?;
    let identity = [
        "-c",
        "user.name=Example",
        "-c",
        "user.email=example@example.invalid",
    ];
    git(
        &target,
        &[&identity[..], &["commit", "--quiet", "--message", "leap years"]].concat(),
    )?;
    Ok(target)
}

/// The standard output of git, which must succeed.
pub(crate) fn git(folder: &Path, args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git")
        .args(args)
        .current_dir(folder)
        .env_remove("GIT_DIR")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()?;
    ensure!(
        output.status.success(),
        "git {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// A manifest in a file of the cluster, applied.
pub(crate) fn apply(cluster: &Cluster, name: &str, manifest: &str) -> anyhow::Result<String> {
    let path = cluster.dir().join(name);
    std::fs::write(&path, manifest)?;
    cluster.ok(&["apply", "-f", path.to_str().context("UTF-8")?])
}

/// An Agent that runs `fakeagent` with these arguments.
pub(crate) fn fake_agent(name: &str, args: &[&str]) -> String {
    let command: Vec<&str> = std::iter::once("fakeagent").chain(args.iter().copied()).collect();
    serde_json::json!({
        "apiVersion": "panda.dev/v1alpha1",
        "kind": "Agent",
        "metadata": {"name": name},
        "spec": {"capabilities": ["shell"], "drivers": [{"kind": "Exec", "command": command}]},
    })
    .to_string()
}

/// The task once it has ended (or waits for review).
pub(crate) async fn ended(cluster: &Cluster, name: &str) -> anyhow::Result<Task> {
    ended_within(cluster, name, PATIENCE).await
}

/// The same with a patience of its own.
pub(crate) async fn ended_within(cluster: &Cluster, name: &str, patience: Duration) -> anyhow::Result<Task> {
    let api: Api<Task> = Api::namespaced(cluster.client()?, "default");
    cluster
        .within(patience, &format!("task {name} ends"), || async {
            let task = api.get(name).await.ok()?;
            let over = |phase: TaskPhase| phase.is_terminal() || phase == TaskPhase::Review;
            task.status.phase.is_some_and(over).then_some(task)
        })
        .await
}
