//! B18: the past must not kill the present.

use panda_api::{BlobRef, RunPhase, TaskResult};
use panda_rpc::report::RunReport;
use panda_rpc::v1::{Fence, PutBlobChunk};
use sha2::{Digest, Sha256};

use super::harness::{Cluster, Machine, phase};

async fn upload(machine: &Machine, fence: &Fence, bytes: &[u8]) -> Result<BlobRef, tonic::Status> {
    let digest = format!("sha256:{}", hex::encode(Sha256::digest(bytes)));
    let chunk = PutBlobChunk {
        fence: Some(fence.clone()),
        digest: digest.clone(),
        size: bytes.len() as u64,
        offset: 0,
        data: bytes.to_vec(),
    };
    let chunks = tokio_stream::iter([chunk]);
    machine.client.clone().put_blob(chunks).await?;
    Ok(BlobRef {
        digest,
        size: bytes.len() as u64,
    })
}

fn done(patch: BlobRef) -> RunReport {
    RunReport {
        phase: Some(RunPhase::Succeeded),
        result: Some(TaskResult {
            summary: "from the past".into(),
            patch: Some(patch),
            ..TaskResult::default()
        }),
        ..RunReport::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_for_a_task_that_was_made_again_changes_nothing_and_is_kept() {
    let cluster = Cluster::start().await;
    let pi = cluster.join("pi").await;
    let mut session = pi.session(&cluster).await;
    let old = cluster.task("t").await;
    let past = cluster.bound("t-1", &old, &pi).await;
    session.until_told(&past).await;
    assert_eq!(session.report(1, &past, &phase(RunPhase::Preparing)).await, None);
    cluster.delete("t-1", "t").await;

    // The same names, the same attempt, the same device.
    let new = cluster.task("t").await;
    let present = cluster.bound("t-1", &new, &pi).await;
    session.until_told(&present).await;
    assert_ne!(past.run_uid, present.run_uid);
    assert_eq!(session.gone, std::slice::from_ref(&past.run_uid));
    assert_eq!(
        session.report(2, &present, &phase(RunPhase::Preparing)).await,
        None
    );
    let before = cluster.get("t-1").await;

    let patch = upload(&pi, &past, b"an old patch").await.unwrap();
    let stale = cluster.metric("panda_agentlet_stale_reports").await;
    let why = session.report(3, &past, &done(patch)).await;
    assert_eq!(why.as_deref(), Some("no such run on this device"));
    assert_eq!(cluster.metric("panda_agentlet_stale_reports").await, stale + 1);
    assert_eq!(cluster.get("t-1").await, before, "the present is untouched");

    let left = cluster.left("t").await;
    let orphan = left
        .iter()
        .find(|left| left["deleted"] == true)
        .expect("an orphan");
    assert_eq!(
        (&orphan["runUid"], &orphan["orphan"]),
        (&past.run_uid.clone().into(), &true.into())
    );
    assert_eq!(orphan["artifacts"][0]["name"], "patch");
    let path = format!(
        "/apis/panda.dev/v1alpha1/namespaces/default/tasks/t/artifacts/{}/patch",
        past.run_uid
    );
    assert_eq!(cluster.client.get_text(&path).await.unwrap(), "an old patch");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mixed_fence_is_stale_and_foreign_bytes_are_refused() {
    let cluster = Cluster::start().await;
    let pi = cluster.join("pi").await;
    let other = cluster.join("other").await;
    let mut session = pi.session(&cluster).await;
    let task = cluster.task("t").await;
    let fence = cluster.bound("t-1", &task, &pi).await;
    session.until_told(&fence).await;
    let mixed: [fn(&mut Fence); 4] = [
        |f| f.attempt = 2,
        |f| f.epoch = 2,
        |f| f.task_uid = "another".into(),
        |f| f.device_uid = "another".into(),
    ];
    for (n, change) in (1..).zip(mixed) {
        let mut other = fence.clone();
        change(&mut other);
        assert!(
            session
                .report(n, &other, &phase(RunPhase::Failed))
                .await
                .is_some()
        );
        assert!(upload(&pi, &other, b"x").await.is_err(), "{other:?}");
    }
    assert_eq!(cluster.get("t-1").await.status.phase, None);
    let refused = cluster.metric("panda_agentlet_stale_uploads").await;
    assert_eq!(refused, 4);
    assert!(upload(&other, &fence, b"x").await.is_err());
    assert_eq!(cluster.metric("panda_agentlet_stale_uploads").await, refused + 1);
    upload(&pi, &fence, b"x").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_for_the_first_attempt_does_not_reach_the_second() {
    let cluster = Cluster::start().await;
    let pi = cluster.join("pi").await;
    let mut session = pi.session(&cluster).await;
    let task = cluster.task("t").await;
    let first = cluster.bound("t-1", &task, &pi).await;
    session.until_told(&first).await;
    cluster.lose("t-1").await;
    let second = cluster.bound("t-2", &task, &pi).await;
    session.until_told(&second).await;
    cluster.cancel("t-1").await;
    while session.runs[&first.run_uid].spec.cancel != Some(true) {
        session.until(|_| Some(())).await.unwrap();
    }
    assert_eq!(session.runs[&second.run_uid].spec.cancel, None);
    assert_eq!(
        session.report(1, &second, &phase(RunPhase::Preparing)).await,
        None
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_installed_again_under_its_name_or_another_is_another_device() {
    let cluster = Cluster::start().await;
    for (n, again) in ["pi", "renamed"].into_iter().enumerate() {
        let task = cluster.task(&format!("task-{n}")).await;
        let former = cluster.join("pi").await;
        let name = format!("t-{n}");
        let fence = cluster.bound(&name, &task, &former).await;
        let old = former.session(&cluster).await;
        cluster.remove_device("pi").await;
        let device = cluster.join(again).await;
        old.until_cut().await;
        let mut session = device.session(&cluster).await;
        assert!(session.renew().await.unwrap().runs.is_empty());
        assert!(session.runs.is_empty(), "it hears nothing of the other's runs");
        let mut lied = fence.clone();
        lied.device_uid.clone_from(&device.uid);
        for (seq, fence) in [(1, &fence), (2, &lied)] {
            assert!(
                session
                    .report(seq, fence, &phase(RunPhase::Succeeded))
                    .await
                    .is_some()
            );
            assert!(upload(&device, fence, b"x").await.is_err());
        }
        assert_eq!(
            upload(&former, &fence, b"x").await.unwrap_err().code(),
            tonic::Code::PermissionDenied
        );
        assert_eq!(cluster.get(&name).await.status.phase, None);
        cluster.remove_device(again).await;
    }
}
