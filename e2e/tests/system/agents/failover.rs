//! One agent's provider fails, and the next agent of the list goes on.

use std::collections::BTreeMap;

use panda_api::{FailureReason as R, RunPhase, TaskPhase};
use panda_e2e::model_server::{Fault, ModelServer, Step};
use serde_json::json;

use super::{Cli, MEND, Place};
use crate::support::apply;

/// Gemini is asked first each time and Grok, which has nothing to do with it, does the work.
#[tokio::test]
async fn the_next_agent_goes_on_where_a_provider_fails() -> anyhow::Result<()> {
    let Some(place) = Place::with(&[Cli::Gemini, Cli::Grok], &["--max-runs", "3"]).await? else {
        return Ok(());
    };
    let faults = [
        ("limited", Fault::RateLimited(600), R::RateLimited),
        ("broken", Fault::ServerError, R::ProviderError),
        ("denied", Fault::Unauthorized, R::AuthFailed),
    ];
    let mut scripts: BTreeMap<String, Vec<Step>> = faults
        .iter()
        .map(|(name, fault, _)| ((*name).to_owned(), vec![Step::Fault(*fault)]))
        .collect();
    let mends = vec![
        Step::Shell(MEND.into()),
        Step::Say("The rule is Gregorian now.".into()),
    ];
    scripts.insert("mends".into(), mends);
    let model = ModelServer::start_with(Vec::new(), scripts).await?;
    for cli in [Cli::Gemini, Cli::Grok] {
        apply(&place.cluster, "agent.json", &cli.manifest(cli.name(), &model)?)?;
    }
    for (name, ..) in faults {
        let mut task = Cli::Gemini.task(name, &[], &place.repository);
        task["spec"]["agents"] =
            json!([{"name": "gemini", "model": name}, {"name": "grok", "model": "mends"}]);
        task["spec"]["env"] =
            json!([Cli::Gemini, Cli::Grok].map(|cli| json!({"name": cli.key(), "value": "scripted"})));
        task["spec"]["retry"] = json!({"backoff": {"base": "100ms", "cap": "1s"}});
        apply(&place.cluster, "task.json", &task.to_string())?;
    }
    for (name, _, reason) in faults {
        let task = place.ended(name).await?;
        let runs = place.runs(name).await?;
        let said = format!("{name}: {:#?}\n{runs:#?}\n{}", task.status, place.cluster.log());
        assert_eq!(task.status.phase, Some(TaskPhase::Succeeded), "{said}");
        let made: Vec<_> = runs
            .iter()
            .map(|run| {
                let failure = run.status.failure.as_ref().map(|failure| failure.reason);
                (run.spec.agent.name.as_str(), run.status.phase, failure)
            })
            .collect();
        let want = [
            ("gemini", Some(RunPhase::Failed), Some(reason)),
            ("grok", Some(RunPhase::Succeeded), None),
        ];
        assert_eq!(made, want, "{said}");
        // Sessions of one agent mean nothing to another.
        assert_eq!(runs[1].spec.resume_session, "", "{said}");
        assert_eq!(task.status.accepted_run, runs[1].metadata.name, "{said}");
    }
    Ok(())
}
