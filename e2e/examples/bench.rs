//! What a control plane costs: each line a ratio to a yardstick measured in the same run.
//!
//! `cargo build --release -p pandactl -p panda-agentlet && cargo run --release -p panda-e2e --example bench`
//!
//! Not a test: it asserts nothing about time. Ratios from one run can be compared, rates from two runs cannot.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::Context;
use panda_api::meta::ObjectMeta;
use panda_api::{ConfigMap, Task, TaskSpec};
use panda_client::params::WriteParams;
use panda_client::{Api, Client};
use panda_e2e::cluster::Cluster;
use serde_json::json;

/// Bytes of one object, as performance.md's yardstick has them.
const SIZE: usize = 1536;
const FOR: Duration = Duration::from_secs(3);
const CLIENTS: [usize; 3] = [1, 16, 64];

fn config_map(name: String) -> ConfigMap {
    let mut object = ConfigMap {
        metadata: ObjectMeta::namespaced("default", name),
        ..ConfigMap::default()
    };
    object.data.insert("filler".into(), "x".repeat(SIZE - 300));
    object
}

/// Durable creates a second through the API: every answer came after an fsync.
async fn creates(client: &Client, clients: usize, round: usize) -> anyhow::Result<f64> {
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for c in 0..clients {
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
        tasks.spawn(async move {
            let mut done = 0_u32;
            while start.elapsed() < FOR {
                api.create(
                    &config_map(format!("b-{round}-{clients}-{c}-{done}")),
                    &WriteParams::default(),
                )
                .await?;
                done += 1;
            }
            anyhow::Ok(done)
        });
    }
    let mut total = 0;
    while let Some(done) = tasks.join_next().await {
        total += done??;
    }
    Ok(f64::from(total) / start.elapsed().as_secs_f64())
}

/// The same rows straight into SQLite, one writer thread, everything waiting in one transaction.
fn sqlite(folder: &Path, clients: usize) -> anyhow::Result<f64> {
    let connection = rusqlite::Connection::open(folder.join(format!("bare-{clients}.db")))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.execute(
        "CREATE TABLE log (rev INTEGER PRIMARY KEY, name TEXT, body BLOB)",
        [],
    )?;
    let (sender, receiver) = mpsc::sync_channel::<(Vec<u8>, mpsc::SyncSender<()>)>(1024);
    let writer = std::thread::spawn(move || -> rusqlite::Result<()> {
        while let Ok(first) = receiver.recv() {
            let mut group = vec![first];
            group.extend(receiver.try_iter());
            connection.execute_batch("BEGIN IMMEDIATE")?;
            for (body, _) in &group {
                connection
                    .prepare_cached("INSERT INTO log (name, body) VALUES ('n', ?1)")?
                    .execute([body])?;
            }
            connection.execute_batch("COMMIT")?;
            for (_, done) in group {
                // A client that is gone needs no answer.
                let _: Result<(), _> = done.send(());
            }
        }
        Ok(())
    });
    let start = Instant::now();
    let threads: Vec<_> = (0..clients)
        .map(|_| {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut done = 0_u32;
                while start.elapsed() < FOR {
                    let (answer, wait) = mpsc::sync_channel(1);
                    if sender.send((vec![b'x'; SIZE], answer)).is_err() || wait.recv().is_err() {
                        break;
                    }
                    done += 1;
                }
                done
            })
        })
        .collect();
    drop(sender);
    let total: u32 = threads.into_iter().filter_map(|thread| thread.join().ok()).sum();
    let rate = f64::from(total) / start.elapsed().as_secs_f64();
    writer
        .join()
        .map_err(|_| anyhow::anyhow!("the writer failed"))??;
    Ok(rate)
}

/// The same creates into etcd, where it is installed: a put on the condition that the key is new, through its HTTP
/// gateway, one node, plain text. etcd answers after its own fsync.
struct Etcd {
    process: std::process::Child,
    address: String,
    _data: tempfile::TempDir,
}

