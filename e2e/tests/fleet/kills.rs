//! kill -9 of every process, again and again, while fifty tasks run on two devices.

use std::time::{Duration, Instant};

use anyhow::ensure;
use panda_e2e::dice::{Dice, seed_or};
use panda_e2e::faults::{Fault, Part};
use panda_e2e::fleet::{Fleet, Plan};
use panda_e2e::schedule::Work;
use panda_e2e::schedule::play::judge;

use crate::support::{begin, task};

const TASKS: usize = 50;
/// Of each process.
const KILLS: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_kills_of_each_process_lose_and_double_nothing() -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut dice = Dice::new(seed_or(20_261_201));
    // A server that is killed again and again grants late; nothing is to be lost here, so grants are longer.
    let plan = Plan {
        ttl: Duration::from_secs(10),
        ..Plan::default()
    };
    let mut fleet = Fleet::start(plan).await?;
    let times = [200, 700, 1500, 3000].map(Duration::from_millis);
    let works: Vec<Work> = (0..TASKS)
        .map(|n| Work::new(format!("t-{n:02}"), *dice.pick(&times)))
        .collect();
    let recorder = begin(&fleet, &works)?;

    let mut left: Vec<Part> = [Part::Apiserver, Part::Controllers]
        .into_iter()
        .flat_map(|part| [part; KILLS])
        .chain((0..KILLS).map(|n| Part::Agentlet(n % 2)))
        .collect();
    while !left.is_empty() {
        let at = dice.below(left.len() as u64);
        let part = left.swap_remove(usize::try_from(at)?);
        tokio::time::sleep(dice.between(Duration::from_millis(50), Duration::from_millis(900))).await;
        fleet.inject(&Fault::Kill(part))?;
    }
    judge(&fleet, &recorder, &works).await?;
    let mut attempts = 0;
    for work in &works {
        let task = task(&fleet, &work.name).await?;
        ensure!(
            task.status.retries.agent == 0,
            "{}: {:#?}",
            work.name,
            task.status.retries
        );
        attempts += task.status.attempts;
    }
    eprintln!(
        "{attempts} attempts of {TASKS} tasks, {} kills, in {:?}",
        3 * KILLS,
        begun.elapsed()
    );
    Ok(())
}
