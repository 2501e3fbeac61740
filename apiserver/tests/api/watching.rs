//! What watchers see.

use panda_store::Revision;
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Harness, WatchLines};

fn map(name: &str, label: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"pick": label}}})
}

fn version(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap()
}

async fn kinds(watch: &mut WatchLines, count: usize) -> Vec<String> {
    let mut out = Vec::new();
    for _ in 0..count {
        let (kind, name) = watch.short().await;
        out.push(format!("{kind} {name}"));
    }
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_begins_with_what_is_there_or_after_a_version() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let first = admin.post(CONFIG_MAPS, &map("a", "x")).await.expect(201);
    admin.post(CONFIG_MAPS, &map("b", "x")).await.expect(201);
    for query in [
        "watch=1",
        "watch=true&resourceVersion=0",
        "watch=True&resourceVersion=",
    ] {
        let mut watch = admin.watch(&format!("{CONFIG_MAPS}?{query}")).await;
        assert_eq!(kinds(&mut watch, 2).await, ["ADDED a", "ADDED b"], "{query}");
    }
    let mut after = admin
        .watch(&format!(
            "{CONFIG_MAPS}?watch=1&resourceVersion={}",
            version(&first)
        ))
        .await;
    assert_eq!(kinds(&mut after, 1).await, ["ADDED b"]);
    let mut named = admin.watch(&format!("{CONFIG_MAPS}/a?watch=1")).await;
    let mut by_field = admin
        .watch(&format!("{CONFIG_MAPS}?watch=1&fieldSelector=metadata.name%3Da"))
        .await;
    admin.delete(&format!("{CONFIG_MAPS}/b")).await.expect(200);
    admin.delete(&format!("{CONFIG_MAPS}/a")).await.expect(200);
    for watch in [&mut named, &mut by_field] {
        assert_eq!(kinds(watch, 2).await, ["ADDED a", "DELETED a"]);
    }
    assert_eq!(kinds(&mut after, 2).await, ["DELETED b", "DELETED a"]);
    admin
        .get(&format!("{CONFIG_MAPS}?watch=1&resourceVersion=x"))
        .await
        .refused(400, "BadRequest");
    let future = admin
        .get(&format!("{CONFIG_MAPS}?watch=1&resourceVersion=99999"))
        .await
        .refused(504, "Timeout");
    assert_eq!(
        future["details"]["causes"][0]["reason"],
        "ResourceVersionTooLarge"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn entering_and_leaving_a_selection_are_additions_and_deletions() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let mut watch = admin
        .watch(&format!("{CONFIG_MAPS}?watch=1&labelSelector=pick%3Dx"))
        .await;
    let one = format!("{CONFIG_MAPS}/a");
    let made = admin.post(CONFIG_MAPS, &map("a", "y")).await.expect(201);
    let entered = admin
        .merge(&one, &json!({"metadata": {"labels": {"pick": "x"}}}))
        .await
        .expect(200);
    let changed = admin.merge(&one, &json!({"data": {"k": "v"}})).await.expect(200);
    let left = admin
        .merge(&one, &json!({"metadata": {"labels": {"pick": "z"}}}))
        .await
        .expect(200);
    admin.merge(&one, &json!({"data": {"k": "w"}})).await.expect(200);
    admin.post(CONFIG_MAPS, &map("b", "x")).await.expect(201);
    assert_eq!(
        watch.next().await.unwrap(),
        json!({"type": "ADDED", "object": entered})
    );
    assert_eq!(
        watch.next().await.unwrap(),
        json!({"type": "MODIFIED", "object": changed})
    );
    let gone = watch.next().await.unwrap();
    let mut want = changed.clone();
    want["metadata"]["resourceVersion"] = json!(version(&left));
    assert_eq!(gone, json!({"type": "DELETED", "object": want}));
    assert_eq!(watch.short().await, ("ADDED".to_owned(), "b".to_owned()));
    assert_ne!(version(&made), version(&left));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_list_ends_its_initial_events_with_a_marked_bookmark() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let made = admin.post(CONFIG_MAPS, &map("a", "x")).await.expect(201);
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = admin
        .watch(&format!("{CONFIG_MAPS}?{query}&resourceVersion="))
        .await;
    assert_eq!(kinds(&mut watch, 1).await, ["ADDED a"]);
    let mark = watch.next().await.unwrap();
    assert_eq!(mark["type"], "BOOKMARK");
    assert_eq!(mark["object"]["kind"], "ConfigMap");
    assert_eq!(
        mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    assert_eq!(version(&mark["object"]), version(&made));
    admin.post(CONFIG_MAPS, &map("b", "x")).await.expect(201);
    assert_eq!(kinds(&mut watch, 1).await, ["ADDED b"]);
    for query in ["sendInitialEvents=true", "resourceVersionMatch=NotOlderThan"] {
        admin
            .get(&format!("{CONFIG_MAPS}?watch=1&{query}"))
            .await
            .refused(422, "Invalid");
    }
    let none = "watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
    let mut live = admin.watch(&format!("{CONFIG_MAPS}?{none}")).await;
    admin.post(CONFIG_MAPS, &map("c", "x")).await.expect(201);
    assert_eq!(kinds(&mut live, 1).await, ["ADDED c"]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_at_its_timeout_after_a_bookmark_and_at_shutdown() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let query = "watch=1&timeoutSeconds=1&allowWatchBookmarks=true&resourceVersion=1";
    let mut watch = admin.watch(&format!("/api/v1/namespaces?{query}")).await;
    assert_eq!(kinds(&mut watch, 1).await, ["ADDED panda-system"]);
    let mark = watch.next().await.unwrap();
    assert_eq!(
        (&mark["type"], &mark["object"]["kind"]),
        (&json!("BOOKMARK"), &json!("Namespace"))
    );
    assert!(version(&mark["object"]).parse::<u64>().unwrap() >= 2);
    assert!(watch.next().await.is_none());
    let mut open = admin.watch(&format!("{CONFIG_MAPS}?watch=1")).await;
    server.stop().await;
    assert!(open.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_was_compacted_is_an_error_event() {
    let server = Harness::start().await;
    let admin = &server.admin;
    for name in ["a", "b", "c"] {
        admin.post(CONFIG_MAPS, &map(name, "x")).await.expect(201);
    }
    let now = server.store.current_revision().await.unwrap();
    server.store.compact(Revision(now.0)).await.unwrap();
    let mut watch = admin
        .watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion=1"))
        .await;
    let event = watch.next().await.unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["reason"]),
        (&json!("ERROR"), &json!("Expired"))
    );
    assert_eq!(event["object"]["code"], 410);
    assert!(watch.next().await.is_none());
    let exact = format!("{CONFIG_MAPS}?resourceVersion=1&resourceVersionMatch=Exact");
    admin.get(&exact).await.refused(410, "Expired");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_and_metadata_are_watched_too() {
    let server = Harness::start().await;
    let admin = &server.admin;
    admin.post(CONFIG_MAPS, &map("a", "x")).await.expect(201);
    admin.post(CONFIG_MAPS, &map("b", "x")).await.expect(201);
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let mut tables = admin.watch_as(&format!("{CONFIG_MAPS}?watch=1"), accept).await;
    let (first, second) = (tables.next().await.unwrap(), tables.next().await.unwrap());
    assert_eq!(first["object"]["kind"], "Table");
    assert!(
        !first["object"]["columnDefinitions"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    assert_eq!(second["object"]["columnDefinitions"], json!([]));
    assert_eq!(second["object"]["rows"][0]["object"]["metadata"]["name"], "b");
    let accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let mut metadata = admin.watch_as(&format!("{CONFIG_MAPS}?watch=1"), accept).await;
    let event = metadata.next().await.unwrap();
    assert_eq!(event["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(event["object"]["metadata"]["labels"]["pick"], "x");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_watcher_sees_the_same_order_from_any_version() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let mut watch = admin.watch(&format!("{CONFIG_MAPS}?watch=1")).await;
    let mut events = Vec::new();
    for n in 0..10 {
        let name = format!("m{}", n % 3);
        let one = format!("{CONFIG_MAPS}/{name}");
        if n % 4 == 3 {
            admin.delete(&one).await.expect(200);
        } else if admin
            .merge(&one, &json!({"data": {"n": n.to_string()}}))
            .await
            .status
            == 404
        {
            admin.post(CONFIG_MAPS, &map(&name, "x")).await.expect(201);
        }
        events.push(watch.next().await.unwrap());
    }
    for (index, event) in events.iter().enumerate() {
        let path = format!(
            "{CONFIG_MAPS}?watch=1&resourceVersion={}",
            version(&event["object"])
        );
        let mut again = admin.watch(&path).await;
        for want in &events[index + 1..] {
            assert_eq!(&again.next().await.unwrap(), want);
        }
    }
    server.stop().await;
}
