//! B07: List kinds, good and broken.

use panda_e2e::cluster::Cluster;
use serde_json::{Value, json};

use super::{TASKS, apply_file, err, out, post, send, stored};

fn task(name: &str) -> Value {
    json!({
        "apiVersion": "panda.dev/v1alpha1", "kind": "Task", "metadata": {"name": name},
        "spec": {"prompt": "p", "suspend": true},
    })
}

fn list(items: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

#[tokio::test]
async fn lists_are_applied_item_by_item_as_often_as_one_likes() -> anyhow::Result<()> {
    let cluster = Cluster::start(&["--no-agentlet"]).await?;
    let two = list(&json!([task("a"), task("b")])).to_string();
    for word in ["created", "unchanged"] {
        let applied = apply_file(&cluster, "list.json", two.as_bytes(), &[])?;
        let want = format!("task.panda.dev/a {word}\ntask.panda.dev/b {word}\n");
        assert_eq!(out(&applied), want, "{}", err(&applied));
    }
    let unchanged = "task.panda.dev/a unchanged\ntask.panda.dev/b unchanged\n";
    // As this program prints it, and as the server answers it: with uid and a version that soon is old.
    let printed = cluster.ok(&["get", "tasks", "-o", "yaml"])?;
    let raw = cluster.client()?.get_text(TASKS).await?;
    assert!(raw.contains("\"kind\":\"TaskList\""), "{raw}");
    cluster.ok(&["label", "task", "a", "b", "seen=yes"])?;
    for (name, text) in [("printed.yaml", &printed), ("raw.json", &raw)] {
        for _ in 0..2 {
            let applied = apply_file(&cluster, name, text.as_bytes(), &[])?;
            assert_eq!(out(&applied), unchanged, "{name}: {}", err(&applied));
        }
    }
    let label = cluster.ok(&["get", "task", "a", "-o", "jsonpath={.metadata.labels.seen}"])?;
    assert_eq!(label.trim(), "yes", "what others set stays");
    // The same after all objects were made anew: their uid and version are other ones.
    cluster.ok(&["delete", "task", "a", "b"])?;
    for (name, text) in [("printed.yaml", &printed), ("raw.json", &raw)] {
        for word in ["created", "unchanged"] {
            let applied = apply_file(&cluster, name, text.as_bytes(), &[])?;
            let want = format!("task.panda.dev/a {word}\ntask.panda.dev/b {word}\n");
            assert_eq!(out(&applied), want, "{name}: {}", err(&applied));
        }
        cluster.ok(&["delete", "task", "a", "b"])?;
    }
    Ok(())
}

#[tokio::test]
async fn empty_and_broken_lists_store_nothing_and_break_nothing() -> anyhow::Result<()> {
    let cluster = Cluster::start(&["--no-agentlet"]).await?;
    for empty in [
        json!({"apiVersion": "v1", "kind": "List", "items": null}),
        json!({"apiVersion": "v1", "kind": "List", "items": []}),
        json!({"apiVersion": "v1", "kind": "List"}),
        json!({"apiVersion": "panda.dev/v1alpha1", "kind": "TaskList", "items": null}),
    ] {
        for _ in 0..2 {
            let applied = apply_file(&cluster, "list.json", empty.to_string().as_bytes(), &[])?;
            assert_eq!(applied.status.code(), Some(0), "{empty}: {}", err(&applied));
            assert_eq!(out(&applied), "");
        }
    }
    let nameless = json!({"metadata": {"name": "a"}, "spec": {"prompt": "p"}});
    for (broken, want) in [
        (list(&json!([[]])), "items[0]"),
        (list(&json!([null])), "items[0]"),
        (list(&json!([1])), "items[0]"),
        (list(&json!([task("good"), []])), "items[1]"),
        (list(&json!([nameless])), "items[0]"),
        (list(&json!([{"apiVersion": "panda.dev/v1alpha1"}])), "items[0]"),
        (list(&json!([list(&json!([task("a")]))])), "items[0]"),
        (list(&json!({"a": task("a")})), "items"),
        (list(&json!("text")), "items"),
    ] {
        for _ in 0..2 {
            for name in ["list.json", "list.yaml"] {
                let refused = apply_file(&cluster, name, broken.to_string().as_bytes(), &[])?;
                assert_eq!(refused.status.code(), Some(1), "{broken}: {}", out(&refused));
                assert!(err(&refused).contains(want), "{broken}: {}", err(&refused));
                assert!(!err(&refused).contains("panicked"), "{}", err(&refused));
            }
        }
    }
    assert_eq!(stored(&cluster).await?, [""; 0]);
    Ok(())
}

#[tokio::test]
async fn lists_sent_raw_are_refused_with_a_reason() -> anyhow::Result<()> {
    let cluster = Cluster::start(&["--no-agentlet"]).await?;
    let typed =
        |items: Value| json!({"apiVersion": "panda.dev/v1alpha1", "kind": "TaskList", "items": items});
    let bodies = [
        list(&json!([task("a"), task("b")])),
        list(&json!([[]])),
        list(&json!(null)),
        list(&json!([list(&json!([task("a")]))])),
        list(&json!([{"metadata": {"name": "a"}}])),
        typed(json!([task("a")])),
        typed(json!(null)),
        json!([]),
        json!([[]]),
        json!(null),
        json!("List"),
        json!({"items": [[]]}),
        json!({"apiVersion": "panda.dev/v1alpha1", "kind": "Task", "metadata": {"name": "a"}, "spec": []}),
        json!({"apiVersion": "panda.dev/v1alpha1", "kind": "Task", "metadata": [], "spec": {"prompt": "p"}}),
        json!({"apiVersion": ["v1"], "kind": {"List": 1}, "metadata": {"name": "a"}}),
    ];
    for body in &bodies {
        for kind in ["application/json", "application/yaml"] {
            for _ in 0..2 {
                let (code, status) = post(&cluster, kind, body.to_string()).await?;
                assert!(matches!(code, 400 | 422), "{body}: {status}");
                assert_eq!(status["kind"], "Status", "{body}");
                assert!(
                    status["message"].as_str().is_some_and(|text| !text.is_empty()),
                    "{body}: {status}"
                );
            }
            let path = format!("{TASKS}/a");
            let (code, status) = send(&cluster, http::Method::PUT, &path, kind, body.to_string()).await?;
            assert!((400..500).contains(&code), "PUT {body}: {status}");
        }
        let patch = "application/merge-patch+json";
        let (code, status) = send(
            &cluster,
            http::Method::PATCH,
            &format!("{TASKS}/a"),
            patch,
            body.to_string(),
        )
        .await?;
        assert!((400..500).contains(&code), "PATCH {body}: {status}");
    }
    assert_eq!(stored(&cluster).await?, [""; 0]);
    Ok(())
}
