//! Real agent CLIs, driven by their shipped manifests alone, against the scripted model.

#[path = "agents/claude.rs"]
mod claude;
#[path = "agents/failover.rs"]
mod failover;
#[path = "agents/faults.rs"]
mod faults;
#[path = "agents/gemini.rs"]
mod gemini;
#[path = "agents/grok.rs"]
mod grok;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use panda_api::{Run, Task, TaskPhase};
use panda_client::Api;
use panda_client::params::ListParams;
use panda_e2e::cluster::{Cluster, optional_tool, tool};
use panda_e2e::model_server::{ModelServer, Step};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{apply, ended_within, example_repository, git, root};

/// What mends the first task, in any shell.
const MEND: &str = r"sed -i 's|return year % 4 == 0;|return (year % 4 == 0 \&\& year % 100 != 0) \|\| year % 400 == 0;|' src/leap.c";

/// How long a real agent may take, of which some start in seconds on an idle machine and in a minute on a busy one.
const PATIENCE: Duration = Duration::from_secs(240);

/// A real agent CLI of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cli {
    Claude,
    Grok,
    Gemini,
}

impl Cli {
    const fn name(self) -> &'static str {
        match self {
            Self::Claude => "claude-code",
            Self::Grok => "grok",
            Self::Gemini => "gemini",
        }
    }

    const fn program(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Grok | Self::Gemini => self.name(),
        }
    }

    /// Variable that takes the key.
    const fn key(self) -> &'static str {
        match self {
            Self::Claude => "ANTHROPIC_API_KEY",
            Self::Grok => "XAI_API_KEY",
            Self::Gemini => "GEMINI_API_KEY",
        }
    }

    /// A folder with its program, where every user of the machine can reach it; none when it is not installed.
    fn programs(self) -> anyhow::Result<Option<TempDir>> {
        let program = match self {
            // Too large to be installed everywhere.
            Self::Claude => optional_tool(self.program()),
            Self::Grok | Self::Gemini => tool(self.program()),
        };
        let Some(program) = program else {
            return Ok(None);
        };
        let program = std::fs::canonicalize(program)?;
        let folder = tempfile::Builder::new().prefix("panda-agent-").tempdir()?;
        open_to_all(folder.path())?;
        let here = folder.path().join(self.program());
        match self {
            Self::Claude if program.ancestors().skip(1).all(is_open_to_all) => {
                std::os::unix::fs::symlink(program, here)?;
            }
            Self::Claude | Self::Grok => drop(std::fs::copy(program, here)?),
            Self::Gemini => {
                // A script and everything that lies beside it.
                let bundle = program.parent().context("a bundle")?;
                let script = if bundle.ancestors().all(is_open_to_all) {
                    program
                } else {
                    copy_all(bundle, &folder.path().join("bundle"))?;
                    folder
                        .path()
                        .join("bundle")
                        .join(program.file_name().context("a script")?)
                };
                std::fs::write(
                    &here,
                    format!("#!/bin/sh\nexec node '{}' \"$@\"\n", script.display()),
                )?;
                open_to_all(&here)?;
            }
        }
        Ok(Some(folder))
    }

    /// The manifest as it is shipped, under another name, pointed at another endpoint.
    fn manifest(self, name: &str, model: &ModelServer) -> anyhow::Result<String> {
        let path = root().join(format!("manifests/agents/{}.yaml", self.name()));
        let mut agent: Value = serde_yaml::from_str(&std::fs::read_to_string(path)?)?;
        agent["metadata"]["name"] = json!(name);
        agent["spec"]["models"]["endpoint"]["baseUrl"] = match self {
            Self::Grok => json!(model.base_url()),
            Self::Claude | Self::Gemini => json!(model.root_url()),
        };
        Ok(agent.to_string())
    }

    fn task(self, name: &str, agents: &[&str], repository: &Path) -> Value {
        let agents: Vec<Value> = agents.iter().map(|name| json!({"name": name})).collect();
        json!({
            "apiVersion": "panda.dev/v1alpha1",
            "kind": "Task",
            "metadata": {"name": name},
            "spec": {
                "prompt": "The test for 1900 fails. Make is_leap_year follow the Gregorian rule.",
                "agents": agents,
                "env": [{"name": self.key(), "value": "scripted"}],
                "workspace": {"git": {"path": repository}, "writes": ["src/**"]},
                "verify": [
                    {"name": "tests", "command": ["sh", "tests/run.sh"], "timeout": "2m", "restore": ["tests/**"]},
                ],
            },
        })
    }
}

