//! B33: secrets that leak sideways.

use anyhow::{Context, ensure};
use panda_api::{FailureReason, Task, TaskPhase};
use panda_client::Api;
use panda_e2e::canary::{Canary, Sighting, scan};
use panda_e2e::cluster::Cluster;
use serde_json::{Value, json};

use super::{err, nothing_is_left, runs, start};
use crate::support::ended;

const QUOTED: &str = r#"s3cr3t-"quoted""#;
const KEY: &str = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ\nQyNTUxOQAAACBzZWNyZXRzZWNyZXRzZWNyZXRzZWNy\nAAAEBleGFtcGxl\n-----END OPENSSH PRIVATE KEY-----\n";
const MODEL: &str = "sk-model-7f3Kq9ZtW2";
/// Shorter than what can be masked, and a common word.
const WEAK: [(&str, &str); 2] = [("short", "a1B2"), ("word", "production")];

fn canaries() -> Vec<Canary> {
    [("quoted", QUOTED), ("key", KEY), ("model", MODEL)]
        .map(|(name, value)| Canary::new(name, value))
        .into()
}

/// A cluster at trace level, with the values of the case in it. Nothing of the test's own lies in its folder.
async fn prepared() -> anyhow::Result<Cluster> {
    let cluster = Cluster::start_with_env(&[], &[("PANDA_LOG", "trace")]).await?;
    let mut command = vec![
        "create".to_owned(),
        "secret".into(),
        "generic".into(),
        "gh".into(),
    ];
    for (key, value) in [("quoted", QUOTED), ("key", KEY), ("model", MODEL)]
        .into_iter()
        .chain(WEAK)
    {
        command.push(format!("--from-literal={key}={value}"));
    }
    let output = cluster.pandactl(&command.iter().map(String::as_str).collect::<Vec<_>>())?;
    ensure!(output.status.success(), "{}", err(&output));
    let warned = err(&output);
    for (key, value) in WEAK {
        assert!(
            warned.contains(&format!("data.{key}: its value is not masked")),
            "{warned}"
        );
        assert!(!warned.contains(value), "{warned}");
    }
    assert!(
        !warned.contains("data.quoted") && !warned.contains("data.key"),
        "{warned}"
    );
    Ok(cluster)
}

/// Variables with all values of the case.
fn env() -> Value {
    let keys = ["quoted", "key", "short", "word"];
    keys.map(
        |key| json!({"name": key.to_uppercase(), "valueFrom": {"secretKeyRef": {"name": "gh", "key": key}}}),
    )
    .into_iter()
    .collect()
}

