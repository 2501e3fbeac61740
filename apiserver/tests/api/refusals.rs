//! What is refused, and in which words.

use http::Method;
use serde_json::json;

use crate::harness::{CONFIG_MAPS, Harness, TASKS};

fn task(name: &str) -> serde_json::Value {
    json!({"apiVersion": "panda.dev/v1alpha1", "kind": "Task", "metadata": {"name": name}, "spec": {"prompt": "p"}})
}

#[tokio::test(flavor = "multi_thread")]
async fn urls_that_lead_nowhere_and_wrong_identities() {
    let server = Harness::start().await;
    let admin = &server.admin;
    for path in [
        "/",
        "/nope",
        "/apis/no.such/v1",
        "/apis/panda.dev/v9/tasks",
        "/api/v1/pods",
        "/api/v1/namespaces/x/devices",
    ] {
        admin.get(path).await.refused(404, "NotFound");
    }
    admin
        .post("/apis/panda.dev/v1alpha1/tasks", &task("a"))
        .await
        .refused(405, "MethodNotAllowed");
    let status = admin
        .post("/apis/panda.dev/v1alpha1/namespaces/nope/tasks", &task("a"))
        .await
        .refused(404, "NotFound");
    assert_eq!(status["message"], "namespaces \"nope\" not found");
    let mut other = task("a");
    other["metadata"]["namespace"] = json!("elsewhere");
    admin.post(TASKS, &other).await.refused(400, "BadRequest");
    let mut other = task("a");
    other["kind"] = json!("Agent");
    admin.post(TASKS, &other).await.refused(400, "BadRequest");
    admin
        .post(
            TASKS,
            &json!({"metadata": {"name": "a"}, "spec": {"prompt": "p"}}),
        )
        .await
        .refused(400, "BadRequest");
    let unnamed = admin
        .post(
            TASKS,
            &json!({"apiVersion": "panda.dev/v1alpha1", "kind": "Task", "spec": {"prompt": "p"}}),
        )
        .await;
    let unnamed = unnamed.refused(422, "Invalid");
    assert_eq!(unnamed["details"]["causes"][0]["field"], "metadata.name");
    admin
        .put(&format!("{TASKS}/b"), &task("a"))
        .await
        .refused(404, "NotFound");
    let made = admin.post(TASKS, &task("a")).await.expect(201);
    let mut renamed = made.clone();
    renamed["metadata"]["name"] = json!("b");
    admin
        .put(&format!("{TASKS}/a"), &renamed)
        .await
        .refused(400, "BadRequest");
    let mut blind = made.clone();
    blind["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("resourceVersion");
    let blind = admin
        .put(&format!("{TASKS}/a"), &blind)
        .await
        .refused(422, "Invalid");
    assert!(
        blind["message"]
            .as_str()
            .unwrap()
            .contains("must be specified for an update"),
        "{blind}"
    );
    let mut stranger = made.clone();
    stranger["metadata"]["uid"] = json!("00000000-0000-4000-8000-000000000000");
    admin
        .put(&format!("{TASKS}/a"), &stranger)
        .await
        .refused(409, "Conflict");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_an_object_are_named_by_field() {
    let server = Harness::start().await;
    let mut bad = task("Not_A_Name");
    bad["metadata"]["labels"] = json!({"a": "not a value"});
    let status = server.admin.post(TASKS, &bad).await.refused(422, "Invalid");
    assert_eq!(status["details"]["kind"], "Task");
    let fields: Vec<&str> = status["details"]["causes"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|c| c["field"].as_str())
        .collect();
    assert!(
        fields.contains(&"metadata.name") && fields.iter().any(|field| field.starts_with("metadata.labels")),
        "{status}"
    );
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .starts_with("Task.panda.dev \"Not_A_Name\" is invalid: [")
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_and_duplicate_fields_follow_field_validation() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let body = "{\"apiVersion\":\"panda.dev/v1alpha1\",\"kind\":\"Task\",\"metadata\":{\"name\":\"a\"},\n\
                \"spec\":{\"prompt\":\"p\",\n\"prompt\":\"q\",\"promt\":1}}";
    let send = |mode: &'static str| {
        admin.call(
            Method::POST,
            if mode.is_empty() {
                TASKS.to_owned()
            } else {
                format!("{TASKS}?dryRun=All&fieldValidation={mode}")
            }
            .leak(),
            &[],
            body,
        )
    };
    let silent = send("").await.refused(400, "BadRequest");
    assert!(
        silent["message"].as_str().unwrap().contains("lines 2 and 3"),
        "{silent}"
    );
    let strict = send("Strict").await.refused(400, "BadRequest");
    assert_eq!(
        strict["message"],
        "Task in version \"v1alpha1\" cannot be handled as a Task: strict decoding error: unknown field \
         \"spec.promt\", duplicate field \"spec.prompt\""
    );
    let warned = send("Warn").await;
    let stored = warned.expect(201);
    assert!(stored["spec"].get("promt").is_none());
    assert_eq!(stored["spec"]["prompt"], "q");
    let texts: Vec<&str> = warned
        .headers
        .get_all("warning")
        .iter()
        .map(|w| w.to_str().unwrap())
        .collect();
    assert!(
        texts.contains(&"299 - \"unknown field \\\"spec.promt\\\"\""),
        "{texts:?}"
    );
    assert_eq!(texts.len(), 2, "{texts:?}");
    let ignored = send("Ignore").await;
    ignored.expect(201);
    assert!(ignored.headers.get("warning").is_none());
    send("Loud").await.refused(422, "Invalid");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forms_and_media_types_that_cannot_be_had() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let json = task("a").to_string();
    for media in ["application/vnd.kubernetes.protobuf", "text/plain"] {
        let reply = admin
            .call(Method::POST, TASKS, &[("content-type", media)], json.clone())
            .await;
        reply.refused(415, "UnsupportedMediaType");
    }
    let yaml = "apiVersion: panda.dev/v1alpha1\nkind: Task\nmetadata: {name: a}\nspec: {prompt: no}\n";
    let made = admin
        .call(Method::POST, TASKS, &[("content-type", "application/yaml")], yaml)
        .await
        .expect(201);
    assert_eq!(made["spec"]["prompt"], "no");
    let one = format!("{TASKS}/a");
    for media in [
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
        "application/json",
        "",
    ] {
        let headers = [("content-type", media)];
        admin
            .call(Method::PATCH, &one, &headers, "{}")
            .await
            .refused(415, "UnsupportedMediaType");
    }
    admin
        .get_as(&one, "application/json;as=Table;v=v9;g=meta.k8s.io")
        .await
        .refused(406, "NotAcceptable");
    admin
        .get_as(&one, "text/html")
        .await
        .refused(406, "NotAcceptable");
    admin
        .get_as(&one, "text/html, application/json;q=0.9")
        .await
        .expect(200);
    admin
        .call(Method::POST, TASKS, &[], "{")
        .await
        .refused(400, "BadRequest");
    let map = json!({"metadata": {"name": "m"}, "data": {"k": "v"}});
    admin.post(CONFIG_MAPS, &map).await.expect(201);
    let strategic = [("content-type", "application/strategic-merge-patch+json")];
    let patched = admin
        .call(
            Method::PATCH,
            &format!("{CONFIG_MAPS}/m"),
            &strategic,
            r#"{"data":{"k":"w"}}"#,
        )
        .await;
    assert_eq!(patched.expect(200)["data"]["k"], "w");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn patches_apply_to_what_is_stored_and_carry_preconditions() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let made = admin.post(TASKS, &task("a")).await.expect(201);
    let one = format!("{TASKS}/a");
    let finalizer = json!([
        {"op": "test", "path": "/metadata/finalizers", "value": null},
        {"op": "add", "path": "/metadata/finalizers", "value": ["example.com/f"]},
    ]);
    let held = admin.json_patch(&one, &finalizer).await.expect(200);
    assert_eq!(held["metadata"]["finalizers"], json!(["example.com/f"]));
    assert_eq!(held["metadata"]["generation"], 1);
    admin.json_patch(&one, &finalizer).await.refused(422, "Invalid");
    admin
        .json_patch(&one, &json!({"op": "add"}))
        .await
        .refused(400, "BadRequest");
    admin.merge(&one, &json!([])).await.refused(400, "BadRequest");
    let stale =
        json!({"metadata": {"resourceVersion": made["metadata"]["resourceVersion"], "labels": {"x": "y"}}});
    admin.merge(&one, &stale).await.refused(409, "Conflict");
    let spec = admin
        .merge(&one, &json!({"spec": {"prompt": "other"}}))
        .await
        .expect(200);
    assert_eq!(spec["metadata"]["generation"], 2);
    // Status is written through its own subresource only, and changes nothing else.
    let ignored = admin
        .merge(&one, &json!({"status": {"phase": "Failed"}}))
        .await
        .expect(200);
    assert_eq!(ignored, spec);
    let status = admin
        .merge(
            &format!("{one}/status"),
            &json!({"status": {"phase": "Running"}, "spec": {"prompt": "no"}}),
        )
        .await;
    let status = status.expect(200);
    assert_eq!(
        (&status["status"]["phase"], &status["spec"]["prompt"]),
        (&json!("Running"), &json!("other"))
    );
    assert_eq!(status["metadata"]["generation"], 2);
    admin
        .merge(&format!("{one}?force=true"), &json!({}))
        .await
        .refused(422, "Invalid");
    server.stop().await;
}
