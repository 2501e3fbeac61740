//! Hostile agents and damaged folders: what is promised holds, and what cannot go on says so.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::ensure;
use panda_api::{Task, TaskPhase};
use panda_client::Api;
use panda_client::params::ListParams;
use panda_e2e::checker;
use panda_e2e::cluster::Cluster;
use serde_json::json;

use crate::support::{apply, ended, fake_agent};

/// An Agent that runs this shell script.
fn script(name: &str, text: &str) -> String {
    json!({
        "apiVersion": "panda.dev/v1alpha1", "kind": "Agent", "metadata": {"name": name},
        "spec": {"capabilities": ["shell"], "drivers": [{"kind": "Exec", "command": ["sh", "-c", text]}]},
    })
    .to_string()
}

/// A Task for it that is tried once.
fn task(name: &str, agent: &str) -> String {
    json!({
        "apiVersion": "panda.dev/v1alpha1", "kind": "Task", "metadata": {"name": name},
        "spec": {"prompt": "x", "agents": [{"name": agent}], "retry": {"limit": 0}},
    })
    .to_string()
}

#[tokio::test]
async fn a_hostile_agent_reads_nothing_of_the_platform_and_leaves_nothing_behind() -> anyhow::Result<()> {
    let cluster = Cluster::start(&[]).await?;
    let mut text = String::from("touch mine; ");
    let hidden = [
        cluster.data().join("pki/ca.pem"),
        cluster.data().join("secrets.key"),
        cluster.data().join("store/store.db"),
        cluster.data().join("agentlet/outbox.db"),
        cluster.config(),
    ];
    for path in &hidden {
        ensure!(path.is_file(), "{} is what this test is about", path.display());
        write!(
            text,
            "cat '{}' >/dev/null 2>&1 && echo READ-{0}; ",
            path.display()
        )?;
    }
    for folder in [
        cluster.data(),
        cluster.dir().join("work"),
        cluster.dir().join("work/tasks"),
    ] {
        write!(
            text,
            "touch '{0}/planted' 2>/dev/null && echo WROTE-{0}; ",
            folder.display()
        )?;
    }
    // Its supervisor is its parent; processes that leave the session and the environment must still be found.
    text.push_str(
        "kill -0 $PPID 2>/dev/null && echo KILLABLE; cat /proc/$PPID/environ >/dev/null 2>&1 && echo ENVIRON; \
         (env -i setsid sleep 71077 </dev/null >/dev/null 2>&1 &); \
         (trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 71077' </dev/null >/dev/null 2>&1 &); \
         mkfifo fifo; ln -s / root; mkdir shut; chmod 000 shut; echo over",
    );
    apply(&cluster, "agent.json", &script("hostile", &text))?;
    apply(&cluster, "task.json", &task("hostile", "hostile"))?;
    ended(&cluster, "hostile").await?;
    let log = cluster.ok(&["logs", "task/hostile"])?;
    ensure!(log.contains("over"), "{log}");
    for word in ["READ-", "WROTE-", "KILLABLE", "ENVIRON"] {
        // As root the agent is another user; without root the floor hides folders, and a parent can be signalled.
        let own_user = !rustix::process::geteuid().is_root() && word == "KILLABLE";
        ensure!(own_user || !log.contains(word), "{log}");
    }
    cluster
        .eventually("nothing is left", || async {
            survivors().is_empty().then_some(())
        })
        .await
}

/// Processes of the test above: their environment is empty, so only the command line tells them.
fn survivors() -> Vec<String> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.starts_with("sleep 71077"))
        .collect()
}

