//! Waiting for tasks.

use std::time::Duration;

use panda_api::{Resource, Task, TaskPhase};
use panda_client::{ApiResource, DynamicApi};
use serde_json::Value;
use tokio::time::Instant;

use super::progress::Progress;
use super::{Ended, until};
use crate::error::{Error, Result};
use crate::session::Session;

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done, checked, published.
    Succeeded,
    /// Ended without an accepted result.
    Failed,
    /// Ended by a person.
    Cancelled,
    /// Waits for a person's judgement.
    Review,
}

impl Outcome {
    /// The exit code of `--exit-status`.
    #[must_use]
    pub const fn exit(self) -> u8 {
        match self {
            Self::Succeeded => 0,
            Self::Failed => 2,
            Self::Cancelled => 3,
            Self::Review => 5,
        }
    }

    /// How it is said.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "was cancelled",
            Self::Review => "waits for review",
        }
    }
}

/// How a task has ended, if it has, and its status speaks of what is wanted now.
#[must_use]
pub fn outcome(task: &Task) -> Option<Outcome> {
    let status = &task.status;
    let rerun = task.spec.rerun.unwrap_or(0);
    if status.rerun.unwrap_or(0) < rerun {
        return None;
    }
    match status.phase? {
        TaskPhase::Succeeded => Some(Outcome::Succeeded),
        TaskPhase::Failed => Some(Outcome::Failed),
        TaskPhase::Cancelled => Some(Outcome::Cancelled),
        TaskPhase::Review => Some(Outcome::Review),
        _ => None,
    }
}

/// Where a task stands, in one line.
#[must_use]
pub fn summary(task: &Task) -> String {
    let status = &task.status;
    let mut line = format!("task/{}: ", task.metadata.name);
    match status.phase {
        Some(phase) => line.push_str(&format!("{phase:?}")),
        None => line.push_str("accepted"),
    }
    if !status.agent.is_empty() {
        line.push_str(&format!(", {}", status.agent));
    }
    if !status.device.is_empty() {
        line.push_str(&format!(" on {}", status.device));
    }
    if status.attempts > 1 {
        line.push_str(&format!(", attempt {}", status.attempts));
    }
    let waits = matches!(status.phase, Some(TaskPhase::Pending | TaskPhase::Queued));
    if let (true, Some(why)) = (waits, status.unschedulable.first()) {
        line.push_str(&format!(" ({:?}: {})", why.reason, why.message));
    } else if let (Some(TaskPhase::Failed), Some(failure)) = (status.phase, &status.failure) {
        line.push_str(&format!(" ({:?}: {})", failure.reason, failure.message));
    } else if let (true, Some(failure)) = (waits, &status.failure) {
        line.push_str(&format!(" (after {:?}: {})", failure.reason, failure.message));
    }
    line
}

/// A task out of what the server sent.
///
/// # Errors
/// When it is none.
pub fn decode(object: &Value) -> Result<Task> {
    serde_json::from_value(object.clone()).map_err(|error| {
        Error::internal(format!("the server's task cannot be read: {error}"))
            .hint("client and server may be of different versions: compare with `pandactl version`")
    })
}

/// Waits until a task has ended, and shows how it goes. The task, and how it ended; none when time is over.
///
/// # Errors
/// When the task is deleted meanwhile, or the server refuses or stays away.
pub async fn finished(
    session: &mut Session<'_>,
    namespace: &str,
    name: &str,
    timeout: Option<Duration>,
) -> Result<Option<(Box<Task>, Outcome)>> {
    let api: DynamicApi = session.api_in(&ApiResource::of::<Task>(), Some(namespace))?;
    let mut progress = Progress::new(
        session.io.stderr.clone(),
        session.io.terminal.stderr && session.io.env.var("TERM") != Some("dumb"),
        session.color_err(),
        session.io.terminal.width,
    );
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let (tell, mut told) = tokio::sync::watch::channel(String::new());
    let mut check = |object: Option<&Value>| -> Result<Option<(Box<Task>, Outcome)>> {
        let Some(object) = object else {
            return Err(Error::user(format!("task {name:?} is not there any more"))
                .hint("it was deleted while it was waited for; `pandactl events` shows what happened"));
        };
        let task = decode(object)?;
        tell.send_replace(summary(&task));
        Ok(outcome(&task).map(|outcome| (Box::new(task), outcome)))
    };
    let ended = {
        let waiting = until(&api, name, deadline, &mut check);
        tokio::pin!(waiting);
        let mut clock = tokio::time::interval(Duration::from_secs(1));
        loop {
            tokio::select! {
                biased;
                ended = &mut waiting => break ended,
                Ok(()) = told.changed() => {
                    let line = told.borrow_and_update().clone();
                    progress.say(&line);
                }
                _ = clock.tick(), if progress.is_live() => progress.tick(),
            }
        }
    };
    // The last change and the end come together.
    let line = told.borrow_and_update().clone();
    if !progress.is_live() && !line.is_empty() {
        progress.say(&line);
    }
    drop(progress);
    match ended? {
        Ended::Met(found) => Ok(Some(found)),
        Ended::TimedOut(_) => Ok(None),
    }
}

/// What `--wait` of a command that made a task comes to: done, or an error that says how it ended.
///
/// # Errors
/// Unless the task succeeded.
pub fn expect_success(task: &Task, outcome: Outcome, exit_status: bool) -> Result<()> {
    if outcome == Outcome::Succeeded {
        return Ok(());
    }
    let name = &task.metadata.name;
    let mut message = format!("task/{name} {}", outcome.word());
    if let Some(failure) = &task.status.failure {
        message.push_str(&format!(": {:?}: {}", failure.reason, failure.message));
    }
    let mut error = Error::user(message);
    error.kind = crate::error::Kind::Api;
    error = match outcome {
        Outcome::Review => error.hint(format!("look at it with `pandactl result task/{name}`")),
        _ => error.hint(format!("see `pandactl describe task/{name}` and `pandactl logs task/{name}`; `pandactl retry task/{name}` starts it afresh")),
    };
    Err(if exit_status {
        error.exit(outcome.exit())
    } else {
        error
    })
}

/// The error of a wait that took too long.
#[must_use]
pub fn timed_out(name: &str) -> Error {
    Error::user(format!("timed out waiting for task/{name}")).hint(format!(
        "it goes on without you: `pandactl wait task/{name}`, `pandactl explain-wait task/{name}`"
    ))
}

/// The kind's names.
#[must_use]
pub fn resource() -> ApiResource {
    panda_api::scheme::by_kind(&Task::api_version(), Task::KIND)
        .map_or_else(ApiResource::of::<Task>, crate::session::resource_of)
}
