//! Watches.

use std::collections::BTreeMap;

use panda_store::Revision;
use serde_json::{Value, json};

use super::{task, version};
use crate::harness::{Harness, TASKS, WatchLines};

async fn take(watch: &mut WatchLines, count: usize) -> Vec<Value> {
    let mut out = Vec::new();
    for _ in 0..count {
        out.push(watch.next().await.unwrap());
    }
    out
}

fn short(events: &[Value]) -> Vec<String> {
    let line = |event: &Value| {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        format!(
            "{} {}",
            text(&event["type"]),
            text(&event["object"]["metadata"]["name"])
        )
    };
    events.iter().map(line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_with_different_selectors_each_see_all_and_only_theirs() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let open = |selector: &'static str| {
        admin.watch_as(
            format!("{TASKS}?watch=1&labelSelector={selector}").leak(),
            "application/json",
        )
    };
    let mut a = open("team%3Da").await;
    let mut b = open("team%3Db").await;
    let mut both = open("team%20in%20(a,b)").await;
    admin.post(TASKS, &task("x", "a")).await.expect(201);
    admin.post(TASKS, &task("y", "b")).await.expect(201);
    for name in ["x", "y"] {
        let change = json!({"spec": {"prompt": "other"}});
        admin.merge(&format!("{TASKS}/{name}"), &change).await.expect(200);
    }
    for name in ["x", "y"] {
        admin.delete(&format!("{TASKS}/{name}")).await.expect(200);
    }
    assert_eq!(
        short(&take(&mut a, 3).await),
        ["ADDED x", "MODIFIED x", "DELETED x"]
    );
    assert_eq!(
        short(&take(&mut b, 3).await),
        ["ADDED y", "MODIFIED y", "DELETED y"]
    );
    assert_eq!(
        short(&take(&mut both, 6).await),
        [
            "ADDED x",
            "ADDED y",
            "MODIFIED x",
            "MODIFIED y",
            "DELETED x",
            "DELETED y"
        ]
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_has_a_version_of_its_own_and_a_restart_there_repeats_nothing() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let made = admin.post(TASKS, &task("x", "a")).await.expect(201);
    let after = format!("{TASKS}?watch=1&resourceVersion={}", version(&made));
    admin.delete(&format!("{TASKS}/x")).await.expect(200);
    admin.post(TASKS, &task("y", "a")).await.expect(201);
    let mut watch = admin.watch(&after).await;
    let events = take(&mut watch, 2).await;
    assert_eq!(short(&events), ["DELETED x", "ADDED y"]);
    let gone = version(&events[0]["object"]);
    assert!(gone.parse::<u64>().unwrap() > version(&made).parse().unwrap());
    let mut again = admin
        .watch(&format!("{TASKS}?watch=1&resourceVersion={gone}"))
        .await;
    assert_eq!(short(&take(&mut again, 1).await), ["ADDED y"]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn taking_the_last_finalizer_is_a_deletion() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let mut held = task("x", "a");
    held["metadata"]["finalizers"] = json!(["example.com/f"]);
    admin.post(TASKS, &held).await.expect(201);
    let mut watch = admin.watch(&format!("{TASKS}?watch=1")).await;
    let going = admin.delete(&format!("{TASKS}/x")).await.expect(200);
    assert!(going["metadata"]["deletionTimestamp"].is_string());
    admin
        .merge(&format!("{TASKS}/x"), &json!({"metadata": {"finalizers": null}}))
        .await
        .expect(200);
    assert_eq!(
        short(&take(&mut watch, 3).await),
        ["ADDED x", "MODIFIED x", "DELETED x"]
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_list_equals_the_list_of_its_version_and_then_follows() {
    let server = Harness::start().await;
    let admin = &server.admin;
    for n in 0..40 {
        admin
            .post(TASKS, &task(&format!("t{n:02}"), "a"))
            .await
            .expect(201);
    }
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    for (resource_version, next) in [("", "after-none"), ("0", "after-0"), ("1", "after-1")] {
        let mut watch = admin
            .watch(&format!("{TASKS}?{query}&resourceVersion={resource_version}"))
            .await;
        let mut streamed = Vec::new();
        let mark = loop {
            let event = watch.next().await.unwrap();
            if event["type"] == "BOOKMARK" {
                break event;
            }
            assert_eq!(event["type"], "ADDED");
            streamed.push(event["object"].clone());
        };
        let annotations = &mark["object"]["metadata"]["annotations"];
        assert_eq!(annotations["k8s.io/initial-events-end"], "true");
        let exact = format!(
            "{TASKS}?resourceVersion={}&resourceVersionMatch=Exact",
            version(&mark["object"])
        );
        assert_eq!(
            Value::from(streamed),
            admin.get(&exact).await.expect(200)["items"]
        );
        admin.post(TASKS, &task(next, "a")).await.expect(201);
        assert_eq!(watch.short().await, ("ADDED".to_owned(), next.to_owned()));
    }
    // Who takes no bookmarks gets none, and hears only what happens.
    let silent =
        "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&fieldSelector=metadata.name%3Dt00";
    let mut watch = admin.watch(&format!("{TASKS}?{silent}")).await;
    assert_eq!(watch.short().await, ("ADDED".to_owned(), "t00".to_owned()));
    admin.delete(&format!("{TASKS}/t00")).await.expect(200);
    assert_eq!(watch.short().await, ("DELETED".to_owned(), "t00".to_owned()));
    for (bad, code) in [
        ("watch=1&sendInitialEvents=true", 422),
        ("watch=1&sendInitialEvents=true&resourceVersionMatch=Exact", 422),
        ("watch=1&resourceVersionMatch=NotOlderThan", 422),
        ("sendInitialEvents=true", 422),
        ("watch=1&resourceVersion=abc", 400),
    ] {
        assert_eq!(
            admin.get(&format!("{TASKS}?{bad}")).await.status.as_u16(),
            code,
            "{bad}"
        );
    }
    server.stop().await;
}

/// A cache as informers keep one.
#[derive(Default)]
struct Cache {
    objects: BTreeMap<String, Value>,
    at: String,
}

impl Cache {
    fn list(&mut self, list: &Value) {
        self.at = version(list);
        self.objects.clear();
        for item in list["items"].as_array().unwrap() {
            self.objects.insert(
                item["metadata"]["name"].as_str().unwrap().to_owned(),
                item.clone(),
            );
        }
    }

    /// Takes an event; false: the version is too old, list again.
    fn take(&mut self, event: &Value) -> bool {
        let object = &event["object"];
        if event["type"] == "ERROR" {
            assert_eq!(
                (&object["code"], &object["reason"]),
                (&json!(410), &json!("Expired"))
            );
            return false;
        }
        self.at = version(object);
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        match event["type"].as_str().unwrap() {
            "ADDED" | "MODIFIED" => drop(self.objects.insert(name, object.clone())),
            "DELETED" => drop(self.objects.remove(&name)),
            "BOOKMARK" => {}
            other => panic!("{other}"),
        }
        true
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_that_was_away_too_long_recovers_by_listing() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let mut cache = Cache::default();
    admin.post(TASKS, &task("a", "x")).await.expect(201);
    cache.list(&admin.get(TASKS).await.expect(200));
    admin.delete(&format!("{TASKS}/a")).await.expect(200);
    admin.post(TASKS, &task("b", "x")).await.expect(201);
    let now = server.store.current_revision().await.unwrap();
    server.store.compact(Revision(now.0)).await.unwrap();
    let mut watch = admin
        .watch(&format!("{TASKS}?watch=1&resourceVersion={}", cache.at))
        .await;
    assert!(!cache.take(&watch.next().await.unwrap()));
    assert!(watch.next().await.is_none(), "the stream ends after the error");
    cache.list(&admin.get(TASKS).await.expect(200));
    let mut watch = admin
        .watch(&format!("{TASKS}?watch=1&resourceVersion={}", cache.at))
        .await;
    admin.post(TASKS, &task("c", "x")).await.expect(201);
    assert!(cache.take(&watch.next().await.unwrap()));
    let mut want = Cache::default();
    want.list(&admin.get(TASKS).await.expect(200));
    assert_eq!(cache.objects, want.objects);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bookmarks_let_an_idle_watcher_go_on_past_a_compaction() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let made = admin.post(TASKS, &task("a", "x")).await.expect(201);
    let mut watch = admin
        .watch(&format!(
            "{TASKS}?watch=1&allowWatchBookmarks=true&timeoutSeconds=1&resourceVersion={}",
            version(&made)
        ))
        .await;
    // Other kinds move the version on.
    for n in 0..3 {
        let map = json!({"metadata": {"name": format!("m{n}")}});
        admin
            .post("/api/v1/namespaces/default/configmaps", &map)
            .await
            .expect(201);
    }
    let mut last = Value::Null;
    while let Some(event) = watch.next().await {
        assert_eq!(event["type"], "BOOKMARK");
        assert_eq!(
            (&event["object"]["kind"], &event["object"]["apiVersion"]),
            (&json!("Task"), &json!("panda.dev/v1alpha1"))
        );
        last = event["object"].clone();
    }
    let at = version(&last);
    assert!(at.parse::<u64>().unwrap() >= version(&made).parse().unwrap());
    server.store.compact(Revision(at.parse().unwrap())).await.unwrap();
    let mut watch = admin
        .watch(&format!("{TASKS}?watch=1&resourceVersion={at}"))
        .await;
    admin.post(TASKS, &task("b", "x")).await.expect(201);
    assert_eq!(watch.short().await, ("ADDED".to_owned(), "b".to_owned()));
    server.stop().await;
}
