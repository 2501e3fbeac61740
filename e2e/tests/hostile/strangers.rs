//! Who has no right to be here: other authorities, certificates that have ended, tokens that are used up.

use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, ensure};
use panda_api::meta::{Clock, RandomIds, SystemClock};
use panda_apiserver::pki::{Pki, Subject};
use panda_client::config::Identity;
use panda_client::{Client, Options};
use panda_e2e::cluster::target;
use panda_e2e::fleet::{Fleet, Plan};
use panda_rpc::v1::StatBlobRequest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{admin, as_client, connect, credentials, drain, grpc, works_as_before};

/// Two years ago.
#[derive(Debug)]
struct Past(SystemClock);

impl Clock for Past {
    fn now(&self) -> jiff::Timestamp {
        self.0.now() - std::time::Duration::from_secs(2 * 365 * 24 * 3600)
    }

    fn monotonic(&self) -> std::time::Duration {
        self.0.monotonic()
    }
}

fn one_device() -> Plan {
    Plan {
        devices: 1,
        ..Plan::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_and_foreign_certificates_open_neither_rest_nor_grpc() -> anyhow::Result<()> {
    let fleet = Fleet::start(one_device()).await?;
    let device = credentials(&fleet, 0)?;
    let subjects = [Subject::admin(), Subject::device(&device.name, &device.uid)];
    let elsewhere = tempfile::tempdir()?;
    let (clock, ids) = (Arc::new(SystemClock), Arc::new(RandomIds));
    let foreign = Pki::open(elsewhere.path(), clock, ids)?;
    let past: Arc<dyn Clock> = Arc::new(Past(SystemClock));
    let own = fleet.dir().join("server/data/pki");
    let expired = Pki::open(&own, past, Arc::new(RandomIds))?;
    for (what, pki) in [("foreign", &foreign), ("expired", &expired)] {
        for subject in &subjects {
            let shown = pki.issue(subject)?;
            let identity = Identity::ClientCert {
                cert: shown.certificate_pem.clone().into_bytes(),
                key: shown.key_pem.clone().into_bytes(),
            };
            let config = as_client(&fleet, identity)?;
            // TLS 1.3: the client may only learn of it when it reads.
            if let Ok(mut stream) = connect(&config).await {
                let request = b"GET /api HTTP/1.1\r\nHost: x\r\n\r\n";
                let _: std::io::Result<()> = stream.write_all(request).await;
                let answer = drain(&mut stream).await?;
                ensure!(answer.is_empty(), "{what}: {}", String::from_utf8_lossy(&answer));
            }
            if let Ok(mut client) = grpc(&config).await {
                let answer = client.stat_blob(StatBlobRequest::default()).await;
                ensure!(answer.is_err(), "{what}: {answer:?}");
            }
        }
    }
    works_as_before(&fleet, "after").await
}

/// What an agentlet says that must not come up.
fn agentlet_fails(fleet: &Fleet, folder: &str, args: &[&str]) -> anyhow::Result<String> {
    let data = fleet.dir().join(folder);
    std::fs::create_dir_all(&data)?;
    let mut command = Command::new("timeout");
    command
        .arg("40")
        .arg(target()?.join("agentlet"))
        .args(args)
        .arg("--data-dir")
        .arg(&data)
        .env_clear()
        .env("HOME", fleet.dir().join("home"))
        .env("PATH", "/usr/bin:/bin");
    let output = command.output()?;
    ensure!(
        output.status.code().is_some_and(|code| code != 0 && code != 124),
        "{args:?}: {:?}",
        output.status
    );
    ensure!(!data.join("identity.pem").exists(), "{args:?} has joined");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_join_once_under_their_name_and_to_the_authority_they_name() -> anyhow::Result<()> {
    let fleet = Fleet::start(one_device()).await?;
    let said = fleet.ok(&["device", "join-token", "--name", "pi"])?;
    let words: Vec<&str> = said.split_whitespace().collect();
    let after = |flag: &str| {
        let at = words.iter().position(|word| *word == flag);
        at.and_then(|at| words.get(at + 1)).copied().context("the flag")
    };
    let (server, token, hash) = (after("--server")?, after("--token")?, after("--ca-cert-hash")?);
    let join = |folder: &'static str, token: &str, hash: &str, name: &str| {
        let args = [
            "--server",
            server,
            "--token",
            token,
            "--ca-cert-hash",
            hash,
            "--name",
            name,
        ];
        agentlet_fails(&fleet, folder, &args)
    };
    let wrong = format!("sha256:{}", "0".repeat(64));
    let error = join("wrong-hash", token, &wrong, "pi")?;
    ensure!(error.contains("sha256:"), "it names the hashes: {error}");
    let error = join("wrong-name", token, hash, "other")?;
    ensure!(error.contains("pi"), "it names the name: {error}");
    // The token of the device that is there is used up.
    let used = fleet.ok(&["device", "join-token", "--name", "late", "--token-only"])?;
    let identity = rcgen::KeyPair::generate()?;
    let mut params = rcgen::CertificateParams::default();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "panda:device:late");
    let request = params.serialize_request(&identity)?.pem()?;
    use base64::Engine as _;
    let request = base64::engine::general_purpose::STANDARD.encode(request);
    let body = serde_json::json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"generateName": "late-"},
        "spec": {"request": request, "signerName": "panda.dev/device", "usages": ["client auth"]},
    });
    let holder = Client::connect(
        &as_client(&fleet, Identity::Bearer(used.trim().into()))?,
        Options::default(),
    )?;
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let post = panda_client::client::request(http::Method::POST, path, Some(body.to_string().into()))?;
    let _: serde_json::Value = holder.request_json(post).await?;
    let error = join("used", used.trim(), hash, "late")?;
    ensure!(error.contains("used"), "{error}");
    works_as_before(&fleet, "after").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_token_of_a_deleted_account_is_worth_nothing() -> anyhow::Result<()> {
    let fleet = Fleet::start(one_device()).await?;
    fleet.ok(&["create", "serviceaccount", "robot"])?;
    let token = fleet.ok(&["create", "token", "robot"])?;
    let config = as_client(&fleet, Identity::Bearer(token.trim().into()))?;
    let robot = Client::connect(&config, Options::default())?;
    robot.get_text("/apis").await?;
    fleet.ok(&["delete", "serviceaccount", "robot"])?;
    let refused = robot.get_text("/apis").await;
    ensure!(
        refused
            .as_ref()
            .is_err_and(|error| error.status().is_some_and(|status| status.code == 401)),
        "{refused:?}"
    );
    works_as_before(&fleet, "after").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_and_half_a_handshake_end_their_connection_only() -> anyhow::Result<()> {
    let mut plan = one_device();
    let limits = serde_json::json!({"handshakeTimeout": "1s", "headerTimeout": "2s"});
    plan.server.insert("limits".into(), limits);
    let fleet = Fleet::start(plan).await?;
    let server = admin(&fleet)?.server;
    let address = server.authority().context("an address")?.as_str();
    let noise: Vec<u8> = (0..65_536_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let openings: [&[u8]; 6] = [
        &noise,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        // A hello of SSLv2.
        b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10\x01\x00\x80",
        // Half a hello, then silence.
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"",
    ];
    for opening in openings {
        let mut stream = TcpStream::connect(address).await?;
        let _: std::io::Result<()> = stream.write_all(opening).await;
        let answer = drain(&mut stream).await?;
        ensure!(answer.len() < 1024, "{} bytes for garbage", answer.len());
    }
    // Over TLS: headers that never end, a byte at a time; and HTTP/2 that never begins.
    let mut slow = connect(&admin(&fleet)?).await?;
    slow.write_all(b"GET /api HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        .await?;
    let mut silent = panda_client::connector::Connector::connect(
        &panda_client::connector::TlsConnector::http2(&admin(&fleet)?, crate::support::PATIENCE)?,
    )
    .await?;
    let trickle = async {
        loop {
            let mut byte = [0; 256];
            tokio::select! {
                read = slow.read(&mut byte) => if !matches!(read, Ok(n) if n > 0) { break },
                () = tokio::time::sleep(std::time::Duration::from_millis(300)) => {
                    if slow.write_all(b"x").await.is_err() { break }
                }
            }
        }
    };
    tokio::time::timeout(crate::support::PATIENCE, trickle).await?;
    drain(&mut silent).await?;
    works_as_before(&fleet, "after").await
}
