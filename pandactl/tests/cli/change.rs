//! Patch, edit, taint, drain, explain, top, doctor.

use panda_api::{Device, Run, Task};
use panda_client::Api;
use panda_client::params::WriteParams;
use serde_json::{Value, json};

use crate::harness::{Cluster, Done};

async fn task(cluster: &Cluster, name: &str) {
    let text = format!(
        "apiVersion: panda.dev/v1alpha1\nkind: Task\nmetadata: {{name: {name}}}\nspec: {{prompt: p}}\n"
    );
    cluster.feed(&["apply", "-f", "-"], text.as_bytes()).await.ok();
}

async fn device(cluster: &Cluster, name: &str) -> Device {
    let text = format!(
        "apiVersion: panda.dev/v1alpha1\nkind: Device\nmetadata: {{name: {name}}}\nspec: {{maxRuns: 2}}\n"
    );
    cluster.feed(&["apply", "-f", "-"], text.as_bytes()).await.ok();
    Api::<Device>::cluster(cluster.client.clone())
        .get(name)
        .await
        .unwrap()
}

async fn json_of(cluster: &Cluster, object: &str) -> Value {
    serde_json::from_str(&cluster.ok(&["get", object, "-o", "json"]).await).unwrap()
}

/// Edits with a script in place of the editor; it gets the file as `$1`.
async fn edit(cluster: &Cluster, object: &str, script: &str) -> Done {
    let path = cluster.file("editor.sh", format!("#!/bin/sh\n{script}\n"));
    let mut command = cluster.command(&["edit", object]);
    command.env("EDITOR", format!("sh {path}"));
    crate::harness::finish(command, b"").await
}

