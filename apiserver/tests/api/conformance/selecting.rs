//! Selectors by label and by declared fields, on every verb that takes them.

use panda_api::scheme;
use serde_json::json;

use super::{names, task};
use crate::harness::{Harness, TASKS};
use crate::verbs::collection;

#[tokio::test(flavor = "multi_thread")]
async fn declared_fields_select_in_lists_watches_and_deletions() {
    let server = Harness::start().await;
    let admin = &server.admin;
    for name in ["a", "b", "c"] {
        admin.post(TASKS, &task(name, "x")).await.expect(201);
    }
    let phase = |name: &str, phase: &str| {
        let path = format!("{TASKS}/{name}/status");
        let body = json!({"status": {"phase": phase}});
        async move { admin.merge(&path, &body).await.expect(200) }
    };
    phase("a", "Running").await;
    phase("b", "Running").await;
    phase("c", "Failed").await;
    let running = "fieldSelector=status.phase%3DRunning";
    let list = admin.get(&format!("{TASKS}?{running}")).await.expect(200);
    assert_eq!(names(&list), ["a", "b"]);
    assert!(list["metadata"].get("remainingItemCount").is_none());
    let mut watch = admin.watch(&format!("{TASKS}?watch=1&{running}")).await;
    let added = || ("ADDED".to_owned(), "a".to_owned());
    assert_eq!(watch.short().await, added());
    assert_eq!(watch.short().await.1, "b");
    // Out of the selection, silent outside, and in again.
    phase("a", "Failed").await;
    assert_eq!(watch.short().await, ("DELETED".to_owned(), "a".to_owned()));
    admin
        .merge(
            &format!("{TASKS}/a"),
            &json!({"metadata": {"labels": {"l": "1"}}}),
        )
        .await
        .expect(200);
    phase("a", "Running").await;
    assert_eq!(watch.short().await, added());
    let gone = admin.delete(&format!("{TASKS}?{running}")).await.expect(200);
    assert_eq!(names(&gone), ["a", "b"]);
    assert_eq!(names(&admin.get(TASKS).await.expect(200)), ["c"]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_takes_exactly_the_fields_that_it_declares() {
    let server = Harness::start().await;
    let admin = &server.admin;
    for kind in scheme::kinds().iter().chain(scheme::forms()) {
        let all = collection(kind);
        for field in kind.selectable_fields {
            for query in [
                format!("{field}%3Dnone"),
                format!("{field}!%3Dx,{field}%3D%3Dnone"),
            ] {
                let path = format!("{all}?fieldSelector={query}");
                let list = admin.get(&path).await.expect(200);
                assert!(names(&list).is_empty(), "{} {field}", kind.kind);
            }
        }
        for verb in ["", "&watch=1"] {
            let path = format!("{all}?fieldSelector=spec.nope%3D1{verb}");
            let status = admin.get(&path).await.refused(400, "BadRequest");
            let message = status["message"].as_str().unwrap();
            assert!(
                message.contains("field label not supported: spec.nope"),
                "{message}"
            );
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_select_exactly_what_carries_them() {
    let server = Harness::start().await;
    let admin = &server.admin;
    for (name, team) in [("a", "x"), ("b", "y"), ("c", "x"), ("d", "z")] {
        admin.post(TASKS, &task(name, team)).await.expect(201);
    }
    for (query, want) in [
        ("team%3Dx", &["a", "c"][..]),
        ("team%3D%3Dx", &["a", "c"]),
        ("team!%3Dx", &["b", "d"]),
        ("other!%3Dx", &["a", "b", "c", "d"]),
        ("team%20in%20(x,z)", &["a", "c", "d"]),
        ("team%20notin%20(x,z)", &["b"]),
        ("team", &["a", "b", "c", "d"]),
        ("!team", &[]),
        ("team,team!%3Dy,team%20notin%20(z)", &["a", "c"]),
    ] {
        let list = admin
            .get(&format!("{TASKS}?labelSelector={query}"))
            .await
            .expect(200);
        assert_eq!(names(&list), want, "{query}");
    }
    let removed = admin
        .delete(&format!("{TASKS}?labelSelector=team%3Dx"))
        .await
        .expect(200);
    assert_eq!(removed["kind"], "TaskList");
    assert_eq!(names(&removed), ["a", "c"]);
    assert_eq!(names(&admin.get(TASKS).await.expect(200)), ["b", "d"]);
    server.stop().await;
}
