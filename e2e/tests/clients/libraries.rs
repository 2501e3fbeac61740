//! The client libraries run their cases.

use std::path::PathBuf;
use std::process::Command;

use anyhow::ensure;
use panda_e2e::cluster::tool_file;

use crate::server::{Server, programs};

/// Every case of a program must be there and succeed.
fn passes(mut command: Command, cases: &[&str]) -> anyhow::Result<()> {
    let output = command.output()?;
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    let ok: Vec<&str> = out.lines().filter_map(|line| line.strip_prefix("ok ")).collect();
    let failed = out.lines().any(|line| line.starts_with("FAIL"));
    ensure!(
        output.status.success() && !failed && ok == cases,
        "{command:?} ({}):\n{out}\n{err}",
        output.status
    );
    Ok(())
}

/// How a library's program is started; none where it is not installed.
pub(crate) fn python(server: &Server, program: &str) -> Option<Command> {
    let mut command = server.command(tool_file("clients/python/bin/python")?);
    command.arg(programs().join("python").join(program));
    Some(command)
}

pub(crate) fn node(server: &Server, program: &str) -> Option<Command> {
    // Modules are looked for beside the program, so it runs from where they are.
    let folder: PathBuf = tool_file("clients/node/node_modules")?.parent()?.to_owned();
    let copy = folder.join(program);
    if std::fs::read(&copy).ok() != std::fs::read(programs().join("node").join(program)).ok() {
        std::fs::copy(programs().join("node").join(program), &copy).ok()?;
    }
    let own = panda_e2e::cluster::optional_tool("node").unwrap_or_else(|| PathBuf::from("node"));
    let mut command = server.command(own);
    command.arg(copy);
    Some(command)
}

pub(crate) fn rust(server: &Server) -> Option<Command> {
    Some(server.command(tool_file("clients/rust/debug/panda-client-rs")?))
}

#[tokio::test]
async fn the_python_client_works() -> anyhow::Result<()> {
    let server = Server::start("10m").await?;
    let Some(command) = python(&server, "clients.py") else {
        return Ok(());
    };
    passes(
        command,
        &[
            "objects_are_made_read_changed_and_deleted",
            "lists_select_and_come_in_pages",
            "a_watch_follows_a_list",
            "discovery_leads_the_dynamic_client",
            "built_in_kinds_are_typed",
        ],
    )
}

#[tokio::test]
async fn the_javascript_client_works() -> anyhow::Result<()> {
    let server = Server::start("10m").await?;
    let Some(command) = node(&server, "clients.mjs") else {
        return Ok(());
    };
    passes(
        command,
        &[
            "objects_are_made_read_changed_and_deleted",
            "a_json_patch_is_the_default_of_custom_objects",
            "a_watch_shows_what_happens",
            "an_informer_keeps_a_cache",
            "built_in_kinds_are_typed",
        ],
    )
}

#[tokio::test]
async fn the_rust_client_works() -> anyhow::Result<()> {
    let server = Server::start("10m").await?;
    let Some(command) = rust(&server) else {
        return Ok(());
    };
    passes(
        command,
        &[
            "discovery_finds_the_kind",
            "objects_are_made_patched_and_deleted",
            "a_watcher_lists_and_watches",
            "a_watcher_streams_its_list",
            "metadata_alone_is_watched",
            "a_controller_with_a_finalizer_runs",
            "events_of_the_newer_group_are_published",
        ],
    )
}
