//! `audit`, on the log of a server in this process.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::harness::Cluster;

fn log_file(cluster: &Cluster) -> PathBuf {
    let folder = cluster.dir.path().join("server/audit");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some()).max().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_shown_verified_and_held_against_a_head_that_was_kept() {
    let cluster = Cluster::start().await;
    let name = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}).to_string();
    let file = cluster.file("one.yaml", &name);
    cluster.ok(&["apply", "-f", &file]).await;
    let data = ["--data-dir", "server"];
    let audit = |args: &[&'static str]| [&["audit"], args, &data].concat();
    let shown = cluster.ok(&audit(&["log"])).await;
    assert!(shown.contains("create  configmaps/default/one  201"), "{shown}");
    assert!(shown.contains("the server started"), "{shown}");
    let newest = cluster.ok(&audit(&["log", "--json", "--tail", "1"])).await;
    let event: Value = serde_json::from_str(&newest).unwrap();
    assert_eq!(event["apiVersion"], "audit.k8s.io/v1");
    // While the server runs.
    let said = cluster.ok(&audit(&["verify"])).await;
    assert!(said.contains("unbroken"), "{said}");
    let head = cluster.ok(&audit(&["head"])).await;
    cluster.file("head.json", &head);
    cluster.ok(&["delete", "configmap", "one"]).await;
    let said = cluster.ok(&audit(&["verify", "--head", "head.json"])).await;
    assert!(said.contains("as it was"), "{said}");
    cluster.stop().await;

    let path = log_file(&cluster);
    let whole = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<&str> = whole.lines().collect();
    lines.truncate(lines.len() - 4);
    fs::write(&path, format!("{}\n", lines.join("\n"))).unwrap();
    let cut = cluster
        .run(&audit(&["verify", "--head", "head.json"]))
        .await
        .fails();
    assert!(cut.contains("its end was cut off"), "{cut}");
    fs::write(&path, whole.replacen("configmaps", "secrets", 1)).unwrap();
    let changed = cluster.run(&audit(&["verify"])).await.fails();
    assert!(
        changed.contains(".jsonl:") && changed.contains("not as it was written"),
        "{changed}"
    );
    cluster.file("head.json", "{}");
    let no_head = cluster
        .run(&audit(&["verify", "--head", "head.json"]))
        .await
        .fails();
    assert!(no_head.contains("no head of an audit log"), "{no_head}");
}
