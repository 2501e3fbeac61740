//! Cases that need a device of its own: the last report is lost (B15), a device vanishes before the deadline (B17), the
//! past comes back (B18).

use std::time::Duration;

use anyhow::{Context, ensure};
use panda_api::meta::{Clock as _, SystemClock};
use panda_api::{Device, Run, RunPhase, TaskPhase};
use panda_client::Api;
use panda_client::params::{DeleteParams, WriteParams};
use panda_e2e::checker::beats;
use panda_e2e::faults::{Fault, Part};
use panda_e2e::fleet::{Fleet, Plan};
use panda_e2e::recorder::Recorder;
use panda_e2e::schedule::Work;
use panda_e2e::schedule::play::judge;
use serde_json::json;

use crate::support::{PATIENCE, begin, device_of, make, runs, task, until};

const DEVICE: Part = Part::Agentlet(0);
const UNTIL_MENDED: Duration = Duration::MAX;

/// One device with one slot: a task at work, and one that waits for its place.
struct Busy {
    fleet: Fleet,
    recorder: Recorder,
    works: [Work; 2],
}

impl Busy {
    async fn start() -> anyhow::Result<Self> {
        let plan = Plan {
            devices: 1,
            max_runs: 1,
            ..Plan::default()
        };
        let fleet = Fleet::start(plan).await?;
        let patient = |name: &str| Work {
            policy: "Continue",
            after: Duration::from_secs(300),
            ..Work::new(name, Duration::from_secs(4))
        };
        let works = [patient("first"), patient("second")];
        let recorder = begin(&fleet, &works[..1])?;
        until(&fleet, "first", 1, RunPhase::Running).await?;
        panda_e2e::schedule::play::prepare(&fleet, &works[1..])?;
        make(&fleet, &works[1..])?;
        Ok(Self {
            fleet,
            recorder,
            works,
        })
    }

    /// Waits until the agent of the first task has ended: it beats no more.
    async fn first_ends(&self) -> anyhow::Result<u64> {
        let last = || {
            beats::lives(&self.fleet.beats())
                .ok()?
                .get("first")?
                .first()
                .map(|life| life.last)
        };
        let quiet = || async {
            let before = last()?;
            tokio::time::sleep(Duration::from_millis(400)).await;
            (last()? == before).then_some(before)
        };
        self.fleet.eventually("the agent ends", PATIENCE, quiet).await
    }

