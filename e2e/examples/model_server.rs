//! Serves a script given as arguments: `!COMMAND` runs a command, anything else is said.

#![expect(clippy::print_stdout, reason = "an example prints")]

use panda_e2e::model_server::{ModelServer, Step};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let script = std::env::args().skip(1).map(|arg| match arg.strip_prefix('!') {
        Some(command) => Step::Shell(command.to_owned()),
        None => Step::Say(arg),
    });
    let server = ModelServer::start(script.collect()).await?;
    println!("{}", server.base_url());
    tokio::signal::ctrl_c().await?;
    for seen in server.seen() {
        eprintln!("{seen:?}");
    }
    Ok(())
}
