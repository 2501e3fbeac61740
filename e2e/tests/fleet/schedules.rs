//! Random schedules of tasks and faults. `PANDA_SEED` plays one again, `PANDA_SCHEDULES` says how many.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use panda_e2e::fleet::machine::is_root;
use panda_e2e::schedule::Schedule;
use panda_e2e::schedule::play::play;
use tokio::sync::Semaphore;

/// How many are played in continuous integration.
const SCHEDULES: u64 = 50;
/// How many at a time: they mostly wait.
const AT_A_TIME: usize = 6;

#[expect(
    clippy::disallowed_methods,
    reason = "the seed of a failure is given back through the environment"
)]
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_schedule_of_faults_loses_or_doubles_anything() -> anyhow::Result<()> {
    let root = is_root("a power failure or a full disk");
    let seeds = match number("PANDA_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("PANDA_FIRST_SEED").unwrap_or(1);
            first..first + number("PANDA_SCHEDULES").unwrap_or(SCHEDULES)
        }
    };
    let (begin, total) = (Instant::now(), seeds.end - seeds.start);
    let room = Arc::new(Semaphore::new(AT_A_TIME));
    let mut playing = tokio::task::JoinSet::new();
    for seed in seeds {
        let room = Arc::clone(&room);
        playing.spawn(async move {
            let _permit = room.acquire().await.context("nobody closes it")?;
            let begin = Instant::now();
            let schedule = Schedule::random(seed, root);
            play(&schedule)
                .await
                .with_context(|| format!("PANDA_SEED={seed}"))?;
            eprintln!("seed {seed} held in {:?}", begin.elapsed());
            anyhow::Ok(())
        });
    }
    let mut failures = Vec::new();
    while let Some(played) = playing.join_next().await {
        if let Err(error) = played? {
            eprintln!("{error:?}");
            failures.push(error.to_string());
        }
    }
    eprintln!("{total} schedules in {:?}", begin.elapsed());
    ensure!(failures.is_empty(), "these broke a rule: {failures:?}");
    Ok(())
}
