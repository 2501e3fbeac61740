//! `testdevice ADDRESS DIR`: an agentlet as a process of its own, for the tests of this crate. It speaks to a server of
//! theirs without TLS, and keeps everything beneath DIR.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use futures::future::BoxFuture;
use panda_agentlet::boot::SystemBoot;
use panda_agentlet::{Config, Deps, build, hidden};
use panda_api::meta::{RandomIds, SystemClock};
use panda_client::connector::{Connector, Error, Io};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
struct Plain(SocketAddr);

impl Connector for Plain {
    fn connect(&self) -> BoxFuture<'_, Result<Box<dyn Io>, Error>> {
        Box::pin(async {
            let stream = TcpStream::connect(self.0).await;
            let stream = stream.map_err(|source| Error::Connect {
                target: self.0.to_string(),
                source,
            })?;
            Ok(Box::new(stream) as Box<dyn Io>)
        })
    }
}

fn main() -> ExitCode {
    if let Some(code) = hidden::dispatch(std::env::args_os().skip(1)) {
        return code;
    }
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("testdevice: {error}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn work() -> Result<(), Box<dyn std::error::Error>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut args = std::env::args().skip(1);
    let (Some(address), Some(dir)) = (args.next(), args.next()) else {
        return Err("want ADDRESS DIR".into());
    };
    let dir = PathBuf::from(dir);
    let mut config = Config::new("laptop", "device-1", dir.join("data"));
    config.work_dir = dir.join("work");
    config.reserve_bytes = 4 << 20;
    config.owner.workspace_roots = vec![dir.display().to_string()];
    if rustix::process::geteuid().is_root() {
        config.agent_uid = 64_001;
    }
    let deps = Deps {
        clock: Arc::new(SystemClock),
        ids: Arc::new(RandomIds),
        boot: Arc::new(SystemBoot::read()?),
        connector: Arc::new(Plain(address.parse()?)),
        exe: hidden::RUNNING_IMAGE.into(),
    };
    let token = CancellationToken::new();
    let mut running = std::pin::pin!(build(config, deps).await?.run(token.clone()));
    tokio::select! {
        done = &mut running => return Ok(done?),
        _ = terminate.recv() => token.cancel(),
    }
    Ok(running.await?)
}
