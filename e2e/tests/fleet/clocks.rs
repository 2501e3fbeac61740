//! Wall clocks that are wrong, links that are slow or lossy: no lease expires early, no attempts overlap.

use std::time::Duration;

use anyhow::ensure;
use panda_api::{Device, Lease, RunPhase};
use panda_client::Api;
use panda_e2e::cluster::tool_file;
use panda_e2e::faults::{Fault, Part};
use panda_e2e::fleet::{Fleet, Plan};
use panda_e2e::recorder::Recorder;
use panda_e2e::schedule::Work;
use panda_e2e::schedule::play::judge;

use crate::support::{PATIENCE, begin, device_of, runs, task, until};

const PARTS: [Part; 4] = [
    Part::Apiserver,
    Part::Controllers,
    Part::Agentlet(0),
    Part::Agentlet(1),
];

fn works() -> Vec<Work> {
    let works = (0..2).map(|n| Work {
        device: Some(n),
        ..Work::new(format!("long-{n}"), Duration::from_secs(12))
    });
    works.collect()
}

/// A fleet whose every device works on a long task.
async fn at_work(plan: Plan) -> anyhow::Result<(Fleet, Vec<Work>, Recorder)> {
    let fleet = Fleet::start(plan).await?;
    let works = works();
    let recorder = begin(&fleet, &works)?;
    for work in &works {
        until(&fleet, &work.name, 1, RunPhase::Running).await?;
    }
    Ok((fleet, works, recorder))
}

/// Waits until every device has renewed its heartbeat once more: whoever looks at a clock for it has looked.
async fn renewed(fleet: &Fleet) -> anyhow::Result<()> {
    let leases = Api::<Lease>::namespaced(fleet.client()?, "panda-system");
    for device in fleet.devices() {
        let version = || async { Some(leases.get(&device.name).await.ok()?.metadata.resource_version) };
        let before = fleet.eventually("a heartbeat", PATIENCE, version).await?;
        let renewed = || async { version().await.filter(|now| *now != before) };
        fleet.eventually("the next heartbeat", PATIENCE, renewed).await?;
    }
    Ok(())
}

