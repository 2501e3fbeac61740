//! Agents that lie, flood, fork, leave orphans, and are taken away while they work.

use anyhow::Context;
use panda_api::{FailureReason, Run, Task, TaskPhase};
use panda_client::Api;
use panda_client::params::ListParams;
use panda_e2e::cluster::Cluster;
use serde_json::{Value, json};

use super::{agent, nothing_is_left, once, runs, start};
use crate::support::{apply, ended, example_repository, git};

#[tokio::test]
async fn a_claim_is_not_a_result() -> anyhow::Result<()> {
    let cluster = Cluster::start(&[]).await?;
    let repository = example_repository(&cluster, "leap")?;
    let checked = json!({
        "workspace": {"git": {"path": repository}},
        "verify": [{"name": "tests", "command": ["sh", "tests/run.sh"], "timeout": "1m", "restore": ["tests/**"]}],
        "supervision": {"rounds": 1},
    });
    start(
        &cluster,
        "liar",
        &["fakeagent", "--lie"],
        Value::Null,
        checked.clone(),
    )?;
    // Worse: it makes the tests pass by editing them.
    let cheat = ["fakeagent", "--write", "tests/run.sh", "exit 0\n", "--lie"];
    start(&cluster, "cheat", &cheat, Value::Null, checked)?;
    for name in ["liar", "cheat"] {
        let task = ended(&cluster, name).await?;
        assert_eq!(
            task.status.phase,
            Some(TaskPhase::Review),
            "{name}: {:#?}",
            task.status
        );
        assert_eq!(task.status.accepted_run, "");
        assert_eq!(
            task.status.retries.rounds, 1,
            "{name}: one more round, with the failures"
        );
        let failure = task.status.failure.clone().unwrap_or_default();
        assert_eq!(failure.reason, FailureReason::VerifyFailed);
        assert!(failure.message.contains("tests"), "{}", failure.message);
        let runs = runs(&cluster, &task).await?;
        assert_eq!(runs.len(), 2);
        assert!(
            runs[1].spec.prompt.contains("tests"),
            "the second round is told what failed: {}",
            runs[1].spec.prompt
        );
        assert!(
            runs.iter()
                .all(|run| run.status.verify.iter().all(|check| !check.passed))
        );
    }
    assert_eq!(git(&repository, &["status", "--porcelain"])?, "");
    Ok(())
}

#[tokio::test]
async fn a_flood_stays_bounded_and_keeps_head_and_tail() -> anyhow::Result<()> {
    const FLOOD: u64 = 200 << 20;
    const KEPT: usize = 64 << 20;
    let cluster = Cluster::start(&[]).await?;
    let flood = FLOOD.to_string();
    let command = [
        "fakeagent",
        "--say",
        "the head",
        "--flood",
        &flood,
        "--say",
        "the tail",
    ];
    start(&cluster, "flood", &command, Value::Null, Value::Null)?;
    let task = ended(&cluster, "flood").await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Succeeded),
        "{:#?}",
        task.status
    );
    let run = runs(&cluster, &task).await?.remove(0);
    let logs = run.status.logs.unwrap_or_default();
    assert!(logs.bytes > FLOOD, "everything was counted: {logs:?}");
    let shown = cluster.pandactl(&["logs", "task/flood"])?;
    assert!(shown.status.success());
    let text = String::from_utf8(shown.stdout)?;
    assert!(text.len() < KEPT + (1 << 20), "{}", text.len());
    let at = |what: &str| text.find(what);
    let (head, gap, tail) = (
        at("the head"),
        at("bytes of the log were not kept]"),
        at("the tail"),
    );
    assert!(
        head < gap && gap < tail && head.is_some(),
        "{head:?} {gap:?} {tail:?}"
    );
    // Half of what is kept is the time of each line.
    assert!(text.len() > KEPT / 4, "the newest is kept: {}", text.len());
    let last = cluster.ok(&["logs", "task/flood", "--tail", "2", "--stream", "stdout"])?;
    assert!(last.contains("the tail"), "{last}");

    let folders = [cluster.data(), cluster.dir().join("work")];
    let size: u64 = folders.iter().map(|folder| disk_use(folder)).sum();
    assert!(size < 4 * KEPT as u64, "{size} bytes on disk");
    Ok(())
}