/// A cluster whose device has one agent, and that agent.
struct Place {
    cli: Cli,
    cluster: Cluster,
    repository: PathBuf,
    _programs: Vec<TempDir>,
}

impl Place {
    /// None when the agent is not installed.
    async fn new(cli: Cli, extra: &[&str]) -> anyhow::Result<Option<Self>> {
        Self::with(&[cli], extra).await
    }

    /// The same with several agents, of which the first counts as that of the place.
    async fn with(clis: &[Cli], extra: &[&str]) -> anyhow::Result<Option<Self>> {
        let mut programs = Vec::new();
        for cli in clis {
            let Some(folder) = cli.programs()? else {
                return Ok(None);
            };
            programs.push(folder);
        }
        let path: Vec<&Path> = programs.iter().map(TempDir::path).collect();
        let cluster = Cluster::start_with_path(extra, &path).await?;
        let repository = example_repository(&cluster, "leap")?;
        Ok(Some(Self {
            cli: clis[0],
            cluster,
            repository,
            _programs: programs,
        }))
    }

    /// Applies the agent under `name` and a task of the same name for it.
    fn give(&self, name: &str, model: &ModelServer, spec: &Value) -> anyhow::Result<()> {
        let agent = self.cli.manifest(name, model)?;
        apply(&self.cluster, &format!("{name}-agent.json"), &agent)?;
        let mut task = self.cli.task(name, &[name], &self.repository);
        for (field, value) in spec.as_object().into_iter().flatten() {
            task["spec"][field] = value.clone();
        }
        apply(&self.cluster, &format!("{name}.json"), &task.to_string())?;
        Ok(())
    }

    /// Runs of a task, oldest first.
    async fn runs(&self, task: &str) -> anyhow::Result<Vec<Run>> {
        let api: Api<Run> = Api::namespaced(self.cluster.client()?, "default");
        let mut runs = api.list_all(&ListParams::default()).await?.items;
        runs.retain(|run| run.spec.task_ref.name == task);
        runs.sort_by_key(|run| run.spec.attempt);
        Ok(runs)
    }

    /// A task once it has ended (or waits for review).
    async fn ended(&self, task: &str) -> anyhow::Result<Task> {
        ended_within(&self.cluster, task, PATIENCE).await
    }
}

/// The agent mends the first task, by its manifest alone.
async fn mends_the_first_task(cli: Cli) -> anyhow::Result<()> {
    let Some(place) = Place::new(cli, &[]).await? else {
        return Ok(());
    };
    let model = ModelServer::start(vec![
        Step::Shell("cat src/leap.c".into()),
        Step::Shell(MEND.into()),
        Step::Say("The rule is Gregorian now.".into()),
    ])
    .await?;
    place.give("mend", &model, &json!({}))?;
    let (cluster, task) = (&place.cluster, place.ended("mend").await?);
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Succeeded),
        "{:#?}\n{:#?}\n{}",
        task.status,
        place.runs("mend").await?,
        cluster.log()
    );
    let result = task.status.result.as_ref().context("a result")?;
    assert!(result.summary.contains("Gregorian"), "{result:?}");
    assert_eq!(task.status.attempts, 1);
    let run = &place.runs("mend").await?[0];
    assert!(!run.status.session_id.is_empty(), "{:?}", run.status);
    let used = &task.status.usage;
    assert!(used.input_tokens > 0 && used.output_tokens > 0, "{used:?}");
    assert!(
        model
            .seen()
            .iter()
            .any(|request| request.authorization.ends_with("scripted"))
    );

    let patch = cluster.ok(&["result", "task/mend", "--patch"])?;
    assert!(
        patch.contains("+    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;"),
        "{patch}"
    );
    assert_eq!(
        git(&place.repository, &["status", "--porcelain"])?,
        "",
        "the person's checkout is untouched"
    );
    Ok(())
}

/// An agent that only claims success does not succeed.
async fn claims(cli: Cli) -> anyhow::Result<()> {
    let Some(place) = Place::new(cli, &[]).await? else {
        return Ok(());
    };
    let model = ModelServer::start(vec![Step::Say("All fixed, tests pass.".into())]).await?;
    place.give("claim", &model, &json!({"supervision": {"rounds": 1}}))?;
    let task = place.ended("claim").await?;
    assert_eq!(task.status.phase, Some(TaskPhase::Review), "{:#?}", task.status);
    assert_eq!(task.status.accepted_run, "");
    Ok(())
}

fn open_to_all(path: &Path) -> std::io::Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}

fn is_open_to_all(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.permissions().mode() & 0o005 == 0o005)
}

fn copy_all(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    open_to_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}
