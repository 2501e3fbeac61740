//! A real agent CLI, driven by its manifest alone, against the scripted model.

use anyhow::Context;
use panda_api::TaskPhase;
use panda_e2e::cluster::{Cluster, tool};
use panda_e2e::model_server::{ModelServer, Step};
use serde_json::{Value, json};

use crate::support::{apply, ended, example_repository, git, root};

/// The manifest as it is shipped, pointed at another endpoint.
fn grok(base_url: &str) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(root().join("manifests/agents/grok.yaml"))?;
    let mut agent: Value = serde_yaml::from_str(&text)?;
    agent["spec"]["models"]["endpoint"]["baseUrl"] = json!(base_url);
    Ok(agent.to_string())
}

fn task(name: &str, repository: &str) -> String {
    json!({
        "apiVersion": "panda.dev/v1alpha1",
        "kind": "Task",
        "metadata": {"name": name},
        "spec": {
            "prompt": "The test for 1900 fails. Make is_leap_year follow the Gregorian rule.",
            "agents": [{"name": "grok"}],
            "env": [{"name": "XAI_API_KEY", "value": "scripted"}],
            "workspace": {"git": {"path": repository}, "writes": ["src/**"]},
            "verify": [
                {"name": "tests", "command": ["sh", "tests/run.sh"], "timeout": "2m", "restore": ["tests/**"]},
            ],
        },
    })
    .to_string()
}

#[tokio::test]
async fn a_real_agent_mends_the_first_task() -> anyhow::Result<()> {
    let Some(grok_path) = tool("grok") else {
        return Ok(());
    };
    let model = ModelServer::start(vec![
        Step::Shell("cat src/leap.c".into()),
        Step::Shell(
            r"sed -i 's|return year % 4 == 0;|return (year % 4 == 0 \&\& year % 100 != 0) \|\| year % 400 == 0;|' src/leap.c"
                .into(),
        ),
        Step::Say("The rule is Gregorian now.".into()),
    ])
    .await?;
    // The program itself, where every user of the machine can reach it.
    let programs = tempfile::Builder::new().prefix("panda-grok-").tempdir()?;
    std::fs::set_permissions(
        programs.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )?;
    std::fs::copy(std::fs::canonicalize(grok_path)?, programs.path().join("grok"))?;
    let cluster = Cluster::start_with_path(&[], &[programs.path()]).await?;
    let repository = example_repository(&cluster, "leap")?;
    apply(&cluster, "grok.json", &grok(&model.base_url())?)?;
    apply(
        &cluster,
        "task.json",
        &task("mend", repository.to_str().context("UTF-8")?),
    )?;

    let task = ended(&cluster, "mend").await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Succeeded),
        "{:#?}\n{}",
        task.status,
        cluster.log()
    );
    let result = task.status.result.as_ref().context("a result")?;
    assert!(result.summary.contains("Gregorian"), "{result:?}");
    assert_eq!(task.status.attempts, 1);
    assert!(
        task.status.usage.input_tokens > 0 && task.status.usage.output_tokens > 0,
        "{:?}",
        task.status.usage
    );
    assert!(
        model
            .seen()
            .iter()
            .any(|request| request.authorization == "Bearer scripted")
    );

    let patch = cluster.ok(&["result", "task/mend", "--patch"])?;
    assert!(
        patch.contains("+    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;"),
        "{patch}"
    );
    assert_eq!(
        git(&repository, &["status", "--porcelain"])?,
        "",
        "the person's checkout is untouched"
    );
    Ok(())
}

#[tokio::test]
async fn an_agent_that_only_claims_success_does_not_succeed() -> anyhow::Result<()> {
    let Some(grok_path) = tool("grok") else {
        return Ok(());
    };
    let model = ModelServer::start(vec![Step::Say("All fixed, tests pass.".into())]).await?;
    let programs = tempfile::Builder::new().prefix("panda-grok-").tempdir()?;
    std::fs::set_permissions(
        programs.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )?;
    std::fs::copy(std::fs::canonicalize(grok_path)?, programs.path().join("grok"))?;
    let cluster = Cluster::start_with_path(&[], &[programs.path()]).await?;
    let repository = example_repository(&cluster, "leap")?;
    apply(&cluster, "grok.json", &grok(&model.base_url())?)?;
    let mut claim: Value = serde_json::from_str(&task("claim", repository.to_str().context("UTF-8")?))?;
    claim["spec"]["supervision"] = json!({"rounds": 1});
    apply(&cluster, "task.json", &claim.to_string())?;

    let task = ended(&cluster, "claim").await?;
    assert_eq!(task.status.phase, Some(TaskPhase::Review), "{:#?}", task.status);
    assert_eq!(task.status.accepted_run, "");
    Ok(())
}