#[tokio::test]
async fn a_line_without_an_end_is_a_log_like_any_other() -> anyhow::Result<()> {
    const LONG: usize = 80 << 20;
    let cluster = Cluster::start(&[]).await?;
    let long = LONG.to_string();
    let command = [
        "fakeagent",
        "--say",
        "the head",
        "--endless-line",
        &long,
        "--say",
        "\nthe tail",
    ];
    start(&cluster, "endless", &command, Value::Null, Value::Null)?;
    // A reader that goes away ends quietly and disturbs nobody.
    let mut reader = cluster
        .command(cluster.pandactl_path()?)
        .args(["logs", "-f", "task/endless"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()?;
    let mut first = [0; 4096];
    std::io::Read::read_exact(reader.stdout.as_mut().context("a pipe")?, &mut first)?;
    drop(reader.stdout.take());
    let gone = reader.wait_with_output()?;
    let quiet = matches!(gone.status.code(), Some(0 | 141));
    assert!(
        quiet && !String::from_utf8_lossy(&gone.stderr).contains("panicked"),
        "{gone:?}"
    );

    let task = ended(&cluster, "endless").await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Succeeded),
        "{:#?}",
        task.status
    );
    let text = cluster.ok(&["logs", "task/endless", "--stream", "stdout"])?;
    assert!(text.starts_with("the head\nxxx") && text.ends_with("xxx\nthe tail\n"));
    assert!(text.len() < LONG && text.len() > LONG / 2, "{}", text.len());
    assert!(text.contains("bytes of the log were not kept]"));
    let last = cluster.ok(&["logs", "task/endless", "--stream", "stdout", "--tail", "1"])?;
    assert_eq!(last, "the tail\n");
    Ok(())
}

fn disk_use(folder: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => disk_use(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}

#[tokio::test]
async fn children_and_orphans_end_with_the_attempt() -> anyhow::Result<()> {
    let cluster = Cluster::start(&[]).await?;
    let brood = ["fakeagent", "--fork", "3", "--orphan", "30m", "--say", "done"];
    start(&cluster, "done", &brood, Value::Null, Value::Null)?;
    let task = ended(&cluster, "done").await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Succeeded),
        "{:#?}",
        task.status
    );
    nothing_is_left(&cluster).await?;

    let brood = [
        "fakeagent",
        "--fork",
        "3",
        "--orphan",
        "30m",
        "--say",
        "up",
        "--hang",
    ];
    start(
        &cluster,
        "stopped",
        &brood,
        json!({"stop": {"grace": "1s"}}),
        Value::Null,
    )?;
    once(&cluster, "stopped", |task| {
        task.status.phase == Some(TaskPhase::Running)
    })
    .await?;
    cluster.ok(&["cancel", "task/stopped"])?;
    let task = ended(&cluster, "stopped").await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Cancelled),
        "{:#?}",
        task.status
    );
    nothing_is_left(&cluster).await
}

/// Command lines that hold this word.
fn alive(word: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.starts_with("sleep ") && line.contains(word))
        .collect()
}

#[tokio::test]
async fn no_trick_keeps_a_process_alive() -> anyhow::Result<()> {
    let cluster = Cluster::start(&[]).await?;
    // In sessions of their own, without our environment, deaf to signals. No other test sleeps for so long.
    let script = "setsid nohup env -i sleep 7654321 >/dev/null 2>&1 &
        setsid setsid env -i sleep 7654321 &
        (trap '' TERM INT HUP; env -i sleep 7654321) &
        (trap '' TERM; setsid setsid setsid env -i sleep 7654321) &";
    let endings = [
        ("ends", "echo up; sleep 4"),
        ("fails", "echo up; sleep 4; exit 1"),
        ("stays", "trap '' TERM INT; echo up; while :; do sleep 1; done"),
    ];
    for (name, ending) in endings {
        let script = format!("{script}\n{ending}");
        let quick = json!({"stop": {"grace": "1s"}});
        start(&cluster, name, &["sh", "-c", &script], quick, Value::Null)?;
        once(&cluster, name, |task| task.status.start_time.is_some()).await?;
        cluster
            .eventually("all of them have started", || async {
                (alive("7654321").len() >= 4).then_some(())
            })
            .await?;
        if name == "stays" {
            cluster.ok(&["cancel", "task/stays"])?;
        }
        ended(&cluster, name).await?;
        // The end is told only when nothing is left.
        assert_eq!(alive("7654321"), [""; 0], "{name}");
    }
    nothing_is_left(&cluster).await
}

