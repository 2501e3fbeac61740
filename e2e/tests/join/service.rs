//! B23: an agentlet as a service manager starts and stops it, without a service manager: no terminal, an input that
//! nobody closes or descriptors that are closed, and TERM to the main process alone (`KillMode=process`).

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use panda_api::RunPhase;
use panda_e2e::processes;
use rustix::process::Signal;
use serde_json::json;

use crate::support::{Machine, PATIENCE, address, control_plane, make, until, until_done, work};

/// Starts the device's program by a script that decides about its descriptors.
fn start(machine: &Machine, script: &str, stdin: Stdio) -> anyhow::Result<Child> {
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(machine.folder.join("service.log"))?;
    let mut command = Command::new("setsid");
    command
        .args(["sh", "-c", script, "sh"])
        .args(&machine.argv)
        .env_clear()
        .envs(machine.env.iter().cloned())
        // What systemd sets.
        .env("INVOCATION_ID", "0123456789abcdef0123456789abcdef")
        .env("JOURNAL_STREAM", "8:1234")
        .current_dir("/")
        .stdin(stdin)
        .stdout(log.try_clone()?)
        .stderr(log);
    command.spawn().context("start it")
}

/// Ends the main process alone, and says how it ended.
async fn stop(child: &mut Child) -> anyhow::Result<std::process::ExitStatus> {
    processes::signal(child.id(), Signal::TERM);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        ensure!(tokio::time::Instant::now() < deadline, "it does not stop");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The agent asks for everything that a terminal or an input could give, then works.
fn curious(task: &str, machine: &Machine, time: &str) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "panda.dev/v1alpha1", "kind": "Agent", "metadata": {"name": task}, "spec": {
            "capabilities": ["shell"],
            "drivers": [{"kind": "Exec", "command": [
                "fakeagent", "--read-stdin-to-eof", "--open-tty", "--status", "--sleep", time, "--say", "the end"
            ]}],
        }},
        {"apiVersion": "panda.dev/v1alpha1", "kind": "Task", "metadata": {"name": task}, "spec": {
            "prompt": "look around", "agents": [{"name": task}],
            "device": {"name": machine.name, "onDisconnect": {"policy": "Continue", "after": "120s"}},
        }},
    ]})
}

fn supervisors(machine: &Machine) -> usize {
    let all = processes::naming(&machine.folder);
    all.iter()
        .filter(|process| process.text.contains(" supervise "))
        .count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_is_stopped_alone_and_its_runs_go_on_to_the_next_start() -> anyhow::Result<()> {
    let fleet = control_plane(json!({})).await?;
    let machine = Machine::join(&fleet, "device-0", &[address(&fleet)?]).await?;
    machine.daemon.stop(PATIENCE).await?;

    // A shell or a launcher that holds the other end of the input, and never writes or closes it.
    let mut held = start(&machine, "exec \"$@\"", Stdio::piped())?;
    fleet.apply(&curious("watched", &machine, "20s"))?;
    until(&fleet, "watched", RunPhase::Running).await?;
    let status = stop(&mut held).await?;
    ensure!(status.code() == Some(0), "{status}, signal {:?}", status.signal());
    ensure!(supervisors(&machine) == 1, "the run's supervisor lives on");

    // Nothing open at all.
    let mut bare = start(&machine, "exec \"$@\" <&- >&- 2>&-", Stdio::null())?;
    let run = until_done(&fleet, "watched").await?;
    ensure!(run.spec.attempt == 1, "adopted, not begun anew");
    let said = fleet.ok(&["logs", "task/watched"])?;
    for words in ["stdin 0 bytes: ", "not opened /dev/tty", "fds 0 1 2", "the end"] {
        ensure!(said.contains(words), "{words:?} in {said}");
    }
    // And it takes new work as it is.
    make(&fleet, &work(&machine, "more", Duration::from_millis(200)))?;
    until_done(&fleet, "more").await?;
    let status = stop(&mut bare).await?;
    ensure!(status.code() == Some(0), "{status}, signal {:?}", status.signal());
    Ok(())
}