impl Etcd {
    async fn start() -> anyhow::Result<Option<Self>> {
        let port = |socket: std::net::TcpListener| anyhow::Ok(socket.local_addr()?.port());
        let client = port(std::net::TcpListener::bind("127.0.0.1:0")?)?;
        let peer = port(std::net::TcpListener::bind("127.0.0.1:0")?)?;
        let data = tempfile::tempdir()?;
        let (address, peer) = (
            format!("http://127.0.0.1:{client}"),
            format!("http://127.0.0.1:{peer}"),
        );
        let started = std::process::Command::new("etcd")
            .arg("--data-dir")
            .arg(data.path())
            .args([
                "--listen-client-urls",
                &address,
                "--advertise-client-urls",
                &address,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args(["--initial-cluster", &format!("default={peer}")])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn();
        let process = match started {
            Ok(process) => process,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let etcd = Self {
            process,
            address,
            _data: data,
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while etcd.put(&http_client(), "ready").await.is_err() {
            anyhow::ensure!(Instant::now() < deadline, "etcd does not become ready");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(Some(etcd))
    }

    async fn put(&self, client: &HttpClient, key: &str) -> anyhow::Result<()> {
        put(client, &self.address, key).await
    }

    async fn creates(&self, clients: usize, round: usize) -> anyhow::Result<f64> {
        let start = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for c in 0..clients {
            let (client, address) = (http_client(), self.address.clone());
            tasks.spawn(async move {
                let mut done = 0_u32;
                while start.elapsed() < FOR {
                    put(&client, &address, &format!("b-{round}-{clients}-{c}-{done}")).await?;
                    done += 1;
                }
                anyhow::Ok(done)
            });
        }
        let mut total = 0;
        while let Some(done) = tasks.join_next().await {
            total += done??;
        }
        Ok(f64::from(total) / start.elapsed().as_secs_f64())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _: Result<(), _> = self.process.kill();
        let _: Result<_, _> = self.process.wait();
    }
}

type HttpClient = hyper_util::client::legacy::Client<
    hyper_util::client::legacy::connect::HttpConnector,
    http_body_util::Full<bytes::Bytes>,
>;

fn http_client() -> HttpClient {
    hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new()).build_http()
}

async fn put(client: &HttpClient, address: &str, key: &str) -> anyhow::Result<()> {
    use base64::Engine as _;
    use http_body_util::BodyExt as _;
    let base64 = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
    let (key, value) = (base64(key.as_bytes()), base64(&[b'x'; SIZE]));
    let body = json!({
        "compare": [{"key": key, "target": "CREATE", "create_revision": "0"}],
        "success": [{"requestPut": {"key": key, "value": value}}],
    });
    let request = http::Request::post(format!("{address}/v3/kv/txn"))
        .body(http_body_util::Full::from(bytes::Bytes::from(body.to_string())))?;
    let response = client.request(request).await?;
    anyhow::ensure!(
        response.status().is_success(),
        "etcd answered {}",
        response.status()
    );
    response.into_body().collect().await?;
    Ok(())
}

fn rss(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// From the moment before the create to the first instruction of the agent, which writes the clock into a file.
async fn apply_to_process(cluster: &Cluster, client: &Client) -> anyhow::Result<f64> {
    let agent = json!({
        "apiVersion": "panda.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "stamp"},
        "spec": {"drivers": [{"kind": "Exec", "command": ["date", "+%s.%N"]}]},
    });
    std::fs::write(cluster.dir().join("agent.json"), agent.to_string())?;
    cluster.ok(&["apply", "-f", "agent.json"])?;
    let api: Api<Task> = Api::namespaced(client.clone(), "default");
    let mut seconds = Vec::new();
    for i in 0..9 {
        let task = Task {
            metadata: ObjectMeta::namespaced("default", format!("stamp-{i}")),
            spec: TaskSpec {
                prompt: "What time is it?".into(),
                agents: vec![panda_api::AgentChoice {
                    name: "stamp".into(),
                    ..Default::default()
                }],
                ..TaskSpec::default()
            },
            ..Task::default()
        };
        let before = std::time::UNIX_EPOCH.elapsed()?.as_secs_f64();
        let name = api.create(&task, &WriteParams::default()).await?.metadata.name;
        let task = cluster
            .eventually("the task ends", || async {
                let task = api.get(&name).await.ok()?;
                task.status
                    .phase
                    .is_some_and(|phase| phase.is_terminal())
                    .then_some(task)
            })
            .await?;
        let log = cluster.ok(&["logs", &format!("task/{}", task.metadata.name)])?;
        let started = log
            .lines()
            .find_map(|line| line.trim().parse::<f64>().ok())
            .context("a stamp in the log")?;
        seconds.push(started - before);
    }
    Ok(median(seconds))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let start = Instant::now();
    let cluster = Cluster::start(&[]).await?;
    let up = start.elapsed();
    let client = cluster.client()?;
    let spawn = Instant::now();
    for _ in 0..20 {
        std::process::Command::new("/bin/true").status()?;
    }
    let spawn = spawn.elapsed() / 20;
    println!(
        "start to ready           {:>8.0} ms   {:>6.0} x starting /bin/true",
        up.as_secs_f64() * 1e3,
        up.as_secs_f64() / spawn.as_secs_f64()
    );
    let pid = cluster.pid().context("running")?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    println!(
        "idle memory of up        {:>8.1} MB   {:>6.1} x this process",
        rss(pid)?,
        rss(pid)? / rss(std::process::id())?
    );
    let binary = std::fs::metadata(cluster.pandactl_path()?)?.len();
    println!("binary                   {:>8.1} MB", binary as f64 / 1e6);
    let delay = apply_to_process(&cluster, &client).await?;
    println!(
        "apply to process started {:>8.1} ms   {:>6.1} x starting /bin/true (median of 9)",
        delay * 1e3,
        delay / spawn.as_secs_f64()
    );
    let etcd = Etcd::start().await?;
    if etcd.is_none() {
        println!("etcd is not installed: no ratio to it");
    }
    for clients in CLIENTS {
        let mut pairs = Vec::new();
        for round in 0..3 {
            pairs.push((creates(&client, clients, round).await?, {
                let folder = tempfile::tempdir_in(cluster.dir())?;
                sqlite(folder.path(), clients)?
            }));
        }
        if let Some(etcd) = &etcd {
            let mut ratios = Vec::new();
            for round in 10..13 {
                ratios.push(creates(&client, clients, round).await? / etcd.creates(clients, round).await?);
            }
            let ratio = median(ratios);
            println!(
                "creates/s, {clients:>2} clients                 {ratio:>6.2} x etcd, by its HTTP gateway (median of 3 pairs)"
            );
        }
        let ratio = median(pairs.iter().map(|(ours, bare)| ours / bare).collect());
        let ours = median(pairs.iter().map(|(ours, _)| *ours).collect());
        println!(
            "creates/s, {clients:>2} clients    {ours:>8.0} /s   {ratio:>6.2} x bare SQLite, group-committed (median of 3 pairs)"
        );
    }
    Ok(())
}
