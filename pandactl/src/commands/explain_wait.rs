//! `pandactl explain-wait`: why a task does not go on, and what would help.

use panda_api::{RefusalReason, Task, TaskPhase};
use panda_client::Api;

use crate::args;
use crate::cli::Exit;
use crate::error::Result;
use crate::follow::task::outcome;
use crate::output::table::align;
use crate::output::text;
use crate::session::Session;

/// Arguments of `explain-wait`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  pandactl explain-wait task/fix-login")]
pub struct ExplainWaitArgs {
    /// task/NAME or NAME
    #[arg(value_name = "TASK")]
    pub task: String,
}

pub(crate) async fn run(args: ExplainWaitArgs, session: &mut Session<'_>) -> Result<Exit> {
    let name = args::task_name(&args.task)?;
    let namespace = session.namespace()?;
    let tasks: Api<Task> = Api::namespaced(session.client()?, &namespace);
    let task = tasks.get(&name).await?;
    let now = session.io.clock.now();
    session.out(explain(&task, now))?;
    Ok(0)
}

fn explain(task: &Task, now: jiff::Timestamp) -> String {
    let status = &task.status;
    let name = text::line(&task.metadata.name);
    let mut out = String::new();
    if let Some(outcome) = outcome(task) {
        return format!("task/{name} does not wait: it {}.\n", outcome.word());
    }
    match status.phase {
        None | Some(TaskPhase::Pending) if status.next_attempt_time.is_some() => {
            let at = status.next_attempt_time.as_ref().map(|time| time.0);
            let seconds = at.map_or(0, |at| at.duration_since(now).as_secs().max(0));
            out.push_str(&format!(
                "task/{name} pauses after a failed attempt; the next one starts in {seconds}s.\n"
            ));
        }
        None => out.push_str(&format!(
            "task/{name} was accepted; the controllers have not looked at it yet.\n"
        )),
        Some(TaskPhase::Pending | TaskPhase::Queued) => {
            if status.unschedulable.is_empty() {
                out.push_str(&format!(
                    "task/{name} waits for a device; none has refused it so far.\n"
                ));
            } else {
                out.push_str(&format!("task/{name} waits for a device:\n\n"));
            }
        }
        Some(TaskPhase::Paused) => out.push_str(&format!(
            "task/{name} is paused; `pandactl resume task/{name}` lets it go on.\n"
        )),
        Some(TaskPhase::WaitingForApproval) => out.push_str(&format!(
            "task/{name} waits for a person's decision; see `pandactl describe task/{name}`.\n"
        )),
        Some(phase) => out.push_str(&format!("task/{name} does not wait: it is {phase:?}.\n")),
    }
    if task.spec.suspend == Some(true) && status.phase != Some(TaskPhase::Paused) {
        out.push_str(&format!(
            "It is suspended; `pandactl resume task/{name}` lets it go on.\n"
        ));
    }
    if !status.unschedulable.is_empty() {
        let mut rows = vec![["DEVICE", "REASON", "SINCE", "WHY"].map(str::to_owned).to_vec()];
        for refusal in &status.unschedulable {
            let device = if refusal.device.is_empty() {
                "(any)"
            } else {
                &refusal.device
            };
            let since = refusal
                .since
                .as_ref()
                .map_or_else(String::new, |since| age(since.0, now));
            rows.push(vec![
                text::line(device),
                format!("{:?}", refusal.reason),
                since,
                text::line(&refusal.message),
            ]);
        }
        out.push_str(&align(&rows));
        out.push('\n');
        let mut reasons: Vec<RefusalReason> = status
            .unschedulable
            .iter()
            .map(|refusal| refusal.reason)
            .collect();
        reasons.sort();
        reasons.dedup();
        for reason in reasons {
            out.push_str(&format!("{reason:?}: {}\n", remedy(reason)));
        }
    }
    if let Some(failure) = &status.failure {
        out.push_str(&format!(
            "The last attempt failed: {:?}: {}\n",
            failure.reason,
            text::line(&failure.message)
        ));
    }
    out
}

/// How long ago.
pub(super) fn age(time: jiff::Timestamp, now: jiff::Timestamp) -> String {
    panda_api::scheme::human_duration(now.duration_since(time).as_secs().max(0))
}

/// What a person can do about a refusal.
const fn remedy(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::DeviceNotReady => {
            "start the device's agentlet (`pandactl up`), or wait until it is back"
        }
        RefusalReason::Cordoned => "`pandactl uncordon DEVICE` lets it take work again",
        RefusalReason::TaintNotTolerated => {
            "add a toleration to spec.device.tolerations, or remove the taint"
        }
        RefusalReason::SelectorMismatch => {
            "change spec.device, or label the device (`pandactl label device NAME KEY=VALUE`)"
        }
        RefusalReason::MissingCapability => {
            "name an agent that has the capability, or apply one; `pandactl get agents -o wide` lists them"
        }
        RefusalReason::AgentNotFound => {
            "apply the Agent, install its program on the device, or name another agent; `pandactl get agents` shows where each is"
        }
        RefusalReason::AgentNotLoggedIn => "log the agent in on the device, as its owner",
        RefusalReason::InsufficientResources => {
            "ask for less in spec.device.resources, or wait until runs end"
        }
        RefusalReason::NoFreeSlot => "it starts when a run ends; `pandactl up --max-runs N` allows more",
        RefusalReason::AgentBusy => {
            "it starts when a run of this agent ends; the Agent's spec.concurrency allows more"
        }
        RefusalReason::CircuitOpen => "the agent failed too often there; it is tried again by itself",
        RefusalReason::SandboxUnavailable => {
            "choose a profile that the device has (`pandactl describe device NAME`)"
        }
        RefusalReason::NamespaceNotServed => "the device's owner does not serve this namespace",
        RefusalReason::WorkspaceRootDenied => {
            "work below a folder that the device allows, or allow more there (`pandactl up --workspace-root DIR`)"
        }
        RefusalReason::RepositoryAbsent => {
            "the repository is not on the device: give a URL, or run on the device that has it"
        }
        RefusalReason::DiskPressure => "free space on the device",
    }
}

#[cfg(test)]
mod tests {
    use panda_api::Refusal;

    use super::*;

    #[test]
    fn each_refusal_is_shown_with_a_remedy() {
        let mut task = Task::default();
        task.metadata.name = "x".into();
        task.status.phase = Some(TaskPhase::Queued);
        task.status.unschedulable = vec![Refusal {
            device: "pi".into(),
            reason: RefusalReason::MissingCapability,
            message: "no agent offers code.edit".into(),
            since: None,
        }];
        let text = explain(&task, jiff::Timestamp::UNIX_EPOCH);
        assert!(
            text.contains("pi")
                && text.contains("no agent offers code.edit")
                && text.contains("pandactl get agents"),
            "{text}"
        );
        task.status.phase = Some(TaskPhase::Succeeded);
        assert_eq!(
            explain(&task, jiff::Timestamp::UNIX_EPOCH),
            "task/x does not wait: it succeeded.\n"
        );
    }
}
