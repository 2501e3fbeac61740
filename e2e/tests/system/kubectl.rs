//! The kubectl that people have, unmodified.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use panda_e2e::cluster::{Cluster, PATIENCE, tool};

use crate::support::{apply, ended, fake_agent};

const TASK: &str = "{apiVersion: panda.dev/v1alpha1, kind: Task, metadata: {name: hello, labels: {team: a}}, \
                    spec: {prompt: Say hello., agents: [{name: hello}]}}";

fn run(mut command: Command) -> anyhow::Result<String> {
    let output = command.output()?;
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(
        output.status.success(),
        "{command:?} failed ({}):\n{out}\n{err}",
        output.status
    );
    Ok(out.into_owned())
}

#[tokio::test]
async fn kubectl_reads_watches_describes_and_deletes() -> anyhow::Result<()> {
    let Some(kubectl) = tool("kubectl") else {
        return Ok(());
    };
    let cluster = Cluster::start(&[]).await?;
    let kubectl = |args: &[&str]| {
        let mut command = cluster.command(&kubectl);
        command.args(args);
        command
    };
    let resources = run(kubectl(&["api-resources"]))?;
    for (name, kind) in [
        ("tasks", "Task"),
        ("runs", "Run"),
        ("agents", "Agent"),
        ("devices", "Device"),
        ("leases", "Lease"),
    ] {
        ensure!(
            resources
                .lines()
                .any(|l| l.starts_with(name) && l.ends_with(kind)),
            "no {name} in\n{resources}"
        );
    }

    let mut watch = kubectl(&["get", "tasks", "--watch"])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(watch.stdout.take().context("piped")?).lines();
    apply(&cluster, "agent.json", &fake_agent("hello", &["--succeed"]))?;
    apply(&cluster, "task.yaml", TASK)?;
    let task = ended(&cluster, "hello").await?;
    let seen = tokio::time::timeout(
        PATIENCE,
        tokio::task::spawn_blocking(move || {
            let mut seen = String::new();
            for line in lines.by_ref() {
                let Ok(line) = line else { break };
                seen.push_str(&line);
                seen.push('\n');
                if line.starts_with("hello") && line.contains("Succeeded") {
                    break;
                }
            }
            seen
        }),
    )
    .await;
    watch.kill()?;
    watch.wait()?;
    let seen = seen.context("the watch said nothing of the end")??;
    watch.kill()?;
    watch.wait()?;
    ensure!(
        seen.contains("Succeeded"),
        "get -w never said that it succeeded:\n{seen}"
    );

    let table = run(kubectl(&["get", "tasks", "-l", "team=a"]))?;
    ensure!(table.starts_with("NAME"), "{table}");
    ensure!(
        table
            .lines()
            .nth(1)
            .is_some_and(|l| l.starts_with("hello") && l.contains("Succeeded")),
        "{table}"
    );
    let yaml = run(kubectl(&["get", "task", "hello", "-o", "yaml"]))?;
    ensure!(yaml.contains(&format!("uid: {}", task.metadata.uid)), "{yaml}");
    let described = run(kubectl(&["describe", "task", "hello"]))?;
    ensure!(
        described.contains("Name:") && described.contains("Succeeded"),
        "{described}"
    );
    let deleted = run(kubectl(&["delete", "task", "hello"]))?;
    ensure!(deleted.contains("deleted"), "{deleted}");
    let gone = kubectl(&["get", "task", "hello"]).output()?;
    ensure!(
        String::from_utf8_lossy(&gone.stderr).contains("NotFound"),
        "{gone:?}"
    );
    Ok(())
}
