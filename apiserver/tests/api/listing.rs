//! Lists, pages, selectors.

use panda_store::Revision;
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Harness, TASKS};

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap().iter();
    items
        .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

async fn fill(server: &Harness, count: usize) {
    for n in 0..count {
        let map = json!({"metadata": {"name": format!("m{n:02}"), "labels": {"odd": (n % 2).to_string()}}});
        server.admin.post(CONFIG_MAPS, &map).await.expect(201);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_show_one_state_while_others_write() {
    let server = Harness::start().await;
    let admin = &server.admin;
    fill(&server, 10).await;
    let whole = admin.get(CONFIG_MAPS).await.expect(200);
    let mut seen = Vec::new();
    let mut token = String::new();
    let mut left = 10;
    for round in 0.. {
        let page = admin
            .get(&format!("{CONFIG_MAPS}?limit=3&continue={token}"))
            .await
            .expect(200);
        assert_eq!(
            page["metadata"]["resourceVersion"],
            whole["metadata"]["resourceVersion"]
        );
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 3);
        seen.extend(items.iter().cloned());
        left -= items.len();
        token = page["metadata"]["continue"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        if token.is_empty() {
            assert!(page["metadata"].get("remainingItemCount").is_none());
            break;
        }
        assert_eq!(page["metadata"]["remainingItemCount"], left);
        admin
            .delete(&format!("{CONFIG_MAPS}/m0{}", 9 - round))
            .await
            .expect(200);
        admin
            .post(CONFIG_MAPS, &json!({"metadata": {"name": format!("new{round}")}}))
            .await
            .expect(201);
    }
    assert_eq!(Value::from(seen), whole["items"]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn selectors_pick_and_pages_of_a_selection_are_complete() {
    let server = Harness::start().await;
    let admin = &server.admin;
    fill(&server, 10).await;
    let picked = admin
        .get(&format!("{CONFIG_MAPS}?labelSelector=odd%20in%20(1)"))
        .await
        .expect(200);
    assert_eq!(names(&picked), ["m01", "m03", "m05", "m07", "m09"]);
    let mut all = Vec::new();
    let mut token = String::new();
    loop {
        let path = format!("{CONFIG_MAPS}?labelSelector=odd%3D1&limit=2&continue={token}");
        let page = admin.get(&path).await.expect(200);
        assert!(page["metadata"].get("remainingItemCount").is_none());
        all.extend(names(&page));
        token = page["metadata"]["continue"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(all, names(&picked));
    let path = format!("{CONFIG_MAPS}?fieldSelector=metadata.name!%3Dm00&labelSelector=!odd");
    assert!(names(&admin.get(&path).await.expect(200)).is_empty());
    for bad in [
        "labelSelector=a%20b",
        "fieldSelector=spec.nope%3D1",
        "limit=x",
        "continue=nonsense",
    ] {
        admin
            .get(&format!("{CONFIG_MAPS}?{bad}"))
            .await
            .refused(400, "BadRequest");
    }
    let event = |name: &str, about: &str| json!({"metadata": {"name": name}, "involvedObject": {"kind": "Task", "name": about, "namespace": "default"}, "reason": "Made"});
    let events = "/api/v1/namespaces/default/events";
    admin.post(events, &event("e1", "a")).await.expect(201);
    admin.post(events, &event("e2", "b")).await.expect(201);
    let about =
        format!("{events}?fieldSelector=involvedObject.name%3Db,involvedObject.kind%3DTask,reason%3DMade");
    assert_eq!(names(&admin.get(&about).await.expect(200)), ["e2"]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_token_is_expired_and_brings_one_that_goes_on() {
    let server = Harness::start().await;
    let admin = &server.admin;
    fill(&server, 5).await;
    let page = admin.get(&format!("{CONFIG_MAPS}?limit=2")).await.expect(200);
    let token = page["metadata"]["continue"].as_str().unwrap().to_owned();
    admin.delete(&format!("{CONFIG_MAPS}/m04")).await.expect(200);
    admin
        .post(CONFIG_MAPS, &json!({"metadata": {"name": "m03b"}}))
        .await
        .expect(201);
    let now = server.store.current_revision().await.unwrap();
    server.store.compact(Revision(now.0)).await.unwrap();
    let expired = admin
        .get(&format!("{CONFIG_MAPS}?limit=2&continue={token}"))
        .await
        .refused(410, "Expired");
    let fresh = expired["metadata"]["continue"].as_str().unwrap();
    let rest = admin
        .get(&format!("{CONFIG_MAPS}?continue={fresh}"))
        .await
        .expect(200);
    assert_eq!(names(&rest), ["m02", "m03", "m03b"]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_of_lists_are_kept() {
    let server = Harness::start().await;
    let admin = &server.admin;
    fill(&server, 2).await;
    let before = admin.get(CONFIG_MAPS).await.expect(200);
    let version = before["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    fill_more(&server).await;
    let exact = admin
        .get(&format!(
            "{CONFIG_MAPS}?resourceVersion={version}&resourceVersionMatch=Exact"
        ))
        .await;
    assert_eq!(exact.expect(200), before);
    let newer = admin
        .get(&format!("{CONFIG_MAPS}?resourceVersion={version}"))
        .await
        .expect(200);
    assert_eq!(names(&newer).len(), 3);
    let future = admin
        .get(&format!("{CONFIG_MAPS}?resourceVersion=999999"))
        .await
        .refused(504, "Timeout");
    assert_eq!(
        future["details"]["causes"][0]["reason"],
        "ResourceVersionTooLarge"
    );
    server.stop().await;
}

async fn fill_more(server: &Harness) {
    server
        .admin
        .post(CONFIG_MAPS, &json!({"metadata": {"name": "more"}}))
        .await
        .expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_reach_over_namespaces_in_order() {
    let server = Harness::start().await;
    let admin = &server.admin;
    admin
        .post("/api/v1/namespaces", &json!({"metadata": {"name": "aaa"}}))
        .await
        .expect(201);
    admin
        .post(CONFIG_MAPS, &json!({"metadata": {"name": "x"}}))
        .await
        .expect(201);
    admin
        .post(
            "/api/v1/namespaces/aaa/configmaps",
            &json!({"metadata": {"name": "y"}}),
        )
        .await
        .expect(201);
    let all = admin.get("/api/v1/configmaps").await.expect(200);
    assert_eq!(names(&all), ["y", "x"]);
    let by_field = admin
        .get("/api/v1/configmaps?fieldSelector=metadata.namespace%3Daaa")
        .await
        .expect(200);
    assert_eq!(names(&by_field), ["y"]);
    let generated = json!({"apiVersion": "panda.dev/v1alpha1", "kind": "Task", "metadata": {"generateName": "t-"}, "spec": {"prompt": "p"}});
    for _ in 0..2 {
        let made = admin.post(TASKS, &generated).await.expect(201);
        let name = made["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with("t-") && name.len() == 7, "{name}");
    }
    server.stop().await;
}