/// Everything that the cluster wrote, and everything that it says to somebody who may not read Secrets' values.
async fn sightings(cluster: &Cluster) -> anyhow::Result<Vec<Sighting>> {
    let canaries = canaries();
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(cluster.dir())? {
        let entry = entry?;
        // The programs under test are large, and nobody writes to them.
        if entry.file_name() != "bin" {
            folders.push(entry.path());
        }
    }
    let mut found = scan(&folders, &canaries)?;
    let mut look = |place: &str, text: &str| {
        for canary in &canaries {
            found.extend(canary.sightings(place, text.as_bytes()));
        }
    };
    if cluster.pid().is_none() {
        return Ok(found);
    }
    for kind in [
        "tasks",
        "runs",
        "agents",
        "devices",
        "events",
        "leases",
        "configmaps",
        "namespaces",
    ] {
        look(
            kind,
            &cluster.ok(&["get", kind, "--all-namespaces", "-o", "yaml"])?,
        );
        look(kind, &cluster.ok(&["describe", kind])?);
    }
    look("describe secret", &cluster.ok(&["describe", "secret", "gh"])?);
    look("get secret", &cluster.ok(&["get", "secret", "gh"])?);
    look("metrics", &cluster.client()?.get_text("/metrics").await?);
    let tasks = cluster.ok(&["get", "tasks", "-o", "name"])?;
    for task in tasks.lines() {
        look(task, &cluster.ok(&["logs", task])?);
        let result = cluster.pandactl(&["result", task])?;
        look(task, &super::out(&result));
        look(task, &err(&result));
    }
    let runs: Value = cluster
        .client()?
        .get_json("/apis/panda.dev/v1alpha1/namespaces/default/runs")
        .await?;
    for run in runs["items"].as_array().context("a list has items")? {
        let name = run["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("/apis/panda.dev/v1alpha1/namespaces/default/runs/{name}/events");
        look(&path, &cluster.client()?.get_text(&path).await?);
    }
    Ok(found)
}

/// Prints the values in every way of the case.
const PRINT: &str = r#"
env
printf '%s' "$QUOTED" | base64
printf 'x%s' "$QUOTED" | base64 -w0; echo
printf '%s' "$KEY" | base64
printf '%s\n' "$QUOTED" | rev
half=${QUOTED%uoted*}; printf '%s' "$half"; sleep 0.2; printf '%s\n' "${QUOTED#"$half"}"
escaped=$(printf '%s' "$QUOTED" | sed 's/"/\\"/g'); printf '{"token":"%s"}\n' "$escaped"
printf '%s' "$QUOTED" | od -An -tx1 | tr -d ' \n'; echo
git init -q . && git remote add leak "https://u:$QUOTED@host.invalid/x.git" && git remote -v
printf 'fatal: unable to access https://u:s3cr3t-%%22quoted%%22@host.invalid/x.git\n' >&2
printf 'token=%s key=%s\n' "$QUOTED" "$KEY" >&2
echo "after"
"#;

#[tokio::test]
async fn no_value_is_in_any_store_or_stream() -> anyhow::Result<()> {
    let cluster = prepared().await?;
    let crash = format!("{PRINT}\nprintf 'core: %s\\n' \"$QUOTED\" >&2\nkill -SEGV $$");
    start(
        &cluster,
        "prints",
        &["sh", "-c", PRINT],
        Value::Null,
        json!({"env": env()}),
    )?;
    start(
        &cluster,
        "crashes",
        &["sh", "-c", &crash],
        Value::Null,
        json!({"env": env()}),
    )?;
    let leak = "mkdir -p d && printf 'T=%s' \"$QUOTED\" >d/leak && echo fine >other";
    start(
        &cluster,
        "leaks",
        &["sh", "-c", leak],
        Value::Null,
        json!({"env": env(), "supervision": {"rounds": 0}}),
    )?;
    let named = "touch \"$QUOTED\"";
    start(
        &cluster,
        "names",
        &["sh", "-c", named],
        Value::Null,
        json!({"env": env(), "supervision": {"rounds": 0}}),
    )?;

    let task = ended(&cluster, "prints").await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Succeeded),
        "{:#?}",
        task.status
    );
    let said = cluster.ok(&["logs", "task/prints"])?;
    for part in [
        "QUOTED=[masked]",
        "SHORT=a1B2",
        "WORD=production",
        "\"token\":\"[masked]\"",
        "https://u:[masked]@host",
        "after",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let task = ended(&cluster, "crashes").await?;
    let failure = task.status.failure.context("a failure")?;
    assert_eq!(failure.reason, FailureReason::Crashed, "{failure:?}");
    assert!(failure.message.contains("[masked]"), "{failure:?}");
    for name in ["leaks", "names"] {
        let task = ended(&cluster, name).await?;
        let run = runs(&cluster, &task).await?.pop().context("a run")?;
        let failure = run.status.failure.context("a failure")?;
        assert_eq!(
            failure.reason,
            FailureReason::SecretInResult,
            "{name}: {failure:?}"
        );
        let want = if name == "leaks" { "d/leak" } else { "[masked]" };
        assert!(failure.message.contains(want), "{failure:?}");
    }
    assert_eq!(sightings(&cluster).await?, []);
    let frozen = cluster.ok(&["get", "runs", "-o", "yaml"])?;
    assert!(frozen.contains("secretKeyRef"), "the spec holds references");
    nothing_is_left(&cluster).await
}

#[tokio::test]
async fn a_kill_in_the_middle_leaves_no_value_behind() -> anyhow::Result<()> {
    let mut cluster = prepared().await?;
    // What the agent itself writes into its workspace is its own affair while it runs.
    let print: String = PRINT
        .lines()
        .filter(|line| !line.contains("git init"))
        .map(|line| format!("{line}\n"))
        .collect();
    let slow = format!("{print}while [ ! -e \"$TMPDIR/go\" ]; do sleep 0.1; done; echo \"again $QUOTED\"");
    start(
        &cluster,
        "slow",
        &["sh", "-c", &slow],
        Value::Null,
        json!({"env": env(), "verify": [{"name": "look", "command": ["sh", "-c", "env; true"]}]}),
    )?;
    cluster
        .eventually("the agent has printed", || async {
            let said = cluster.pandactl(&["logs", "task/slow"]).ok()?;
            super::out(&said).contains("after").then_some(())
        })
        .await?;
    cluster.kill();
    assert_eq!(sightings(&cluster).await?, []);
    cluster.restart().await?;
    let agent = panda_e2e::processes::naming(&cluster.dir().join("work"));
    let tmp = agent
        .iter()
        .find_map(|process| {
            process
                .text
                .split(' ')
                .find_map(|word| word.strip_prefix("TMPDIR="))
        })
        .context("the agent lives on")?
        .to_owned();
    std::fs::write(std::path::Path::new(&tmp).join("go"), "")?;
    let task = ended(&cluster, "slow").await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Succeeded),
        "{:#?}",
        task.status
    );
    let said = cluster.ok(&["logs", "task/slow"])?;
    assert!(said.contains("again [masked]"), "{said}");
    assert_eq!(sightings(&cluster).await?, []);
    nothing_is_left(&cluster).await
}

