//! Subresources, deletion and namespaces.

use serde_json::{Value, json};

use super::{task, version};
use crate::harness::{Harness, TASKS};

#[tokio::test(flavor = "multi_thread")]
async fn a_status_is_read_replaced_and_patched_by_itself() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let made = admin.post(TASKS, &task("a", "x")).await.expect(201);
    let (one, status) = (format!("{TASKS}/a"), format!("{TASKS}/a/status"));
    assert_eq!(admin.get(&status).await.expect(200), made);
    let mut put = made.clone();
    put["status"] = json!({"phase": "Running"});
    put["spec"]["prompt"] = json!("not through here");
    put["metadata"]["labels"] = json!({"not": "here"});
    let put = admin.put(&status, &put).await.expect(200);
    assert_eq!(put["status"]["phase"], "Running");
    assert_eq!(put["spec"], made["spec"]);
    assert_eq!(put["metadata"]["generation"], made["metadata"]["generation"]);
    assert_eq!(admin.get(&one).await.expect(200), put);
    let patched = admin
        .json_patch(
            &status,
            &json!([{"op": "replace", "path": "/status/phase", "value": "Failed"}]),
        )
        .await
        .expect(200);
    assert_eq!(admin.get(&one).await.expect(200), patched);
    // Through the object itself a status does not change.
    let mut through = patched.clone();
    through["status"]["phase"] = json!("Succeeded");
    assert_eq!(admin.put(&one, &through).await.expect(200), patched);
    let stale = admin.put(&status, &made).await;
    stale.refused(409, "Conflict");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_never_creates_and_a_deletion_honours_its_preconditions() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let mut ghost = task("ghost", "x");
    ghost["metadata"]["resourceVersion"] = json!("1");
    admin
        .put(&format!("{TASKS}/ghost"), &ghost)
        .await
        .refused(404, "NotFound");
    let made = admin.post(TASKS, &task("a", "x")).await.expect(201);
    let one = format!("{TASKS}/a");
    let delete = |options: Value| {
        let json = [("content-type", "application/json")];
        let one = one.clone();
        async move {
            admin
                .call(http::Method::DELETE, &one, &json, options.to_string())
                .await
        }
    };
    for wrong in [
        json!({"preconditions": {"uid": "00000000-0000-4000-8000-000000000000"}}),
        json!({"preconditions": {"resourceVersion": "1"}}),
    ] {
        delete(wrong).await.refused(409, "Conflict");
    }
    delete(json!({"propagationPolicy": "Sideways"}))
        .await
        .refused(422, "Invalid");
    let right = json!({"preconditions": {"uid": made["metadata"]["uid"], "resourceVersion": version(&made)}});
    let gone = delete(right).await.expect(200);
    assert_eq!(gone["details"]["uid"], made["metadata"]["uid"]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_is_changed_finalized_and_closed() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let all = "/api/v1/namespaces";
    let one = format!("{all}/web");
    let made = admin
        .post(all, &json!({"metadata": {"name": "web"}}))
        .await
        .expect(201);
    assert_eq!(made["status"]["phase"], "Active");
    assert_eq!(made["spec"]["finalizers"], json!(["kubernetes"]));
    assert_eq!(made["metadata"]["labels"]["kubernetes.io/metadata.name"], "web");
    let labelled = admin
        .merge(
            &one,
            &json!({"metadata": {"labels": {"team": "a"}, "annotations": {"n": "1"}}}),
        )
        .await
        .expect(200);
    assert_eq!(labelled["metadata"]["labels"]["team"], "a");
    let mut put = labelled.clone();
    put["metadata"]["annotations"]["n"] = json!("2");
    let put = admin.put(&one, &put).await.expect(200);
    assert_eq!(put["metadata"]["annotations"]["n"], "2");
    // Its status is a subresource of its own.
    let status = format!("{one}/status");
    let condition = json!([{"type": "Checked", "status": "True", "reason": "R", "message": "m",
        "lastTransitionTime": "2026-01-02T03:04:05Z"}]);
    let checked = admin
        .merge(&status, &json!({"status": {"conditions": condition}}))
        .await
        .expect(200);
    assert_eq!(checked["status"]["conditions"][0]["type"], "Checked");
    assert_eq!(admin.get(&status).await.expect(200), checked);
    let mut again = checked.clone();
    again["status"]["conditions"][0]["status"] = json!("False");
    let again = admin.put(&status, &again).await.expect(200);
    assert_eq!(again["status"]["conditions"][0]["status"], "False");
    // A finalizer of somebody else's goes in and out through /finalize.
    let finalize = format!("{one}/finalize");
    let mut held = again.clone();
    held["spec"]["finalizers"] = json!(["kubernetes", "example.com/f"]);
    let held = admin.put(&finalize, &held).await.expect(200);
    assert_eq!(held["spec"]["finalizers"], json!(["kubernetes", "example.com/f"]));
    let going = admin.delete(&one).await.expect(200);
    assert_eq!(going["status"]["phase"], "Terminating");
    let inside = "/apis/panda.dev/v1alpha1/namespaces/web/tasks";
    let refused = admin
        .post(inside, &task("late", "x"))
        .await
        .refused(403, "Forbidden");
    assert_eq!(refused["details"]["causes"][0]["reason"], "NamespaceTerminating");
    let mut one_left = going.clone();
    one_left["spec"]["finalizers"] = json!(["kubernetes"]);
    let one_left = admin.put(&finalize, &one_left).await.expect(200);
    assert_eq!(
        admin.get(&one).await.expect(200)["metadata"]["uid"],
        made["metadata"]["uid"]
    );
    let mut none_left = one_left;
    none_left["spec"]["finalizers"] = json!([]);
    admin.put(&finalize, &none_left).await.expect(200);
    admin.get(&one).await.refused(404, "NotFound");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_who_he_is_hears_it() {
    let server = Harness::start().await;
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let user = server.client(&panda_apiserver::pki::Subject::user("ada", &["team"]));
    let review = user.post(path, &json!({})).await.expect(201);
    let info = &review["status"]["userInfo"];
    assert_eq!(info["username"], "ada");
    let groups = info["groups"].as_array().unwrap();
    assert!(groups.contains(&json!("team")) && groups.contains(&json!("system:authenticated")));
    server.stop().await;
}
