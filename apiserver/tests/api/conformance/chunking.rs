//! Lists in pages.

use std::sync::Arc;

use panda_store::{Revision, Sqlite, sqlite};
use serde_json::{Value, json};

use super::{names, task, version};
use crate::harness::{Client, Harness, TASKS};

async fn fill(admin: &Client, count: usize) {
    for n in 0..count {
        admin
            .post(TASKS, &task(&format!("t{n:02}"), "a"))
            .await
            .expect(201);
    }
}

fn token(page: &Value) -> &str {
    page["metadata"]["continue"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_keep_to_the_limit_say_what_is_left_and_are_of_one_version() {
    let server = Harness::start().await;
    let admin = &server.admin;
    fill(admin, 17).await;
    let whole = admin.get(TASKS).await.expect(200);
    let mut seen = Vec::new();
    let mut at = String::new();
    let mut path = format!("{TASKS}?limit=5");
    loop {
        let page = admin.get(&path).await.expect(200);
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 5);
        seen.extend(items.iter().cloned());
        if at.is_empty() {
            at = version(&page);
            assert_eq!(at, version(&whole));
            // What is written from now on is not in the pages.
            admin.post(TASKS, &task("t00b", "a")).await.expect(201);
            admin.delete(&format!("{TASKS}/t16")).await.expect(200);
        }
        assert_eq!(version(&page), at);
        if token(&page).is_empty() {
            assert!(page["metadata"].get("remainingItemCount").is_none(), "{page}");
            break;
        }
        assert_eq!(page["metadata"]["remainingItemCount"], 17 - seen.len());
        path = format!("{TASKS}?limit=5&continue={}", token(&page));
    }
    assert_eq!(Value::from(seen), whole["items"]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_carries_its_version_and_takes_no_other() {
    let server = Harness::start().await;
    let admin = &server.admin;
    fill(admin, 3).await;
    let page = admin.get(&format!("{TASKS}?limit=1")).await.expect(200);
    let next = format!("{TASKS}?limit=1&continue={}", token(&page));
    admin.get(&format!("{next}&resourceVersion=0")).await.expect(200);
    let other = format!("{next}&resourceVersion={}", version(&page));
    admin.get(&other).await.refused(400, "BadRequest");
    let matched = format!("{other}&resourceVersionMatch=Exact");
    admin.get(&matched).await.refused(422, "Invalid");
    // A token shows nothing outside the request that carries it.
    let elsewhere = json!({"metadata": {"name": "elsewhere"}});
    admin.post("/api/v1/namespaces", &elsewhere).await.expect(201);
    let foreign = format!(
        "/apis/panda.dev/v1alpha1/namespaces/elsewhere/tasks?continue={}",
        token(&page)
    );
    assert!(names(&admin.get(&foreign).await.expect(200)).is_empty());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Arc::new(Sqlite::open(&sqlite::Config::new(dir.path().join("store")), "uid").unwrap());
    let store = open();
    let server = Harness::over(Arc::clone(&store) as _, |_| {}).await;
    fill(&server.admin, 5).await;
    let whole = names(&server.admin.get(TASKS).await.expect(200));
    let page = server.admin.get(&format!("{TASKS}?limit=2")).await.expect(200);
    let next = token(&page).to_owned();
    server.admin.delete(&format!("{TASKS}/t03")).await.expect(200);
    let data = server.halt().await;
    store.shutdown().await;
    let store = open();
    let server = Harness::over_dir(Arc::clone(&store) as _, data).await;
    let rest = server
        .admin
        .get(&format!("{TASKS}?continue={next}"))
        .await
        .expect(200);
    assert_eq!(version(&rest), version(&page));
    assert_eq!([names(&page), names(&rest)].concat(), whole);
    server.stop().await;
    store.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_token_brings_one_that_gives_the_rest() {
    let server = Harness::start().await;
    let admin = &server.admin;
    fill(admin, 6).await;
    let page = admin.get(&format!("{TASKS}?limit=2")).await.expect(200);
    admin.delete(&format!("{TASKS}/t00")).await.expect(200);
    admin.delete(&format!("{TASKS}/t04")).await.expect(200);
    let now = server.store.current_revision().await.unwrap();
    server.store.compact(Revision(now.0)).await.unwrap();
    let old = format!("{TASKS}?limit=2&continue={}", token(&page));
    let expired = admin.get(&old).await.refused(410, "Expired");
    let mut rest = Vec::new();
    let mut path = format!("{TASKS}?limit=2&continue={}", token(&expired));
    loop {
        let page = admin.get(&path).await.expect(200);
        rest.extend(names(&page));
        if token(&page).is_empty() {
            break;
        }
        path = format!("{TASKS}?limit=2&continue={}", token(&page));
    }
    assert_eq!(rest, ["t02", "t03", "t05"]);
    server.stop().await;
}
