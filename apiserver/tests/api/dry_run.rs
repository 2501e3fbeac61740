//! dryRun and fieldValidation, on every verb that writes.
//!
//! One row a verb: tried out, it answers as the real one would, and the store stays at its revision.

use http::Method;
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Harness, Reply, TASKS};

const NAMESPACES: &str = "/api/v1/namespaces";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const TOKENS: &str = "/apis/panda.dev/v1alpha1/jointokens";
const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const JSON: &str = "application/json";

async fn call(server: &Harness, method: &Method, path: &str, media: &str, body: &Value) -> Reply {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    server
        .admin
        .call(method.clone(), path, &[("content-type", media)], body)
        .await
}

async fn revision(server: &Harness) -> u64 {
    server.store.current_revision().await.unwrap().0
}

fn task(name: &str) -> Value {
    json!({
        "apiVersion": "panda.dev/v1alpha1", "kind": "Task", "metadata": {"name": name},
        "spec": {"prompt": "mend it"},
    })
}

/// An object that is there, for the rows that change one.
async fn prepared(server: &Harness) -> Value {
    server
        .admin
        .post(
            CONFIG_MAPS,
            &json!({"metadata": {"name": "m"}, "data": {"a": "b"}}),
        )
        .await
        .expect(201);
    server
        .admin
        .post(ACCOUNTS, &json!({"metadata": {"name": "bot"}}))
        .await
        .expect(201);
    let old = json!({"metadata": {"name": "old"}});
    server.admin.post(NAMESPACES, &old).await.expect(201);
    server.admin.post(TASKS, &task("t")).await.expect(201)
}

