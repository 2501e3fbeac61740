//! B17: retries that outlive the deadline.

use std::time::Duration;

use jiff::Timestamp;
use panda_api::{FailureReason, Run, Task, TaskPhase};
use panda_e2e::checker;
use panda_e2e::cluster::Cluster;
use serde_json::{Value, json};

use super::{once, runs, start};
use crate::support::ended;

/// Stamps are whole seconds.
const GRAIN: Duration = Duration::from_secs(1);

fn started(task: &Task) -> Timestamp {
    task.status.start_time.map(|time| time.0).unwrap_or_default()
}

fn run_started(run: &Run) -> Timestamp {
    run.status.start_time.map(|time| time.0).unwrap_or_default()
}

fn case(more: &Value) -> Value {
    let mut spec = json!({
        "retry": {"limit": 5, "backoff": {"base": "2s", "factor": 2, "cap": "20s", "jitter": "Full"}},
        "attemptTimeout": "10s",
        "deadline": "25s",
        "verify": [{"name": "check", "command": ["sh", "-c", "sleep 2"], "timeout": "5s"}],
    });
    super::merge(&mut spec, more.clone());
    spec
}

#[tokio::test]
async fn no_attempt_starts_that_cannot_fit_and_checks_get_their_time() -> anyhow::Result<()> {
    let cluster = Cluster::start(&[]).await?;
    // Ignores TERM for 8 s after its time is over; the grace ends before.
    let stubborn = ["fakeagent", "--say", "up", "--ignore-term", "18s", "--fail", "1"];
    start(&cluster, "stubborn", &stubborn, Value::Null, case(&Value::Null))?;
    start(
        &cluster,
        "failing",
        &["fakeagent", "--say", "up", "--fail", "1"],
        Value::Null,
        case(&Value::Null),
    )?;
    // Succeeds shortly before its time is over; then the check needs most of its own.
    let slow = ["fakeagent", "--say", "up", "--sleep", "6s", "--say", "done"];
    start(&cluster, "slow", &slow, Value::Null, case(&Value::Null))?;

    let task = ended(&cluster, "slow").await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Succeeded),
        "{:#?}",
        task.status
    );
    for name in ["stubborn", "failing"] {
        let task = ended(&cluster, name).await?;
        assert_eq!(
            task.status.phase,
            Some(TaskPhase::Failed),
            "{name}: {:#?}",
            task.status
        );
        let end = started(&task) + Duration::from_secs(25);
        let done = task.status.completion_time.map(|time| time.0).unwrap_or_default();
        assert!(done <= end + GRAIN, "{name}: {done} is past {end}");
        let runs = runs(&cluster, &task).await?;
        assert_eq!(runs.len(), usize::try_from(task.status.attempts)?);
        for run in &runs {
            // A whole attempt, its grace and the check must fit.
            let latest = end - Duration::from_secs(10 + 5 + 5);
            let made = run
                .metadata
                .creation_timestamp
                .map(|time| time.0)
                .unwrap_or_default();
            assert!(
                made <= latest + GRAIN,
                "{name}: {} started late",
                run.metadata.name
            );
        }
        if name == "stubborn" {
            assert_eq!(runs.len(), 1, "no time for a second attempt");
            let failure = runs[0].status.failure.clone().unwrap_or_default();
            assert_eq!(failure.reason, FailureReason::TimedOut);
        }
    }
    checker::no_overlap(&checker::starts(&cluster.data())?)
}

