//! A device is lost while it works: its task runs elsewhere, once, and the one that comes back changes nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::ensure;
use panda_api::RunPhase;
use panda_e2e::faults::{Fault, Part};
use panda_e2e::fleet::machine::is_root;
use panda_e2e::fleet::{Fleet, Plan};
use panda_e2e::schedule::Work;
use panda_e2e::schedule::play::judge;

use crate::support::{begin, device_of, runs, task, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_spread_by_selector_and_free_slots() -> anyhow::Result<()> {
    let plan = Plan {
        max_runs: 2,
        ..Plan::default()
    };
    let fleet = Fleet::start(plan).await?;
    let second = Duration::from_secs(1);
    let mut works: Vec<Work> = (0..6)
        .map(|n| Work::new(format!("free-{n}"), second * 2))
        .collect();
    works.push(Work {
        device: Some(1),
        ..Work::new("pinned", second)
    });
    let recorder = begin(&fleet, &works)?;
    judge(&fleet, &recorder, &works).await?;

    let mut used = BTreeSet::new();
    for n in 0..6 {
        for run in runs(&fleet, &format!("free-{n}")).await? {
            used.insert(device_of(&fleet, &run)?);
        }
    }
    ensure!(
        used.len() == 2,
        "both devices have free slots, and {used:?} was used"
    );
    let pinned = runs(&fleet, "pinned").await?;
    ensure!(
        pinned.len() == 1 && device_of(&fleet, &pinned[0])? == 1,
        "{pinned:#?}"
    );
    Ok(())
}

/// How the device is lost.
enum Loss {
    /// Its daemon alone: the supervisor is left, and keeps to the grant.
    Daemon,
    /// All of it, until it is started again.
    Power,
    /// It works on, out of reach.
    Link,
}

async fn its_task_runs_elsewhere_once(plan: Plan, loss: Loss) -> anyhow::Result<()> {
    let mut fleet = Fleet::start(plan).await?;
    // Longer than a grant and everything that is waited for after it.
    let works = [Work::new("victim", Duration::from_secs(12))];
    let recorder = begin(&fleet, &works)?;
    let first = until(&fleet, "victim", 1, RunPhase::Running).await?;
    let lost = device_of(&fleet, &first)?;
    let until_mended = Duration::MAX;
    let fault = match loss {
        Loss::Daemon => None,
        Loss::Power => Some(Fault::Crash(lost, until_mended)),
        Loss::Link => Some(Fault::Cut(lost, until_mended)),
    };
    match &fault {
        Some(fault) => fleet.inject(fault)?,
        None => fleet.part(Part::Agentlet(lost)).kill(),
    }
    let first = until(&fleet, "victim", 1, RunPhase::Lost).await?;
    let second = until(&fleet, "victim", 2, RunPhase::Running).await?;
    ensure!(
        device_of(&fleet, &second)? != lost,
        "the lost device got it again"
    );

    // The old one comes back while the new one works, and nothing of it counts.
    match &fault {
        Some(fault) => fleet.mend(fault)?,
        None => fleet.part(Part::Agentlet(lost)).start()?,
    }
    fleet.until_ready(lost).await?;
    judge(&fleet, &recorder, &works).await?;
    let (task, runs) = (task(&fleet, "victim").await?, runs(&fleet, "victim").await?);
    ensure!(runs.len() == 2, "{runs:#?}");
    ensure!(
        task.status.accepted_run == second.metadata.name,
        "{:#?}",
        task.status
    );
    ensure!(runs[0].status.phase == Some(RunPhase::Lost));
    ensure!(
        runs[0].status.failure == first.status.failure,
        "why it was lost has changed: {:#?}",
        runs[0].status
    );
    ensure!(
        task.status.retries.agent == 0 && task.status.retries.device == 1,
        "{:#?}",
        task.status.retries
    );

    let device = &first.spec.device_name;
    let events = fleet.ok(&["events", "--for", "task/victim"])?;
    ensure!(
        events.contains("Lost") && events.contains(device.as_str()),
        "{events}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_daemon_loses_its_task_to_another_device() -> anyhow::Result<()> {
    its_task_runs_elsewhere_once(Plan::default(), Loss::Daemon).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_without_power_loses_its_task_to_another_device() -> anyhow::Result<()> {
    its_task_runs_elsewhere_once(Plan::default(), Loss::Power).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_out_of_reach_loses_its_task_to_another_device() -> anyhow::Result<()> {
    its_task_runs_elsewhere_once(Plan::default(), Loss::Link).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pulled_cable_loses_its_task_to_another_device() -> anyhow::Result<()> {
    if !is_root("a network namespace") {
        return Ok(());
    }
    let plan = Plan {
        networks: true,
        ..Plan::default()
    };
    its_task_runs_elsewhere_once(plan, Loss::Link).await
}
