//! `pandactl up --demo`: `examples/first-task` from a fresh repository to a verified change, in a folder of its own.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use panda_api::{Agent, Device, GitSpec, Task, TaskPhase};
use panda_client::params::WriteParams;
use panda_client::{Api, Client};
use tokio::signal::unix::Signal;

use super::{Error, Surroundings, UpArgs, catalogue, compose, settings};

/// The example, as it stands in the repository.
const FILES: &[(&str, &str)] = &[
    (
        "README.md",
        include_str!("../../../examples/first-task/repo/README.md"),
    ),
    (
        "src/leap.c",
        include_str!("../../../examples/first-task/repo/src/leap.c"),
    ),
    (
        "src/leap.h",
        include_str!("../../../examples/first-task/repo/src/leap.h"),
    ),
    (
        "tests/run.sh",
        include_str!("../../../examples/first-task/repo/tests/run.sh"),
    ),
    (
        "tests/test_leap.c",
        include_str!("../../../examples/first-task/repo/tests/test_leap.c"),
    ),
];
const AGENT: &str = include_str!("../../../examples/first-task/agent.yaml");
const TASK: &str = include_str!("../../../examples/first-task/task.yaml");
/// How long the example may take.
const PATIENCE: Duration = Duration::from_secs(120);

fn failed(what: &str, error: impl std::fmt::Display) -> Error {
    Error::Demo(format!("{what}: {error}"))
}

pub(super) async fn run(
    args: UpArgs,
    around: Surroundings,
    out: &mut (dyn Write + Send),
    interrupt: &mut Signal,
    terminate: &mut Signal,
) -> Result<(), Error> {
    let place = tempfile::Builder::new().prefix("panda-demo-").tempdir()?;
    open_to_all(place.path())?;
    let repository = place.path().join("leap");
    make_repository(&repository)?;
    writeln!(
        out,
        "1. A git repository with a failing test: {}\n",
        repository.display()
    )?;
    let before = Command::new("sh")
        .arg("tests/run.sh")
        .current_dir(&repository)
        .output()?;
    out.write_all(&indented(&before.stdout))?;
    if before.status.success() {
        return Err(Error::Demo(
            "the example's test passes before anybody worked on it".into(),
        ));
    }

    let around = Surroundings {
        config: Some(place.path().join("config/config")),
        ..around
    };
    let args = UpArgs {
        data_dir: Some(place.path().join("data")),
        work_dir: Some(args.work_dir.unwrap_or_else(|| place.path().join("work"))),
        listen: std::net::SocketAddr::from(([127, 0, 0, 1], 0)),
        keep_runs: false,
        ..args
    };
    let mut settings = settings(&args, &around)?;
    settings.workspace_roots.push(repository.clone());
    writeln!(out, "\n2. The control plane starts")?;
    out.flush()?;
    let up = compose::start(settings).await?;
    writeln!(out, "   ready at {}", up.config.server)?;
    let shown = tokio::select! {
        shown = show(&up.client, &repository, out) => shown,
        _ = interrupt.recv() => Err(Error::Demo("interrupted".into())),
        _ = terminate.recv() => Err(Error::Demo("told to stop".into())),
    };
    up.stop().await;
    shown
}

async fn show(client: &Client, repository: &Path, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    catalogue::install(client).await?;
    let agent: Agent = serde_yaml::from_str(AGENT).map_err(|error| failed("agent.yaml", error))?;
    let mut task: Task = serde_yaml::from_str(TASK).map_err(|error| failed("task.yaml", error))?;
    let workspace = task.spec.workspace.get_or_insert_default();
    workspace.git = Some(GitSpec {
        path: repository.display().to_string(),
        ..GitSpec::default()
    });
    let agents: Api<Agent> = Api::namespaced(client.clone(), "default");
    agents.create(&agent, &WriteParams::default()).await?;
    let tasks: Api<Task> = Api::namespaced(client.clone(), "default");
    writeln!(
        out,
        "\n3. The task, as in examples/first-task/task.yaml\n\n   {}\n",
        task.spec.prompt
    )?;
    let name = tasks.create(&task, &WriteParams::default()).await?.metadata.name;
    let task = follow(&tasks, &name, out).await?;
    outcome(client, &task, out).await?;
    next_steps(client, out).await?;
    match task.status.phase {
        Some(TaskPhase::Succeeded) => Ok(()),
        _ => Err(Error::Demo(format!(
            "the task ended as {}{}",
            phase(&task),
            task.status
                .failure
                .as_ref()
                .map(|failure| format!(": {:?}: {}", failure.reason, failure.message))
                .unwrap_or_default()
        ))),
    }
}

fn phase(task: &Task) -> String {
    format!("{:?}", task.status.phase.unwrap_or(TaskPhase::Pending))
}

