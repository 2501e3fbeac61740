//! Events in both of their groups, and Leases: the full set of verbs.

use http::Method;
use serde_json::{Value, json};

use super::{names, version};
use crate::harness::Harness;

const OLD: &str = "/api/v1/namespaces/default/events";
const NEW: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

fn newer(name: &str, about: &str) -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name, "labels": {"about": about}},
        "eventTime": "2026-01-02T03:04:05.000006Z", "reportingController": "example.com/c",
        "reportingInstance": "c-1", "action": "Made", "reason": "Made", "type": "Normal", "note": "It was made.",
        "regarding": {"apiVersion": "panda.dev/v1alpha1", "kind": "Task", "name": about, "namespace": "default"},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn both_groups_show_the_same_events_under_their_own_names() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let made = admin.post(NEW, &newer("e1", "a")).await.expect(201);
    assert_eq!(made["apiVersion"], "events.k8s.io/v1");
    assert_eq!(made["note"], "It was made.");
    assert!(made.get("message").is_none() && made.get("involvedObject").is_none());
    let old = admin.get(&format!("{OLD}/e1")).await.expect(200);
    assert_eq!(old["apiVersion"], "v1");
    assert_eq!(old["message"], "It was made.");
    assert_eq!(old["involvedObject"], made["regarding"]);
    assert_eq!(old["reportingComponent"], "example.com/c");
    assert_eq!(version(&old), version(&made));
    let second = json!({"metadata": {"name": "e2"}, "involvedObject": {"kind": "Task", "name": "b",
        "namespace": "default"}, "reason": "Gone", "message": "m", "count": 3, "source": {"component": "x"}});
    admin.post(OLD, &second).await.expect(201);
    let seen = admin.get(&format!("{NEW}/e2")).await.expect(200);
    assert_eq!(
        (
            &seen["note"],
            &seen["deprecatedCount"],
            &seen["deprecatedSource"]["component"]
        ),
        (&json!("m"), &json!(3), &json!("x"))
    );
    let list = admin.get(NEW).await.expect(200);
    assert_eq!(
        (&list["kind"], &list["apiVersion"]),
        (&json!("EventList"), &json!("events.k8s.io/v1"))
    );
    assert_eq!(names(&list), ["e1", "e2"]);
    assert!(
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .all(|event| event["regarding"].is_object())
    );
    for (path, want) in [
        (format!("{NEW}?fieldSelector=regarding.name%3Db"), "e2"),
        (
            format!("{NEW}?fieldSelector=reportingController%3Dexample.com/c"),
            "e1",
        ),
        (
            format!("{OLD}?fieldSelector=involvedObject.name%3Da,reason%3DMade"),
            "e1",
        ),
        (format!("{NEW}?labelSelector=about%3Da"), "e1"),
        (
            "/apis/events.k8s.io/v1/events?fieldSelector=reason%3DGone".to_owned(),
            "e2",
        ),
    ] {
        assert_eq!(names(&admin.get(&path).await.expect(200)), [want], "{path}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_works_on_events_of_the_newer_group() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let mut watch = admin.watch(&format!("{NEW}?watch=1")).await;
    let made = admin.post(NEW, &newer("e1", "a")).await.expect(201);
    let one = format!("{NEW}/e1");
    let series = json!({"series": {"count": 2, "lastObservedTime": "2026-01-02T03:05:05.000000Z"}});
    let patched = admin.merge(&one, &series).await.expect(200);
    assert_eq!(patched["series"]["count"], 2);
    let noted = admin
        .json_patch(
            &one,
            &json!([{"op": "test", "path": "/note", "value": "It was made."},
                {"op": "replace", "path": "/note", "value": "n"}]),
        )
        .await
        .expect(200);
    assert_eq!(noted["note"], "n");
    let mut put = noted.clone();
    put["note"] = json!("o");
    let put = admin.put(&one, &put).await.expect(200);
    assert_eq!(put["note"], "o");
    admin.put(&one, &made).await.refused(409, "Conflict");
    for event in [&made, &patched, &noted, &put] {
        let seen = watch.next().await.unwrap();
        assert_eq!(&seen["object"], event);
    }
    let twice = admin
        .post(NEW, &newer("e1", "a"))
        .await
        .refused(409, "AlreadyExists");
    assert_eq!(twice["message"], "events.events.k8s.io \"e1\" already exists");
    assert_eq!(twice["details"]["group"], "events.k8s.io");
    let mut odd = newer("e3", "a");
    odd["message"] = json!("the other group's name");
    let strict = admin
        .post(&format!("{NEW}?fieldValidation=Strict"), &odd)
        .await
        .refused(400, "BadRequest");
    assert!(
        strict["message"]
            .as_str()
            .unwrap()
            .contains("unknown field \"message\""),
        "{strict}"
    );
    let warned = admin.post(NEW, &odd).await;
    assert_eq!(warned.expect(201)["note"], "It was made.");
    assert_eq!(
        warned.header("warning"),
        "299 - \"unknown field \\\"message\\\"\""
    );
    let gone = admin.delete(&one).await.expect(200);
    assert_eq!(gone["details"]["group"], "events.k8s.io");
    let rest = admin
        .delete(&format!("{NEW}?labelSelector=about%3Da"))
        .await
        .expect(200);
    assert_eq!(names(&rest), ["e3"]);
    admin.get(&one).await.refused(404, "NotFound");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_held_renewed_and_lost_by_version() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let all = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "acquireTime": "2026-01-02T03:04:05.123456Z",
            "renewTime": "2026-01-02T03:04:05.123456Z", "leaseTransitions": 0}});
    let held = admin.post(all, &lease).await.expect(201);
    assert_eq!(held["spec"], lease["spec"]);
    let one = format!("{all}/l");
    let mut renewed = held.clone();
    renewed["spec"]["renewTime"] = json!("2026-01-02T03:04:10.000000Z");
    admin.put(&one, &renewed).await.expect(200);
    // Who read before that may not take it.
    let mut stolen = held.clone();
    stolen["spec"]["holderIdentity"] = json!("b");
    admin.put(&one, &stolen).await.refused(409, "Conflict");
    let patched = admin
        .merge(
            &one,
            &json!({"spec": {"holderIdentity": "b", "leaseTransitions": 1}}),
        )
        .await
        .expect(200);
    assert_eq!(patched["spec"]["leaseTransitions"], 1);
    assert_eq!(
        names(&admin.get("/apis/coordination.k8s.io/v1/leases").await.expect(200)).len(),
        1
    );
    admin.call(Method::DELETE, all, &[], "").await.expect(200);
    admin.get(&one).await.refused(404, "NotFound");
    server.stop().await;
}
