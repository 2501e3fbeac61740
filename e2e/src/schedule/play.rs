//! Plays a schedule on a fleet and judges what came of it.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use panda_api::Task;
use panda_client::params::WriteParams;
use panda_client::{Api, Client};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::work::RETRIES;
use super::{Schedule, Work};
use crate::checker::{self, beats, history};
use crate::faults::Fault;
use crate::fleet::Fleet;
use crate::recorder::{Change, Recorder};

/// How long everything may take to come to rest after the last fault has ended. The bound after which a silent device
/// has lost its runs, twice, with room for a busy machine.
const REST: Duration = Duration::from_secs(120);

/// So many losses of devices a task survives.
const DEVICE_LOSSES: i64 = 5;

/// What is done at a moment.
enum Step {
    Make(Work),
    Cancel(String),
    Begin(Fault),
    End(Fault),
}

/// Plays it on a fleet of its own.
///
/// # Errors
/// When a rule is broken; the error holds the schedule and the logs.
pub async fn play(schedule: &Schedule) -> anyhow::Result<()> {
    let mut fleet = Fleet::start(schedule.plan()).await.context("start the fleet")?;
    let mut steps = Vec::new();
    for (at, work) in &schedule.works {
        if let Some(after) = work.cancel_after {
            steps.push((*at + after, Step::Cancel(work.name.clone())));
        }
        steps.push((*at, Step::Make(work.clone())));
    }
    for (at, fault) in &schedule.faults {
        steps.push((*at, Step::Begin(*fault)));
        if !fault.lasts().is_zero() {
            steps.push((*at + fault.lasts(), Step::End(*fault)));
        }
    }
    let works: Vec<Work> = schedule.works.iter().map(|(_, work)| work.clone()).collect();
    let judged = run(&mut fleet, &works, steps).await;
    judged.with_context(|| format!("{schedule}{}", fleet.logs()))
}

async fn run(fleet: &mut Fleet, works: &[Work], mut steps: Vec<(Duration, Step)>) -> anyhow::Result<()> {
    let client = fleet.client()?;
    let recorder = Recorder::start(&client);
    prepare(fleet, works)?;
    steps.sort_by_key(|(at, _)| *at);
    let begin = Instant::now();
    // What asks the server waits for it, and must not hold up the faults.
    let mut asking = tokio::task::JoinSet::new();
    for (at, step) in steps {
        tokio::time::sleep_until(begin + at).await;
        match step {
            Step::Make(work) => {
                asking.spawn(make(client.clone(), work, fleet.beats()));
            }
            Step::Cancel(name) => {
                asking.spawn(cancel(client.clone(), name));
            }
            Step::Begin(fault) => fleet.inject(&fault).with_context(|| fault.to_string())?,
            Step::End(fault) => fleet.mend(&fault).with_context(|| fault.to_string())?,
        }
    }
    fleet.start_all()?;
    while let Some(asked) = asking.join_next().await {
        asked??;
    }
    judge(fleet, &recorder, works).await
}

/// Makes the Agents that do these works, and the files for their beats.
///
/// # Errors
/// When they are refused.
pub fn prepare(fleet: &Fleet, works: &[Work]) -> anyhow::Result<()> {
    for work in works {
        // Agents of two devices are two users.
        let file = fleet.beats().join(&work.name);
        std::fs::write(&file, "")?;
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o666))?;
    }
    let agents: BTreeMap<String, Value> = works
        .iter()
        .map(Work::agent)
        .map(|agent| (agent["metadata"]["name"].to_string(), agent))
        .collect();
    fleet.apply(
        &json!({"apiVersion": "v1", "kind": "List", "items": agents.into_values().collect::<Vec<_>>()}),
    )
}

async fn make(client: Client, work: Work, beats: PathBuf) -> anyhow::Result<()> {
    let task: Task = serde_json::from_value(work.task(&beats))?;
    let api: Api<Task> = Api::namespaced(client, "default");
    until_answered(|| async {
        match api.create(&task, &WriteParams::default()).await {
            // An answer that was lost says so the second time.
            Err(error) if !error.is_already_exists() => Err(error.into()),
            _ => Ok(()),
        }
    })
    .await
    .with_context(|| format!("make {}", work.name))
}

async fn cancel(client: Client, name: String) -> anyhow::Result<()> {
    let api: Api<Task> = Api::namespaced(client, "default");
    let patch = json!({"spec": {"cancel": true}});
    until_answered(|| async {
        api.patch_merge(&name, &patch, &WriteParams::default()).await?;
        Ok(())
    })
    .await
    .with_context(|| format!("cancel {name}"))
}

