//! Deleting Runs whose device may be at work on them.

use panda_api::{DEVICE_FINALIZER, RunPhase, TASK_UID};

use super::harness::{Begun, Cluster, phase};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_deleted_stays_until_its_device_has_ended_it() {
    let Begun {
        cluster,
        mut session,
        fence,
        ..
    } = Begun::start().await;
    let report = session.report(1, &fence, &phase(RunPhase::Preparing)).await;
    assert_eq!(report, None);

    cluster.delete_run("t-1").await;
    let run = cluster.get("t-1").await;
    assert!(run.metadata.deletion_timestamp.is_some());
    assert_eq!(run.metadata.finalizers, [DEVICE_FINALIZER]);
    session.until_deleting(&fence).await;
    // It is granted on: the device needs time to end it well, and its report has to count.
    let grant = session.renew().await.unwrap();
    assert_eq!(grant.runs.len(), 1);
    // Nor does the Lease go, whoever deletes it.
    cluster.delete_lease("t-1").await;
    assert_eq!(session.renew().await.unwrap().runs.len(), 1);

    let report = session.report(2, &fence, &phase(RunPhase::Cancelled)).await;
    assert_eq!(report, None);
    assert!(cluster.find("t-1").await.is_none());
    assert!(cluster.find_lease("t-1").await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_has_ended_goes_at_once() {
    let Begun {
        cluster,
        mut session,
        fence,
        ..
    } = Begun::start().await;
    assert_eq!(session.report(1, &fence, &phase(RunPhase::Failed)).await, None);
    let run = cluster.get("t-1").await;
    assert!(run.metadata.finalizers.is_empty());
    assert!(cluster.lease("t-1").await.metadata.finalizers.is_empty());
    cluster.delete_run("t-1").await;
    assert!(cluster.find("t-1").await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_taken_away_by_force_holds_the_next_one_back_until_it_has_ended() {
    let cluster = Cluster::start().await;
    let pi = cluster.join("pi").await;
    let mut session = pi.session(&cluster).await;
    let (task, other) = (cluster.task("t").await, cluster.task("u").await);
    let fence = cluster.bound("t-1", &task, &pi).await;
    session.until_told(&fence).await;
    let report = session.report(1, &fence, &phase(RunPhase::Preparing)).await;
    assert_eq!(report, None);
    cluster.force("t-1").await;
    assert!(cluster.find("t-1").await.is_none());
    let lease = cluster.lease("t-1").await;
    assert_eq!(lease.metadata.labels[TASK_UID], task.metadata.uid);
    assert_eq!(lease.metadata.finalizers, [DEVICE_FINALIZER]);

    cluster.run("t-2", &task).await;
    let refused = cluster.try_bind("t-2", "pi").await.unwrap_err();
    assert!(
        refused.is_conflict() && refused.to_string().contains("t-1"),
        "{refused}"
    );
    // Neither does another Task wait, nor is the run granted any more.
    cluster.bound("u-1", &other, &pi).await;
    session.until_gone(&fence).await;
    let grant = session.renew().await.unwrap();
    assert!(grant.runs.iter().all(|run| run.run_uid != fence.run_uid));
    // Another device, or another attempt, says nothing of it.
    let mut wrong = fence.clone();
    wrong.attempt += 1;
    let report = session.report(2, &wrong, &phase(RunPhase::Cancelled)).await;
    assert!(report.is_some());
    assert!(cluster.try_bind("t-2", "pi").await.is_err());

    let report = session.report(3, &fence, &phase(RunPhase::Cancelled)).await;
    assert!(report.is_some(), "it changes nothing but the hold");
    cluster.try_bind("t-2", "pi").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_taken_lease_lets_the_next_run_begin() {
    let cluster = Cluster::start().await;
    let pi = cluster.join("pi").await;
    let task = cluster.task("t").await;
    cluster.bound("t-1", &task, &pi).await;
    cluster.run("t-2", &task).await;
    assert!(cluster.try_bind("t-2", "pi").await.is_err());
    cluster.lose("t-1").await;
    cluster.try_bind("t-2", "pi").await.unwrap();
}