#[tokio::test]
async fn a_task_deleted_while_it_runs_leaves_nothing() -> anyhow::Result<()> {
    let cluster = Cluster::start(&[]).await?;
    let command = [
        "fakeagent",
        "--say",
        "up",
        "--fork",
        "1",
        "--write",
        "big",
        "x",
        "--hang",
    ];
    start(
        &cluster,
        "gone",
        &command,
        Value::Null,
        json!({"outputs": [{"name": "big", "path": "big"}]}),
    )?;
    let task = once(&cluster, "gone", |task| {
        task.status.phase == Some(TaskPhase::Running)
    })
    .await?;
    cluster
        .eventually("its log arrives", || async {
            cluster
                .ok(&["logs", "task/gone"])
                .ok()?
                .contains("up")
                .then_some(())
        })
        .await?;
    cluster.ok(&["delete", "task", "gone"])?;
    nothing_is_left(&cluster).await?;
    let api: Api<Run> = Api::namespaced(cluster.client()?, "default");
    cluster
        .eventually("its runs are gone: nothing names its stream any more", || async {
            let runs = api.list_all(&ListParams::default()).await.ok()?.items;
            runs.is_empty().then_some(())
        })
        .await?;
    // A new task of the same name is another one.
    start(
        &cluster,
        "gone",
        &["fakeagent", "--say", "anew"],
        Value::Null,
        Value::Null,
    )?;
    let again = ended(&cluster, "gone").await?;
    assert_eq!(
        again.status.phase,
        Some(TaskPhase::Succeeded),
        "{:#?}",
        again.status
    );
    assert_ne!(again.metadata.uid, task.metadata.uid);
    assert_eq!(
        cluster.ok(&["logs", "task/gone", "--stream", "stdout"])?,
        "anew\n"
    );
    // Nor does the device keep a folder of it.
    let uid = task.metadata.uid.clone();
    cluster
        .eventually("its workspace is gone", || async {
            let entries = std::fs::read_dir(cluster.dir().join("work/tasks")).ok()?;
            let mut names = entries.flatten().map(|entry| entry.file_name());
            (!names.any(|name| name.to_string_lossy().contains(&uid))).then_some(())
        })
        .await
}

#[tokio::test]
async fn a_cancelled_task_rests_until_it_is_rerun() -> anyhow::Result<()> {
    let cluster = Cluster::start(&[]).await?;
    let retries = json!({"retry": {"limit": 5, "backoff": {"base": "100ms", "factor": 1, "cap": "100ms", "jitter": "None"}}});
    start(
        &cluster,
        "rest",
        &["fakeagent", "--say", "up", "--hang"],
        Value::Null,
        retries,
    )?;
    once(&cluster, "rest", |task| {
        task.status.phase == Some(TaskPhase::Running)
    })
    .await?;
    cluster.ok(&["cancel", "task/rest"])?;
    let task = ended(&cluster, "rest").await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Cancelled),
        "{:#?}",
        task.status
    );
    // Another task, begun later, goes through six attempts with the same pauses: a retry of this one would be there.
    let retries = json!({"retry": {"limit": 5, "backoff": {"base": "100ms", "factor": 1, "cap": "100ms", "jitter": "None"}}});
    start(
        &cluster,
        "beside",
        &["fakeagent", "--fail", "1"],
        Value::Null,
        retries,
    )?;
    assert_eq!(ended(&cluster, "beside").await?.status.attempts, 6);
    let api: Api<Task> = Api::namespaced(cluster.client()?, "default");
    let task = api.get("rest").await?;
    assert_eq!(
        (task.status.attempts, task.status.phase),
        (1, Some(TaskPhase::Cancelled))
    );
    assert_eq!(runs(&cluster, &task).await?.len(), 1);

    apply(
        &cluster,
        "agent.json",
        &agent("rest", &["fakeagent", "--say", "done"], Value::Null),
    )?;
    cluster.ok(&["retry", "task/rest", "--wait", "--timeout", "50s"])?;
    let task = api.get("rest").await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Succeeded),
        "{:#?}",
        task.status
    );
    assert_eq!((task.spec.rerun, task.status.attempts), (Some(1), 2));
    assert_ne!(task.spec.cancel, Some(true));
    Ok(())
}