#[tokio::test(flavor = "multi_thread")]
async fn patches_merge_or_operate_and_dry_runs_store_nothing() {
    let cluster = Cluster::start().await;
    task(&cluster, "x").await;
    let patch = |args: &'static [&'static str]| {
        let all: Vec<&str> = ["patch", "task", "x"].iter().chain(args).copied().collect();
        let cluster = &cluster;
        async move { cluster.run(&all).await }
    };
    assert_eq!(
        patch(&["-p", "spec: {priority: 5}"]).await.ok(),
        "task.panda.dev/x patched\n"
    );
    assert_eq!(
        patch(&["-p", "spec: {priority: 5}"]).await.ok(),
        "task.panda.dev/x patched (no change)\n"
    );
    const OPERATION: &str = r#"[{"op":"test","path":"/spec/priority","value":5},{"op":"replace","path":"/spec/priority","value":6}]"#;
    patch(&["--type=json", "-p", OPERATION, "--dry-run=server"])
        .await
        .ok();
    assert_eq!(json_of(&cluster, "task/x").await["spec"]["priority"], 5);
    patch(&["--type", "json", "-p", OPERATION]).await.ok();
    let refused = patch(&["--type", "json", "-p", OPERATION]).await.fails();
    assert!(refused.contains("test"), "{refused}");
    let printed = patch(&["-p", r#"{"spec":{"priority":null}}"#, "-o", "json"])
        .await
        .ok();
    let printed: Value = serde_json::from_str(&printed).unwrap();
    assert!(printed["spec"].get("priority").is_none());
    patch(&["--subresource=status", "-p", "status: {attempts: 3}"])
        .await
        .ok();
    assert_eq!(json_of(&cluster, "task/x").await["status"]["attempts"], 3);
    let hint = patch(&["--type=strategic", "-p", "{}"]).await.fails();
    assert!(hint.contains("--type=merge"));
    patch(&["-p", "[]"]).await.fails();
    patch(&["-p", "{a: 1, a: 2}"]).await.fails();
    patch(&[]).await.fails();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_is_stored_cancelled_or_kept() {
    let cluster = Cluster::start().await;
    task(&cluster, "x").await;
    let done = edit(&cluster, "task/x", "sed -i 's/prompt: p/prompt: better/' $1").await;
    assert_eq!(done.ok(), "task.panda.dev/x edited\n");
    assert_eq!(json_of(&cluster, "task/x").await["spec"]["prompt"], "better");
    let same = edit(&cluster, "task/x", "true").await;
    assert!(same.err().contains("Edit cancelled, no changes made."));
    same.ok();
    let empty = edit(&cluster, "task/x", ": > $1").await;
    assert!(empty.err().contains("Edit cancelled, saved file was empty."));
    // What is invalid opens again with the reason; left as it is, it is kept in a file.
    let wrong =
        "grep -q '# .*priority' $1 || sed -i 's/prompt: better/prompt: better\\n  priority: high/' $1";
    let err = edit(&cluster, "task/x", wrong).await.fails();
    let path = err.split("a copy of your changes is in ").nth(1).unwrap().trim();
    assert!(std::fs::read_to_string(path).unwrap().contains("priority: high"));
    std::fs::remove_file(path).unwrap();
    let failing = edit(&cluster, "task/x", "exit 3").await.fails();
    assert!(failing.contains("the editor"), "{failing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_keeps_what_others_changed_meanwhile() {
    let cluster = Cluster::start().await;
    task(&cluster, "x").await;
    let other = format!(
        "PANDACONFIG={} {} label task/x team=web --overwrite >/dev/null; sed -i 's/prompt: p/prompt: mine/' $1",
        cluster.dir.path().join("config").display(),
        env!("CARGO_BIN_EXE_pandactl")
    );
    edit(&cluster, "task/x", &other).await.ok();
    let object = json_of(&cluster, "task/x").await;
    assert_eq!(object["metadata"]["labels"]["team"], "web");
    assert_eq!(object["spec"]["prompt"], "mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_are_tainted_and_untainted() {
    let cluster = Cluster::start().await;
    device(&cluster, "d").await;
    let taint = |word: &'static str| {
        let cluster = &cluster;
        async move { cluster.run(&["taint", "device", "d", word]).await }
    };
    assert_eq!(
        taint("battery=yes:NoSchedule").await.ok(),
        "device.panda.dev/d tainted\n"
    );
    taint("battery=no:NoSchedule").await.fails();
    taint("battery=no:Never").await.fails();
    let object = json_of(&cluster, "device/d").await;
    assert_eq!(
        object["spec"]["taints"],
        json!([{"key": "battery", "value": "yes", "effect": "NoSchedule"}])
    );
    assert_eq!(taint("battery-").await.ok(), "device.panda.dev/d untainted\n");
    taint("battery-").await.fails();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_cordons_evicts_and_waits_until_nothing_runs() {
    let cluster = Cluster::start().await;
    let device = device(&cluster, "d").await;
    assert!(
        cluster
            .ok(&["drain", "d"])
            .await
            .ends_with("device.panda.dev/d drained\n")
    );
    let runs = cluster.api::<Run>();
    let run = json!({
        "apiVersion": "panda.dev/v1alpha1", "kind": "Run", "metadata": {"name": "r", "namespace": "default"},
        "spec": {"taskRef": {"name": "t", "uid": "u", "generation": 1}, "role": "Worker", "attempt": 1, "prompt": "p",
            "agent": {"name": "a"}, "rerun": 0, "deviceName": "d", "deviceUid": device.metadata.uid,
            "leaseEpoch": 1, "device": {"name": "d"}},
    });
    let run: Run = serde_json::from_value(run).unwrap();
    runs.create(&run, &WriteParams::default()).await.unwrap();
    let pinned = cluster.run(&["drain", "d"]).await.fails();
    assert!(
        pinned.contains("can go nowhere else") && pinned.contains("--force"),
        "{pinned}"
    );
    assert_eq!(runs.get("r").await.unwrap().spec.evict, None);
    let waits = cluster
        .run(&["drain", "d", "--wait-runs", "--timeout=1s"])
        .await
        .fails();
    assert!(waits.contains("timed out"), "{waits}");
    assert_eq!(runs.get("r").await.unwrap().spec.cancel, None);
    let forced = cluster.run(&["drain", "d", "--force", "--timeout=1s"]).await;
    assert!(
        forced.out().contains("r (namespace default) evicted"),
        "{forced:?}"
    );
    forced.fails();
    let spec = runs.get("r").await.unwrap().spec;
    assert_eq!((spec.cancel, spec.evict), (Some(true), Some(true)));
    let ended = json!({"status": {"phase": "Cancelled"}});
    runs.patch_status("r", &ended, &WriteParams::default())
        .await
        .unwrap();
    cluster.ok(&["drain", "d"]).await;
    assert_eq!(json_of(&cluster, "device/d").await["spec"]["unschedulable"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_are_explained_within_eighty_columns() {
    let cluster = Cluster::start().await;
    let text = cluster.ok(&["explain", "task.spec.workspace.git"]).await;
    assert!(
        text.contains("KIND:       Task") && text.contains("FIELD: git <Object>"),
        "{text}"
    );
    assert!(text.contains("  path\t<string>"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let all = cluster.ok(&["explain", "devices", "--recursive"]).await;
    assert!(
        all.contains("maxRuns\t<integer>") && all.contains("taints\t<[]Object>"),
        "{all}"
    );
    let wrong = cluster.run(&["explain", "task.spec.promt"]).await.fails();
    assert!(
        wrong.contains("no field \"promt\"") && wrong.contains("prompt"),
        "{wrong}"
    );
    cluster.run(&["explain", "widget"]).await.fails();
}

#[tokio::test(flavor = "multi_thread")]
async fn top_and_doctor_tell_what_is_there() {
    let cluster = Cluster::start().await;
    let poor = cluster.run(&["doctor"]).await;
    assert_eq!(poor.code(), 1);
    let text = poor.out();
    assert!(
        text.contains("ok    server: answers") && text.contains("good until"),
        "{text}"
    );
    assert!(text.contains("fail  devices: none has joined"), "{text}");
    device(&cluster, "d").await;
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "R", "message": "",
        "lastTransitionTime": "2026-03-01T12:00:00Z"}], "allocatable": {"cpu": "4", "memory": "8Gi"},
        "agents": [{"namespace": "default", "name": "claude-code", "driver": "Exec"}]}});
    let devices = Api::<Device>::cluster(cluster.client.clone());
    devices
        .patch_status("d", &status, &WriteParams::default())
        .await
        .unwrap();
    let findings = cluster.run(&["doctor", "-o", "json"]).await;
    let findings: Value = serde_json::from_str(&findings.ok()).unwrap();
    assert!(
        findings["checks"]
            .as_array()
            .unwrap()
            .iter()
            .all(|check| check["verdict"] != "fail")
    );
    let top = cluster.ok(&["top", "devices"]).await;
    assert!(top.contains("0/2") && top.contains("0/8Gi"), "{top}");
    task(&cluster, "x").await;
    let usage = json!({"status": {"usage": {"inputTokens": 70, "outputTokens": 3}}});
    cluster
        .api::<Task>()
        .patch_status("x", &usage, &WriteParams::default())
        .await
        .unwrap();
    assert!(cluster.ok(&["top", "tasks"]).await.contains("70"));
}
