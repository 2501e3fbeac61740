//! Machines that are not who they were: installed anew under their old name, or renamed (B18).

use std::time::Duration;

use anyhow::{Context, ensure};
use panda_api::{Device, RunPhase, TaskPhase};
use panda_client::Api;
use panda_e2e::faults::{Fault, Part};
use panda_e2e::fleet::{Fleet, Plan};
use panda_e2e::schedule::Work;
use panda_e2e::schedule::play::judge;

use crate::support::{PATIENCE, begin, runs, task, until};

fn one_device() -> Plan {
    Plan {
        devices: 1,
        ..Plan::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_installed_anew_under_its_name_is_another_device() -> anyhow::Result<()> {
    let mut fleet = Fleet::start(one_device()).await?;
    let works = [Work {
        policy: "Continue",
        after: Duration::from_secs(5),
        ..Work::new("victim", Duration::from_secs(7))
    }];
    let recorder = begin(&fleet, &works)?;
    let old = until(&fleet, "victim", 1, RunPhase::Running).await?;

    // Out of reach, given up by a person, and there again with an empty disk, while the old one is still at work.
    let cut = Fault::Cut(0, Duration::MAX);
    fleet.inject(&cut)?;
    let name = fleet.devices()[0].name.clone();
    let second = fleet.join(&name, None).await?;
    let said = || async {
        let log = fleet.part(Part::Agentlet(second)).log();
        log.contains("pandactl device remove").then_some(())
    };
    fleet
        .eventually("the new one is told that the name is taken", PATIENCE, said)
        .await?;
    fleet.ok(&["device", "remove", &name])?;
    let devices = Api::<Device>::cluster(fleet.client()?);
    let another = || async {
        let device = devices.get(&name).await.ok()?;
        (device.metadata.uid != old.spec.device_uid).then_some(device)
    };
    let new = fleet
        .eventually("the new one has joined", PATIENCE, another)
        .await?;
    fleet.until_ready(second).await?;
    let again = until(&fleet, "victim", 2, RunPhase::Running).await?;
    ensure!(
        (&again.spec.device_name, &again.spec.device_uid) == (&name, &new.metadata.uid),
        "{:#?}",
        again.spec
    );

    // The past comes back: it has a result, a certificate of the same name, and no say.
    fleet.mend(&cut)?;
    let told = || async {
        let log = fleet.part(Part::Agentlet(0)).log();
        log.contains("does not take this device").then_some(())
    };
    fleet
        .eventually("the old one is told that it was removed", PATIENCE, told)
        .await?;
    judge(&fleet, &recorder, &works).await?;
    let (task, runs) = (task(&fleet, "victim").await?, runs(&fleet, "victim").await?);
    ensure!(
        task.status.phase == Some(TaskPhase::Succeeded),
        "{:#?}",
        task.status
    );
    ensure!(
        task.status.accepted_run == again.metadata.name,
        "{:#?}",
        task.status
    );
    ensure!(
        runs.len() == 2 && runs[0].status.phase == Some(RunPhase::Lost),
        "{runs:#?}"
    );
    ensure!(runs[0].status.late_result.is_none(), "{:#?}", runs[0].status);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_renamed_in_its_configuration_stays_who_its_certificate_says() -> anyhow::Result<()> {
    let fleet = Fleet::start(one_device()).await?;
    let works = [Work {
        policy: "Continue",
        after: Duration::from_secs(300),
        ..Work::new("steady", Duration::from_secs(4))
    }];
    let recorder = begin(&fleet, &works)?;
    until(&fleet, "steady", 1, RunPhase::Running).await?;
    let agentlet = fleet.part(Part::Agentlet(0));
    agentlet.kill();
    fleet.rename(0, "somebody-else")?;
    agentlet.start()?;
    let said = || async { agentlet.log().contains("somebody-else").then_some(()) };
    fleet.eventually("that it keeps its name", PATIENCE, said).await?;
    judge(&fleet, &recorder, &works).await?;
    ensure!(runs(&fleet, "steady").await?.len() == 1, "it ran more than once");
    let devices = Api::<Device>::cluster(fleet.client()?);
    let all = devices.list_all(&Default::default()).await?.items;
    let only = all.first().context("a device")?;
    ensure!(
        all.len() == 1 && only.metadata.name == fleet.devices()[0].name,
        "{all:#?}"
    );
    Ok(())
}
