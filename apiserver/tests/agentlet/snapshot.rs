//! What a device is told when it connects.

use panda_api::RunPhase;
use panda_rpc::v1::server_message::Body;
use serde_json::json;

use super::harness::Cluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_come_in_parts_and_those_that_ended_without_their_load() {
    const RUNS: usize = 12;
    let cluster = Cluster::start().await;
    let pi = cluster.join("pi").await;
    let long = "mend it ".repeat(8 << 10);
    let mut fences = Vec::new();
    for n in 0..RUNS {
        let task = cluster.task(&format!("t{n}")).await;
        let env = json!({"env": [{"name": "LONG", "value": long}], "workspace": {"retain": "Always"}});
        fences.push(cluster.bound_with(&format!("t{n}-1"), &task, &pi, env).await);
    }
    cluster.lose("t0-1").await;
    let mut session = pi.session(&cluster).await;
    let mut parts = Vec::new();
    let end = session.until(|body| match body {
        Body::Snapshot(part) => {
            parts.push(part.runs.iter().map(|run| run.run.len()).sum::<usize>());
            (!part.more).then_some(())
        }
        _ => None,
    });
    end.await.unwrap();
    assert!(parts.len() >= 3, "{parts:?}");
    assert!(parts.iter().all(|size| *size <= 256 << 10), "{parts:?}");
    assert_eq!(session.runs.len(), RUNS);
    for fence in &fences[1..] {
        assert_eq!(
            session.runs[&fence.run_uid].spec.env[0].value.as_deref(),
            Some(long.as_str())
        );
    }
    let ended = &session.runs[&fences[0].run_uid];
    assert_eq!(ended.status.phase, Some(RunPhase::Lost));
    assert!(
        ended.spec.env.is_empty() && ended.spec.prompt.is_empty(),
        "{ended:?}"
    );
    let (task, whole) = (&ended.spec.task_ref, cluster.get("t0-1").await);
    assert_eq!(*task, whole.spec.task_ref);
    assert_eq!(ended.spec.lease_epoch, whole.spec.lease_epoch);
    assert!(ended.spec.workspace.as_ref().unwrap().retain.is_some());
    // The lost one is granted no more.
    assert_eq!(session.renew().await.unwrap().runs.len(), RUNS - 1);
}
