//! What real agents make of a model server that fails, and what is made of that.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::ensure;
pub(super) use panda_api::FailureReason as R;
use panda_api::Run;
use panda_e2e::model_server::{Fault, ModelServer, Step};
use serde_json::{Value, json};

use super::{Cli, Place};
use crate::support::apply;

/// Every fault, by the name of a model that has it.
fn faults() -> BTreeMap<String, Vec<Step>> {
    [
        ("stall", Step::Fault(Fault::Stall)),
        ("auth", Step::Fault(Fault::Unauthorized)),
        ("rate", Step::Fault(Fault::RateLimited(7))),
        ("server", Step::Fault(Fault::ServerError)),
        ("context", Step::Fault(Fault::ContextLimit)),
        ("cut", Step::Fault(Fault::Cut)),
        ("empty", Step::Fault(Fault::Empty)),
        ("loop", Step::Shell("true".into())),
    ]
    .map(|(name, step)| (name.to_owned(), vec![step]))
    .into()
}

/// Nothing new for this long: what is waited for does not come. A busy machine only makes it later.
const PATIENCE: Duration = Duration::from_secs(120);
/// Whatever goes on, a test ends.
const AT_ALL: Duration = Duration::from_secs(600);

/// One task for each fault, all at once; how its first run ended must be as measured.
pub(super) async fn end_as_measured(cli: Cli, measured: &[(&str, R)]) -> anyhow::Result<()> {
    let Some(place) = Place::new(cli, &["--max-runs", "4"]).await? else {
        return Ok(());
    };
    let model = ModelServer::start_with(Vec::new(), faults()).await?;
    let mut agent: Value = serde_json::from_str(&cli.manifest(cli.name(), &model)?)?;
    agent["spec"]["concurrency"] = json!(4);
    apply(&place.cluster, "agent.json", &agent.to_string())?;
    for (name, want) in measured {
        let mut task = cli.task(name, &[], &place.repository);
        task["spec"]["agents"] = json!([{"name": cli.name(), "model": name}]);
        // Short where silence is what is to be seen: what works on a busy machine may be silent for long.
        let silence = if *want == R::Stalled { "8s" } else { "4m" };
        task["spec"]["supervision"] = json!({"silence": silence, "firstOutput": "4m", "repeatLimit": 3});
        apply(&place.cluster, "task.json", &task.to_string())?;
    }
    let ends = first_ends(&place, &model, measured.iter().map(|(name, _)| *name)).await?;
    let mut wrong = Vec::new();
    for (name, want) in measured {
        let failure = ends[*name].status.failure.clone().unwrap_or_default();
        eprintln!("{} {name}: {:?}: {}", cli.name(), failure.reason, failure.message);
        // Gemini passes on how long it has to wait.
        let waits = cli != Cli::Gemini || *name != "rate" || failure.retry_after.is_some();
        if failure.reason != *want || !waits {
            wrong.push((name, failure));
        }
    }
    ensure!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

/// The first run of each task once it has ended, as long as there is any progress. A task is cancelled then: it would
/// be tried again and again otherwise, as it should.
async fn first_ends<'a>(
    place: &Place,
    model: &ModelServer,
    tasks: impl Iterator<Item = &'a str>,
) -> anyhow::Result<BTreeMap<&'a str, Run>> {
    let mut left: Vec<&str> = tasks.collect();
    let mut ends = BTreeMap::new();
    let begin = Instant::now();
    let mut progress = (Vec::new(), 0, begin);
    while !left.is_empty() {
        let mut phases = Vec::new();
        for name in left.clone() {
            let Some(run) = place.runs(name).await?.into_iter().next() else {
                continue;
            };
            phases.push((name, run.status.phase));
            if run.status.phase.is_some_and(|phase| phase.is_terminal()) {
                // Fails for one that has ended already.
                drop(place.cluster.pandactl(&["cancel", &format!("task/{name}")])?);
                left.retain(|other| *other != name);
                ends.insert(name, run);
            }
        }
        let requests = model.seen().len();
        if (&phases, requests) != (&progress.0, progress.1) {
            progress = (phases, requests, Instant::now());
        }
        ensure!(
            progress.2.elapsed() < PATIENCE && begin.elapsed() < AT_ALL,
            "no first end of {left:?}: {:?}\n{}",
            progress.0,
            place.cluster.log()
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(ends)
}

#[tokio::test]
async fn faults_of_the_model_are_named_with_gemini() -> anyhow::Result<()> {
    end_as_measured(
        Cli::Gemini,
        &[
            ("stall", R::Stalled),
            ("auth", R::AuthFailed),
            ("rate", R::RateLimited),
            ("server", R::ProviderError),
            ("context", R::ContextLimit),
            ("cut", R::ProviderError),
            ("empty", R::EmptyTurn),
            ("loop", R::LoopDetected),
        ],
    )
    .await
}

/// Grok goes on trying after a 500, a cut stream and an empty answer, for longer than anyone waits, and says nothing
/// meanwhile: nothing but its silence can be seen. How long it has to wait after a 429 it keeps to itself.
#[tokio::test]
async fn faults_of_the_model_are_named_with_grok() -> anyhow::Result<()> {
    end_as_measured(
        Cli::Grok,
        &[
            ("stall", R::Stalled),
            ("auth", R::AuthFailed),
            ("rate", R::RateLimited),
            ("server", R::Stalled),
            ("context", R::ContextLimit),
            ("cut", R::Stalled),
            ("empty", R::Stalled),
            ("loop", R::LoopDetected),
        ],
    )
    .await
}
