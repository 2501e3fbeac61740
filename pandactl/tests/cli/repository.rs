//! `create task --repo` and `result --apply` on real repositories.

use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use panda_api::meta::ObjectMeta;
use panda_api::{Resource, Run, Task};
use panda_client::params::WriteParams;
use panda_store::blob::{Digest, PutRequest};
use serde_json::{Value, json};

use crate::harness::Cluster;

fn git(folder: &Path, args: &[&str]) -> Vec<u8> {
    let output = Command::new("git")
        .args([
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@example.com",
            "-c",
            "init.defaultBranch=main",
        ])
        .args(args)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "git {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

fn repository(cluster: &Cluster) -> PathBuf {
    let folder = cluster.dir.path().join("repo");
    std::fs::create_dir_all(folder.join("src")).unwrap();
    let lines: String = (1..=20).map(|n| format!("line {n}\n")).collect();
    std::fs::write(folder.join("src/code.txt"), lines).unwrap();
    std::fs::write(folder.join("other.txt"), "other\n").unwrap();
    git(&folder, &["init", "-q"]);
    git(&folder, &["add", "-A"]);
    git(&folder, &["commit", "-qm", "first"]);
    folder
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_made_for_the_top_of_the_repository_and_warns_of_what_it_will_not_see() {
    let cluster = Cluster::start().await;
    let folder = repository(&cluster);
    std::fs::write(folder.join("new.txt"), "x").unwrap();
    std::fs::write(
        folder.join(".git/hooks/post-index-change"),
        "#!/bin/sh\ntouch hooked\n",
    )
    .unwrap();
    let args = [
        "create",
        "task",
        "fix",
        "--prompt",
        "do it",
        "--agent",
        "codex/gpt",
        "--repo",
        "repo/src",
        "--verify",
        "sh -c 'make test'",
        "--writes",
        "src/**",
        "--push",
        "--output",
        "report=out.md",
        "--env",
        "A=b=c",
        "--dry-run",
        "-o",
        "json",
    ];
    let done = cluster.run(&args).await;
    assert!(done.err().contains("1 uncommitted change"), "{}", done.err());
    let object: Value = serde_json::from_str(&done.ok()).unwrap();
    let top = std::fs::canonicalize(&folder).unwrap();
    assert_eq!(
        object["spec"],
        json!({
            "prompt": "do it",
            "agents": [{"name": "codex", "model": "gpt"}],
            "workspace": {"git": {"path": top.to_str().unwrap()}, "writes": ["src/**"], "result": {"push": "OnSuccess"}},
            "outputs": [{"name": "report", "path": "out.md"}],
            "env": [{"name": "A", "value": "b=c"}],
            "verify": [{"name": "verify", "command": ["sh", "-c", "make test"]}],
        })
    );
    assert!(!folder.join("hooked").exists());
    cluster
        .ok(&[
            "create", "task", "fix", "--prompt", "do it", "--repo", "repo", "--ref", "main",
        ])
        .await;
    cluster
        .run(&[
            "create", "task", "x", "--prompt", "p", "--repo", "repo", "--ref", "nope",
        ])
        .await
        .fails();
    cluster
        .run(&["create", "task", "x", "--prompt", "p", "--repo", "/"])
        .await
        .fails();
    cluster
        .run(&["create", "task", "fix", "--prompt", "p"])
        .await
        .fails();
}

/// A task that succeeded and brought this patch.
async fn succeeded(cluster: &Cluster, patch: &[u8]) {
    let mut task = Task {
        metadata: ObjectMeta::namespaced("default", "x"),
        ..Task::default()
    };
    task.spec.prompt = "p".into();
    let task = cluster
        .api::<Task>()
        .create(&task, &WriteParams::default())
        .await
        .unwrap();
    let mut run = Run {
        metadata: ObjectMeta::namespaced("default", "x-1"),
        ..Run::default()
    };
    run.metadata.owner_references = vec![task.controller_reference()];
    run.spec.task_ref.name = "x".into();
    run.spec.task_ref.uid = task.metadata.uid.clone();
    run.spec.attempt = 1;
    run.spec.agent.name = "fake".into();
    run.spec.prompt = "p".into();
    cluster
        .api::<Run>()
        .create(&run, &WriteParams::default())
        .await
        .unwrap();
    let digest = Digest::of(patch);
    let request = PutRequest {
        digest,
        size: patch.len() as u64,
        offset: 0,
    };
    let body = futures::stream::iter([Ok(Bytes::copy_from_slice(patch))]);
    cluster.blobs.put(request, Box::pin(body)).await.unwrap();
    let blob = json!({"digest": digest.to_string(), "size": patch.len()});
    let result = json!({"summary": "done", "patch": blob});
    let status =
        json!({"status": {"phase": "Succeeded", "changedFiles": ["src/code.txt"], "result": result}});
    cluster
        .api::<Run>()
        .patch_status("x-1", &status, &WriteParams::default())
        .await
        .unwrap();
    let status =
        json!({"status": {"phase": "Succeeded", "currentRun": "x-1", "acceptedRun": "x-1", "attempts": 1}});
    cluster
        .api::<Task>()
        .patch_status("x", &status, &WriteParams::default())
        .await
        .unwrap();
}

fn edit(folder: &Path, from: &str, to: &str) {
    let file = folder.join("src/code.txt");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains(from));
    std::fs::write(&file, text.replace(from, to)).unwrap();
}

/// The change of line 10, as a patch; the repository is left as it was.
fn patch(folder: &Path) -> Vec<u8> {
    edit(folder, "line 10\n", "line ten\n");
    let patch = git(folder, &["diff", "--binary", "--full-index"]);
    git(folder, &["checkout", "-q", "."]);
    patch
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_is_shown_saved_and_applied() {
    let cluster = Cluster::start().await;
    let folder = repository(&cluster);
    let patch = patch(&folder);
    succeeded(&cluster, &patch).await;
    let text = cluster.ok(&["result", "x"]).await;
    assert!(
        text.contains("Succeeded") && text.contains("src/code.txt") && text.contains("--apply"),
        "{text}"
    );
    assert_eq!(
        cluster.run(&["result", "task/x", "--patch"]).await.0.stdout,
        patch
    );
    cluster.ok(&["result", "x", "-o", "out"]).await;
    assert_eq!(
        std::fs::read(cluster.dir.path().join("out/changes.patch")).unwrap(),
        patch
    );
    cluster.run(&["result", "x", "-o", "out"]).await.fails();
    std::fs::write(folder.join("other.txt"), "mine\n").unwrap();
    cluster.ok(&["result", "x", "--apply", "repo/src"]).await;
    let text = std::fs::read_to_string(folder.join("src/code.txt")).unwrap();
    assert!(text.contains("line ten"), "{text}");
    assert_eq!(
        std::fs::read_to_string(folder.join("other.txt")).unwrap(),
        "mine\n"
    );
    // Once more: now the file has local changes.
    let err = cluster.run(&["result", "x", "--apply", "repo"]).await.fails();
    assert!(err.contains("src/code.txt"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_is_merged_when_that_is_clean_and_else_leaves_no_trace() {
    let cluster = Cluster::start().await;
    let folder = repository(&cluster);
    let patch = patch(&folder);
    succeeded(&cluster, &patch).await;
    // Lines near the change were changed by somebody else: the context does not fit, the merge does.
    edit(&folder, "line 7\nline 8\n", "line 7\nnew\nline 8\n");
    edit(&folder, "line 13\n", "line thirteen\n");
    git(&folder, &["commit", "-qam", "moved on"]);
    cluster.ok(&["result", "x", "--apply", "repo"]).await;
    assert!(
        std::fs::read_to_string(folder.join("src/code.txt"))
            .unwrap()
            .contains("line ten")
    );
    git(&folder, &["checkout", "-q", "."]);
    edit(&folder, "line 10\n", "line X\n");
    git(&folder, &["commit", "-qam", "conflict"]);
    let before = std::fs::read(folder.join("src/code.txt")).unwrap();
    let err = cluster.run(&["result", "x", "--apply", "repo"]).await.fails();
    assert!(err.contains("nothing was changed"), "{err}");
    assert_eq!(std::fs::read(folder.join("src/code.txt")).unwrap(), before);
    assert!(git(&folder, &["status", "--porcelain"]).is_empty());
}
