//! What stands around every request: traces, panics, deadlines, HTTP/2, routes of other services.

use std::sync::Arc;

use axum::{Extension, Router, routing::get};
use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use panda_api::meta::Duration;
use panda_apiserver::Config;
use panda_apiserver::authn::User;
use panda_apiserver::pki::Subject;
use panda_store::{Memory, RingLimits};
use serde_json::json;

use crate::harness::{CONFIG_MAPS, Harness, TASKS, request};

const DEVICES: &str = "/apis/panda.dev/v1alpha1/devices";

#[tokio::test(flavor = "multi_thread")]
async fn routes_of_other_services_stand_behind_the_same_filters() {
    let routes = Router::new()
        .route(
            "/panda.agentlet.v1.Agentlet/Who",
            get(|Extension(user): Extension<User>| async move {
                let device = user
                    .device()
                    .map(|device| format!("{} {}", device.name, device.uid));
                device.unwrap_or(user.name)
            }),
        )
        .route(
            "/panic",
            get(|| async {
                if true {
                    panic!("boom");
                }
            }),
        )
        .route("/slow", get(std::future::pending::<()>));
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::new(dir.path());
    config.limits.request_timeout = Duration::from(std::time::Duration::from_millis(300));
    let server = Harness::routed(Arc::new(Memory::new("test")), dir, config, routes).await;
    let who = "/panda.agentlet.v1.Agentlet/Who";
    assert_eq!(server.admin.get(who).await.body, "panda:admin");
    let made = json!({"apiVersion": "panda.dev/v1alpha1", "kind": "Device", "metadata": {"name": "pi"}});
    let made = server.admin.post(DEVICES, &made).await.expect(201);
    let uid = made["metadata"]["uid"].as_str().unwrap();
    let device = server.client(&Subject::device("pi", uid));
    assert_eq!(device.get(who).await.body, format!("pi {uid}"));
    let removed = server.client(&Subject::device("pi", "uid-1"));
    removed.get(who).await.refused(403, "Forbidden");
    device.get("/panic").await.refused(403, "Forbidden");
    server.anonymous().get(who).await.refused(401, "Unauthorized");
    server
        .admin
        .post(who, &json!({}))
        .await
        .refused(405, "MethodNotAllowed");
    let status = server.admin.get("/panic").await.refused(500, "InternalError");
    assert!(!status["message"].as_str().unwrap().contains("boom"));
    server.admin.get("/slow").await.refused(504, "Timeout");
    server.admin.get(CONFIG_MAPS).await.expect(200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_travels_on_in_what_the_request_makes() {
    let server = Harness::start().await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let task = json!({"apiVersion": "panda.dev/v1alpha1", "kind": "Task", "metadata": {"name": "a"}, "spec": {"prompt": "p"}});
    let headers = [("traceparent", trace), ("audit-id", "my-id")];
    let made = server
        .admin
        .call(Method::POST, TASKS, &headers, task.to_string())
        .await;
    assert_eq!(made.header("audit-id"), "my-id");
    let made = made.expect(201);
    assert_eq!(
        made["metadata"]["annotations"],
        json!({"panda.dev/traceparent": trace})
    );
    let headers = [("traceparent", "nonsense"), ("audit-id", "bad id")];
    let map = json!({"metadata": {"name": "m"}}).to_string();
    let other = server.admin.call(Method::POST, CONFIG_MAPS, &headers, map).await;
    assert_eq!(other.header("audit-id").len(), 36);
    assert!(other.expect(201)["metadata"].get("annotations").is_none());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_http2_connection_carries_watches_and_writes() {
    let server = Harness::start().await;
    let stream = server.admin.connect_with(&["h2"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) = hyper::client::conn::http2::handshake::<_, _, Full<Bytes>>(
        TokioExecutor::new(),
        TokioIo::new(stream),
    )
    .await
    .unwrap();
    let driver = tokio::spawn(connection);
    let url = |path: &str| format!("https://localhost{path}");
    let watch = request(Method::GET, &url(&format!("{CONFIG_MAPS}?watch=1")), &[], "");
    let mut watch = sender.send_request(watch).await.unwrap().into_body();
    let map = json!({"metadata": {"name": "a"}}).to_string();
    let made = sender
        .send_request(request(Method::POST, &url(CONFIG_MAPS), &[], map))
        .await
        .unwrap();
    assert_eq!(made.status(), 201);
    let frame = watch.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(frame.starts_with(b"{\"type\":\"ADDED\""));
    server.stop().await;
    assert!(watch.collect().await.unwrap().to_bytes().is_empty());
    driver.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_that_does_not_read_ends_with_an_error_and_harms_nobody() {
    let ring = RingLimits {
        events_per_resource: 64,
        bytes: 64 << 20,
    };
    let server = Harness::over(Arc::new(Memory::with_ring("test", ring)), |_| {}).await;
    let mut slow = server
        .admin
        .watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion=1"))
        .await;
    let kind = panda_api::scheme::of::<panda_api::ConfigMap>();
    let text = "x".repeat(100_000);
    // More than all the buffers between the two take.
    for n in 0..400 {
        let map = json!({"metadata": {"name": format!("m{n}")}, "data": {"k": text}});
        server
            .registry
            .create(kind, "default", map, &Default::default())
            .await
            .unwrap();
    }
    let mut seen = 0;
    let last = loop {
        match slow.next().await {
            Some(event) if event["type"] == "ADDED" => seen += 1,
            Some(event) => break event,
            None => panic!("the watch ended without a word after {seen} events"),
        }
    };
    assert_eq!(last["type"], "ERROR");
    assert_eq!(last["object"]["reason"], "TooManyRequests");
    assert!(seen < 400);
    assert!(slow.next().await.is_none());
    server.stop().await;
}