    /// Both succeed with one attempt, each when it really did.
    async fn both_succeed(self) -> anyhow::Result<()> {
        let ended = self.first_ends().await?;
        judge(&self.fleet, &self.recorder, &self.works).await?;
        for work in &self.works {
            let (task, runs) = (
                task(&self.fleet, &work.name).await?,
                runs(&self.fleet, &work.name).await?,
            );
            ensure!(
                task.status.phase == Some(TaskPhase::Succeeded),
                "{:#?}",
                task.status
            );
            ensure!(runs.len() == 1, "{runs:#?}");
        }
        let first = runs(&self.fleet, "first").await?.remove(0);
        let said = first.status.completion_time.context("it has ended")?;
        // Both in milliseconds before now, by two clocks that run alike; stamps are whole seconds.
        let ago = u128::from(panda_e2e::fleet::boottime().saturating_sub(ended));
        let said_ago = u128::try_from(SystemClock.now().duration_since(said.0).as_millis()).unwrap_or(0);
        ensure!(
            said_ago + 3000 > ago,
            "it ended {ago} ms ago, and says {said_ago} ms"
        );
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_was_ready_while_the_link_was_down_counts() -> anyhow::Result<()> {
    let mut busy = Busy::start().await?;
    let cut = Fault::Cut(0, UNTIL_MENDED);
    busy.fleet.inject(&cut)?;
    busy.first_ends().await?;
    // Past the grant nothing but the policy lets it go on.
    let devices = Api::<Device>::cluster(busy.fleet.client()?);
    let name = &busy.fleet.devices()[0].name;
    let silent = || async {
        let device = devices.get(name).await.ok()?;
        let ready = device.status.conditions.iter().find(|c| c.type_ == "Ready")?;
        (ready.status != "True").then_some(())
    };
    busy.fleet
        .eventually("the device is not ready", PATIENCE, silent)
        .await?;
    busy.fleet.mend(&cut)?;
    busy.both_succeed().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_was_ready_while_the_daemon_was_stopped_counts() -> anyhow::Result<()> {
    let busy = Busy::start().await?;
    let status = busy.fleet.part(DEVICE).stop(PATIENCE).await?;
    ensure!(status.success(), "{status}");
    busy.first_ends().await?;
    busy.fleet.part(DEVICE).start()?;
    busy.both_succeed().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_killed_between_the_end_and_its_report_reports_when_it_is_back() -> anyhow::Result<()> {
    let mut busy = Busy::start().await?;
    let cut = Fault::Cut(0, UNTIL_MENDED);
    busy.fleet.inject(&cut)?;
    busy.first_ends().await?;
    busy.fleet.part(DEVICE).kill();
    busy.fleet.part(DEVICE).start()?;
    busy.fleet.mend(&cut)?;
    busy.both_succeed().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agentlet_that_is_replaced_and_started_anew_goes_on() -> anyhow::Result<()> {
    let busy = Busy::start().await?;
    // As a package manager does it: another file under the old name, while the old one runs.
    busy.fleet.replace_agentlet()?;
    busy.fleet.part(DEVICE).stop(PATIENCE).await?;
    busy.fleet.part(DEVICE).start()?;
    busy.both_succeed().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vanished_device_spends_no_retry_of_the_agent_and_no_time_after_the_deadline() -> anyhow::Result<()>
{
    let mut fleet = Fleet::start(Plan::default()).await?;
    let fits = Work::new("fits", Duration::from_secs(6));
    let late = Work::new("late", Duration::from_secs(6));
    let works = [fits, late];
    panda_e2e::schedule::play::prepare(&fleet, &works)?;
    for (work, deadline) in works.iter().zip(["5m", "12s"]) {
        let mut task = work.task(&fleet.beats());
        task["spec"]["deadline"] = json!(deadline);
        task["spec"]["attemptTimeout"] = json!("10s");
        // Both begin on the device that vanishes.
        task["spec"]["device"]["selector"] = json!({"matchLabels": {"device": "device-0"}});
        fleet.apply(&task)?;
    }
    for work in &works {
        until(&fleet, &work.name, 1, RunPhase::Running).await?;
    }
    let crash = Fault::Crash(0, UNTIL_MENDED);
    fleet.inject(&crash)?;
    let over = || async {
        let task = task(&fleet, "late").await.ok()?;
        task.status
            .phase
            .filter(|phase| phase.is_terminal())
            .map(|_| task)
    };
    let late = fleet.eventually("the deadline ends it", PATIENCE, over).await?;
    ensure!(late.status.phase == Some(TaskPhase::Failed), "{:#?}", late.status);
    ensure!(
        late.status.attempts == 1,
        "an attempt began that could not fit: {:#?}",
        late.status
    );
    ensure!(late.status.retries.agent == 0, "{:#?}", late.status.retries);
    fleet.mend(&crash)?;
    let again = until(&fleet, "fits", 2, RunPhase::Succeeded).await?;
    let fits = task(&fleet, "fits").await?;
    ensure!(device_of(&fleet, &again)? == 0);
    ensure!(
        fits.status.retries.agent == 0 && fits.status.retries.device == 1,
        "{:#?}",
        fits.status.retries
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_deleted_task_does_not_touch_its_namesake() -> anyhow::Result<()> {
    let mut fleet = Fleet::start(Plan::default()).await?;
    let mut work = Work::new("t", Duration::from_secs(5));
    (work.policy, work.after, work.device) = ("Continue", Duration::from_secs(300), Some(0));
    let recorder = begin(&fleet, std::slice::from_ref(&work))?;
    let old = until(&fleet, "t", 1, RunPhase::Running).await?;
    let cut = Fault::Cut(0, UNTIL_MENDED);
    fleet.inject(&cut)?;
    let tasks: Api<panda_api::Task> = Api::namespaced(fleet.client()?, "default");
    tasks.delete("t", &DeleteParams::default()).await?;
    let gone = || async { tasks.get_opt("t").await.ok()?.is_none().then_some(()) };
    fleet.eventually("the task is gone", PATIENCE, gone).await?;

    // The same name, on the other device; its beats go to a file of their own.
    let beats = fleet.beats().join("t-again");
    std::fs::write(&beats, "")?;
    std::fs::set_permissions(&beats, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
    work.device = Some(1);
    let mut again = work.task(&fleet.beats());
    again["spec"]["env"][0]["value"] = json!(beats);
    tasks
        .create(&serde_json::from_value(again)?, &WriteParams::default())
        .await?;
    // The old one may be there for a while, until it is collected.
    let new = namesake(&fleet, &old, RunPhase::Running).await?;
    fleet.mend(&cut)?;
    let done = namesake(&fleet, &old, RunPhase::Succeeded).await?;
    ensure!(done.metadata.uid == new.metadata.uid, "{done:#?}");
    let both_ended = || async { fleet.leftovers().is_empty().then_some(()) };
    fleet
        .eventually("nothing of either is left", PATIENCE, both_ended)
        .await?;
    let task = task(&fleet, "t").await?;
    ensure!(
        task.status.accepted_run == new.metadata.name && task.status.attempts == 1,
        "{:#?}",
        task.status
    );
    let said = recorder.changes()?;
    let touched = said
        .iter()
        .filter(|change| change.object["metadata"]["uid"] == new.metadata.uid.as_str());
    for change in touched {
        ensure!(
            change.object["spec"]["deviceUID"] != old.spec.device_uid.as_str(),
            "{}",
            change.object
        );
    }
    Ok(())
}

/// Waits until a run of the task that took the name of `old`'s is in a phase.
async fn namesake(fleet: &Fleet, old: &Run, phase: RunPhase) -> anyhow::Result<Run> {
    let find = || async {
        let mut runs = runs(fleet, "t").await.ok()?;
        runs.retain(|run| run.spec.task_ref.uid != old.spec.task_ref.uid);
        runs.into_iter().find(|run| run.status.phase == Some(phase))
    };
    fleet
        .eventually(&format!("the namesake is {phase:?}"), PATIENCE, find)
        .await
}
