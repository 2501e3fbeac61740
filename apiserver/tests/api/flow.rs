//! One client's flood is not another's outage.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::Method;
use panda_apiserver::pki::Subject;
use panda_store::Memory;
use serde_json::json;
use tokio::sync::Notify;

use axum::Router;
use axum::routing::get;
use panda_apiserver::Config;

use crate::harness::{CONFIG_MAPS, Harness, PATIENCE};

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_requests_hang_leaves_seats_for_others_and_for_health() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::new(dir.path());
    config.limits.requests_in_flight = 16;
    let (inside, release) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let hang = {
        let (inside, release) = (Arc::clone(&inside), Arc::clone(&release));
        get(move || async move {
            inside.fetch_add(1, Ordering::SeqCst);
            release.notified().await;
            "done"
        })
    };
    let routes = Router::new().route("/hang", hang);
    let server = Harness::routed(Arc::new(Memory::new("test")), dir, config, routes).await;
    let flood = server.client(&Subject::user("flood", &["system:masters"]));
    let hanging: Vec<_> = (0..60)
        .map(|_| {
            let flood = flood.clone();
            tokio::spawn(async move { flood.get("/hang").await.status.as_u16() })
        })
        .collect();
    // Of 12 ordinary seats it gets 8, and 16 more may wait; the others hear that they are too many.
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while inside.load(Ordering::SeqCst) < 8
        || hanging.iter().filter(|task| task.is_finished()).count() < 60 - 8 - 16
    {
        assert!(
            tokio::time::Instant::now() < deadline,
            "{}",
            inside.load(Ordering::SeqCst)
        );
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(inside.load(Ordering::SeqCst), 8);
    let other = server.client(&Subject::user("other", &["system:masters"]));
    for _ in 0..50 {
        other.get(CONFIG_MAPS).await.expect(200);
    }
    assert_eq!(server.anonymous().get("/healthz").await.status, 200);
    let refused = flood.get(CONFIG_MAPS).await;
    refused.refused(429, "TooManyRequests");
    assert_eq!(refused.header("retry-after"), "1");
    // Even of the flood, what keeps the system going has seats of its own.
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
    flood.post(leases, &lease).await.expect(201);
    let ended = Arc::new(AtomicBool::new(false));
    let waker = {
        let (ended, release) = (Arc::clone(&ended), Arc::clone(&release));
        tokio::spawn(async move {
            while !ended.load(Ordering::SeqCst) {
                release.notify_waiters();
                tokio::task::yield_now().await;
            }
        })
    };
    let mut answered = 0;
    for task in hanging {
        answered += usize::from(task.await.unwrap() == 200);
    }
    ended.store(true, Ordering::SeqCst);
    waker.await.unwrap();
    assert!(answered > 8, "who waited got a seat in the end");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_bodies_are_refused_and_never_unpacked() {
    let server = Harness::start().await;
    let headers = [("content-type", "application/json"), ("content-encoding", "gzip")];
    let reply = server
        .admin
        .call(Method::POST, CONFIG_MAPS, &headers, vec![0x1f, 0x8b, 8, 0])
        .await;
    reply.refused(415, "UnsupportedMediaType");
    server.stop().await;
}
