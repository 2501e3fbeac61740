//! The binding of a run to its device.

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use super::harness::Cluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binding_can_be_tried_out() {
    let cluster = Cluster::start().await;
    let pi = cluster.join("pi").await;
    let task = cluster.task("t").await;
    let run = cluster.run("t-1", &task).await;
    let path = "/apis/panda.dev/v1alpha1/namespaces/default/runs/t-1/binding";
    let body = Bytes::from(json!({"deviceName": "pi"}).to_string());
    let tried = |query: &str| {
        let path = format!("{path}?{query}");
        let request = panda_client::client::request(Method::POST, &path, Some(body.clone())).unwrap();
        cluster.client.request_json::<Value>(request)
    };
    assert_eq!(tried("dryRun=All").await.unwrap()["status"], "Success");
    assert!(tried("dryRun=Some").await.is_err());
    assert_eq!(cluster.get("t-1").await, run, "it was only tried out");
    // Of another task: no two runs of one are bound at a time.
    let fence = cluster.bound("u-1", &cluster.task("u").await, &pi).await;
    assert_eq!(fence.device_uid, pi.uid);
    assert!(tried("").await.is_ok());
    assert_eq!(cluster.get("t-1").await.spec.device_name, "pi");
}
