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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_schedulers_at_one_moment_bind_one_run_of_a_task() {
    let cluster = Cluster::start().await;
    cluster.join("pi").await;
    cluster.join("hub").await;
    for n in 0..10 {
        let task = cluster.task(&format!("t{n}")).await;
        let names = ["a", "b"].map(|which| format!("t{n}-{which}"));
        for name in &names {
            cluster.run(name, &task).await;
        }
        let both = tokio::join!(
            cluster.try_bind(&names[0], "pi"),
            cluster.try_bind(&names[1], "hub")
        );
        let (bound, refused) = match both {
            (Ok(()), Err(refused)) => (&names[0], refused),
            (Err(refused), Ok(())) => (&names[1], refused),
            both => panic!("of task {n}: {both:?}"),
        };
        assert!(refused.to_string().contains(bound.as_str()), "{refused}");
    }
}