/// Tells of each phase as it comes, until the task has ended.
async fn follow(tasks: &Api<Task>, name: &str, out: &mut (dyn Write + Send)) -> Result<Task, Error> {
    let start = tokio::time::Instant::now();
    let mut shown = None;
    loop {
        let task = tasks.get(name).await?;
        if task.status.phase != shown {
            shown = task.status.phase;
            if let Some(phase) = shown {
                writeln!(out, "   {:>5.1}s  {phase:?}", start.elapsed().as_secs_f64())?;
                out.flush()?;
            }
        }
        if shown.is_some_and(|phase| phase.is_terminal() || phase == TaskPhase::Review) {
            return Ok(task);
        }
        if start.elapsed() > PATIENCE {
            let why = serde_json::to_string_pretty(&task.status).unwrap_or_default();
            return Err(Error::Demo(format!(
                "the task has not ended after {PATIENCE:?}: {why}"
            )));
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

async fn outcome(client: &Client, task: &Task, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    let runs: Api<panda_api::Run> = Api::namespaced(client.clone(), "default");
    let run = runs.get(&task.status.current_run).await?;
    writeln!(out, "\n4. What came out\n")?;
    writeln!(out, "   task       {}  {}", task.metadata.name, phase(task))?;
    writeln!(
        out,
        "   agent      {}  on device {}",
        run.spec.agent.name, run.spec.device_name
    )?;
    writeln!(out, "   attempts   {}", task.status.attempts)?;
    if let Some(result) = &task.status.result {
        writeln!(out, "   summary    {}", result.summary)?;
        writeln!(out, "   base       {}", result.base_commit)?;
    }
    if let Some(patch) = run
        .status
        .result
        .as_ref()
        .and_then(|result| result.patch.as_ref())
    {
        let text = runs
            .get_subresource(&run.metadata.name, "artifacts/patch", &[])
            .await?;
        writeln!(
            out,
            "\n   diff ({}, {} bytes)\n",
            run.status.diffstat.trim(),
            patch.size
        )?;
        out.write_all(&indented(&text))?;
    }
    writeln!(
        out,
        "\n   verification: on a fresh checkout, outside the agent, tests taken from the base commit\n"
    )?;
    for check in &run.status.verify {
        let verdict = if check.passed { "passed" } else { "FAILED" };
        let code = check
            .exit_code
            .map(|code| format!("exit code {code}"))
            .unwrap_or_default();
        writeln!(out, "   {verdict}  {}  {code}", check.name)?;
        out.write_all(&indented(check.tail.as_bytes()))?;
    }
    Ok(())
}

/// Names an agent CLI that is installed and logged in, or says how to get one.
async fn next_steps(client: &Client, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    let devices: Api<Device> = Api::cluster(client.clone());
    let known: Vec<&str> = catalogue::AGENTS.iter().map(|(name, _)| *name).collect();
    let mut found = None;
    for _ in 0..50 {
        let devices = devices.list(&Default::default()).await?;
        let agents: Vec<_> = devices
            .items
            .into_iter()
            .flat_map(|device| device.status.agents)
            .collect();
        found = Some(
            agents
                .iter()
                .filter(|agent| agent.driver.is_some() && known.contains(&agent.name.as_str()))
                .cloned()
                .collect::<Vec<_>>(),
        );
        if known
            .iter()
            .all(|name| agents.iter().any(|agent| agent.name == *name))
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    writeln!(out, "\n5. Next\n")?;
    writeln!(
        out,
        "   pandactl up                      # a control plane that stays"
    )?;
    let found = found.unwrap_or_default();
    match found
        .iter()
        .find(|agent| agent.logged_in != Some(false))
        .or(found.first())
    {
        Some(agent) => {
            let version = if agent.version.is_empty() {
                String::new()
            } else {
                format!(" {}", agent.version)
            };
            let login = if agent.logged_in == Some(false) {
                ", not logged in yet"
            } else {
                ""
            };
            writeln!(
                out,
                "   found on this machine: {}{version}{login}; with it:",
                agent.name
            )?;
            writeln!(
                out,
                "   pandactl create task mine --agent {} --repo . --prompt '...' --wait",
                agent.name
            )?;
        }
        None => {
            writeln!(
                out,
                "   no agent CLI was found on this machine; install one of: {}",
                known.join(", ")
            )?;
            writeln!(
                out,
                "   then: pandactl create task mine --agent NAME --repo . --prompt '...' --wait"
            )?;
        }
    }
    out.flush()?;
    Ok(())
}

fn make_repository(path: &Path) -> Result<(), Error> {
    for (name, text) in FILES {
        let file: PathBuf = path.join(name);
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(file, text)?;
    }
    open_to_all(path)?;
    let commands: [&[&str]; 3] = [
        &["init", "--quiet", "--initial-branch=main"],
        &["add", "--all"],
        &[
            "-c",
            "user.name=Panda",
            "-c",
            "user.email=panda@localhost",
            "-c",
            "commit.gpgsign=false",
            "commit",
            "--quiet",
            "--no-verify",
            "--message",
            "leap years",
        ],
    ];
    for args in commands {
        let output = Command::new("git")
            .args(args)
            .current_dir(path)
            .output()
            .map_err(|e| failed("git", e))?;
        if !output.status.success() {
            return Err(failed("git", String::from_utf8_lossy(&output.stderr)));
        }
    }
    Ok(())
}

fn open_to_all(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}

fn indented(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + text.len() / 8);
    for line in text.split_inclusive(|&b| b == b'\n') {
        out.extend_from_slice(b"     ");
        out.extend_from_slice(line);
    }
    if !text.is_empty() && !text.ends_with(b"\n") {
        out.push(b'\n');
    }
    out
}
