//! Configuration files, command lines and environments of a fleet's processes.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::Plan;
use super::daemon::Daemon;
use crate::cluster::{self, tool_file};
use crate::faults::Part;

const API: &str = "config.panda.dev/v1alpha1";
/// Agents of device n run as this user and n.
const AGENTS: usize = 64_100;

/// What an agentlet needs of its surroundings.
pub(super) struct Setup<'a> {
    pub(super) n: usize,
    pub(super) name: &'a str,
    pub(super) folder: &'a Path,
    pub(super) data: &'a Path,
    pub(super) address: &'a str,
    /// The command that `pandactl device join-token` printed.
    pub(super) join: &'a str,
    pub(super) enter: Vec<String>,
}

fn data(fleet: &Path) -> PathBuf {
    fleet.join("server/data")
}

/// The administrator's kubeconfig.
pub(super) fn admin(fleet: &Path) -> PathBuf {
    data(fleet).join("admin.kubeconfig")
}

fn write(path: &Path, config: &Value) -> anyhow::Result<String> {
    std::fs::write(path, config.to_string())?;
    Ok(path.display().to_string())
}

fn program(name: &str) -> anyhow::Result<String> {
    let path = cluster::target()?.join(name);
    ensure!(
        path.is_file(),
        "{} is not built: run `cargo build --workspace` first",
        path.display()
    );
    Ok(path.display().to_string())
}

pub(super) fn apiserver(
    plan: &Plan,
    fleet: &Path,
    server: std::net::SocketAddr,
    names: &[&str],
) -> anyhow::Result<Daemon> {
    let listen = if names.is_empty() {
        server.to_string()
    } else {
        format!("0.0.0.0:{}", server.port())
    };
    let mut config = json!({
        "apiVersion": API, "kind": "ApiServerConfiguration",
        "dataDir": data(fleet), "listen": listen, "tlsNames": names,
        "leases": {"grantTTL": seconds(plan.ttl)},
    });
    for (field, value) in &plan.server {
        config[field] = value.clone();
    }
    let file = write(&fleet.join("apiserver.yaml"), &config)?;
    let argv = vec![program("panda-apiserver")?, "--config".into(), file];
    let env = environment(plan, fleet, Part::Apiserver)?;
    Ok(Daemon::new(argv, env, fleet, "apiserver"))
}

pub(super) fn controllers(plan: &Plan, fleet: &Path) -> anyhow::Result<Daemon> {
    let config = json!({
        "apiVersion": API, "kind": "ControllersConfiguration",
        "lost": {"killGrace": seconds(plan.kill_grace), "minMargin": seconds(plan.min_margin)},
        // A leader that was killed is followed soon.
        "leaderElection": {"leaseDuration": "4s", "renewDeadline": "3s", "retryPeriod": "500ms"},
    });
    let file = write(&fleet.join("controllers.yaml"), &config)?;
    let kubeconfig = data(fleet).join("controllers.kubeconfig").display().to_string();
    let argv = vec![
        program("panda-controllers")?,
        "--kubeconfig".into(),
        kubeconfig,
        "--config".into(),
        file,
    ];
    let env = environment(plan, fleet, Part::Controllers)?;
    Ok(Daemon::new(argv, env, fleet, "controllers"))
}

pub(super) fn agentlet(plan: &Plan, fleet: &Path, setup: &Setup<'_>) -> anyhow::Result<Daemon> {
    let mut argv = setup.enter.clone();
    if rustix::process::geteuid().is_root() {
        // Its kernel is ours; that it was started anew is all that a boot means to it.
        write_boot_id(setup.folder, 1)?;
        let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
        argv.extend(["unshare", "--mount", "--", "sh", "-c", script].map(str::to_owned));
        argv.push(setup.folder.join(BOOT_ID).display().to_string());
    }
    let config = json!({
        "apiVersion": API, "kind": "AgentletConfiguration",
        "name": setup.name, "servers": [format!("https://{}", setup.address)],
        "dataDir": setup.data, "workDir": setup.folder.join("work"),
        "maxRuns": plan.max_runs, "labels": {"device": setup.name},
        "renewEvery": seconds(plan.ttl / 4), "agentUID": agents(setup.n),
        "owner": {"workspaceRoots": [fleet.join("home")]},
    });
    let file = write(&setup.folder.join("agentlet.yaml"), &config)?;
    let agentlet = fleet.join("bin/agentlet").display().to_string();
    argv.extend([agentlet, "--config".into(), file]);
    // What is used once; a device that has joined has no need of it.
    let mut said = setup.join.split_whitespace();
    while let Some(flag) = said.next() {
        if matches!(flag, "--token" | "--ca-cert-hash") {
            argv.push(flag.to_owned());
            argv.push(said.next().context("a value follows the flag")?.to_owned());
        }
    }
    let env = environment(plan, fleet, Part::Agentlet(setup.n))?;
    Ok(Daemon::new(argv, env, fleet, &format!("device-{}", setup.n)))
}

/// Gives a device another name, for its next start.
pub(super) fn rename(device: &Path, name: &str) -> anyhow::Result<()> {
    let path = device.join("agentlet.yaml");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    config["name"] = json!(name);
    write(&path, &config).map(|_| ())
}

/// The user that agents of a device run as, as root.
fn agents(n: usize) -> Option<usize> {
    rustix::process::geteuid().is_root().then_some(AGENTS + n)
}

const BOOT_ID: &str = "boot_id";

/// Gives a device its next boot.
pub(super) fn write_boot_id(device: &Path, boot: u32) -> anyhow::Result<()> {
    // The file is written over: it may stand in for the kernel's.
    Ok(std::fs::write(
        device.join(BOOT_ID),
        format!("00000000-0000-4000-8000-{boot:012}\n"),
    )?)
}

fn seconds(time: std::time::Duration) -> String {
    format!("{}ms", time.as_millis())
}

#[expect(
    clippy::disallowed_methods,
    reason = "whoever plays a schedule again may want to know more"
)]
fn environment(plan: &Plan, fleet: &Path, part: Part) -> anyhow::Result<Vec<(String, String)>> {
    let mut env = vec![
        ("HOME", fleet.join("home").display().to_string()),
        (
            "PATH",
            format!("{}:/usr/local/bin:/usr/bin:/bin", fleet.join("bin").display()),
        ),
        ("LC_ALL", "C.UTF-8".into()),
    ];
    if let Ok(filter) = std::env::var("PANDA_LOG") {
        env.push(("PANDA_LOG", filter));
    }
    if plan.clocks.contains(&part) {
        let library = tool_file("lib/libfaketime.so").context("libfaketime is not installed")?;
        write_clock(fleet, part, "+0s")?;
        env.extend([
            ("LD_PRELOAD", library.display().to_string()),
            (
                "FAKETIME_TIMESTAMP_FILE",
                clock(fleet, part).display().to_string(),
            ),
            ("FAKETIME_NO_CACHE", "1".into()),
            // Only what says the date is wrong, not what measures time.
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            ("FAKETIME_DISABLE_SHM", "1".into()),
        ]);
    }
    Ok(env
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect())
}

fn clock(fleet: &Path, part: Part) -> PathBuf {
    fleet.join(format!("clock-{}", part.to_string().replace('/', "-")))
}

pub(super) fn write_clock(fleet: &Path, part: Part, to: &str) -> anyhow::Result<()> {
    // Readers never see half of it.
    let path = clock(fleet, part);
    let new = path.with_extension("new");
    std::fs::write(&new, format!("{to}\n"))?;
    Ok(std::fs::rename(new, path)?)
}
