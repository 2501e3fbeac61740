//! A device comes back to Runs that were given up.

use panda_api::{RunPhase, TaskResult, Usage};
use panda_rpc::report::RunReport;

use super::harness::{Cluster, phase};

fn result(usage: u64) -> RunReport {
    RunReport {
        phase: Some(RunPhase::Succeeded),
        result: Some(TaskResult {
            summary: "late".into(),
            ..TaskResult::default()
        }),
        usage: Some(Usage {
            input_tokens: usage,
            ..Usage::default()
        }),
        ..RunReport::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_report_of_a_lost_run_is_kept_beside_it() {
    let cluster = Cluster::start().await;
    let pi = cluster.join("pi").await;
    let other = cluster.join("other").await;
    let mut session = pi.session(&cluster).await;
    let task = cluster.task("t").await;
    let fence = cluster.bound("t-1", &task, &pi).await;
    session.until_told(&fence).await;
    assert_eq!(session.report(1, &fence, &phase(RunPhase::Preparing)).await, None);
    cluster.lose("t-1").await;

    let stale = cluster.metric("panda_agentlet_stale_reports").await;
    let why = session.report(2, &fence, &phase(RunPhase::Running)).await;
    assert!(why.unwrap().contains("taken away"), "what still works ends");
    let mut foreign = other.session(&cluster).await;
    assert!(foreign.report(1, &fence, &result(7)).await.is_some());
    assert_eq!(session.report(3, &fence, &result(40)).await, None, "it is taken");
    assert_eq!(session.report(3, &fence, &result(40)).await, None, "and again");
    assert!(
        session.report(4, &fence, &result(50)).await.is_some(),
        "but not twice"
    );

    let run = cluster.get("t-1").await;
    assert_eq!(run.status.phase, Some(RunPhase::Lost));
    assert_eq!(run.status.result, None);
    let late = run.status.late_result.unwrap();
    assert_eq!(late.phase, Some(RunPhase::Succeeded));
    assert_eq!(late.usage.unwrap().input_tokens, 40);
    assert_eq!(cluster.metric("panda_agentlet_stale_reports").await, stale + 3);
    assert_eq!(cluster.metric("panda_agentlet_late_results").await, 1);
    let left = cluster.left("t").await;
    assert_eq!(left[0]["orphan"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finished_run_is_announced_before_its_report_arrives() {
    let cluster = Cluster::start().await;
    let pi = cluster.join("pi").await;
    let task = cluster.task("t").await;
    let fence = cluster.bound("t-1", &task, &pi).await;
    cluster.lose("t-1").await;
    let mut hello = pi.hello(&cluster.store_uid());
    hello.finished_runs = vec![fence.clone()];
    let mut session = pi.connect(hello.clone()).await.unwrap();
    let late = cluster.get("t-1").await.status.late_result.unwrap();
    assert!(late.announced_time.is_some() && late.phase.is_none());
    // Only the Run's own device is believed.
    let other = cluster.join("other").await;
    let second = cluster.bound("t-2", &task, &pi).await;
    cluster.lose("t-2").await;
    hello = other.hello(&cluster.store_uid());
    hello.finished_runs = vec![second];
    other.connect(hello).await.unwrap();
    assert_eq!(cluster.get("t-2").await.status.late_result, None);
    assert_eq!(session.report(1, &fence, &result(1)).await, None);
    let late = cluster.get("t-1").await.status.late_result.unwrap();
    assert_eq!(late.phase, Some(RunPhase::Succeeded));
}
