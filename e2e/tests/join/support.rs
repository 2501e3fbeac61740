//! A control plane, and devices whose every setting is the test's.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use panda_api::{Device, Run, RunPhase};
use panda_client::Api;
use panda_client::config::Kubeconfig;
use panda_e2e::cluster::target;
use panda_e2e::faults::Part;
use panda_e2e::fleet::daemon::Daemon;
use panda_e2e::fleet::{Fleet, Plan};
use panda_e2e::schedule::{Work, play};
use serde_json::{Map, Value, json};

/// Longest that any single wait of a test takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// A control plane that has no devices yet. `server`: further fields of the API server's configuration.
pub(crate) async fn control_plane(server: Value) -> anyhow::Result<Fleet> {
    let server: Map<String, Value> = serde_json::from_value(server)?;
    Fleet::start(Plan {
        devices: 0,
        server,
        ..Plan::default()
    })
    .await
}

/// Where the API server is, `https://host:port`.
pub(crate) fn address(fleet: &Fleet) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(fleet.config())?;
    let config = Kubeconfig::parse(&text)?.resolve(None, &|name: &str| std::fs::read(name))?;
    Ok(config.server.to_string().trim_end_matches('/').to_owned())
}

/// A device.
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    /// What starts it, once it has joined.
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) daemon: Daemon,
}

fn open_to_all(path: &Path) -> std::io::Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}

/// The flags that a device joins with, once.
pub(crate) fn join_flags(fleet: &Fleet, name: &str) -> anyhow::Result<Vec<String>> {
    let said = fleet.ok(&["device", "join-token", "--name", name])?;
    let words: Vec<&str> = said.split_whitespace().collect();
    let mut flags = Vec::new();
    for flag in ["--token", "--ca-cert-hash"] {
        let at = words.iter().position(|word| *word == flag).context("the flag")?;
        let value = words.get(at + 1).context("its value")?;
        flags.extend([flag.to_owned(), (*value).to_owned()]);
    }
    Ok(flags)
}

impl Machine {
    /// A device that has joined over the first of these addresses, and is ready.
    pub(crate) async fn join(fleet: &Fleet, name: &str, servers: &[String]) -> anyhow::Result<Self> {
        let folder = fleet.dir().join(name);
        std::fs::create_dir(&folder)?;
        open_to_all(&folder)?;
        let config = folder.join("agentlet.yaml").display().to_string();
        let argv = vec![
            fleet.dir().join("bin/agentlet").display().to_string(),
            "--config".into(),
            config,
        ];
        let path = format!("{}:/usr/bin:/bin", fleet.dir().join("bin").display());
        let env = [
            ("HOME", fleet.dir().join("home").display().to_string()),
            ("PATH", path),
            ("LC_ALL", "C.UTF-8".to_owned()),
        ];
        let env: Vec<_> = env.map(|(name, value)| (name.to_owned(), value)).into();
        let mut machine = Self {
            name: name.to_owned(),
            daemon: Daemon::new(argv.clone(), env.clone(), &folder, "agentlet"),
            folder,
            argv,
            env,
        };
        machine.configure(servers)?;
        machine.join_again(fleet)?;
        machine.until_ready(fleet).await?;
        machine.daemon.stop(PATIENCE).await?;
        machine.daemon = machine.daemon_with(&[]);
        machine.daemon.start()?;
        let twice = || async {
            let log = fleet.part(Part::Apiserver).log();
            let connected = format!("device connected device={name} ");
            (log.matches(&connected).count() > 1).then_some(())
        };
        fleet
            .eventually(&format!("{name} is back"), PATIENCE, twice)
            .await?;
        Ok(machine)
    }

    /// Starts it with a token of its own.
    pub(crate) fn join_again(&mut self, fleet: &Fleet) -> anyhow::Result<()> {
        self.daemon = self.daemon_with(&join_flags(fleet, &self.name)?);
        self.daemon.start()
    }

    fn daemon_with(&self, more: &[String]) -> Daemon {
        let argv = [self.argv.as_slice(), more].concat();
        Daemon::new(argv, self.env.clone(), &self.folder, "agentlet")
    }

    /// Has it use these addresses from its next start on.
    pub(crate) fn configure(&self, servers: &[String]) -> anyhow::Result<()> {
        let root = rustix::process::geteuid().is_root();
        let config = json!({
            "apiVersion": "config.panda.dev/v1alpha1", "kind": "AgentletConfiguration",
            "name": self.name, "servers": servers,
            "dataDir": self.folder.join("data"), "workDir": self.folder.join("work"),
            "maxRuns": 2, "labels": {"device": self.name}, "renewEvery": "750ms",
            "agentUID": root.then_some(64_190),
        });
        Ok(std::fs::write(
            self.folder.join("agentlet.yaml"),
            config.to_string(),
        )?)
    }

