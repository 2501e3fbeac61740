//! B23: waiting on an input that nobody will close.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use panda_api::{FailureReason, TaskPhase};
use panda_e2e::cluster::Cluster;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value, json};

use super::{nothing_is_left, once, start};
use crate::support::ended;

/// A control plane whose own standard input is a pipe that stays open.
async fn held() -> anyhow::Result<Cluster> {
    let mut cluster = Cluster::start(&[]).await?;
    cluster.hold_stdin().await?;
    Ok(cluster)
}

#[tokio::test]
async fn an_agent_that_reads_its_input_finds_the_end_of_it() -> anyhow::Result<()> {
    let cluster = held().await?;
    let command = ["fakeagent", "--read-stdin-to-eof"];
    start(&cluster, "null", &command, Value::Null, Value::Null)?;
    start(
        &cluster,
        "prompt",
        &command,
        json!({"stdin": "Prompt"}),
        json!({"prompt": "one\ntwo"}),
    )?;
    for (name, want) in [
        ("null", "stdin 0 bytes: \n"),
        ("prompt", "stdin 7 bytes: one\ntwo\n"),
    ] {
        let task = ended(&cluster, name).await?;
        assert_eq!(
            task.status.phase,
            Some(TaskPhase::Succeeded),
            "{:#?}",
            task.status
        );
        let said = cluster.ok(&["logs", &format!("task/{name}"), "--stream", "stdout"])?;
        assert_eq!(said, want);
    }
    Ok(())
}

#[tokio::test]
async fn an_agent_has_no_terminal_to_ask_on() -> anyhow::Result<()> {
    let cluster = held().await?;
    start(
        &cluster,
        "tty",
        &["fakeagent", "--status", "--open-tty"],
        Value::Null,
        Value::Null,
    )?;
    let task = ended(&cluster, "tty").await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Succeeded),
        "{:#?}",
        task.status
    );
    let said = cluster.ok(&["logs", "task/tty"])?;
    assert!(said.contains("not opened /dev/tty"), "{said}");
    assert!(said.contains("leads its session true"), "{said}");
    assert!(said.contains("fds 0 1 2\n"), "no descriptor of ours: {said}");

    let soon = json!({"supervision": {"firstOutput": "1s"}});
    let ask = ["fakeagent", "--ask", "Trust this folder? [y/N]"];
    start(&cluster, "ask", &ask, Value::Null, soon)?;
    let task = ended(&cluster, "ask").await?;
    assert_eq!(task.status.phase, Some(TaskPhase::Failed), "{:#?}", task.status);
    let failure = task.status.failure.unwrap_or_default();
    assert_eq!(failure.reason, FailureReason::NoFirstOutput);
    for part in ["for 1s after the start", "wrote nothing at all", "stdin: Prompt"] {
        assert!(failure.message.contains(part), "{part:?}: {}", failure.message);
    }
    let shown = cluster.ok(&["describe", "task", "ask"])?;
    assert!(
        shown.contains("NoFirstOutput") && shown.contains("stdin: Prompt"),
        "{shown}"
    );

    // A question that was written and is never answered is told with its words.
    let soon = json!({"supervision": {"silence": "1s"}});
    let splash = [
        "fakeagent",
        "--say",
        "\u{1b}[2J\u{1b}[1mTrust this folder? [y/N]",
        "--hang",
    ];
    start(&cluster, "splash", &splash, Value::Null, soon)?;
    let failure = ended(&cluster, "splash")
        .await?
        .status
        .failure
        .unwrap_or_default();
    assert_eq!(failure.reason, FailureReason::Stalled);
    assert!(
        failure.message.contains("Trust this folder? [y/N]"),
        "{}",
        failure.message
    );
    assert!(!failure.message.contains('\u{1b}'), "{:?}", failure.message);
    nothing_is_left(&cluster).await
}

/// A control plane that a person started on a terminal: it has one, and reads and writes it.
#[tokio::test]
async fn the_terminal_of_the_server_is_not_the_agents() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(&[]).await?;
    cluster.kill();
    std::fs::remove_file(cluster.config())?;
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    grantpt(&terminal)?;
    unlockpt(&terminal)?;
    let name = ptsname(&terminal, Vec::new())?;
    let near = std::fs::File::options()
        .read(true)
        .write(true)
        .open(OsStr::from_bytes(name.as_bytes()))?;
    let mut server = cluster
        .command("setsid")
        .arg("--ctty")
        .arg(cluster.pandactl_path()?)
        .args(["up", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(cluster.data())
        .arg("--work-dir")
        .arg(cluster.dir().join("work"))
        .stdin(near.try_clone()?)
        .stdout(near.try_clone()?)
        .stderr(near)
        .spawn()?;
    cluster
        .eventually("it is ready", || async {
            cluster.client().ok()?.get_text("/readyz").await.ok()
        })
        .await?;
    let script = "tty; (echo hello >/dev/tty) || echo no terminal; (read answer </dev/tty) || echo no answer";
    start(
        &cluster,
        "terminal",
        &["sh", "-c", script],
        Value::Null,
        Value::Null,
    )?;
    start(
        &cluster,
        "tty",
        &["fakeagent", "--status", "--open-tty"],
        Value::Null,
        Value::Null,
    )?;
    for name in ["terminal", "tty"] {
        let task = ended(&cluster, name).await?;
        assert_eq!(
            task.status.phase,
            Some(TaskPhase::Succeeded),
            "{:#?}",
            task.status
        );
    }
    let said = cluster.ok(&["logs", "task/terminal", "--stream", "stdout"])?;
    assert_eq!(said, "not a tty\nno terminal\nno answer\n");
    let said = cluster.ok(&["logs", "task/tty", "--stream", "stdout"])?;
    assert!(said.contains("not opened /dev/tty"), "{said}");
    // Ends through its Cluster's folder as well; killed here so that it is waited for.
    server.kill()?;
    server.wait()?;
    Ok(())
}

#[tokio::test]
async fn an_agent_that_waits_stops_at_once() -> anyhow::Result<()> {
    let cluster = held().await?;
    // With a grace that is longer than this test may take.
    let patient = json!({"stop": {"grace": "5m"}});
    for (name, command) in [
        (
            "ask",
            ["fakeagent", "--ask", "Trust this folder? [y/N]"].as_slice(),
        ),
        ("hang", ["fakeagent", "--say", "working", "--hang"].as_slice()),
        (
            "shell",
            ["sh", "-c", "read answer </dev/tty; while :; do sleep 1; done"].as_slice(),
        ),
    ] {
        start(&cluster, name, command, patient.clone(), Value::Null)?;
        once(&cluster, name, |task| {
            task.status.phase == Some(TaskPhase::Running)
        })
        .await?;
        cluster.ok(&["cancel", &format!("task/{name}")])?;
        let task = ended(&cluster, name).await?;
        assert_eq!(
            task.status.phase,
            Some(TaskPhase::Cancelled),
            "{name}: {:#?}",
            task.status
        );
    }
    nothing_is_left(&cluster).await
}
