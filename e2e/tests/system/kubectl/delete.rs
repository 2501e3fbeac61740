//! delete, in all its ways.

use anyhow::ensure;

use super::{Kubectl, says};

#[tokio::test]
async fn kubectl_deletes_with_every_cascade_and_by_selector() -> anyhow::Result<()> {
    let Some(kubectl) = Kubectl::start().await? else {
        return Ok(());
    };
    for name in ["a", "b", "c", "d", "e"] {
        kubectl.ended_task(name).await?;
    }
    // The word before the hash of a run's name is its task's.
    let runs = || -> anyhow::Result<Vec<String>> {
        let names = kubectl.ok(&["get", "runs", "-o", "jsonpath={.items[*].metadata.name}"])?;
        let task = |name: &str| name.split('-').next().unwrap_or_default().to_owned();
        Ok(names.split_whitespace().map(task).collect())
    };
    ensure!(runs()? == ["a", "b", "c", "d", "e"]);
    kubectl.ok(&["delete", "task", "a", "--cascade=orphan"])?;
    ensure!(runs()? == ["a", "b", "c", "d", "e"], "an orphan was removed");
    kubectl.ok(&["delete", "task", "b", "--cascade=foreground"])?;
    ensure!(
        runs()? == ["a", "c", "d", "e"],
        "foreground returns when dependents are gone"
    );
    kubectl.ok(&["delete", "task", "c", "--cascade=background"])?;
    says(
        &kubectl.ok(&["delete", "tasks", "-l", "team=d"])?,
        &["\"d\" deleted"],
    )?;
    let tried = kubectl.ok(&["delete", "tasks", "--all", "--dry-run=server"])?;
    says(&tried, &["\"e\" deleted", "server dry run"])?;
    says(
        &kubectl.ok(&["get", "tasks", "-o", "name"])?,
        &["task.panda.dev/e"],
    )?;
    kubectl.ok(&["delete", "tasks", "--all"])?;
    ensure!(kubectl.ok(&["get", "tasks", "-o", "name"])?.is_empty());
    kubectl
        .cluster
        .eventually("only the orphan is left", || async {
            runs().ok().filter(|left| left == &["a"])
        })
        .await?;
    Ok(())
}