#[tokio::test]
async fn tasks_deleted_and_made_again_under_one_name_never_overlap() -> anyhow::Result<()> {
    let cluster = Cluster::start(&[]).await?;
    apply(
        &cluster,
        "agent.json",
        &fake_agent("slow", &["--sleep", "400ms", "--succeed"]),
    )?;
    for round in 0..8_u64 {
        apply(&cluster, "task.json", &task("again", "slow"))?;
        tokio::time::sleep(Duration::from_millis(round * 60)).await;
        let verb = if round % 2 == 0 { "delete" } else { "cancel" };
        cluster.ok(&[verb, "task/again"])?;
        if verb == "cancel" {
            cluster.ok(&["delete", "task/again"])?;
        }
    }
    apply(&cluster, "task.json", &task("again", "slow"))?;
    let last = ended(&cluster, "again").await?;
    ensure!(
        last.status.phase == Some(TaskPhase::Succeeded),
        "{:#?}",
        last.status
    );
    let tasks: Api<Task> = Api::namespaced(cluster.client()?, "default");
    ensure!(tasks.list_all(&ListParams::default()).await?.items.len() == 1);
    cluster
        .eventually("no process is left", || async {
            cluster.leftovers().is_empty().then_some(())
        })
        .await?;
    checker::no_overlap(&checker::starts(&cluster.data())?)
}

#[tokio::test]
async fn a_supervisor_that_is_killed_takes_its_agent_with_it() -> anyhow::Result<()> {
    let cluster = Cluster::start(&[]).await?;
    apply(&cluster, "agent.json", &fake_agent("slow", &["--hang"]))?;
    apply(&cluster, "task.json", &task("slow", "slow"))?;
    let pid = cluster
        .eventually("it runs", || async {
            let spans = checker::starts(&cluster.data()).ok()?;
            let pid = spans.values().flatten().next()?.pid;
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let parent: i32 = stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()?;
            rustix::process::Pid::from_raw(parent)
        })
        .await?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    let task = ended(&cluster, "slow").await?;
    ensure!(task.status.phase == Some(TaskPhase::Failed), "{:#?}", task.status);
    cluster
        .eventually("no process is left", || async {
            cluster.leftovers().is_empty().then_some(())
        })
        .await
}

#[tokio::test]
async fn damaged_or_missing_data_is_refused_and_named() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(&[]).await?;
    cluster.kill();
    let store = cluster.data().join("store");
    for name in ["store.db-wal", "store.db-shm"] {
        std::fs::remove_file(store.join(name))?;
    }
    let database = store.join("store.db");
    let whole = std::fs::read(&database)?;
    let mut torn = whole.clone();
    torn[..64].fill(0xa5);
    let damages: [(&str, Option<&[u8]>, &str); 3] = [
        ("torn", Some(&torn), "is damaged"),
        ("emptied", Some(b""), "is gone"),
        ("removed", None, "is gone"),
    ];
    for (what, content, says) in damages {
        match content {
            Some(bytes) => std::fs::write(&database, bytes)?,
            None => std::fs::remove_file(&database)?,
        }
        let refused = cluster.restart().await;
        let error = format!(
            "{:#}",
            refused.err().unwrap_or_else(|| anyhow::anyhow!("it came up"))
        );
        ensure!(
            error.contains(says) && !error.contains("panicked"),
            "{what}: {error}"
        );
        for name in ["store.db-wal", "store.db-shm"] {
            // SQLite may have made them before it saw the damage.
            let _: Result<(), _> = std::fs::remove_file(store.join(name));
        }
    }
    Ok(())
}

#[tokio::test]
async fn secrets_without_their_key_are_refused_at_the_start() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(&[]).await?;
    cluster.ok(&["create", "secret", "generic", "token", "--from-literal=key=value"])?;
    cluster.kill();
    let key = cluster.data().join("secrets.key");
    let right = std::fs::read(&key)?;
    std::fs::remove_file(&key)?;
    let refused = cluster.restart().await;
    let error = format!(
        "{:#}",
        refused.err().unwrap_or_else(|| anyhow::anyhow!("it came up"))
    );
    ensure!(
        error.contains("sealed with another key") && error.contains("put the secrets.key"),
        "{error}"
    );
    std::fs::write(&key, right)?;
    cluster.restart().await?;
    let secrets = cluster.ok(&["get", "secrets"])?;
    ensure!(secrets.contains("token"), "{secrets}");
    Ok(())
}