async fn until_answered<F, Fut>(mut ask: F) -> anyhow::Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    let deadline = Instant::now() + REST;
    loop {
        match ask().await {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Waits until everything has come to rest and holds the evidence against every rule.
///
/// # Errors
/// Names the rules that are broken.
pub async fn judge(fleet: &Fleet, recorder: &Recorder, works: &[Work]) -> anyhow::Result<()> {
    let deadline = Instant::now() + REST;
    let changes = loop {
        fleet.start_all()?;
        let changes = recorder.changes()?;
        let mut wrong = history::check(&changes);
        wrong.extend(results(&changes, works, fleet.supervisor_kills()));
        let left = fleet.leftovers();
        let kept = workspaces(fleet);
        if wrong.is_empty() && left.is_empty() && kept.is_empty() {
            break changes;
        }
        if Instant::now() > deadline {
            bail!(
                "broken: {wrong:#?}\nleft behind: {left:#?} {kept:?}\n{}",
                story(&changes)
            );
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let evidence = || -> anyhow::Result<()> {
        let unguarded = fleet.unguarded();
        checker::no_overlap(&checker::starts_and_deaths(
            fleet.dir(),
            fleet.deaths(),
            &unguarded,
        )?)?;
        let lives = beats::lives(&fleet.beats())?;
        if unguarded.is_empty() {
            beats::no_overlap(&lives)?;
        }
        for (task, lives) in &lives {
            let runs = changes
                .iter()
                .filter(|change| change.resource == "runs" && change.kind == "ADDED");
            let runs = runs
                .filter(|change| change.object["spec"]["taskRef"]["name"] == **task)
                .count();
            ensure!(
                lives.len() <= runs,
                "{task} has {} runs and had {} agents",
                runs,
                lives.len()
            );
        }
        Ok(())
    };
    evidence().with_context(|| story(&changes))
}

/// What the tasks came to: everything that was made is there, and ended as it had to.
fn results(changes: &[Change], works: &[Work], supervisor_kills: usize) -> Vec<String> {
    let mut wrong = Vec::new();
    for work in works {
        let of_work =
            |change: &&Change| change.resource == "tasks" && change.object["metadata"]["name"] == work.name;
        let Some(last) = changes.iter().rfind(of_work) else {
            wrong.push(format!("task {} was lost", work.name));
            continue;
        };
        let status = &last.object["status"];
        // On a machine so busy that grants run out by themselves, a task may lose as many devices as one is allowed to.
        let unlucky = status["retries"]["device"].as_i64().unwrap_or(0) > DEVICE_LOSSES;
        // A supervisor that is gone is a crash of the attempt, and spends a retry.
        let crashed = supervisor_kills > RETRIES && failed_as(status, "Crashed");
        let fine = match status["phase"].as_str() {
            Some("Succeeded") => !work.fails,
            Some("Failed") => work.fails || unlucky || crashed,
            Some("Cancelled") => work.cancel_after.is_some(),
            _ => false,
        };
        if !fine {
            wrong.push(format!("task {} ended wrongly: {status}", work.name));
        }
    }
    for change in changes.iter().filter(|change| change.resource == "runs") {
        let usage = &change.object["status"]["usage"];
        let tokens = (
            usage["inputTokens"].as_i64().unwrap_or(0),
            usage["outputTokens"].as_i64().unwrap_or(0),
        );
        if tokens != (0, 0) && tokens != (super::work::INPUT_TOKENS, super::work::OUTPUT_TOKENS) {
            wrong.push(format!("{} used {usage}", change.object["metadata"]["name"]));
        }
    }
    wrong
}

/// Whether a Task failed for this reason.
fn failed_as(status: &Value, reason: &str) -> bool {
    let conditions = status["conditions"].as_array();
    let mut failed = conditions.into_iter().flatten().filter(|c| c["type"] == "Failed");
    failed.any(|condition| condition["reason"] == reason && condition["status"] == "True")
}

/// Every change of phase, for people.
fn story(changes: &[Change]) -> String {
    let (mut lines, mut last) = (Vec::new(), BTreeMap::new());
    for change in changes {
        let object = &change.object;
        let status = &object["status"];
        let says = match change.resource {
            "tasks" => format!(
                "{} accepted {} attempts {} retries {} {}",
                status["phase"],
                status["acceptedRun"],
                status["attempts"],
                status["retries"],
                object["metadata"]["uid"]
            ),
            "runs" => format!(
                "{} on {} {} late {}",
                status["phase"], object["spec"]["deviceName"], status["failure"], status["lateResult"]
            ),
            _ if object["metadata"]["namespace"] == "default" => {
                format!(
                    "epoch {} holder {}",
                    object["spec"]["leaseTransitions"], object["spec"]["holderIdentity"]
                )
            }
            _ => continue,
        };
        let whose = format!("{} {}", change.resource, object["metadata"]["name"]);
        if last.insert(whose.clone(), says.clone()).as_ref() != Some(&says) {
            lines.push(format!("{} {whose}: {says}", change.revision));
        }
    }
    lines.join("\n")
}

/// Workspaces that are there, with what is written down about each; none is to be retained.
fn workspaces(fleet: &Fleet) -> Vec<String> {
    let mut all = Vec::new();
    for device in fleet.devices() {
        let tasks = device.folder().join("work/tasks");
        let mut found = within(&tasks);
        found.extend(within(&tasks.join("checks")));
        found.retain(|path| !path.ends_with("workspaces.lock") && !path.ends_with("checks"));
        let records = device.data().join("state/workspaces");
        all.extend(found.iter().map(|path| {
            let name = path.file_name().unwrap_or_default().display().to_string();
            let said = |kind: &str| std::fs::read_to_string(records.join(format!("{name}.{kind}")));
            format!(
                "{}: {:?} lent to {:?}",
                path.display(),
                said("json"),
                said("holder")
            )
        }));
    }
    all
}

fn within(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(phase: &str, reason: &str) -> Vec<Change> {
        vec![Change {
            resource: "tasks",
            kind: "MODIFIED".into(),
            revision: 1,
            object: json!({"metadata": {"name": "t"}, "status": {"phase": phase, "conditions": [
                {"type": "Failed", "status": "True", "reason": reason},
            ]}}),
        }]
    }

    #[test]
    fn a_task_may_fail_by_crashes_only_if_its_supervisors_were_killed_more_often_than_it_is_retried() {
        let works = [Work::new("t", Duration::ZERO)];
        let wrong = |changes: &[Change], kills| results(changes, &works, kills).len();
        assert_eq!(wrong(&ended("Failed", "Crashed"), RETRIES + 1), 0);
        assert_eq!(wrong(&ended("Failed", "Crashed"), RETRIES), 1);
        assert_eq!(wrong(&ended("Failed", "Stalled"), RETRIES + 1), 1);
        assert_eq!(wrong(&[], 0), 1, "it was lost");
    }
}
