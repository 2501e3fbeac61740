//! B25: bytes that are not UTF-8, in output and in names of files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use panda_api::TaskPhase;
use panda_e2e::cluster::Cluster;
use serde_json::{Value, json};

use super::{TASKS, runs, start};
use crate::support::{ended, example_repository, git};

/// What `fakeagent --bad-bytes` writes.
const BAD: &[u8] = b"\xff\xfe\x97\n\xf0\x9f\x90\xbc\nNUL \0 here\n 10%\r 50%\r100%\rcaf\xe9/na\xefve.txt\n";

#[tokio::test]
async fn odd_output_is_kept_byte_by_byte_and_shown_safely() -> anyhow::Result<()> {
    let cluster = Cluster::start(&[]).await?;
    // A result event of the agent's own protocol comes after all of it.
    let event = |event: Value| event.to_string();
    let text = event(json!({"type": "text", "data": "All \u{1f43c} done."}));
    let end = event(json!({"type": "end", "stopReason": "end_turn", "sessionId": "s1",
        "usage": {"input_tokens": 11, "output_tokens": 7, "cache_read_input_tokens": 0}}));
    let command = [
        "fakeagent",
        "--bad-bytes",
        "--say",
        &text,
        "--bad-bytes",
        "--say",
        &end,
    ];
    let driver = json!({"drivers": [{"kind": "Jsonl", "dialect": "grok", "command": command}]});
    start(&cluster, "bytes", &[], driver, Value::Null)?;
    let task = ended(&cluster, "bytes").await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Succeeded),
        "{:#?}",
        task.status
    );
    let result = task.status.result.clone().unwrap_or_default();
    assert_eq!(result.answer, "All \u{1f43c} done.");
    assert_eq!(task.status.usage.output_tokens, 7, "the last event was read");

    let written = [BAD, text.as_bytes(), b"\n", BAD, end.as_bytes(), b"\n"].concat();
    for more in [&[][..], &["--tail", "1000"], &["-f"]] {
        let args = [&["logs", "task/bytes", "--stream", "stdout"], more].concat();
        let shown = cluster.pandactl(&args)?;
        assert!(shown.status.success(), "{more:?}: {shown:?}");
        assert_eq!(
            shown.stdout.escape_ascii().to_string(),
            written.escape_ascii().to_string(),
            "{more:?}"
        );
    }

    // Every way to the API answers, and what should be JSON is.
    let client = cluster.client()?;
    let run = task.status.accepted_run.clone();
    let runs_path = format!("/apis/panda.dev/v1alpha1/namespaces/default/runs/{run}");
    for query in [
        "",
        "?timestamps=true",
        "?tailLines=3",
        "?limitBytes=5",
        "?stream=Stdout",
        "?stream=Stderr",
    ] {
        for path in [
            format!("{runs_path}/log{query}"),
            format!("{TASKS}/bytes/log{query}"),
        ] {
            let request = http::Request::get(&path).body(bytes::Bytes::new())?;
            let once = client.request(request.clone()).await?;
            assert_eq!(once.status(), 200, "{path}");
            assert_eq!(
                once.body(),
                client.request(request).await?.body(),
                "{path}: stable"
            );
        }
    }
    let events = client.get_text(&format!("{runs_path}/events")).await?;
    assert!(!events.is_empty());
    for line in events.lines() {
        serde_json::from_str::<Value>(line)?;
    }
    let shown: Value = client.get_json(&runs_path).await?;
    assert_eq!(shown["status"]["phase"], "Succeeded");
    for args in [
        ["get", "task", "bytes", "-o", "yaml"].as_slice(),
        &["get", "runs", "-o", "json"],
        &["describe", "task", "bytes"],
        &["describe", "run", &run],
        &["result", "task/bytes"],
        &["events", "--for", "task/bytes"],
    ] {
        let shown = cluster.pandactl(args)?;
        assert!(shown.status.success(), "{args:?}: {shown:?}");
        std::str::from_utf8(&shown.stdout)?;
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_of_odd_bytes_is_text_in_the_api() -> anyhow::Result<()> {
    let cluster = Cluster::start(&[]).await?;
    start(
        &cluster,
        "plain",
        &["fakeagent", "--bad-bytes"],
        Value::Null,
        Value::Null,
    )?;
    start(
        &cluster,
        "stderr",
        &["sh", "-c", "printf 'no \\377\\376 \\033[31m\\000' >&2; exit 7"],
        Value::Null,
        Value::Null,
    )?;
    let task = ended(&cluster, "plain").await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Succeeded),
        "{:#?}",
        task.status
    );
    let answer = task.status.result.unwrap_or_default().answer;
    assert!(
        answer.contains("\u{1f43c}") && answer.contains('\u{fffd}'),
        "{answer:?}"
    );
    let task = ended(&cluster, "stderr").await?;
    assert_eq!(task.status.phase, Some(TaskPhase::Failed), "{:#?}", task.status);
    let message = task.status.failure.unwrap_or_default().message;
    assert!(message.contains('7'), "{message:?}");
    assert!(
        !message.contains('\u{1b}') && !message.contains('\0'),
        "{message:?}"
    );
    Ok(())
}

