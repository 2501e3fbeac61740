//! Get, in every format, and watches.

use std::process::Stdio;

use panda_api::Task;
use panda_api::meta::ObjectMeta;
use panda_client::params::WriteParams;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::harness::{Cluster, PATIENCE};

async fn make(cluster: &Cluster, name: &str) {
    let mut task = Task {
        metadata: ObjectMeta::namespaced("default", name),
        ..Task::default()
    };
    task.spec.prompt = "p".into();
    cluster
        .api::<Task>()
        .create(&task, &WriteParams::default())
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_format_shows_the_same_objects() {
    let cluster = Cluster::start().await;
    make(&cluster, "a").await;
    make(&cluster, "b").await;
    let table = cluster.ok(&["get", "tasks"]).await;
    assert!(
        table.starts_with("NAME") && table.lines().count() == 3 && !table.contains('\u{1b}'),
        "{table}"
    );
    assert_eq!(
        cluster.ok(&["get", "tk", "-o", "name"]).await,
        "task.panda.dev/a\ntask.panda.dev/b\n"
    );
    let list: Value = serde_json::from_str(&cluster.ok(&["get", "tasks", "-o", "json"]).await).unwrap();
    assert_eq!(
        (list["kind"].as_str(), list["items"].as_array().map(Vec::len)),
        (Some("List"), Some(2))
    );
    assert_eq!(list["items"][0]["kind"], "Task");
    let one: Value = serde_json::from_str(&cluster.ok(&["get", "task/a", "-o", "json"]).await).unwrap();
    assert_eq!(one["metadata"]["name"], "a");
    assert_eq!(
        cluster
            .ok(&["get", "tasks", "-o", "jsonpath={.items[*].metadata.name}"])
            .await,
        "a b"
    );
    assert_eq!(
        cluster
            .ok(&[
                "get",
                "tasks",
                "-o",
                "custom-columns=N:.metadata.name,P:.spec.prompt",
                "--no-headers"
            ])
            .await,
        "a  p\nb  p\n"
    );
    let sorted = cluster
        .ok(&["get", "tasks", "--sort-by", ".metadata.name", "--no-headers"])
        .await;
    assert!(sorted.starts_with("a "), "{sorted}");
    let all = cluster.ok(&["get", "all"]).await;
    assert!(all.contains("task.panda.dev/a"), "{all}");
    let spaces = cluster.ok(&["get", "tasks", "-A", "--show-labels"]).await;
    assert!(
        spaces.starts_with("NAMESPACE") && spaces.contains("LABELS") && spaces.contains("<none>"),
        "{spaces}"
    );
    let err = cluster
        .run(&["get", "tasks", "-o", "go-template={{.x}}"])
        .await
        .fails();
    assert!(err.contains("jsonpath"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_and_missing_are_told_apart() {
    let cluster = Cluster::start().await;
    let none = cluster.run(&["get", "tasks"]).await;
    assert_eq!(
        (none.code(), none.out().as_str(), none.err().as_str()),
        (0, "", "No resources found in default namespace.\n")
    );
    make(&cluster, "a").await;
    let some = cluster.run(&["get", "task", "a", "x", "y"]).await;
    assert!(some.out().contains('a'));
    let err = some.fails();
    assert!(
        err.contains("\"x\" not found") && err.contains("\"y\" not found"),
        "{err}"
    );
    let ignored = cluster.run(&["get", "task", "x", "--ignore-not-found"]).await;
    assert_eq!((ignored.code(), ignored.err()), (0, String::new()));
    let err = cluster.run(&["get", "taks"]).await.fails();
    assert!(err.contains("did you mean tasks?"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_shows_each_change_once() {
    let cluster = Cluster::start().await;
    make(&cluster, "a").await;
    let mut child = cluster
        .command(&["get", "tasks", "-w", "-o", "name"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || {
        tokio::time::timeout(PATIENCE, lines.next_line())
            .await
            .unwrap()
            .unwrap()
            .unwrap()
    };
    assert_eq!(next().await, "task.panda.dev/a");
    make(&cluster, "b").await;
    assert_eq!(next().await, "task.panda.dev/b");
    let patch = json!({"metadata": {"labels": {"x": "y"}}});
    cluster
        .api::<Task>()
        .patch_merge("a", &patch, &WriteParams::default())
        .await
        .unwrap();
    assert_eq!(next().await, "task.panda.dev/a");
    child.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_server_or_a_configuration_the_hint_is_up() {
    let cluster = Cluster::start().await;
    cluster.stop().await;
    for args in [&["get", "tasks"][..], &["apply", "-f", "x.yaml"], &["version"]] {
        cluster.file("x.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n");
        let err = cluster.run(args).await.fails();
        assert!(err.contains("pandactl up") && err.contains("127.0.0.1"), "{err}");
    }
    let mut nowhere = cluster.command(&["get", "tasks"]);
    nowhere.env("PANDACONFIG", "/nowhere/config");
    let err = crate::harness::finish(nowhere, b"").await.fails();
    assert!(
        err.contains("/nowhere/config") && err.contains("pandactl up"),
        "{err}"
    );
}
