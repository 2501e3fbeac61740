//! Logs, followed and not.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use jiff::Timestamp;
use panda_api::logline::{self, Origin};
use panda_api::meta::ObjectMeta;
use panda_api::{LogStatus, Resource, Run, RunPhase, Task, TaskPhase};
use panda_client::config::Kubeconfig;
use panda_client::params::WriteParams;
use panda_store::blob::StreamId;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

use crate::harness::{Cluster, PATIENCE};

struct Log {
    stream: StreamId,
    length: u64,
}

/// A task with a run that works, and the run's log.
async fn running(cluster: &Cluster) -> Log {
    let mut task = Task {
        metadata: ObjectMeta::namespaced("default", "x"),
        ..Task::default()
    };
    task.spec.prompt = "p".into();
    let task = cluster
        .api::<Task>()
        .create(&task, &WriteParams::default())
        .await
        .unwrap();
    let mut run = Run {
        metadata: ObjectMeta::namespaced("default", "x-1"),
        ..Run::default()
    };
    run.metadata.owner_references = vec![task.controller_reference()];
    run.spec.task_ref.name = "x".into();
    run.spec.task_ref.uid = task.metadata.uid.clone();
    run.spec.attempt = 1;
    run.spec.agent.name = "fake".into();
    run.spec.prompt = "p".into();
    let run = cluster
        .api::<Run>()
        .create(&run, &WriteParams::default())
        .await
        .unwrap();
    let status = json!({"status": {"phase": "Running"}});
    cluster
        .api::<Run>()
        .patch_status("x-1", &status, &WriteParams::default())
        .await
        .unwrap();
    let status = json!({"status": {"phase": "Running", "currentRun": "x-1", "attempts": 1}});
    cluster
        .api::<Task>()
        .patch_status("x", &status, &WriteParams::default())
        .await
        .unwrap();
    Log {
        stream: StreamId::new(&run.metadata.uid, "log").unwrap(),
        length: 0,
    }
}

async fn write(cluster: &Cluster, log: &mut Log, origin: Origin, text: &str) {
    let mut record = Vec::new();
    logline::encode(
        &mut record,
        Timestamp::from_second(1_700_000_000).unwrap(),
        origin,
        false,
        text.as_bytes(),
    );
    log.length = cluster
        .blobs
        .append(log.stream.clone(), log.length, Bytes::from(record))
        .await
        .unwrap();
}

async fn end(cluster: &Cluster, log: &Log, phase: RunPhase, task: TaskPhase) {
    let logs = LogStatus {
        bytes: log.length,
        ..LogStatus::default()
    };
    let status = json!({"status": {"phase": phase, "logs": logs}});
    cluster
        .api::<Run>()
        .patch_status("x-1", &status, &WriteParams::default())
        .await
        .unwrap();
    let status = json!({"status": {"phase": task}});
    cluster
        .api::<Task>()
        .patch_status("x", &status, &WriteParams::default())
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_shown_with_tail_stream_and_timestamps() {
    let cluster = Cluster::start().await;
    let mut log = running(&cluster).await;
    write(&cluster, &mut log, Origin::Stdout, "one").await;
    write(&cluster, &mut log, Origin::Stderr, "two").await;
    write(&cluster, &mut log, Origin::System, "three").await;
    assert_eq!(cluster.ok(&["logs", "x"]).await, "one\ntwo\npanda: three\n");
    assert_eq!(
        cluster.ok(&["logs", "task/x", "--tail", "1"]).await,
        "panda: three\n"
    );
    assert_eq!(
        cluster.ok(&["logs", "run/x-1", "--stream", "stderr"]).await,
        "two\n"
    );
    let stamped = cluster.ok(&["logs", "run/x-1", "--timestamps", "--tail=1"]).await;
    assert_eq!(stamped, "2023-11-14T22:13:20.000000Z panda: three\n");
    assert_eq!(cluster.ok(&["logs", "x", "--since", "5m"]).await, "");
    cluster.run(&["logs", "device/x"]).await.fails();
    cluster.run(&["logs", "nothing"]).await.fails();
    cluster.run(&["logs", "x", "--previous"]).await.fails();
}

#[tokio::test(flavor = "multi_thread")]
async fn following_ends_with_the_task_and_mirrors_it() {
    for (phase, task, code) in [
        (RunPhase::Succeeded, TaskPhase::Succeeded, 0),
        (RunPhase::Failed, TaskPhase::Failed, 2),
        (RunPhase::Cancelled, TaskPhase::Cancelled, 3),
        (RunPhase::Succeeded, TaskPhase::Review, 5),
    ] {
        let cluster = Cluster::start().await;
        let mut log = running(&cluster).await;
        write(&cluster, &mut log, Origin::Stdout, "0").await;
        let mut child = cluster
            .command(&["logs", "-f", "x", "--exit-status"])
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for number in 1..20 {
            let line = tokio::time::timeout(PATIENCE, lines.next_line())
                .await
                .unwrap()
                .unwrap()
                .unwrap();
            assert_eq!(line, (number - 1).to_string());
            write(&cluster, &mut log, Origin::Stdout, &number.to_string()).await;
        }
        end(&cluster, &log, phase, task).await;
        assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("19"));
        assert_eq!(
            tokio::time::timeout(PATIENCE, lines.next_line())
                .await
                .unwrap()
                .unwrap(),
            None
        );
        let status = tokio::time::timeout(PATIENCE, child.wait())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(status.code(), Some(code), "{task:?}");
    }
}

