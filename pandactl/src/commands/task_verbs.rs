//! `cancel`, `retry`, `pause`, `resume`: fields of the task's spec, which the controllers act on.

use panda_api::{Resource, Task};
use panda_client::params::WriteParams;
use panda_client::{ApiResource, DynamicApi};
use serde_json::{Value, json};

use crate::args;
use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::follow::task as following;
use crate::session::{Session, object_name};

/// How often somebody else may get in between.
const TRIES: usize = 5;

/// Arguments of `cancel`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  pandactl cancel task/fix-login")]
pub struct CancelArgs {
    /// task/NAME or NAME
    #[arg(value_name = "TASK", required = true)]
    pub tasks: Vec<String>,
}

/// Arguments of `retry`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  pandactl retry task/fix-login --wait")]
pub struct RetryArgs {
    /// task/NAME or NAME
    #[arg(value_name = "TASK", required = true)]
    pub tasks: Vec<String>,
    /// Wait until the tasks have ended again
    #[arg(long)]
    pub wait: bool,
    /// How long to wait [default: as long as it takes]
    #[arg(long, value_name = "DURATION", value_parser = args::timeout, requires = "wait")]
    pub timeout: Option<std::time::Duration>,
}

/// Arguments of `pause`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  pandactl pause task/fix-login")]
pub struct PauseArgs {
    /// task/NAME or NAME
    #[arg(value_name = "TASK", required = true)]
    pub tasks: Vec<String>,
}

/// Arguments of `resume`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  pandactl resume task/fix-login")]
pub struct ResumeArgs {
    /// task/NAME or NAME
    #[arg(value_name = "TASK", required = true)]
    pub tasks: Vec<String>,
}

pub(crate) async fn cancel(args: CancelArgs, session: &mut Session<'_>) -> Result<Exit> {
    each(
        &args.tasks,
        session,
        "cancelled",
        |task| match following::outcome(task) {
            Some(outcome) if outcome != following::Outcome::Review => {
                Err(format!("{} already", outcome.word()))
            }
            _ if task.spec.cancel == Some(true) => Ok(json!({})),
            _ => Ok(json!({"spec": {"cancel": true}})),
        },
    )
    .await
}

pub(crate) async fn retry(args: RetryArgs, session: &mut Session<'_>) -> Result<Exit> {
    let done = each(
        &args.tasks,
        session,
        "restarted",
        |task| match following::outcome(task) {
            None if task.spec.cancel != Some(true) => {
                Err("has not ended: there is nothing to retry".to_owned())
            }
            // The version makes two people who retry at the same time start it once each, not one of them in vain.
            _ => Ok(json!({
                "metadata": {"resourceVersion": task.metadata.resource_version},
                "spec": {"rerun": task.spec.rerun.unwrap_or(0) + 1},
            })),
        },
    )
    .await?;
    if args.wait {
        let namespace = session.namespace()?;
        for word in &args.tasks {
            let name = args::task_name(word)?;
            match following::finished(session, &namespace, &name, args.timeout).await? {
                Some((task, outcome)) => following::expect_success(&task, outcome, false)?,
                None => return Err(following::timed_out(&name)),
            }
        }
    }
    Ok(done)
}

pub(crate) async fn pause(args: PauseArgs, session: &mut Session<'_>) -> Result<Exit> {
    each(&args.tasks, session, "paused", |task| {
        match following::outcome(task) {
            Some(outcome) => Err(format!("{} already", outcome.word())),
            None if task.spec.suspend == Some(true) => Ok(json!({})),
            None => Ok(json!({"spec": {"suspend": true}})),
        }
    })
    .await
}

pub(crate) async fn resume(args: ResumeArgs, session: &mut Session<'_>) -> Result<Exit> {
    each(&args.tasks, session, "resumed", |task| match task.spec.suspend {
        Some(true) => Ok(json!({"spec": {"suspend": false}})),
        _ => Ok(json!({})),
    })
    .await
}

/// Patches each task with what `patch` says (nothing: it is so already; an error: why it cannot be).
async fn each(
    words: &[String],
    session: &mut Session<'_>,
    done: &str,
    patch: impl Fn(&Task) -> Result<Value, String>,
) -> Result<Exit> {
    let resource = following::resource();
    let mut failed: Option<Error> = None;
    for word in words {
        let name = args::task_name(word)?;
        let api = session.api(&resource)?;
        match one(&api, &resource, &name, done, &patch).await {
            Ok(line) => session.out(format!("{line}\n"))?,
            Err(error) => {
                if let Some(before) = failed.replace(error) {
                    crate::cli::report(&before, &session.io.stderr, session.color_err());
                }
            }
        }
    }
    session.io.flush()?;
    failed.map_or(Ok(0), Err)
}

async fn one(
    api: &DynamicApi,
    resource: &ApiResource,
    name: &str,
    done: &str,
    patch: &impl Fn(&Task) -> Result<Value, String>,
) -> Result<String> {
    let shown = object_name(resource, name);
    let params = WriteParams {
        field_manager: Some("pandactl".to_owned()),
        ..WriteParams::default()
    };
    let mut tries = 0;
    loop {
        tries += 1;
        let task = following::decode(&api.get(name).await?)?;
        debug_assert_eq!(task.kind, Task::KIND);
        let patch = patch(&task).map_err(|why| {
            Error::user(format!("{shown} {why}"))
                .hint(format!("`pandactl describe task/{name}` shows how it stands"))
        })?;
        if patch.as_object().is_some_and(serde_json::Map::is_empty) {
            return Ok(format!("{shown} {done} (unchanged)"));
        }
        match api.patch_merge(name, &patch, &params).await {
            Ok(_) => return Ok(format!("{shown} {done}")),
            Err(error) if error.is_conflict() && tries < TRIES => {}
            Err(error) => return Err(error.into()),
        }
    }
}
