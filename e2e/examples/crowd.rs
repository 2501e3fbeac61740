//! Opens connections over TLS and leaves them idle: `crowd SERVER CA-FILE NUMBER`. Prints how many it opened, and ends with
//! its standard input.

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::io::Read as _;
use std::time::Duration;

use anyhow::Context;
use panda_client::Config;
use panda_client::config::Identity;
use panda_client::connector::{Connector as _, TlsConnector};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let server = args.next().context("want a server")?;
    let ca = args.next().context("want a file with its authority")?;
    let number: usize = args.next().context("want a number")?.parse()?;
    let config = Config {
        server: server.parse()?,
        ca: std::fs::read(ca)?,
        tls_server_name: None,
        identity: Identity::None,
        namespace: String::new(),
    };
    // Half of them over HTTP/2, which has no request to wait for.
    let patience = Duration::from_secs(20);
    let connectors = [
        TlsConnector::new(&config, patience)?,
        TlsConnector::http2(&config, patience)?,
    ];
    let mut open = Vec::with_capacity(number);
    for n in 0..number {
        open.push(
            connectors[n % 2]
                .connect()
                .await
                .with_context(|| format!("connection {n}"))?,
        );
    }
    println!("{}", open.len());
    tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0])).await??;
    Ok(())
}
