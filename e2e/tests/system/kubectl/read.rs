//! get, wait, explain.

use anyhow::ensure;

use super::{Kubectl, says};

#[tokio::test]
async fn kubectl_waits_sorts_and_prints_columns() -> anyhow::Result<()> {
    let Some(kubectl) = Kubectl::start().await? else {
        return Ok(());
    };
    for name in ["b", "a"] {
        let file = kubectl.file("task.yaml", &super::manifest(name, "Say hello."))?;
        kubectl.ok(&["create", "-f", &file])?;
    }
    let met = kubectl.ok(&["wait", "--for=condition=Complete", "task/b", "--timeout=60s"])?;
    says(&met, &["task.panda.dev/b condition met"])?;
    let phase = "--for=jsonpath={.status.phase}=Succeeded";
    let met = kubectl.ok(&["wait", phase, "task/a", "--timeout=60s"])?;
    says(&met, &["task.panda.dev/a condition met"])?;
    let late = kubectl.fails(&["wait", "--for=condition=Failed", "task/a", "--timeout=1s"])?;
    says(&late, &["timed out"])?;

    let names = "custom-columns=NAME:.metadata.name,PHASE:.status.phase";
    let table = kubectl.ok(&["get", "tasks", "--sort-by=.metadata.name", "-o", names])?;
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    ensure!(
        rows == [["NAME", "PHASE"], ["a", "Succeeded"], ["b", "Succeeded"]],
        "{table}"
    );
    let names = kubectl.ok(&["get", "tasks", "-l", "team in (a)", "-o", "name"])?;
    ensure!(names == "task.panda.dev/a\n", "{names}");
    let table = kubectl.ok(&["get", "tasks", "-L", "team", "--show-labels"])?;
    says(&table, &["TEAM", "LABELS", "team=a"])?;
    let mixed = kubectl.ok(&["get", "tasks,agents"])?;
    says(&mixed, &["task.panda.dev/a", "agent.panda.dev/hello"])?;
    Ok(())
}

#[tokio::test]
async fn kubectl_explains_fields() -> anyhow::Result<()> {
    let Some(kubectl) = Kubectl::start().await? else {
        return Ok(());
    };
    let device = kubectl.ok(&["explain", "task.spec.device"])?;
    says(&device, &["Which device may run it.", "tolerations", "selector"])?;
    let all = kubectl.ok(&["explain", "task.spec", "--recursive"])?;
    says(
        &all,
        &["attemptTimeout", "workspace", "tolerations", "matchLabels"],
    )?;
    says(
        &kubectl.fails(&["explain", "task.spec.nonsense"])?,
        &["does not exist"],
    )
}
