//! kill -9 of the whole control plane, again and again: every task ends once, nothing runs twice, nothing is left.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, ensure};
use panda_api::{Run, RunPhase, Task, TaskPhase};
use panda_client::Api;
use panda_client::params::ListParams;
use panda_e2e::checker;
use panda_e2e::cluster::Cluster;
use panda_e2e::dice::{Dice, seed_or};
use serde_json::json;

use crate::support::{apply, ended, fake_agent};

const TASKS: usize = 50;
const KILLS: usize = 20;

#[tokio::test]
async fn twenty_kills_during_fifty_tasks_lose_and_double_nothing() -> anyhow::Result<()> {
    let mut dice = Dice::new(seed_or(20_261_130));
    let mut cluster = Cluster::start(&[]).await?;
    let durations = ["100ms", "300ms", "700ms", "1500ms"];
    for (i, duration) in durations.iter().enumerate() {
        let agent = fake_agent(
            &format!("fake-{i}"),
            &["--sleep", duration, "--write", "out.txt", "done", "--succeed"],
        );
        apply(&cluster, "agent.json", &agent)?;
    }
    let tasks: Vec<_> = (0..TASKS)
        .map(|i| {
            json!({
                "apiVersion": "panda.dev/v1alpha1", "kind": "Task", "metadata": {"name": format!("t-{i:02}")},
                "spec": {
                    "prompt": "Wait, then write a file.",
                    "agents": [{"name": format!("fake-{}", dice.below(4))}],
                    "outputs": [{"name": "out", "path": "out.txt"}],
                },
            })
        })
        .collect();
    apply(
        &cluster,
        "tasks.json",
        &json!({"apiVersion": "v1", "kind": "List", "items": tasks}).to_string(),
    )?;

    for kill in 0..KILLS {
        tokio::time::sleep(Duration::from_millis(dice.below(1200))).await;
        cluster.kill();
        cluster
            .restart()
            .await
            .with_context(|| format!("after kill {kill}"))?;
    }

    let mut runs_of_tasks = BTreeSet::new();
    for i in 0..TASKS {
        let task = ended(&cluster, &format!("t-{i:02}")).await?;
        ensure!(
            task.status.phase == Some(TaskPhase::Succeeded),
            "{}: {:#?}",
            task.metadata.name,
            task.status
        );
        ensure!(!task.status.accepted_run.is_empty(), "{:#?}", task.status);
        runs_of_tasks.insert((task.metadata.uid.clone(), task.status.accepted_run.clone()));
    }
    ensure!(
        runs_of_tasks.len() == TASKS,
        "every task has an accepted run of its own"
    );

    let client = cluster.client()?;
    let listed: Api<Task> = Api::namespaced(client.clone(), "default");
    ensure!(
        listed.list_all(&ListParams::default()).await?.items.len() == TASKS,
        "no task was lost or doubled"
    );
    let runs: Api<Run> = Api::namespaced(client, "default");
    let runs = runs.list_all(&ListParams::default()).await?.items;
    for run in &runs {
        let phase = run.status.phase;
        ensure!(
            phase.is_some_and(RunPhase::is_terminal),
            "{} is left in {phase:?}",
            run.metadata.name
        );
    }

    let starts = checker::starts(&cluster.data())?;
    checker::no_overlap(&starts)?;
    ensure!(starts.len() == TASKS, "{} tasks started a process", starts.len());
    let readopted = runs.len() == TASKS;
    println!(
        "{} runs for {TASKS} tasks, {KILLS} kills; every run re-adopted: {readopted}",
        runs.len()
    );
    ensure!(
        readopted,
        "a run that was alive was not re-adopted: {:#?}",
        runs.iter().filter(|r| r.spec.attempt > 1).collect::<Vec<_>>()
    );
    cluster
        .eventually("no process is left", || async {
            cluster.leftovers().is_empty().then_some(())
        })
        .await?;
    Ok(())
}

#[tokio::test]
async fn the_first_interrupt_stops_runs_and_the_next_start_goes_on() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(&[]).await?;
    apply(&cluster, "agent.json", &fake_agent("slow", &["--hang"]))?;
    let manifest = json!({
        "apiVersion": "panda.dev/v1alpha1", "kind": "Task", "metadata": {"name": "slow"},
        "spec": {"prompt": "Take your time.", "agents": [{"name": "slow"}]},
    });
    apply(&cluster, "task.json", &manifest.to_string())?;
    let api: Api<Task> = Api::namespaced(cluster.client()?, "default");
    let running =
        || async { (api.get("slow").await.ok()?.status.phase == Some(TaskPhase::Running)).then_some(()) };
    cluster.eventually("it runs", running).await?;

    cluster.signal(rustix::process::Signal::INT)?;
    let status = cluster.wait().await?;
    ensure!(status.success(), "{status}\n{}", cluster.log());
    ensure!(
        cluster.leftovers().is_empty(),
        "left behind: {:#?}",
        cluster.leftovers()
    );

    cluster.restart().await?;
    let api: Api<Task> = Api::namespaced(cluster.client()?, "default");
    let again = || async {
        let task = api.get("slow").await.ok()?;
        (task.status.retries.device == 1 && task.status.phase == Some(TaskPhase::Running)).then_some(task)
    };
    let task = cluster
        .eventually("it runs again, as a device failure", again)
        .await?;
    ensure!(
        task.status.retries.agent == 0,
        "stopping the device is not the agent's failure"
    );
    Ok(())
}

#[tokio::test]
async fn a_followed_log_does_not_hold_up_the_stop() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(&["--keep-runs"]).await?;
    apply(&cluster, "agent.json", &fake_agent("slow", &["--hang"]))?;
    let manifest = json!({
        "apiVersion": "panda.dev/v1alpha1", "kind": "Task", "metadata": {"name": "slow"},
        "spec": {"prompt": "Take your time.", "agents": [{"name": "slow"}]},
    });
    apply(&cluster, "task.json", &manifest.to_string())?;
    let mut follower = cluster
        .command(cluster.pandactl_path()?)
        .args(["logs", "--follow", "task/slow"])
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    let mut out = std::io::BufReader::new(follower.stdout.take().context("piped")?);
    let first = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut out, &mut line).map(|_| (line, out))
    });
    let (line, _out) = tokio::time::timeout(panda_e2e::cluster::PATIENCE, first).await???;
    ensure!(line.contains("workspace is ready"), "{line}");

    cluster.signal(rustix::process::Signal::INT)?;
    let status = cluster.wait().await;
    follower.kill()?;
    follower.wait()?;
    let (status, log) = (status?, cluster.log());
    ensure!(status.success(), "{status}\n{log}");
    ensure!(
        !log.contains("connections are cut"),
        "the follower had to be cut off:\n{log}"
    );
    Ok(())
}
