//! Devices that lie: about whose run it is, and about what gRPC is.

use std::time::Duration;

use anyhow::{Context, ensure};
use futures::StreamExt as _;
use panda_api::{Run, RunPhase};
use panda_client::Api;
use panda_client::connector::{Connector as _, TlsConnector};
use panda_e2e::faults::Fault;
use panda_e2e::fleet::{Fleet, Plan};
use panda_e2e::schedule::{Work, play};
use panda_rpc::v1::{
    DeviceMessage, Fence, GetBlobRequest, GetRunSecretsRequest, Hello, LogChunk, PutBlobChunk, Renew, Report,
    StatBlobRequest, device_message,
};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tonic::Code;

use crate::support::{PATIENCE, as_client, credentials, drain, grpc, memory, works_as_before};

fn say(body: device_message::Body) -> DeviceMessage {
    DeviceMessage { body: Some(body) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_gets_nothing_of_another_devices_run() -> anyhow::Result<()> {
    let fleet = Fleet::start(Plan::default()).await?;
    let work = Work {
        device: Some(0),
        ..Work::new("victim", Duration::from_secs(20))
    };
    play::prepare(&fleet, std::slice::from_ref(&work))?;
    fleet.apply(&json!({"apiVersion": "v1", "kind": "List", "items": [work.task(&fleet.beats())]}))?;
    let runs: Api<Run> = Api::namespaced(fleet.client()?, "default");
    let running = || async {
        let runs = runs.list_all(&Default::default()).await.ok()?.items;
        runs.into_iter()
            .find(|run| run.status.phase == Some(RunPhase::Running))
    };
    let run = fleet.eventually("the victim runs", PATIENCE, running).await?;
    let (owner, thief) = (credentials(&fleet, 0)?, credentials(&fleet, 1)?);
    let mut client = grpc(&as_client(&fleet, thief.identity())?).await?;
    let digest = format!("sha256:{}", "a".repeat(64));
    // Under the owner's name, and under its own.
    for (outbox_seq, device_uid) in (1 << 40..).zip([&owner.uid, &thief.uid]) {
        let fence = Some(Fence {
            task_uid: run.spec.task_ref.uid.clone(),
            run_uid: run.metadata.uid.clone(),
            attempt: run.spec.attempt,
            epoch: run.spec.lease_epoch.unwrap_or_default(),
            device_uid: device_uid.clone(),
        });
        let refused = |code: Code| matches!(code, Code::PermissionDenied | Code::FailedPrecondition);
        let secrets = client
            .get_run_secrets(GetRunSecretsRequest { fence: fence.clone() })
            .await;
        let code = secrets.err().context("secrets are given away")?.code();
        ensure!(refused(code), "GetRunSecrets: {code:?}");
        let stat = client
            .stat_blob(StatBlobRequest {
                fence: fence.clone(),
                digest: digest.clone(),
            })
            .await;
        let code = stat.err().context("StatBlob answers")?.code();
        ensure!(refused(code), "StatBlob: {code:?}");
        let blob = client
            .get_blob(GetBlobRequest {
                fence: fence.clone(),
                digest: digest.clone(),
                offset: 0,
            })
            .await;
        let code = blob.err().context("GetBlob answers")?.code();
        ensure!(refused(code), "GetBlob: {code:?}");
        let chunk = PutBlobChunk {
            fence: fence.clone(),
            digest: digest.clone(),
            size: 1,
            offset: 0,
            data: vec![1],
        };
        let put = client.put_blob(futures::stream::iter([chunk])).await;
        let code = put.err().context("PutBlob takes it")?.code();
        ensure!(refused(code), "PutBlob: {code:?}");
        let chunk = LogChunk {
            fence: fence.clone(),
            stream: "log".into(),
            data: b"forged".to_vec(),
            ..LogChunk::default()
        };
        let mut acks = client
            .append_log(futures::stream::iter([chunk]))
            .await?
            .into_inner();
        match acks.next().await.context("an answer")? {
            Ok(ack) => ensure!(!ack.stale.is_empty(), "AppendLog takes it: {ack:?}"),
            Err(status) => ensure!(refused(status.code()), "AppendLog: {status}"),
        }
        let body = json!({"phase": "Failed"}).to_string().into_bytes();
        let report = Report {
            // One of its own each time: a number that was answered once is acknowledged for ever.
            outbox_seq,
            fence,
            body,
        };
        let hello = Hello {
            device_uid: thief.uid.clone(),
            ..Hello::default()
        };
        let messages = [
            say(device_message::Body::Hello(hello)),
            say(device_message::Body::Report(report)),
        ];
        // It stays open, as a device's does, until the server has answered.
        let stream = futures::stream::iter(messages).chain(futures::stream::pending());
        let mut session = client.session(stream).await?.into_inner();
        let judged = async {
            while let Some(message) = session.next().await {
                match message.map(|message| message.body) {
                    Ok(Some(panda_rpc::v1::server_message::Body::Stale(_))) | Err(_) => return true,
                    Ok(Some(panda_rpc::v1::server_message::Body::Ack(_))) => return false,
                    Ok(_) => {}
                }
            }
            true
        };
        ensure!(
            tokio::time::timeout(PATIENCE, judged).await?,
            "the report is taken"
        );
    }
    let now = runs.get(&run.metadata.name).await?;
    ensure!(now.status.phase == Some(RunPhase::Running), "{:#?}", now.status);
    ensure!(!fleet.ok(&["logs", "task/victim"])?.contains("forged"));
    works_as_before(&fleet, "after").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_does_not_speak_the_protocol_harms_nobody() -> anyhow::Result<()> {
    let fleet = Fleet::start(Plan::default()).await?;
    let liar = credentials(&fleet, 1)?;
    let config = as_client(&fleet, liar.identity())?;
    let (_, before) = memory(&fleet)?;
    // Noise instead of frames, after a good preface and without one.
    let noise: Vec<u8> = (0..1_u32 << 20)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8)
        .collect();
    for preface in [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"[..], b""] {
        let mut stream = TlsConnector::http2(&config, PATIENCE)?.connect().await?;
        let _: std::io::Result<()> = stream.write_all(preface).await;
        let _: std::io::Result<()> = stream.write_all(&noise).await;
        drain(&mut stream).await?;
    }
    let hello = || {
        say(device_message::Body::Hello(Hello {
            device_uid: liar.uid.clone(),
            ..Hello::default()
        }))
    };
    let renew = |seq| say(device_message::Body::Renew(Renew { seq, wall_time_ms: 0 }));
    let huge = say(device_message::Body::Report(Report {
        body: vec![b'x'; 64 << 20],
        ..Report::default()
    }));
    let nonsense = say(device_message::Body::Report(Report {
        outbox_seq: 1,
        body: b"\xff\xfe{".to_vec(),
        ..Report::default()
    }));
    let other = Hello {
        device_uid: "another".into(),
        ..Hello::default()
    };
    let conversations = [
        ("no Hello first", vec![renew(1)]),
        ("Hello twice", vec![hello(), hello()]),
        ("another's uid", vec![say(device_message::Body::Hello(other))]),
        ("a huge message", vec![hello(), huge]),
        ("a report that is nonsense", vec![hello(), nonsense]),
    ];
    for (what, messages) in conversations {
        let mut client = grpc(&config).await?.max_encoding_message_size(1 << 30);
        let stream = futures::stream::iter(messages).chain(futures::stream::pending());
        let mut session = client.session(stream).await?.into_inner();
        let ended = async {
            loop {
                match session.next().await {
                    None | Some(Err(_)) => return,
                    // Told as stale, and so dealt with.
                    Some(Ok(message))
                        if matches!(message.body, Some(panda_rpc::v1::server_message::Body::Stale(_))) =>
                    {
                        return;
                    }
                    Some(Ok(_)) => {}
                }
            }
        };
        tokio::time::timeout(PATIENCE, ended)
            .await
            .with_context(|| format!("{what} goes on"))?;
    }
    // A hundred thousand messages whose answers nobody reads.
    let mut client = grpc(&config).await?;
    let messages = futures::stream::iter(std::iter::once(hello()).chain((0..100_000).map(renew)));
    let unread = client.session(messages.chain(futures::stream::pending())).await?;
    works_as_before(&fleet, "during").await?;
    drop(unread);
    let (_, after) = memory(&fleet)?;
    ensure!(
        after < before + (160 << 10),
        "{before} kB before, {after} kB after"
    );
    fleet.until_ready(1).await?;
    works_as_before(&fleet, "after").await
}

/// A run of no task's, as large as this, bound to a device.
async fn burden(fleet: &Fleet, n: usize, text: &str) -> anyhow::Result<()> {
    let runs: Api<Run> = Api::namespaced(fleet.client()?, "default");
    let name = format!("burden-{n}");
    let run = json!({
        "apiVersion": "panda.dev/v1alpha1", "kind": "Run", "metadata": {"name": name, "namespace": "default"},
        "spec": {"taskRef": {"name": name, "uid": name}, "attempt": 1, "prompt": text},
    });
    runs.create(&serde_json::from_value(run)?, &Default::default())
        .await?;
    let device = json!({"deviceName": fleet.devices()[1].name});
    let _: serde_json::Value = runs.post_subresource(&name, "binding", &device).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_never_read_costs_little_however_many_runs_it_has() -> anyhow::Result<()> {
    const RUNS: usize = 300;
    let plan = Plan {
        max_runs: 4096,
        // Nothing is given up meanwhile.
        ttl: Duration::from_secs(300),
        ..Plan::default()
    };
    let mut fleet = Fleet::start(plan).await?;
    // Its own agentlet stays away.
    fleet.inject(&Fault::Cut(1, Duration::MAX))?;
    let text = "x".repeat(160_000);
    let all = futures::stream::iter((0..RUNS).map(|n| burden(&fleet, n, &text)));
    let mut all = all.buffer_unordered(16);
    while let Some(bound) = all.next().await {
        bound?;
    }
    drop(all);
    fleet.ok(&["cordon", &fleet.devices()[1].name])?;
    let liar = credentials(&fleet, 1)?;
    let mut client = grpc(&as_client(&fleet, liar.identity())?).await?;
    let hello = say(device_message::Body::Hello(Hello {
        device_uid: liar.uid.clone(),
        ..Hello::default()
    }));
    let (before, _) = memory(&fleet)?;
    let messages = futures::stream::iter([hello]).chain(futures::stream::pending());
    let unread = client.session(messages).await?;
    works_as_before(&fleet, "during").await?;
    let (during, _) = memory(&fleet)?;
    eprintln!("{before} kB before, {during} kB with {RUNS} runs of 160 kB unread");
    ensure!(
        during < before + (24 << 10),
        "{before} kB before, {during} kB during"
    );
    drop(unread);
    Ok(())
}
