//! Finalizers, preconditions, namespaces.

use http::Method;
use serde_json::json;

use crate::harness::{CONFIG_MAPS, Harness};

#[tokio::test(flavor = "multi_thread")]
async fn a_finalizer_holds_an_object_until_it_is_removed() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let one = format!("{CONFIG_MAPS}/a");
    let map = json!({"metadata": {"name": "a", "finalizers": ["example.com/f"]}});
    let made = admin.post(CONFIG_MAPS, &map).await.expect(201);
    let version = made["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watch = admin
        .watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={version}"))
        .await;
    let going = admin.delete(&one).await.expect(200);
    assert_eq!(going["kind"], "ConfigMap");
    let stamp = &going["metadata"]["deletionTimestamp"];
    assert!(stamp.is_string());
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_eq!(
        &admin.delete(&one).await.expect(200)["metadata"]["deletionTimestamp"],
        stamp
    );
    let more = json!({"metadata": {"finalizers": ["example.com/f", "example.com/g"]}});
    let refused = admin.merge(&one, &more).await.refused(422, "Invalid");
    assert_eq!(refused["details"]["causes"][0]["field"], "metadata.finalizers");
    admin
        .merge(&one, &json!({"metadata": {"finalizers": null}}))
        .await
        .expect(200);
    admin.get(&one).await.refused(404, "NotFound");
    assert_eq!(watch.short().await.0, "MODIFIED");
    let last = watch.next().await.unwrap();
    assert_eq!(last["type"], "DELETED");
    let number = |value: &serde_json::Value| {
        value["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    assert!(number(&last["object"]) > number(&going));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deletions_hold_their_preconditions_and_refuse_what_is_not_built() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let one = format!("{CONFIG_MAPS}/a");
    let made = admin
        .post(CONFIG_MAPS, &json!({"metadata": {"name": "a"}}))
        .await
        .expect(201);
    let delete = |body: serde_json::Value| {
        admin.call(
            Method::DELETE,
            &one,
            &[("content-type", "application/json")],
            body.to_string(),
        )
    };
    delete(json!({"preconditions": {"uid": "other"}}))
        .await
        .refused(409, "Conflict");
    delete(json!({"preconditions": {"resourceVersion": "1"}}))
        .await
        .refused(409, "Conflict");
    delete(json!({"propagationPolicy": "Sideways"}))
        .await
        .refused(422, "Invalid");
    delete(json!({"propagationPolicy": "Orphan", "orphanDependents": true}))
        .await
        .refused(422, "Invalid");
    for (policy, finalizer) in [
        (json!({"propagationPolicy": "Foreground"}), "foregroundDeletion"),
        (json!({"propagationPolicy": "Orphan"}), "orphan"),
        (json!({"orphanDependents": true}), "orphan"),
    ] {
        let mut policy = policy;
        policy["dryRun"] = json!(["All"]);
        let would = delete(policy).await.expect(200);
        assert_eq!(would["metadata"]["finalizers"], json!([finalizer]));
        assert!(would["metadata"]["deletionTimestamp"].is_string());
    }
    delete(json!({"dryRun": ["Most"]})).await.refused(422, "Invalid");
    delete(json!({"kind": "Task"})).await.refused(400, "BadRequest");
    delete(json!({"dryRun": ["All"]})).await.expect(200);
    let right = json!({"propagationPolicy": "Background", "gracePeriodSeconds": 0, "preconditions": {
        "uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"]}});
    assert_eq!(delete(right).await.expect(200)["status"], "Success");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_goes_through_terminating_and_takes_nothing_new() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let made = admin
        .post("/api/v1/namespaces", &json!({"metadata": {"name": "web"}}))
        .await
        .expect(201);
    assert_eq!(made["status"]["phase"], "Active");
    assert_eq!(made["spec"]["finalizers"], json!(["kubernetes"]));
    assert_eq!(made["metadata"]["labels"]["kubernetes.io/metadata.name"], "web");
    let patched = admin
        .merge("/api/v1/namespaces/web", &json!({"spec": {"finalizers": null}}))
        .await
        .expect(200);
    assert_eq!(patched["spec"]["finalizers"], json!(["kubernetes"]));
    let maps = "/api/v1/namespaces/web/configmaps";
    admin
        .post(maps, &json!({"metadata": {"name": "a"}}))
        .await
        .expect(201);
    assert_eq!(
        admin.delete("/api/v1/namespaces/web").await.expect(200)["status"]["phase"],
        "Terminating"
    );
    let refused = admin
        .post(maps, &json!({"metadata": {"name": "b"}}))
        .await
        .refused(403, "Forbidden");
    assert_eq!(refused["details"]["causes"][0]["reason"], "NamespaceTerminating");
    // What is there can still be changed, so that its finalizers can end.
    admin
        .merge(&format!("{maps}/a"), &json!({"data": {"k": "v"}}))
        .await
        .expect(200);
    let mut last = admin.get("/api/v1/namespaces/web").await.expect(200);
    last["spec"]["finalizers"] = json!([]);
    admin
        .put("/api/v1/namespaces/web/finalize", &last)
        .await
        .expect(200);
    admin.get("/api/v1/namespaces/web").await.refused(404, "NotFound");
    admin
        .delete("/api/v1/namespaces/default")
        .await
        .refused(403, "Forbidden");
    server.stop().await;
}
