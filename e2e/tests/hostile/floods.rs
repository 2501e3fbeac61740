//! Too much of everything: bodies, connections, answers that nobody reads.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use panda_api::ConfigMap;
use panda_api::meta::ObjectMeta;
use panda_client::Api;
use panda_client::config::Identity;
use panda_client::params::WriteParams;
use panda_e2e::faults::Part;
use panda_e2e::fleet::{Fleet, Plan};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use crate::support::{admin, as_client, connect, drain, memory, works_as_before};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// What the server may grow by, in kilobytes, whatever it is sent.
const ROOM: u64 = 64 << 10;

fn one_device() -> Plan {
    Plan {
        devices: 1,
        ..Plan::default()
    }
}

/// Connections that the server has open, as it counts them.
async fn connections(fleet: &Fleet) -> Option<u64> {
    let metrics = fleet.client().ok()?.get_text("/metrics").await.ok()?;
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix("panda_apiserver_connections "))?;
    line.trim().parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_of_a_gibibyte_is_refused_and_not_kept() -> anyhow::Result<()> {
    let fleet = Fleet::start(one_device()).await?;
    let (_, before) = memory(&fleet)?;
    let whole = format!("Content-Length: {}\r\n", 1_u64 << 30);
    let heads = [
        ("with a length", whole.as_str()),
        ("in chunks", "Transfer-Encoding: chunked\r\n"),
        (
            "packed",
            "Transfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n",
        ),
    ];
    let mut chunk = b"100000\r\n".to_vec();
    chunk.extend(vec![b' '; 1 << 20]);
    chunk.extend(b"\r\n");
    for (what, head) in heads {
        let stream = connect(&admin(&fleet)?).await?;
        let (mut read, mut write) = tokio::io::split(stream);
        let request =
            format!("POST {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{head}\r\n");
        let send = async {
            write.write_all(request.as_bytes()).await?;
            for _ in 0..1024 {
                write.write_all(&chunk).await?;
            }
            write.flush().await
        };
        // Whoever is refused may find the connection closed while it still sends.
        let (answer, sent) = tokio::join!(drain(&mut read), send);
        let answer = answer?;
        let refused = [&b"HTTP/1.1 413"[..], b"HTTP/1.1 415"];
        ensure!(
            refused.iter().any(|start| answer.starts_with(start)) || (answer.is_empty() && sent.is_err()),
            "{what}: {}",
            String::from_utf8_lossy(&answer[..answer.len().min(300)])
        );
    }
    let (_, after) = memory(&fleet)?;
    ensure!(after < before + ROOM, "{before} kB before, {after} kB after");
    works_as_before(&fleet, "after").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_idle_connections_keep_nobody_out() -> anyhow::Result<()> {
    const WANTED: u64 = 5000;
    let mut plan = one_device();
    let limits = json!({"headerTimeout": "20s", "connections": 4800, "anonymousConnections": 3000});
    plan.server.insert("limits".into(), limits);
    let fleet = Fleet::start(plan).await?;
    let pid = fleet.part(Part::Apiserver).pid().context("the server runs")?;
    let files = format!("--nofile={}", WANTED * 2);
    let raised = Command::new("prlimit")
        .args(["--pid", &pid.to_string(), &files])
        .status();
    if !raised.is_ok_and(|status| status.success()) {
        eprintln!("skipped: the limit of open files cannot be raised");
        return Ok(());
    }
    let (before, _) = memory(&fleet)?;
    let config = as_client(&fleet, Identity::None)?;
    let ca = fleet.dir().join("ca.crt");
    std::fs::write(&ca, &config.ca)?;
    let mut crowd = Command::new("prlimit")
        .arg(&files)
        .arg(panda_e2e::cluster::target()?.join("examples/crowd"))
        .args([
            &config.server.to_string(),
            &ca.display().to_string(),
            &WANTED.to_string(),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("start examples/crowd")?;
    let mut said = String::new();
    let out = crowd.stdout.take().context("its output")?;
    let made = tokio::task::spawn_blocking(move || {
        use std::io::BufRead as _;
        std::io::BufReader::new(out).read_line(&mut said).map(|_| said)
    });
    let made = tokio::time::timeout(Duration::from_secs(120), made).await???;
    ensure!(
        made.trim() == WANTED.to_string(),
        "the crowd made {made:?} connections"
    );
    let (during, _) = memory(&fleet)?;
    let each = during.saturating_sub(before) / 3000;
    eprintln!("{each} kB for each of 3000 idle connections");
    ensure!(each < 128, "{each} kB a connection");
    // Others get in, and the device never lost its session.
    works_as_before(&fleet, "during").await?;
    let open = || async { (connections(&fleet).await? < 100).then_some(()) };
    fleet
        .eventually("idle connections are ended", Duration::from_secs(90), open)
        .await?;
    drop(crowd.stdin.take().map(|mut stdin| stdin.write_all(b"\n")));
    crowd.wait()?;
    works_as_before(&fleet, "after").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_reads_are_cut_and_cost_little() -> anyhow::Result<()> {
    let mut plan = one_device();
    plan.server.insert("limits".into(), json!({"stallTimeout": "3s"}));
    let fleet = Fleet::start(plan).await?;
    let text = "x".repeat(500_000);
    let maps = Api::<ConfigMap>::namespaced(fleet.client()?, "default");
    for n in 0..20 {
        // Created, not applied: what was applied last would stand in an annotation, which must be shorter.
        let map = ConfigMap {
            metadata: ObjectMeta::namespaced("default", format!("m{n}")),
            data: [("k".to_owned(), text.clone())].into(),
            ..ConfigMap::default()
        };
        maps.create(&map, &WriteParams::default()).await?;
    }
    let own = connections(&fleet).await.context("a count of connections")?;
    let (before, _) = memory(&fleet)?;
    let mut unread = Vec::new();
    for n in 0..40 {
        let mut stream = connect(&admin(&fleet)?).await?;
        let watch = if n % 2 == 0 { "?watch=1" } else { "" };
        let request = format!("GET {CONFIG_MAPS}{watch} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        unread.push(stream);
    }
    works_as_before(&fleet, "during").await?;
    // Twenty lists of ten megabytes at most; watches share what the store has.
    let (_, most) = memory(&fleet)?;
    eprintln!("{before} kB before, {most} kB at most, with 40 answers of 10 MB unread");
    ensure!(
        most < before + (512 << 10),
        "{before} kB before, {most} kB at most"
    );
    // Before anything is read, since a watch that is read again goes on: few are left, and no fewer after a while that
    // is longer than the time that they have.
    let last = std::cell::Cell::new((u64::MAX, std::time::Instant::now()));
    let cut = || async {
        let now = connections(&fleet).await?;
        let (before, since) = last.get();
        if now < before {
            last.set((now, std::time::Instant::now()));
        }
        (now <= own + 4 && since.elapsed() > Duration::from_secs(6)).then_some(())
    };
    fleet
        .eventually("they are cut", Duration::from_secs(60), cut)
        .await?;
    for mut stream in unread {
        let got = drain(&mut stream).await?;
        ensure!(got.len() < 9_000_000, "{} bytes", got.len());
    }
    works_as_before(&fleet, "after").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_never_end_are_given_up_and_leave_devices_alone() -> anyhow::Result<()> {
    let mut plan = one_device();
    let limits = json!({"requestsInFlight": 20, "requestTimeout": "4s"});
    plan.server.insert("limits".into(), limits);
    let fleet = Fleet::start(plan).await?;
    let device = fleet.part(Part::Agentlet(0));
    let (before, _) = memory(&fleet)?;
    // More than may be answered at a time, each a byte now and then.
    let slow = (0..40).map(|_| async {
        let stream = connect(&admin(&fleet)?).await?;
        let (mut read, mut write) = tokio::io::split(stream);
        let head = format!(
            "POST {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
        );
        write.write_all(head.as_bytes()).await?;
        let trickle = async {
            while write.write_all(b" ").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            std::future::pending::<()>().await;
        };
        let answer = async {
            let mut answer = vec![0; 64];
            let read = tokio::io::AsyncReadExt::read(&mut read, &mut answer).await?;
            answer.truncate(read);
            anyhow::Ok(answer)
        };
        tokio::select! {
            answer = tokio::time::timeout(crate::support::PATIENCE, answer) => answer?,
            () = trickle => anyhow::bail!("nobody comes here"),
        }
    });
    let answers = futures::future::try_join_all(slow).await?;
    for answer in &answers {
        let refused = ["HTTP/1.1 504", "HTTP/1.1 429", "HTTP/1.1 408"];
        ensure!(
            answer.is_empty() || refused.iter().any(|start| answer.starts_with(start.as_bytes())),
            "{}",
            String::from_utf8_lossy(answer)
        );
    }
    let (after, _) = memory(&fleet)?;
    ensure!(after < before + ROOM, "{before} kB before, {after} kB after");
    ensure!(!device.log().contains("session ended"), "{}", device.tail());
    works_as_before(&fleet, "after").await
}