/// Every task had one attempt: nobody thought that its device was gone.
async fn one_attempt_each(fleet: &Fleet, works: &[Work]) -> anyhow::Result<()> {
    for work in works {
        let runs = runs(fleet, &work.name).await?;
        ensure!(runs.len() == 1, "{} was taken away: {runs:#?}", work.name);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_jump_an_hour_take_nothing_away() -> anyhow::Result<()> {
    if tool_file("lib/libfaketime.so").is_none() {
        return Ok(());
    }
    let plan = Plan {
        clocks: PARTS.to_vec(),
        ..Plan::default()
    };
    let (mut fleet, works, recorder) = at_work(plan).await?;
    for seconds in [3600, -3600] {
        for part in PARTS {
            fleet.inject(&Fault::Jump(part, seconds))?;
            renewed(&fleet).await?;
        }
    }
    judge(&fleet, &recorder, &works).await?;
    one_attempt_each(&fleet, &works).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_boots_in_1970_works_once_its_clock_is_set() -> anyhow::Result<()> {
    if tool_file("lib/libfaketime.so").is_none() {
        return Ok(());
    }
    let plan = Plan {
        clocks: PARTS.to_vec(),
        ..Plan::default()
    };
    let (mut fleet, works, recorder) = at_work(plan).await?;
    // The daemon starts again, and time has not been set yet; then it is, as after the first contact with a time server.
    fleet.set_clock(Part::Agentlet(0), "@1970-01-01 00:00:10")?;
    fleet.inject(&Fault::Kill(Part::Agentlet(0)))?;
    let says = || async {
        fleet
            .part(Part::Agentlet(0))
            .log()
            .contains("1970-01-01T")
            .then_some(())
    };
    fleet.eventually("a line of 1970", PATIENCE, says).await?;
    fleet.set_clock(Part::Agentlet(0), "+0s")?;
    judge(&fleet, &recorder, &works).await?;
    one_attempt_each(&fleet, &works).await
}

/// A condition of a device.
async fn condition(fleet: &Fleet, n: usize, type_: &str) -> Option<String> {
    let devices = Api::<Device>::cluster(fleet.client().ok()?);
    let status = devices.get(&fleet.devices()[n].name).await.ok()?.status;
    let found = status.conditions.into_iter().find(|c| c.type_ == type_);
    found.map(|condition| condition.status)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_ten_minutes_off_and_a_server_at_half_speed_judge_nothing() -> anyhow::Result<()> {
    if tool_file("lib/libfaketime.so").is_none() {
        return Ok(());
    }
    let plan = Plan {
        clocks: PARTS.to_vec(),
        ..Plan::default()
    };
    let mut fleet = Fleet::start(plan).await?;
    fleet.set_clock(Part::Apiserver, "+0 x0.5")?;
    for (n, offset) in ["-600s", "+600s"].into_iter().enumerate() {
        // At boot: the process begins with it.
        fleet.set_clock(Part::Agentlet(n), offset)?;
        fleet.inject(&Fault::Kill(Part::Agentlet(n)))?;
        let noticed = || async { (condition(&fleet, n, "ClockSkew").await? == "True").then_some(()) };
        fleet.eventually("the skew is noticed", PATIENCE, noticed).await?;
    }
    let works = [
        Work::new("victim", Duration::from_secs(12)),
        Work {
            device: Some(1),
            ..Work::new("steady", Duration::from_secs(12))
        },
    ];
    let recorder = begin(&fleet, &works)?;
    until(&fleet, "steady", 1, RunPhase::Running).await?;
    let first = until(&fleet, "victim", 1, RunPhase::Running).await?;
    let lost = device_of(&fleet, &first)?;
    let cut = Fault::Cut(lost, Duration::MAX);
    fleet.inject(&cut)?;
    until(&fleet, "victim", 1, RunPhase::Lost).await?;
    until(&fleet, "victim", 2, RunPhase::Running).await?;
    fleet.mend(&cut)?;
    judge(&fleet, &recorder, &works).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_slept_past_its_lease_wakes_to_change_nothing() -> anyhow::Result<()> {
    let mut fleet = Fleet::start(Plan::default()).await?;
    let works = [Work::new("victim", Duration::from_secs(6))];
    let recorder = begin(&fleet, &works)?;
    let first = until(&fleet, "victim", 1, RunPhase::Running).await?;
    let sleeper = device_of(&fleet, &first)?;
    fleet.suspend(sleeper, true);
    until(&fleet, "victim", 1, RunPhase::Lost).await?;
    let second = until(&fleet, "victim", 2, RunPhase::Running).await?;
    fleet.suspend(sleeper, false);
    // By the first timer after waking, and not because the other one has ended.
    let ended = || async { (!fleet.leftovers().contains_key(&first.spec.device_name)).then_some(()) };
    fleet.eventually("what slept is ended", PATIENCE, ended).await?;
    fleet.until_ready(sleeper).await?;
    judge(&fleet, &recorder, &works).await?;
    let task = task(&fleet, "victim").await?;
    ensure!(
        task.status.accepted_run == second.metadata.name && task.status.attempts == 2,
        "{:#?}",
        task.status
    );
    ensure!(
        task.status.retries.agent == 0 && task.status.retries.device == 1,
        "{:#?}",
        task.status.retries
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_joins_in_1970_gets_in_once_its_clock_is_set() -> anyhow::Result<()> {
    if tool_file("lib/libfaketime.so").is_none() {
        return Ok(());
    }
    let late = Part::Agentlet(1);
    let plan = Plan {
        devices: 1,
        clocks: vec![late],
        ..Plan::default()
    };
    let mut fleet = Fleet::start(plan).await?;
    let n = fleet.join("device-1", Some("@1970-01-01 00:00:10")).await?;
    // The server's certificate begins long after that: the device waits, and its token is not spent.
    let waits = || async {
        let log = fleet.part(late).log();
        (log.contains("1970-01-01T") && log.contains("not valid yet")).then_some(())
    };
    fleet
        .eventually("it waits for its clock", PATIENCE, waits)
        .await?;
    fleet.set_clock(late, "+0s")?;
    fleet.until_ready(n).await?;
    let works = [Work {
        device: Some(n),
        ..Work::new("first", Duration::from_secs(1))
    }];
    let recorder = begin(&fleet, &works)?;
    judge(&fleet, &recorder, &works).await?;
    one_attempt_each(&fleet, &works).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_and_lossy_links_take_nothing_away() -> anyhow::Result<()> {
    let plan = Plan {
        // Each way takes up to 5 s: a grant must outlive its own journey.
        ttl: Duration::from_secs(24),
        ..Plan::default()
    };
    let (mut fleet, works, recorder) = at_work(plan).await?;
    let lasting = Duration::MAX;
    for n in 0..2 {
        fleet.inject(&Fault::Loss(n, 5, lasting))?;
    }
    for millis in [100, 1000, 5000, 100] {
        for n in 0..2 {
            fleet.inject(&Fault::Delay(n, Duration::from_millis(millis), lasting))?;
        }
        tokio::time::sleep(Duration::from_millis(3 * millis)).await;
    }
    judge(&fleet, &recorder, &works).await?;
    one_attempt_each(&fleet, &works).await
}
