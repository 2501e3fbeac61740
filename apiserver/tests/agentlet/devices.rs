//! What the server keeps of Devices themselves.

use panda_api::Device;
use panda_api::meta::{Clock, SystemClock};
use panda_client::Api;

use super::harness::Cluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_belongs_to_one_device_and_is_not_taken_over() {
    let cluster = Cluster::start().await;
    let first = cluster.join("pi").await;
    first.session(&cluster).await.renew().await.unwrap();
    let lease = cluster.heartbeat("pi").await;
    let owner = &lease.metadata.owner_references[0];
    assert_eq!(
        (owner.kind.as_str(), &owner.uid, owner.api_version.as_str()),
        ("Device", &first.uid, "panda.dev/v1alpha1")
    );
    cluster.remove_device("pi").await;
    // The collector has not come by when another device of the name renews.
    let second = cluster.join("pi").await;
    second.session(&cluster).await.renew().await.unwrap();
    let anew = cluster.heartbeat("pi").await;
    assert_ne!(anew.metadata.uid, lease.metadata.uid);
    assert_eq!(anew.metadata.owner_references[0].uid, second.uid);
    assert_eq!(anew.spec.holder_identity, Some(second.uid));
    assert_eq!(anew.spec.lease_transitions, Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_off_is_told_until_it_is_right_again() {
    let cluster = Cluster::start().await;
    let pi = cluster.join("pi").await;
    let now = || u64::try_from(SystemClock.now().as_millisecond()).unwrap();
    let mut hello = pi.hello(&cluster.store_uid());
    hello.wall_time_ms = now();
    let mut session = pi.connect(hello).await.unwrap();
    session.renew().await.unwrap();
    assert_eq!(cluster.condition("pi", "ClockSkew").await, None);
    session.wall_time_ms = now() - 300_000;
    session.renew().await.unwrap();
    cluster.until_condition("pi", "ClockSkew", "True").await;
    // Its own status does not undo what others see of it.
    session.send_status().await;
    session.renew().await.unwrap();
    session.renew().await.unwrap();
    assert_eq!(
        cluster.condition("pi", "ClockSkew").await.as_deref(),
        Some("True")
    );
    session.wall_time_ms = now();
    session.renew().await.unwrap();
    cluster.until_condition("pi", "ClockSkew", "False").await;
    // Who does not say changes nothing.
    session.wall_time_ms = 0;
    session.renew().await.unwrap();
    session.renew().await.unwrap();
    assert_eq!(
        cluster.condition("pi", "ClockSkew").await.as_deref(),
        Some("False")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_whose_certificate_no_request_was_made_for_shows_its_key() {
    let cluster = Cluster::start().await;
    let (pi, mac) = (cluster.join("pi").await, cluster.join("mac").await);
    let devices: Api<Device> = Api::cluster(cluster.client.clone());
    let key = async |name: &str| devices.get(name).await.unwrap().status.key_fingerprint;
    assert_eq!(key("pi").await, "");
    let mut session = pi.session(&cluster).await;
    session.renew().await.unwrap();
    let shown = key("pi").await;
    let digits = shown.strip_prefix("sha256:").unwrap();
    assert!(
        digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit()),
        "{shown}"
    );
    // What the device says of itself does not take it away.
    session.send_status().await;
    session.renew().await.unwrap();
    assert_eq!(key("pi").await, shown);
    mac.session(&cluster).await.renew().await.unwrap();
    assert_ne!(key("mac").await, shown);
}
