//! Every verb on every kind.

use http::Method;
use panda_api::scheme::{self, KindInfo};
use serde_json::{Value, json};

use crate::harness::{Client, Harness};

/// A small object of a kind.
pub(crate) fn sample(kind: &KindInfo, name: &str) -> Value {
    let mut object = json!({
        "apiVersion": kind.api_version(), "kind": kind.kind, "metadata": {"name": name},
    });
    match kind.kind {
        "Task" => object["spec"] = json!({"prompt": "p"}),
        "Run" => {
            object["spec"] = json!({
                "taskRef": {"name": "t", "uid": "u", "generation": 1}, "role": "Worker", "attempt": 1, "rerun": 0,
                "agent": {"name": "a"}, "prompt": "p",
            });
        }
        "GitSource" => object["spec"] = json!({"url": "https://git.example/x"}),
        "Agent" => object["spec"] = json!({"drivers": [{"kind": "Exec", "command": ["true"]}]}),
        "Event" if kind.group == "events.k8s.io" => {
            object["regarding"] = json!({"kind": "Task", "name": "t", "namespace": "default"});
        }
        "Event" => object["involvedObject"] = json!({"kind": "Task", "name": "t", "namespace": "default"}),
        "RoleBinding" | "ClusterRoleBinding" => {
            object["roleRef"] =
                json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"});
        }
        "ValidatingAdmissionPolicy" => {
            object["spec"] = json!({
                "matchConstraints": {"resourceRules": [
                    {"apiGroups": ["x"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["things"]},
                ]},
                "validations": [{"expression": "true"}],
            });
        }
        "ValidatingAdmissionPolicyBinding" => {
            object["spec"] = json!({"policyName": "nothing", "validationActions": ["Deny"]});
        }
        _ => {}
    }
    object
}

pub(crate) fn collection(kind: &KindInfo) -> String {
    let root = if kind.group.is_empty() {
        "/api".to_owned()
    } else {
        format!("/apis/{}", kind.group)
    };
    let place = if kind.namespaced {
        "/namespaces/default"
    } else {
        ""
    };
    format!("{root}/{}{place}/{}", kind.version, kind.plural)
}

async fn each(server: &Harness, kind: &KindInfo) {
    let admin: &Client = &server.admin;
    let all = collection(kind);
    let one = format!("{all}/a");
    let made = admin.post(&all, &sample(kind, "a")).await.expect(201);
    assert_eq!(made["kind"], kind.kind);
    assert_eq!(made["apiVersion"], kind.api_version());
    let meta = &made["metadata"];
    assert_eq!(meta["generation"], 1, "{made}");
    assert!(meta["uid"].as_str().unwrap().len() == 36 && meta["creationTimestamp"].is_string());
    let status = admin
        .post(&all, &sample(kind, "a"))
        .await
        .refused(409, "AlreadyExists");
    assert_eq!(status["details"]["kind"], kind.plural);
    assert_eq!(
        status["message"],
        format!("{} \"a\" already exists", kind.resource_name())
    );

    assert_eq!(admin.get(&one).await.expect(200), made);
    let list = admin.get(&all).await.expect(200);
    assert_eq!(list["kind"], kind.list_kind());
    assert!(list["items"].as_array().unwrap().contains(&made));

    // A label changes the version, not the generation; the same again changes nothing.
    let labelled = admin
        .merge(&one, &json!({"metadata": {"labels": {"l": "1"}}}))
        .await
        .expect(200);
    assert_eq!(labelled["metadata"]["generation"], 1);
    assert_ne!(labelled["metadata"]["resourceVersion"], meta["resourceVersion"]);
    let again = admin
        .merge(&one, &json!({"metadata": {"labels": {"l": "1"}}}))
        .await
        .expect(200);
    assert_eq!(again, labelled);
    assert_eq!(admin.put(&one, &labelled).await.expect(200), labelled);
    let stale = admin.put(&one, &made).await.refused(409, "Conflict");
    assert!(
        stale["message"]
            .as_str()
            .unwrap()
            .contains("the object has been modified")
    );

    let table = admin
        .get_as(&all, "application/json;as=Table;v=v1;g=meta.k8s.io")
        .await
        .expect(200);
    let width = table["columnDefinitions"].as_array().unwrap().len();
    assert!(
        table["columnDefinitions"]
            .as_array()
            .unwrap()
            .iter()
            .any(|c| c["format"] == "name")
    );
    for row in table["rows"].as_array().unwrap() {
        assert_eq!(row["cells"].as_array().unwrap().len(), width);
        assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    }
    let partial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let only = admin.get_as(&one, partial).await.expect(200);
    assert_eq!(only["metadata"], labelled["metadata"]);
    assert!(only.get("spec").is_none());

    let sub = format!("{one}/status");
    if kind.has_status {
        let was = admin.get(&sub).await.expect(200);
        let put = admin.put(&sub, &was).await.expect(200);
        assert_eq!(
            put["metadata"]["resourceVersion"],
            was["metadata"]["resourceVersion"]
        );
    } else {
        admin.get(&sub).await.refused(404, "NotFound");
    }
    admin.post(&one, &made).await.refused(405, "MethodNotAllowed");
    admin.put(&all, &made).await.refused(405, "MethodNotAllowed");
    admin
        .call(Method::OPTIONS, &all, &[], "")
        .await
        .refused(405, "MethodNotAllowed");

    // Nothing of a dry run stays.
    let dry = admin
        .call(Method::DELETE, &format!("{one}?dryRun=All"), &[], "")
        .await;
    dry.expect(200);
    assert_eq!(admin.get(&one).await.expect(200), labelled);
    let planned = admin
        .post(&format!("{all}?dryRun=All"), &sample(kind, "b"))
        .await
        .expect(201);
    assert_eq!(planned["metadata"]["name"], "b");
    admin.get(&format!("{all}/b")).await.refused(404, "NotFound");

    let gone = admin.delete(&one).await.expect(200);
    if kind.kind == "Namespace" {
        assert_eq!(gone["status"]["phase"], "Terminating");
        assert_eq!(gone["metadata"]["generation"], 2);
        return;
    }
    assert_eq!(gone["status"], "Success");
    assert_eq!(gone["details"]["kind"], kind.plural);
    assert_eq!(gone["details"]["uid"], meta["uid"]);
    admin.get(&one).await.refused(404, "NotFound");
    let missing = admin.delete(&one).await.refused(404, "NotFound");
    assert_eq!(
        missing["message"],
        format!("{} \"a\" not found", kind.resource_name())
    );
    admin.put(&one, &labelled).await.refused(404, "NotFound");

    for name in ["x", "y"] {
        let mut object = sample(kind, name);
        object["metadata"]["labels"] = json!({"pick": name});
        admin.post(&all, &object).await.expect(201);
    }
    let removed = admin
        .delete(&format!("{all}?labelSelector=pick%3Dx"))
        .await
        .expect(200);
    assert_eq!(removed["kind"], kind.list_kind());
    assert_eq!(removed["items"].as_array().unwrap().len(), 1);
    admin.get(&format!("{all}/x")).await.refused(404, "NotFound");
    admin.get(&format!("{all}/y")).await.expect(200);
    admin.delete(&format!("{all}/y")).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_does_its_work_on_every_kind() {
    let server = Harness::start().await;
    for kind in scheme::kinds() {
        // A request holds a signature by its own key; it has its own tests.
        if kind.kind == "CertificateSigningRequest" {
            continue;
        }
        each(&server, kind).await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_names_exactly_what_is_served() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let groups = admin.get("/apis").await.expect(200);
    let mut served = Vec::new();
    let mut paths = vec!["/api/v1".to_owned()];
    for group in groups["groups"].as_array().unwrap() {
        let preferred = group["preferredVersion"]["groupVersion"].as_str().unwrap();
        paths.push(format!("/apis/{preferred}"));
        let name = group["name"].as_str().unwrap();
        assert_eq!(
            admin.get(&format!("/apis/{name}")).await.expect(200)["kind"],
            "APIGroup"
        );
    }
    for path in &paths {
        let list = admin.get(path).await.expect(200);
        for resource in list["resources"].as_array().unwrap() {
            served.push(format!(
                "{} {}",
                list["groupVersion"].as_str().unwrap(),
                resource["name"].as_str().unwrap()
            ));
        }
    }
    for kind in scheme::served() {
        assert!(
            served.contains(&format!("{} {}", kind.api_version(), kind.plural)),
            "{}",
            kind.kind
        );
    }
    assert!(served.contains(&"panda.dev/v1alpha1 runs/binding".to_owned()));
    assert!(served.contains(&"panda.dev/v1alpha1 tasks/status".to_owned()));

    for version in ["v2", "v2beta1"] {
        let media = format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
        let accept = format!("{media},application/json");
        let reply = admin.get_as("/apis", &accept).await;
        assert_eq!(reply.header("content-type"), media);
        let document = reply.expect(200);
        assert_eq!(document["kind"], "APIGroupDiscoveryList");
        let etag = reply.header("etag").to_owned();
        let headers = [("accept", accept.as_str()), ("if-none-match", etag.as_str())];
        let same = admin.call(Method::GET, "/apis", &headers, "").await;
        assert_eq!((same.status.as_u16(), same.body.len()), (304, 0));
        let core = admin.get_as("/api", &accept).await.expect(200);
        assert_eq!(core["items"][0]["metadata"]["name"], "");
    }

    let root = admin.get("/openapi/v3").await.expect(200);
    for (path, entry) in root["paths"].as_object().unwrap() {
        let document = admin
            .get(entry["serverRelativeURL"].as_str().unwrap())
            .await
            .expect(200);
        let patches: Vec<&Value> = document["paths"]
            .as_object()
            .unwrap()
            .values()
            .filter_map(|item| item.get("patch"))
            .collect();
        let asks = ["apis/authentication.k8s.io/v1", "apis/authorization.k8s.io/v1"].contains(&path.as_str());
        assert_eq!(patches.is_empty(), asks, "{path}");
        for patch in patches {
            let names: Vec<&str> = patch["parameters"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(|p| p["name"].as_str())
                .collect();
            assert_eq!(
                names,
                ["dryRun", "fieldManager", "fieldValidation", "force"],
                "{path}"
            );
        }
    }
    let version = admin.get("/version/").await.expect(200);
    assert!(version["major"].as_str().unwrap().parse::<u32>().is_ok());
    server.stop().await;
}
