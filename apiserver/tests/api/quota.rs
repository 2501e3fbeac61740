//! Quotas hold whoever creates at once.

use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Harness, PATIENCE, TASKS};

const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";

fn quota(name: &str, hard: &Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"hard": hard}})
}

fn map(n: usize) -> Value {
    json!({"metadata": {"name": format!("m-{n}")}})
}

/// Waits until the quota shows this.
async fn shows(server: &Harness, name: &str, used: &Value) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let quota = server.admin.get(&format!("{QUOTAS}/{name}")).await.expect(200);
        if quota["status"]["used"] == *used {
            assert_eq!(quota["status"]["hard"], quota["spec"]["hard"]);
            return;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "{quota} does not become {used}"
        );
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_quota_is_exceeded_by_whoever_creates_at_once() {
    let server = Harness::start().await;
    server.admin.post(CONFIG_MAPS, &map(100)).await.expect(201);
    let hard = json!({"count/configmaps": "10", "count/tasks.panda.dev": "0"});
    server.admin.post(QUOTAS, &quota("few", &hard)).await.expect(201);
    shows(
        &server,
        "few",
        &json!({"count/configmaps": "1", "count/tasks.panda.dev": "0"}),
    )
    .await;
    let creations = (0..40).map(|n| {
        let admin = server.admin.clone();
        tokio::spawn(async move { admin.post(CONFIG_MAPS, &map(n)).await })
    });
    let mut made = Vec::new();
    for (n, creation) in creations.collect::<Vec<_>>().into_iter().enumerate() {
        let reply = creation.await.unwrap();
        if reply.status == 201 {
            made.push(n);
        } else {
            let status = reply.refused(403, "Forbidden");
            let message = status["message"].as_str().unwrap();
            let words = "exceeded quota: few, requested: count/configmaps=1, used: count/configmaps=10, limited: count/configmaps=10";
            assert!(message.ends_with(words), "{message}");
        }
    }
    assert_eq!(made.len(), 9);
    // What was just created is shown at once.
    let shown = server.admin.get(&format!("{QUOTAS}/few")).await.expect(200);
    assert_eq!(shown["status"]["used"]["count/configmaps"], "10");
    let kind = panda_api::scheme::of::<panda_api::Task>();
    let task = crate::verbs::sample(kind, "t");
    server.admin.post(TASKS, &task).await.refused(403, "Forbidden");
    server
        .admin
        .post(&format!("{CONFIG_MAPS}?dryRun=All"), &map(99))
        .await
        .refused(403, "Forbidden");
    // Changes are no creations, other namespaces have no quota, and what is deleted makes room.
    let first = format!("{CONFIG_MAPS}/m-{}", made[0]);
    server
        .admin
        .merge(&first, &json!({"data": {"k": "v"}}))
        .await
        .expect(200);
    server
        .admin
        .post("/api/v1/namespaces/panda-system/configmaps", &map(1))
        .await
        .expect(201);
    server.admin.delete(&first).await.expect(200);
    shows(
        &server,
        "few",
        &json!({"count/configmaps": "9", "count/tasks.panda.dev": "0"}),
    )
    .await;
    server.admin.post(CONFIG_MAPS, &map(99)).await.expect(201);
    server
        .admin
        .post(CONFIG_MAPS, &map(98))
        .await
        .refused(403, "Forbidden");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_counted_is_refused_with_its_path() {
    let server = Harness::start().await;
    for (name, value, word) in [
        ("requests.cpu", "1", "only counts of namespaced kinds"),
        ("count/devices.panda.dev", "1", "only counts of namespaced kinds"),
        ("count/pods", "1", "only counts of namespaced kinds"),
        ("count/configmaps", "-1", "whole number"),
        ("count/configmaps", "1k", "whole number"),
    ] {
        let mut hard = json!({});
        hard[name] = value.into();
        let status = server
            .admin
            .post(QUOTAS, &quota("bad", &hard))
            .await
            .refused(422, "Invalid");
        let cause = &status["details"]["causes"][0];
        assert!(
            cause["field"].as_str().unwrap().starts_with("spec.hard"),
            "{cause}"
        );
        assert!(cause["message"].as_str().unwrap().contains(word), "{cause}");
    }
    server.stop().await;
}