#[tokio::test]
async fn odd_names_of_files_are_listed_reversibly_and_the_patch_applies() -> anyhow::Result<()> {
    let cluster = Cluster::start(&[]).await?;
    let repository = example_repository(&cluster, "leap")?;
    let names: [&[u8]; 6] = [
        b"caf\xe9.txt",
        b"\xff\xfe\x97",
        b"dir \xe9/na\xefve.txt",
        b"back\\slash\\xE9",
        b"line\nbreak",
        "\u{1f43c} \u{202e}panda".as_bytes(),
    ];
    let mut script = String::new();
    for (i, name) in names.iter().enumerate() {
        let octal: String = name.iter().map(|byte| format!("\\{byte:03o}")).collect();
        script += &format!(
            "n=\"$(printf '{octal}')\"; mkdir -p \"$(dirname \"$n\")\"; printf 'content {i}\\n' >\"$n\"\n"
        );
    }
    script += "rm README.md 2>/dev/null; printf '\\377\\000\\n' >binary\n";
    let workspace = json!({
        "workspace": {"git": {"path": repository}},
        "outputs": [{"name": "odd", "path": "binary"}],
    });
    start(&cluster, "names", &["sh", "-c", &script], Value::Null, workspace)?;
    let task = ended(&cluster, "names").await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Succeeded),
        "{:#?}",
        task.status
    );
    let run = runs(&cluster, &task).await?.remove(0);
    let listed: Vec<Vec<u8>> = run
        .status
        .changed_files
        .iter()
        .filter_map(|name| panda_agentlet::artifact::parse(name))
        .collect();
    for name in names {
        assert!(
            listed.iter().any(|listed| listed == name),
            "{:?} is not in {:?}",
            name.escape_ascii().to_string(),
            run.status.changed_files
        );
    }
    assert!(run.status.changed_files.iter().all(|name| !name.contains('\n')));

    let patch = cluster.pandactl(&["result", "task/names", "--patch"])?;
    assert!(patch.status.success(), "{patch:?}");
    let file = cluster.dir().join("names.patch");
    std::fs::write(&file, &patch.stdout)?;
    git(
        &repository,
        &["apply", "--check", file.to_str().unwrap_or_default()],
    )?;
    let target = repository.to_str().unwrap_or_default();
    cluster.ok(&["result", "task/names", "--apply", target])?;
    for (i, name) in names.iter().enumerate() {
        let path = repository.join(OsStr::from_bytes(name));
        assert_eq!(std::fs::read_to_string(path)?, format!("content {i}\n"));
    }
    assert_eq!(std::fs::read(repository.join("binary"))?, b"\xff\0\n");
    Ok(())
}