/// Every verb that writes: method, path, media type, body, code of the answer.
fn rows(stored: &Value) -> Vec<(Method, String, &'static str, Value, u16)> {
    let one = format!("{TASKS}/t");
    let (mut changed, mut ended) = (stored.clone(), stored.clone());
    changed["spec"]["prompt"] = "other".into();
    ended["status"] = json!({"phase": "Pending"});
    let prompt = json!({"spec": {"prompt": "other"}});
    let ops = json!([{"op": "replace", "path": "/spec/prompt", "value": "other"}]);
    let status = json!({"status": {"phase": "Pending"}});
    let strategic = "application/strategic-merge-patch+json";
    let held = json!({"propagationPolicy": "Foreground"});
    let token = json!({"spec": {"expirationSeconds": 600}});
    vec![
        (Method::POST, TASKS.into(), JSON, task("new"), 201),
        (Method::PUT, one.clone(), JSON, changed, 200),
        (Method::PATCH, one.clone(), MERGE, prompt, 200),
        (Method::PATCH, one.clone(), JSON_PATCH, ops, 200),
        (
            Method::PATCH,
            format!("{CONFIG_MAPS}/m"),
            strategic,
            json!({"data": {"a": "c"}}),
            200,
        ),
        (Method::PUT, format!("{one}/status"), JSON, ended, 200),
        (Method::PATCH, format!("{one}/status"), MERGE, status, 200),
        (Method::DELETE, one.clone(), JSON, Value::Null, 200),
        (Method::DELETE, one, JSON, held, 200),
        (Method::DELETE, TASKS.into(), JSON, Value::Null, 200),
        (
            Method::POST,
            NAMESPACES.into(),
            JSON,
            json!({"metadata": {"name": "team"}}),
            201,
        ),
        (
            Method::DELETE,
            format!("{NAMESPACES}/old"),
            JSON,
            Value::Null,
            200,
        ),
        (Method::POST, format!("{ACCOUNTS}/bot/token"), JSON, token, 201),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_of_any_verb_answers_and_leaves_the_store_alone() {
    let server = Harness::start().await;
    let stored = prepared(&server).await;
    let before = revision(&server).await;
    for (method, path, media, body, code) in rows(&stored) {
        let reply = call(&server, &method, &format!("{path}?dryRun=All"), media, &body).await;
        let answer = reply.expect(code);
        assert_eq!(revision(&server).await, before, "{method} {path} wrote");
        if path.ends_with("/token") {
            assert_eq!(answer["status"]["token"].as_str().unwrap_or_default(), "");
        }
    }
    let task = server.admin.get(&format!("{TASKS}/t")).await.expect(200);
    assert_eq!(task, stored);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistyped_field_is_named_before_the_one_that_is_missing_for_it() {
    let server = Harness::start().await;
    let mut task = task("new");
    task["spec"] = json!({"promt": "mend it"});
    let path = format!("{TASKS}?fieldValidation=Strict");
    let refused = server.admin.post(&path, &task).await.refused(400, "BadRequest");
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("unknown field \"spec.promt\""), "{message}");
    server.admin.post(TASKS, &task).await.refused(422, "Invalid");
    server.stop().await;
}

/// A request for a certificate and a join token are either made or not: there is nothing that could be tried out.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_tried_out_says_so_and_does_nothing() {
    let server = Harness::start().await;
    let before = revision(&server).await;
    for (method, path) in [
        (Method::POST, REQUESTS.to_owned()),
        (Method::PUT, format!("{REQUESTS}/x/approval")),
        (Method::POST, TOKENS.to_owned()),
    ] {
        let reply = call(&server, &method, &format!("{path}?dryRun=All"), JSON, &json!({})).await;
        let refused = reply.refused(400, "BadRequest");
        assert!(
            refused["message"].as_str().unwrap().contains("dryRun"),
            "{refused}"
        );
        assert_eq!(revision(&server).await, before, "{method} {path} wrote");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_options_are_refused_by_every_verb_before_it_writes() {
    let server = Harness::start().await;
    let stored = prepared(&server).await;
    let before = revision(&server).await;
    for (method, path, media, body, _) in rows(&stored) {
        let reply = call(&server, &method, &format!("{path}?dryRun=Some"), media, &body).await;
        reply.refused(422, "Invalid");
        if method == Method::DELETE {
            continue;
        }
        let path = format!("{path}?fieldValidation=Loud");
        call(&server, &method, &path, media, &body)
            .await
            .refused(422, "Invalid");
        assert_eq!(revision(&server).await, before, "{method} {path} wrote");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_fields_are_judged_by_every_verb_that_takes_an_object() {
    let server = Harness::start().await;
    let stored = prepared(&server).await;
    let one = format!("{TASKS}/t");
    let mut put = stored.clone();
    put["spec"]["nonsense"] = 1.into();
    let mut post = task("new");
    post["spec"]["nonsense"] = 1.into();
    let mut status = stored.clone();
    status["status"] = json!({"nonsense": 1});
    let ops = json!([{"op": "add", "path": "/spec/nonsense", "value": 1}]);
    let rows = [
        (Method::POST, TASKS.to_owned(), JSON, post),
        (Method::PUT, one.clone(), JSON, put),
        (Method::PUT, format!("{one}/status"), JSON, status),
        (
            Method::PATCH,
            one.clone(),
            MERGE,
            json!({"spec": {"nonsense": 1}}),
        ),
        (Method::PATCH, one.clone(), JSON_PATCH, ops),
        (
            Method::PATCH,
            format!("{one}/status"),
            MERGE,
            json!({"status": {"nonsense": 1}}),
        ),
    ];
    for (method, path, media, body) in rows {
        for mode in ["", "Strict", "Warn", "Ignore"] {
            let at = format!("{path}?dryRun=All&fieldValidation={mode}");
            let reply = call(&server, &method, &at, media, &body).await;
            let warned = reply.header("warning").contains("nonsense");
            let said = String::from_utf8_lossy(&reply.body).into_owned();
            match mode {
                // As upstream: without a word, warn.
                "" | "Warn" => assert!(reply.status.is_success() && warned, "{method} {at}: {said}"),
                "Ignore" => assert!(reply.status.is_success() && !warned, "{method} {at}: {said}"),
                _ => {
                    assert_eq!(reply.status.as_u16(), 400, "{method} {at}: {said}");
                    assert!(said.contains("nonsense"), "{method} {at}: {said}");
                }
            }
            assert!(!said.contains("\"nonsense\":"), "{method} {at} kept it: {said}");
        }
    }
    server.stop().await;
}
