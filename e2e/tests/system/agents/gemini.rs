//! Gemini CLI over ACP.

use panda_api::{DriverKind, TaskPhase};
use panda_e2e::model_server::{ModelServer, Step};
use serde_json::json;

use super::{Cli, MEND, PATIENCE, Place, claims, mends_the_first_task, open_to_all};

#[tokio::test]
async fn gemini_mends_the_first_task() -> anyhow::Result<()> {
    mends_the_first_task(Cli::Gemini).await
}

#[tokio::test]
async fn gemini_that_only_claims_success_does_not_succeed() -> anyhow::Result<()> {
    claims(Cli::Gemini).await
}

/// Waits until a command of the agent runs whose text has `needle` in it.
async fn works_on(place: &Place, needle: &str) -> anyhow::Result<()> {
    place
        .cluster
        .within(PATIENCE, &format!("the agent runs {needle}"), || async {
            let found = place.cluster.leftovers();
            found.iter().any(|process| process.contains(needle)).then_some(())
        })
        .await
}

#[tokio::test]
async fn a_cancelled_turn_of_gemini_leaves_nothing_behind() -> anyhow::Result<()> {
    let Some(place) = Place::new(Cli::Gemini, &[]).await? else {
        return Ok(());
    };
    let model = ModelServer::start(vec![Step::Shell("sleep 98765".into())]).await?;
    place.give("stopped", &model, &json!({}))?;
    works_on(&place, "sleep 98765").await?;
    place.cluster.ok(&["cancel", "task/stopped"])?;
    let task = place.ended("stopped").await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Cancelled),
        "{:#?}",
        task.status
    );
    place
        .cluster
        .eventually("nothing is left", || async {
            let left = place.cluster.leftovers();
            left.is_empty().then_some(())
        })
        .await
}

#[tokio::test]
async fn a_turn_of_gemini_outlives_the_agentlet() -> anyhow::Result<()> {
    let Some(mut place) = Place::new(Cli::Gemini, &[]).await? else {
        return Ok(());
    };
    let signs = tempfile::Builder::new().prefix("panda-signs-").tempdir()?;
    open_to_all(signs.path())?;
    let go = signs.path().join("go");
    let wait = format!("while [ ! -e {} ]; do sleep 0.1; done", go.display());
    let model = ModelServer::start(vec![
        Step::Shell(wait),
        Step::Shell(MEND.into()),
        Step::Say("The rule is Gregorian now.".into()),
    ])
    .await?;
    place.give("adopted", &model, &json!({}))?;
    works_on(&place, "while [ ! -e").await?;
    place.cluster.kill();
    // The conversation is held by the supervisor: the agent does not notice, and ends its turn meanwhile.
    std::fs::write(&go, "")?;
    let over = || async { (model.seen().len() >= 3).then_some(()) };
    place.cluster.eventually("the turn ends", over).await?;
    place.cluster.restart().await?;
    let task = place.ended("adopted").await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Succeeded),
        "{:#?}\n{}",
        task.status,
        place.cluster.log()
    );
    assert_eq!(task.status.attempts, 1);
    let runs = place.runs("adopted").await?;
    assert_eq!(runs.len(), 1);
    let agent = runs[0]
        .spec
        .agent_spec
        .as_ref()
        .map(|agent| agent.drivers[0].kind);
    assert_eq!(agent, Some(DriverKind::Acp));
    Ok(())
}

/// A second round asks for the conversation of the first. This version does not always find it again; the work goes on
/// all the same, in the same workspace and with what failed in the prompt.
#[tokio::test]
async fn gemini_goes_on_after_a_check_failed_with_or_without_its_session() -> anyhow::Result<()> {
    let Some(place) = Place::new(Cli::Gemini, &[]).await? else {
        return Ok(());
    };
    // The first time it only looks.
    let second_time = format!("if [ -e src/seen ]; then rm src/seen; {MEND}; else touch src/seen; fi");
    let model = ModelServer::start(vec![
        Step::Shell(second_time),
        Step::Say("The rule is Gregorian now.".into()),
    ])
    .await?;
    let quick = json!({"retry": {"backoff": {"base": "100ms", "cap": "1s"}}});
    place.give("resumed", &model, &quick)?;
    let task = place.ended("resumed").await?;
    let runs = place.runs("resumed").await?;
    let log = place
        .cluster
        .ok(&["logs", &format!("run/{}", runs[runs.len() - 1].metadata.name)])?;
    let said = format!("{:#?}\n{runs:#?}\n{:#?}\n{log}", task.status, model.seen());
    assert_eq!(task.status.phase, Some(TaskPhase::Succeeded), "{said}");
    assert_eq!(runs.len(), 2, "{said}");
    assert_eq!(runs[1].spec.resume_session, runs[0].status.session_id, "{said}");
    Ok(())
}