    /// The Device.
    pub(crate) async fn device(&self, fleet: &Fleet) -> anyhow::Result<Device> {
        let devices: Api<Device> = Api::cluster(fleet.client()?);
        Ok(devices.get(&self.name).await?)
    }

    /// Waits until the control plane sees it.
    pub(crate) async fn until_ready(&self, fleet: &Fleet) -> anyhow::Result<()> {
        let ready = || async {
            let device = self.device(fleet).await.ok()?;
            let conditions = &device.status.conditions;
            let ready = conditions
                .iter()
                .any(|c| c.type_ == "Ready" && c.status == "True");
            ready.then_some(())
        };
        let waited = fleet
            .eventually(&format!("{} is ready", self.name), PATIENCE, ready)
            .await;
        waited.with_context(|| self.daemon.tail())
    }

    /// Waits until its log holds a text; how often it does.
    pub(crate) async fn until_said(&self, fleet: &Fleet, text: &str) -> anyhow::Result<usize> {
        let said = || async { Some(self.said(text)).filter(|times| *times > 0) };
        let waited = fleet
            .eventually(&format!("{} says {text:?}", self.name), PATIENCE, said)
            .await;
        waited.with_context(|| self.daemon.tail())
    }

    /// How often its log holds a text.
    pub(crate) fn said(&self, text: &str) -> usize {
        self.daemon.log().matches(text).count()
    }
}

/// A task for one device that works for so long, and goes on for a minute when the server is away.
pub(crate) fn work(machine: &Machine, name: &str, time: Duration) -> Work {
    let number = machine.name.strip_prefix("device-");
    Work {
        device: number.and_then(|n| n.parse().ok()),
        policy: "Continue",
        after: Duration::from_secs(60),
        ..Work::new(name, time)
    }
}

/// Makes a task.
pub(crate) fn make(fleet: &Fleet, work: &Work) -> anyhow::Result<()> {
    play::prepare(fleet, std::slice::from_ref(work))?;
    fleet.apply(&json!({"apiVersion": "v1", "kind": "List", "items": [work.task(&fleet.beats())]}))
}

/// The runs of a task, by attempt.
pub(crate) async fn runs(fleet: &Fleet, task: &str) -> anyhow::Result<Vec<Run>> {
    let runs: Api<Run> = Api::namespaced(fleet.client()?, "default");
    let mut runs = runs.list_all(&Default::default()).await?.items;
    runs.retain(|run| run.spec.task_ref.name == task);
    runs.sort_by_key(|run| run.spec.attempt);
    Ok(runs)
}

/// Waits until the first attempt of a task is in a phase.
pub(crate) async fn until(fleet: &Fleet, task: &str, phase: RunPhase) -> anyhow::Result<Run> {
    let check = || async {
        let runs = runs(fleet, task).await.ok()?;
        runs.into_iter().find(|run| run.status.phase == Some(phase))
    };
    fleet
        .eventually(&format!("{task} is {phase:?}"), PATIENCE, check)
        .await
}

/// Waits until a task has succeeded, with its first attempt.
pub(crate) async fn until_done(fleet: &Fleet, task: &str) -> anyhow::Result<Run> {
    let run = until(fleet, task, RunPhase::Succeeded).await?;
    let all = runs(fleet, task).await?;
    ensure!(all.len() == 1, "{task} took {} attempts: {all:#?}", all.len());
    Ok(run)
}

/// An API server beside the fleet's, and where it is. With `authority`, it has that one's key.
pub(crate) async fn another_server(
    fleet: &Fleet,
    authority: Option<&Path>,
) -> anyhow::Result<(Daemon, String)> {
    let folder = fleet.dir().join("other");
    let data = folder.join("data");
    std::fs::create_dir_all(data.join("pki"))?;
    for folder in [&folder, &data, &data.join("pki")] {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))?;
    }
    for entry in authority
        .map(std::fs::read_dir)
        .transpose()?
        .into_iter()
        .flatten()
    {
        let entry = entry?;
        std::fs::copy(entry.path(), data.join("pki").join(entry.file_name()))?;
    }
    let argv = [
        target()?.join("panda-apiserver").display().to_string(),
        "--data-dir".into(),
        data.display().to_string(),
        "--listen".into(),
        "127.0.0.1:0".into(),
    ];
    let daemon = Daemon::new(argv.into(), Vec::new(), &folder, "apiserver");
    daemon.start()?;
    let ready = || async {
        let log = daemon.log();
        let line = log.lines().find_map(|line| line.strip_prefix("ready at "))?;
        Some(line.trim_end_matches('/').to_owned())
    };
    let address = fleet
        .eventually("the other server is ready", PATIENCE, ready)
        .await?;
    Ok((daemon, address))
}