#[tokio::test]
async fn a_file_with_a_key_is_in_memory_while_the_agent_runs_and_gone_after_it() -> anyhow::Result<()> {
    let cluster = prepared().await?;
    let show = "cat \"$HOME/.x/config.json\"; stat -f -c 'on %T' -L \"$HOME/.x/config.json\"; readlink \"$HOME/.x/config.json\"; echo \"key $MODEL_KEY\"";
    let agent = json!({
        "models": {"endpoint": {"credential": {"secretKeyRef": {"name": "gh", "key": "model"}, "env": "MODEL_KEY"}}},
        "files": [{"path": ".x/config.json", "format": "Json", "template": "{\"apiKey\": \"{{credential}}\"}\n"}],
    });
    start(&cluster, "keyed", &["sh", "-c", show], agent, Value::Null)?;
    let task = ended(&cluster, "keyed").await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Succeeded),
        "{:#?}",
        task.status
    );
    let said = cluster.ok(&["logs", "task/keyed", "--stream", "stdout"])?;
    assert!(
        said.contains(r#"{"apiKey": "[masked]"}"#)
            && said.contains("on tmpfs")
            && said.contains("key [masked]"),
        "{said}"
    );
    let target = said
        .lines()
        .find(|line| line.starts_with("/dev/shm/"))
        .context("a link")?;
    assert!(!std::path::Path::new(target).exists());
    assert_eq!(sightings(&cluster).await?, []);
    Ok(())
}

#[tokio::test]
async fn what_is_missing_is_named_and_a_mistake_beside_a_value_shows_none() -> anyhow::Result<()> {
    let cluster = prepared().await?;
    // A key that is missing is looked for by attempts; a Secret that is missing is waited for after the first.
    let waits = "Secret \"absent\" is missing".to_owned();
    let cases = [
        (
            "nokey",
            "gh",
            "other",
            2,
            "key \"other\" of Secret \"gh\" does not exist".to_owned(),
        ),
        ("nosecret", "absent", "k", 1, waits),
    ];
    for (name, secret, key, attempts, why) in cases {
        let env = json!([{"name": "T", "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}]);
        start(&cluster, name, &["true"], Value::Null, json!({"env": env}))?;
        let tasks: Api<Task> = Api::namespaced(cluster.client()?, "default");
        let status = cluster
            .eventually("its attempts failed", || async {
                let task = tasks.get(name).await.ok()?;
                Some(task.status).filter(|status| status.retries.secret >= attempts)
            })
            .await?;
        let failure = status.failure.clone().unwrap_or_default();
        assert_eq!(failure.reason, FailureReason::SecretUnavailable);
        let missing = format!("key {key:?} of Secret {secret:?} does not exist");
        assert!(failure.message.contains(&missing), "{failure:?}");
        cluster
            .eventually("the reason is told", || async {
                let said = cluster.ok(&["explain-wait", &format!("task/{name}")]).ok()?;
                let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
                words.contains(&why).then_some(())
            })
            .await?;
        if name == "nosecret" {
            assert_eq!(tasks.get(name).await?.status.attempts, 1);
        }
    }
    // It goes on by itself, although no failure is allowed.
    cluster.ok(&[
        "create",
        "secret",
        "generic",
        "absent",
        "--from-literal=k=hunter22-late",
    ])?;
    let task = ended(&cluster, "nosecret").await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Succeeded),
        "{:#?}",
        task.status
    );
    // Outside of the cluster's folder: it is the person's own file.
    let own = tempfile::tempdir()?;
    let file = own.path().join("secret.yaml");
    let quoted = serde_json::to_string(QUOTED)?;
    for mistake in [
        "typo: 1",
        "type: [1]",
        "immutable: perhaps",
        "data: {bad: \"?\"}",
        "metadata: {name: x}",
        "\tx: 1",
        "type: \"\\q\"",
    ] {
        let text = format!(
            "apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\nstringData:\n  a: {quoted}\n{mistake}\n"
        );
        std::fs::write(&file, &text)?;
        for more in [&[][..], &["--dry-run=server"]] {
            let output =
                cluster.pandactl(&[&["apply", "-f", file.to_str().context("UTF-8")?], more].concat())?;
            assert!(!output.status.success(), "{mistake}");
            let said = format!("{}{}", super::out(&output), err(&output));
            assert!(said.contains("secret.yaml:"), "{mistake}: {said}");
            assert_eq!(
                Canary::new("quoted", QUOTED).sightings(mistake, said.as_bytes()),
                [],
                "{said}"
            );
        }
    }
    assert_eq!(sightings(&cluster).await?, []);
    Ok(())
}
