//! A server over the memory store, for trying clients by hand:
//!
//! ```text
//! cargo run -p panda-apiserver --example serve -- DATA_DIR 127.0.0.1:7443
//! kubectl --kubeconfig DATA_DIR/admin.conf get namespaces
//! ```

use std::net::SocketAddr;
use std::sync::Arc;

use panda_api::meta::{RandomIds, SystemClock};
use panda_apiserver::pki::{Subject, kubeconfig};
use panda_apiserver::telemetry::{self, Settings};
use panda_apiserver::{Config, Deps, Server};
use panda_store::Memory;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("usage: serve DATA_DIR [ADDRESS]")?;
    let listen: SocketAddr = arguments
        .next()
        .unwrap_or_else(|| "127.0.0.1:7443".to_owned())
        .parse()?;
    let _guard = telemetry::init(&Settings {
        service: "serve".to_owned(),
        ..Settings::default()
    })?;
    let deps = Deps {
        store: Arc::new(Memory::new("example")),
        clock: Arc::new(SystemClock),
        ids: Arc::new(RandomIds),
        metrics: Arc::default(),
    };
    let server = Server::build(
        Config {
            listen,
            ..Config::new(&dir)
        },
        deps,
    )?;
    let pki = server.pki();
    for (user, subject) in [
        ("admin", Subject::admin()),
        ("viewer", Subject::user("viewer", &[])),
    ] {
        let identity = pki.client(user, &subject)?;
        let config = kubeconfig(
            &format!("https://{listen}"),
            pki.ca_certificate_pem(),
            user,
            &identity,
            "default",
        );
        std::fs::write(format!("{dir}/{user}.conf"), config)?;
    }
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            token.cancel();
        }
    });
    server.run(TcpListener::bind(listen).await?, stop).await?;
    Ok(())
}