#[tokio::test]
async fn cancelling_ends_the_retries_and_a_final_code_stops_at_once() -> anyhow::Result<()> {
    let cluster = Cluster::start(&[]).await?;
    // Cancelled while it ignores TERM, and cancelled in the pause before a retry.
    let stubborn = ["fakeagent", "--say", "up", "--ignore-term", "8s", "--fail", "1"];
    start(&cluster, "stubborn", &stubborn, Value::Null, case(&Value::Null))?;
    let long = json!({"deadline": "1h", "retry": {"limit": 5, "backoff": {"base": "10m", "factor": 2, "cap": "10m", "jitter": "None"}}});
    start(
        &cluster,
        "pausing",
        &["fakeagent", "--fail", "1"],
        Value::Null,
        case(&long),
    )?;
    let codes = json!({"retry": {"limit": 5, "backoff": {"base": "1s"}, "nonRetryableExitCodes": [41, 42]}});
    start(
        &cluster,
        "final",
        &["fakeagent", "--say", "up", "--fail", "42"],
        Value::Null,
        case(&codes),
    )?;

    once(&cluster, "stubborn", |task| {
        task.status.phase == Some(TaskPhase::Running)
    })
    .await?;
    once(&cluster, "pausing", |task| {
        task.status.next_attempt_time.is_some()
    })
    .await?;
    cluster.ok(&["cancel", "task/stubborn", "task/pausing"])?;
    for name in ["stubborn", "pausing"] {
        let task = ended(&cluster, name).await?;
        assert_eq!(
            task.status.phase,
            Some(TaskPhase::Cancelled),
            "{name}: {:#?}",
            task.status
        );
        assert_eq!(task.status.attempts, 1);
        assert_eq!(task.status.next_attempt_time, None);
    }
    let task = ended(&cluster, "final").await?;
    assert_eq!(task.status.phase, Some(TaskPhase::Failed), "{:#?}", task.status);
    assert_eq!((task.status.attempts, task.status.retries.agent), (1, 0));
    let failure = task.status.failure.clone().unwrap_or_default();
    assert_eq!(failure.exit_code, Some(42), "{failure:?}");
    for name in ["stubborn", "pausing"] {
        let task = once(&cluster, name, |_| true).await?;
        assert_eq!(
            runs(&cluster, &task).await?.len(),
            1,
            "{name}: no further attempt"
        );
    }
    Ok(())
}

#[tokio::test]
async fn the_next_attempt_keeps_its_time_over_a_kill() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(&[]).await?;
    let more = json!({"deadline": "1h", "verify": [], "retry": {"limit": 1, "backoff": {"base": "8s", "factor": 1, "cap": "8s", "jitter": "None"}}});
    start(
        &cluster,
        "later",
        &["fakeagent", "--say", "up", "--fail", "1"],
        Value::Null,
        case(&more),
    )?;
    let task = once(&cluster, "later", |task| task.status.next_attempt_time.is_some()).await?;
    let next = task.status.next_attempt_time;
    assert_eq!(task.status.attempts, 1);
    let shown = cluster.ok(&["describe", "task", "later"])?;
    assert!(shown.to_lowercase().contains("next attempt"), "{shown}");
    cluster.kill();
    cluster.restart().await?;
    let task = once(&cluster, "later", |_| true).await?;
    if task.status.attempts == 1 {
        assert_eq!(
            task.status.next_attempt_time, next,
            "the pause is neither lost nor begun anew"
        );
    }
    let task = ended(&cluster, "later").await?;
    assert_eq!(task.status.phase, Some(TaskPhase::Failed), "{:#?}", task.status);
    let runs = runs(&cluster, &task).await?;
    assert_eq!(runs.len(), 2);
    let next = next.map(|time| time.0).unwrap_or_default();
    assert!(
        run_started(&runs[1]) + GRAIN >= next,
        "{:?} is before {next}",
        runs[1].status.start_time
    );
    Ok(())
}

#[tokio::test]
async fn tasks_that_fail_together_do_not_return_together() -> anyhow::Result<()> {
    const TASKS: usize = 30;
    let cluster = Cluster::start(&["--max-runs", "8"]).await?;
    crate::support::apply(
        &cluster,
        "agent.json",
        &super::agent("herd", &["sh", "-c", "exit 1"], json!({"concurrency": 8})),
    )?;
    let items: Vec<Value> = (0..TASKS)
        .map(|i| {
            let more = json!({
                "agents": [{"name": "herd"}],
                "retry": {"limit": 5, "backoff": {"base": "10m", "factor": 2, "cap": "1h", "jitter": "Full"}},
            });
            serde_json::from_str(&super::task(&format!("herd-{i:02}"), more)).unwrap_or_default()
        })
        .collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    crate::support::apply(&cluster, "tasks.json", &list.to_string())?;
    let mut times = std::collections::BTreeSet::new();
    for i in 0..TASKS {
        let waits = |task: &Task| task.status.next_attempt_time.is_some();
        let task = once(&cluster, &format!("herd-{i:02}"), waits).await?;
        times.insert(
            task.status
                .next_attempt_time
                .map(|time| time.0)
                .unwrap_or_default(),
        );
    }
    assert_eq!(times.len(), TASKS, "no two return in the same instant");
    let spread = times
        .last()
        .copied()
        .unwrap_or_default()
        .duration_since(times.first().copied().unwrap_or_default());
    assert!(spread.as_secs() > 60, "they return over {spread:?}");
    Ok(())
}