/// Passes connections on to `target` and cuts each after so many bytes of answers, as a network in trouble does. Fewer
/// bytes than a TLS record has would let nothing through at all.
async fn cutting_proxy(target: std::net::SocketAddr, bytes: u64) -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, cuts) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&cuts);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let counted = Arc::clone(&counted);
            tokio::spawn(async move {
                let Ok(server) = tokio::net::TcpStream::connect(target).await else {
                    return;
                };
                let ((mut from_client, mut to_client), (from_server, mut to_server)) =
                    (client.into_split(), server.into_split());
                let mut limited = from_server.take(bytes);
                tokio::select! {
                    _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
                    copied = tokio::io::copy(&mut limited, &mut to_client) => {
                        counted.fetch_add(usize::from(copied.is_ok_and(|n| n == bytes)), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    (address, cuts)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_cuts_connections_loses_and_repeats_nothing() {
    let cluster = Cluster::start().await;
    let mut log = running(&cluster).await;
    let line = |number: usize| format!("line {number} {}", "x".repeat(200));
    for number in 0..400 {
        write(&cluster, &mut log, Origin::Stdout, &line(number)).await;
    }
    let path = cluster.dir.path().join("config");
    let text = std::fs::read_to_string(&path).unwrap();
    let config = Kubeconfig::parse(&text)
        .unwrap()
        .resolve(None, &|file| std::fs::read(file))
        .unwrap();
    let target = config.server.authority().unwrap().as_str().parse().unwrap();
    let (proxy, cuts) = cutting_proxy(target, 40_000).await;
    std::fs::write(&path, text.replace(&target.to_string(), &proxy.to_string())).unwrap();
    let following = cluster.run(&["logs", "-f", "x", "--exit-status"]);
    let working = async {
        for number in 400..800 {
            write(&cluster, &mut log, Origin::Stdout, &line(number)).await;
            tokio::task::yield_now().await;
        }
        end(&cluster, &log, RunPhase::Succeeded, TaskPhase::Succeeded).await;
    };
    let (done, ()) = tokio::join!(following, working);
    let wanted: String = (0..800).map(|number| line(number) + "\n").collect();
    assert_eq!(done.ok(), wanted);
    assert!(cuts.load(Ordering::Relaxed) > 1, "the proxy has cut nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_followed_tail_starts_at_the_end() {
    let cluster = Cluster::start().await;
    let mut log = running(&cluster).await;
    for number in 0..10 {
        write(&cluster, &mut log, Origin::Stdout, &number.to_string()).await;
    }
    end(&cluster, &log, RunPhase::Succeeded, TaskPhase::Succeeded).await;
    assert_eq!(cluster.ok(&["logs", "-f", "x", "--tail", "3"]).await, "7\n8\n9\n");
    assert_eq!(cluster.ok(&["logs", "-f", "x", "--tail", "0"]).await, "");
}
