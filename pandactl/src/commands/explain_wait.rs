//! `pandactl explain-wait`: why a task does not go on, and what would help.

use std::collections::BTreeMap;

use panda_api::{Refusal, RefusalReason, Task, TaskPhase};
use panda_client::Api;

use crate::args;
use crate::cli::Exit;
use crate::error::Result;
use crate::follow::task::outcome;
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
        out.push_str(&format!("task/{name} does not wait: it {}.\n", outcome.word()));
        if let Some(failure) = &status.failure {
            out.push_str(&text::wrap(&failure.message, 2));
            if let Some(reason) = failure.refusal {
                out.push_str(&text::wrap(&format!("What helps: {}.", remedy(reason)), 2));
            }
        }
        return out;
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
            if let Some(missing) = missing_secret(task) {
                out.push_str(&text::wrap(&format!("task/{name} waits: {missing}."), 0));
            } else if status.unschedulable.is_empty() {
                out.push_str(&format!(
                    "task/{name} waits for a device; none has refused it so far.\n"
                ));
            } else {
                out.push_str(&format!("task/{name} waits for a device.\n"));
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
    refusals(&mut out, &status.unschedulable, now);
    if let Some(failure) = &status.failure {
        let words = format!(
            "The last attempt failed: {:?}: {}",
            failure.reason, failure.message
        );
        out.push_str(&text::wrap(&words, 0));
    }
    out
}

/// What a Task says that waits for a Secret. With a Run that waits for a device, it is no longer the reason.
fn missing_secret(task: &Task) -> Option<&str> {
    if task.status.phase != Some(TaskPhase::Pending) {
        return None;
    }
    let conditions = &task.status.conditions;
    let scheduled = conditions
        .iter()
        .find(|condition| condition.type_ == "Scheduled")?;
    (scheduled.status == "False" && scheduled.reason == "SecretUnavailable").then_some(&scheduled.message)
}

/// Most devices that are named for one message.
const NAMED: usize = 8;

/// How many devices stand for a refusal: the last of a status that was cut says how many were left out.
fn left_out(refusal: &Refusal) -> Option<usize> {
    let count = refusal
        .message
        .strip_prefix("and ")?
        .strip_suffix(" devices more")?;
    refusal.device.is_empty().then(|| count.parse().ok())?
}

/// First how many devices give which reason, then each reason with its devices and a remedy, the rarest first: it tells
/// most.
fn refusals(out: &mut String, all: &[Refusal], now: jiff::Timestamp) {
    if all.is_empty() {
        return;
    }
    let unlisted: usize = all.iter().filter_map(left_out).sum();
    let mut reasons: BTreeMap<RefusalReason, Vec<&Refusal>> = BTreeMap::new();
    for refusal in all.iter().filter(|refusal| left_out(refusal).is_none()) {
        reasons.entry(refusal.reason).or_default().push(refusal);
    }
    let mut reasons: Vec<(RefusalReason, Vec<&Refusal>)> = reasons.into_iter().collect();
    reasons.sort_by_key(|(reason, refusals)| (refusals.len(), *reason));
    let devices = unlisted + all.iter().filter(|refusal| !refusal.device.is_empty()).count();
    if devices > 1 {
        let counts: Vec<String> = reasons
            .iter()
            .rev()
            .map(|(reason, refusals)| format!("{} {reason:?}", refusals.len()))
            .chain((unlisted > 0).then(|| format!("{unlisted} not listed")))
            .collect();
        let words = format!("None of {devices} devices can take it: {}.", counts.join(", "));
        out.push_str(&text::wrap(&words, 0));
    }
    for (reason, refusals) in reasons {
        let since = refusals.iter().filter_map(|refusal| refusal.since.as_ref()).min();
        let since = since.map_or_else(String::new, |since| format!(", for {}", age(since.0, now)));
        out.push_str(&format!("\n{reason:?}{since}\n"));
        let mut messages: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for refusal in refusals {
            messages
                .entry(&refusal.message)
                .or_default()
                .push(&refusal.device);
        }
        for (message, devices) in messages {
            out.push_str(&text::wrap(&format!("{}{message}", named(&devices)), 2));
        }
        out.push_str(&text::wrap(&format!("What helps: {}.", remedy(reason)), 2));
    }
    out.push('\n');
}

/// Names of devices, to stand before what they say.
fn named(devices: &[&str]) -> String {
    let names: Vec<&str> = devices.iter().copied().filter(|name| !name.is_empty()).collect();
    let shown = names[..names.len().min(NAMED)].join(", ");
    match names.len().saturating_sub(NAMED) {
        0 if shown.is_empty() => String::new(),
        0 => format!("{shown}: "),
        more => format!("{shown} and {more} more: "),
    }
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
            "check the spelling of spec.workspace.git, put the repository on the device, or give a URL; a device that \
             lacks it is asked again after 5 minutes, and at once by `pandactl retry task/NAME`"
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
        assert!(!text.contains("None of"), "one device needs no summary: {text}");
        task.status.phase = Some(TaskPhase::Succeeded);
        assert_eq!(
            explain(&task, jiff::Timestamp::UNIX_EPOCH),
            "task/x does not wait: it succeeded.\n"
        );
    }
    #[test]
    fn a_hundred_devices_are_summed_up_first_and_fit_eighty_columns() {
        let mut task = Task::default();
        task.metadata.name = "x".into();
        task.status.phase = Some(TaskPhase::Queued);
        let refusal = |device: String, reason, message: &str| Refusal {
            device,
            reason,
            message: message.into(),
            since: None,
        };
        let slots = "it takes 2 runs at a time";
        task.status.unschedulable = (0..63)
            .map(|n| match n {
                0 => refusal(
                    "desk".into(),
                    RefusalReason::RepositoryAbsent,
                    "there is no repository at /home/u/wbe",
                ),
                1..20 => refusal(format!("desk{n}"), RefusalReason::NoFreeSlot, slots),
                _ => refusal(
                    format!("laptop-of-somebody-{n}"),
                    RefusalReason::DeviceNotReady,
                    "its heartbeat has stopped; is its agentlet running and connected?",
                ),
            })
            .chain([refusal(
                String::new(),
                RefusalReason::DeviceNotReady,
                "and 37 devices more",
            )])
            .collect();
        let text = explain(&task, jiff::Timestamp::UNIX_EPOCH);
        for row in text.lines() {
            assert!(text::width(row) <= 80, "{row}");
        }
        let mut rows = text.lines();
        assert_eq!(rows.next(), Some("task/x waits for a device."));
        let summary = "None of 100 devices can take it: 43 DeviceNotReady, 19 NoFreeSlot, 1";
        assert_eq!(rows.next(), Some(summary));
        assert_eq!(rows.next(), Some("RepositoryAbsent, 37 not listed."));
        assert!(
            text.contains("\n\nRepositoryAbsent\n  desk: there is no repository at"),
            "{text}"
        );
        assert!(text.contains("and 11 more: it"), "{text}");
        assert!(text.lines().count() < 30, "{text}");
    }
}
