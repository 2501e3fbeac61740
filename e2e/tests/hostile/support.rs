//! What several tests need.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use hyper_util::rt::TokioIo;
use panda_agentlet::credentials::Credentials;
use panda_api::RunPhase;
use panda_client::Api;
use panda_client::Config;
use panda_client::config::{Identity, Kubeconfig};
use panda_client::connector::{self, Connector as _, Io, TlsConnector};
use panda_e2e::faults::Part;
use panda_e2e::fleet::Fleet;
use panda_e2e::schedule::{Work, play};
use panda_rpc::v1::agentlet_client::AgentletClient;
use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tonic::transport::{Channel, Endpoint};

/// Longest that any single wait of a test takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How the administrator connects.
pub(crate) fn admin(fleet: &Fleet) -> anyhow::Result<Config> {
    let text = std::fs::read_to_string(fleet.config())?;
    Ok(Kubeconfig::parse(&text)?.resolve(None, &|name: &str| std::fs::read(name))?)
}

/// The same address and authority with another identity.
pub(crate) fn as_client(fleet: &Fleet, identity: Identity) -> anyhow::Result<Config> {
    Ok(Config {
        identity,
        ..admin(fleet)?
    })
}

/// What a device shows.
pub(crate) fn credentials(fleet: &Fleet, n: usize) -> anyhow::Result<Credentials> {
    Credentials::load(fleet.devices()[n].data())?.context("the device has joined")
}

/// A connection for HTTP/1.1.
pub(crate) async fn connect(config: &Config) -> Result<Box<dyn Io>, connector::Error> {
    TlsConnector::new(config, PATIENCE)?.connect().await
}

/// A client of the agentlet service.
pub(crate) async fn grpc(config: &Config) -> anyhow::Result<AgentletClient<Channel>> {
    let connector = Arc::new(TlsConnector::http2(config, PATIENCE)?);
    let dial = tower::service_fn(move |_| {
        let connector = Arc::clone(&connector);
        async move { Ok::<_, connector::Error>(TokioIo::new(connector.connect().await?)) }
    });
    let channel = Endpoint::from_static("http://agentlet.panda.dev")
        .connect_with_connector(dial)
        .await?;
    Ok(AgentletClient::new(channel))
}

/// Reads until the other side ends the connection; what came.
pub(crate) async fn drain(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> anyhow::Result<Vec<u8>> {
    let mut out = Vec::new();
    // However it ends: what counts is that it does.
    let _: std::io::Result<_> = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut out))
        .await
        .context("the server keeps the connection")?;
    Ok(out)
}

/// Kilobytes of memory that a process has, and has had at most.
pub(crate) fn memory(fleet: &Fleet) -> anyhow::Result<(u64, u64)> {
    let pid = fleet.part(Part::Apiserver).pid().context("the server runs")?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|rest| rest.split_whitespace().next());
        anyhow::Ok(number.context("a number of kilobytes")?.parse()?)
    };
    Ok((field("VmRSS:")?, field("VmHWM:")?))
}

/// A request and a run, as on any other day; the server is still the same process.
pub(crate) async fn works_as_before(fleet: &Fleet, name: &str) -> anyhow::Result<()> {
    ensure!(
        fleet.part(Part::Apiserver).ended().is_none(),
        "the server ended:\n{}",
        fleet.logs()
    );
    ensure!(!fleet.logs().contains("panicked"), "{}", fleet.logs());
    let work = Work::new(name, Duration::from_millis(200));
    play::prepare(fleet, std::slice::from_ref(&work))?;
    let items = [work.task(&fleet.beats())];
    fleet.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}))?;
    let runs: Api<panda_api::Run> = Api::namespaced(fleet.client()?, "default");
    let done = || async {
        let runs = runs.list_all(&Default::default()).await.ok()?.items;
        let run = runs.into_iter().find(|run| run.spec.task_ref.name == name)?;
        (run.status.phase == Some(RunPhase::Succeeded)).then_some(())
    };
    fleet
        .eventually(&format!("{name} succeeds"), PATIENCE, done)
        .await
}
