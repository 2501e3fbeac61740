//! Every verb of every resource, subresources included, read off discovery: without a login, without a right, with a
//! right in another namespace, and with every right.

use http::Method;
use panda_apiserver::pki::Subject;
use serde_json::{Value, json};

use crate::harness::{Client, Harness, PATIENCE, Reply};
use crate::join;
use crate::verbs::sample;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// A resource as discovery tells of it.
struct Served {
    /// `/apis/panda.dev/v1alpha1`.
    base: String,
    group: String,
    version: String,
    resource: String,
    subresource: Option<String>,
    kind: String,
    namespaced: bool,
    verbs: Vec<String>,
}

impl Served {
    fn collection(&self, namespace: &str) -> String {
        let place = if self.namespaced {
            format!("/namespaces/{namespace}")
        } else {
            String::new()
        };
        format!("{}{place}/{}", self.base, self.resource)
    }

    fn name(&self) -> String {
        let sub = self.subresource.as_deref().map(|sub| format!("/{sub}"));
        format!("{}{}.{}", self.resource, sub.unwrap_or_default(), self.group)
    }

    /// What a rule calls it.
    fn rule_name(&self) -> String {
        match &self.subresource {
            Some(sub) => format!("{}/{sub}", self.resource),
            None => self.resource.clone(),
        }
    }
}

/// Everything that discovery names.
async fn everything(admin: &Client) -> Vec<Served> {
    let mut bases = vec!["/api/v1".to_owned()];
    for group in admin.get("/apis").await.expect(200)["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            bases.push(format!("/apis/{}", version["groupVersion"].as_str().unwrap()));
        }
    }
    let mut out = Vec::new();
    for base in bases {
        let list = admin.get(&base).await.expect(200);
        let at = list["groupVersion"].as_str().unwrap().to_owned();
        let (group, version) = at.split_once('/').unwrap_or(("", &at));
        for entry in list["resources"].as_array().unwrap() {
            let name = entry["name"].as_str().unwrap();
            let (resource, subresource) = match name.split_once('/') {
                Some((resource, sub)) => (resource, Some(sub.to_owned())),
                None => (name, None),
            };
            let verbs = entry["verbs"].as_array().unwrap().iter();
            out.push(Served {
                base: base.clone(),
                group: group.to_owned(),
                version: version.to_owned(),
                resource: resource.to_owned(),
                subresource,
                kind: entry["kind"].as_str().unwrap().to_owned(),
                namespaced: entry["namespaced"].as_bool().unwrap(),
                verbs: verbs.map(|verb| verb.as_str().unwrap().to_owned()).collect(),
            });
        }
    }
    out
}

/// A name of an object: both groups of Events show the same ones.
fn name_in(group: &str) -> &'static str {
    if group == "events.k8s.io" {
        "ok-newer"
    } else {
        "ok"
    }
}

/// One request for a verb.
async fn ask(
    client: &Client,
    served: &Served,
    verb: &str,
    namespace: &str,
    name: &str,
    body: &Value,
) -> Reply {
    let all = served.collection(namespace);
    let one = match &served.subresource {
        Some(sub) => format!("{all}/{name}/{sub}"),
        None => format!("{all}/{name}"),
    };
    let json = [("content-type", "application/json")];
    let merge = [("content-type", "application/merge-patch+json")];
    let body = body.to_string();
    match verb {
        "get" => client.get(&one).await,
        "list" => client.get(&all).await,
        // The stream of a watch that may not be opened is a plain answer.
        "watch" => {
            client
                .get(&format!(
                    "{all}?watch=1&timeoutSeconds=1&resourceVersion=1&fieldSelector=metadata.name%3Dnone"
                ))
                .await
        }
        "create" if served.subresource.is_some() => client.call(Method::POST, &one, &json, body).await,
        "create" => client.call(Method::POST, &all, &json, body).await,
        "update" => client.call(Method::PUT, &one, &json, body).await,
        "patch" => client.call(Method::PATCH, &one, &merge, "{}").await,
        "delete" => client.delete(&one).await,
        "deletecollection" => client.delete(&format!("{all}?labelSelector=none")).await,
        other => panic!("discovery of {} names a verb {other}", served.name()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_nobody_may_do_nothing_anywhere() {
    let server = Harness::start().await;
    let anonymous = server.anonymous();
    let wrong = anonymous.bearer("no.such.token");
    let mut tried = 0;
    for served in everything(&server.admin).await {
        for verb in &served.verbs {
            for client in [&anonymous, &wrong] {
                let reply = ask(client, &served, verb, "default", "x", &json!({})).await;
                reply.refused(401, "Unauthorized");
                tried += 1;
            }
        }
    }
    assert!(tried > 200, "{tried}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_right_is_told_which_one_he_lacks() {
    let server = Harness::start().await;
    let nobody = server.client(&Subject::user("nobody-special", &[]));
    for served in everything(&server.admin).await {
        // Everybody may ask what they may do.
        if served.kind.starts_with("SelfSubject") {
            continue;
        }
        for verb in &served.verbs {
            let reply = ask(&nobody, &served, verb, "default", "x", &json!({})).await;
            let status = reply.refused(403, "Forbidden");
            let message = status["message"].as_str().unwrap();
            let wanted = format!("cannot {verb} resource \"{}\"", served.rule_name());
            assert!(
                message.contains("User \"nobody-special\"") && message.contains(&wanted),
                "{}: {message}",
                served.name()
            );
            let place = if served.namespaced {
                "in the namespace \"default\""
            } else {
                "at the cluster scope"
            };
            assert!(message.contains(place), "{}: {message}", served.name());
            assert_eq!(status["details"]["kind"], served.resource, "{}", served.name());
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_right_in_one_namespace_is_none_in_another() {
    let server = Harness::start().await;
    let admin = &server.admin;
    for name in ["one", "two"] {
        let namespace = json!({"metadata": {"name": name}});
        admin.post("/api/v1/namespaces", &namespace).await.expect(201);
    }
    let role = json!({
        "metadata": {"name": "all"},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
    });
    admin
        .post(&format!("{RBAC}/namespaces/one/roles"), &role)
        .await
        .expect(201);
    let binding = json!({
        "metadata": {"name": "all"}, "subjects": [{"kind": "User", "name": "local"}],
        "roleRef": {"kind": "Role", "name": "all", "apiGroup": "rbac.authorization.k8s.io"},
    });
    admin
        .post(&format!("{RBAC}/namespaces/one/rolebindings"), &binding)
        .await
        .expect(201);
    let local = server.client(&Subject::user("local", &[]));
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while local.get("/api/v1/namespaces/one/configmaps").await.status != 200 {
        assert!(tokio::time::Instant::now() < deadline, "the binding never counts");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    for served in everything(admin).await {
        if served.kind.starts_with("SelfSubject") {
            continue;
        }
        for verb in &served.verbs {
            let reply = ask(&local, &served, verb, "two", "x", &json!({})).await;
            reply.refused(403, "Forbidden");
            if served.namespaced {
                let reply = ask(&local, &served, verb, "one", "x", &json!({})).await;
                assert_ne!(reply.status, 403, "{verb} {}", served.name());
                assert_ne!(reply.status, 401, "{verb} {}", served.name());
            }
        }
        // A list over all namespaces is more than a right in one.
        if served.namespaced && served.verbs.iter().any(|verb| verb == "list") {
            let all = format!("{}/{}", served.base, served.resource);
            local.get(&all).await.refused(403, "Forbidden");
        }
    }
    server.stop().await;
}

/// What is asked of a review.
fn question(kind: &str) -> Value {
    let on = json!({"verb": "get", "resource": "tasks", "group": "panda.dev", "namespace": "default"});
    match kind {
        "TokenReview" => json!({"spec": {"token": "none"}}),
        "SelfSubjectRulesReview" => json!({"spec": {"namespace": "default"}}),
        "SelfSubjectAccessReview" => json!({"spec": {"resourceAttributes": on}}),
        "SubjectAccessReview" | "LocalSubjectAccessReview" => {
            json!({"spec": {"user": "x", "resourceAttributes": on}})
        }
        _ => json!({}),
    }
}

/// These are answered by the device service and the log reader, which this server runs without; their own tests have
/// them. What is checked here is that nothing else stands in the list.
const ELSEWHERE: [&str; 5] = [
    "runs/artifacts.panda.dev",
    "runs/binding.panda.dev",
    "runs/events.panda.dev",
    "runs/log.panda.dev",
    "tasks/log.panda.dev",
];

/// What no right gives: it is the signer's alone.
const SIGNERS: &str = "certificatesigningrequests/status.certificates.k8s.io";

#[tokio::test(flavor = "multi_thread")]
async fn who_has_every_right_can_use_every_verb() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let mut elsewhere = Vec::new();
    let mut made = Vec::new();
    let mut request = String::new();
    for served in everything(admin).await {
        if ELSEWHERE.contains(&served.name().as_str()) {
            elsewhere.push(served.name());
            continue;
        }
        let mut name = name_in(&served.group);
        let verbs: Vec<&str> = served.verbs.iter().map(String::as_str).collect();
        if verbs == ["create"] && served.subresource.is_none() {
            let reply = ask(admin, &served, "create", "default", name, &question(&served.kind)).await;
            assert_eq!(reply.expect(201)["kind"], served.kind.as_str());
            continue;
        }
        if served.subresource.as_deref() == Some("token") {
            let reply = ask(admin, &served, "create", "default", name, &json!({"spec": {}})).await;
            assert!(reply.expect(201)["status"]["token"].is_string());
            continue;
        }
        if served.subresource.is_none() {
            let info =
                panda_api::scheme::by_plural(&served.group, &served.version, &served.resource).unwrap();
            if served.kind == "CertificateSigningRequest" {
                // Only a device that may join makes one.
                request = join::device_request(&server).await;
            } else {
                let reply = ask(admin, &served, "create", "default", name, &sample(info, name)).await;
                assert_eq!(reply.expect(201)["metadata"]["name"], name, "{}", served.name());
            }
            made.push(format!("{}/{name}", served.collection("default")));
        }
        if served.resource == "certificatesigningrequests" {
            name = &request;
        }
        let one = format!("{}/{name}", served.collection("default"));
        for verb in verbs.iter().filter(|verb| !["create", "delete"].contains(verb)) {
            let now = admin.get(&one).await.expect(200);
            let reply = ask(admin, &served, verb, "default", name, &now).await;
            if served.name() == SIGNERS && *verb != "get" {
                reply.refused(403, "Forbidden");
                continue;
            }
            assert_eq!(
                reply.status,
                200,
                "{verb} {}: {}",
                served.name(),
                String::from_utf8_lossy(&reply.body)
            );
        }
    }
    assert_eq!(elsewhere, ELSEWHERE);
    // In the opposite order, so that the namespace goes last.
    for one in made.iter().rev() {
        if admin.get(one).await.status == 200 {
            admin.delete(one).await.expect(200);
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_not_found_from_another_namespace() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let other = json!({"metadata": {"name": "other"}});
    admin.post("/api/v1/namespaces", &other).await.expect(201);
    for served in everything(admin).await {
        let stored = served.verbs.iter().any(|verb| verb == "list");
        if !served.namespaced || served.subresource.is_some() || !stored {
            continue;
        }
        let name = name_in(&served.group);
        let info = panda_api::scheme::by_plural(&served.group, &served.version, &served.resource).unwrap();
        let object = sample(info, name);
        ask(admin, &served, "create", "default", name, &object)
            .await
            .expect(201);
        for verb in ["get", "update", "patch", "delete"] {
            let mut body = object.clone();
            body["metadata"]["resourceVersion"] = json!("1");
            let reply = ask(admin, &served, verb, "other", name, &body).await;
            reply.refused(404, "NotFound");
        }
        let list = admin.get(&served.collection("other")).await.expect(200);
        assert!(
            !super::names(&list).contains(&name.to_owned()),
            "{}",
            served.name()
        );
        let mut misplaced = object.clone();
        misplaced["metadata"]["namespace"] = json!("default");
        ask(admin, &served, "create", "other", name, &misplaced)
            .await
            .refused(400, "BadRequest");
        let mut nowhere = object;
        nowhere["metadata"]["name"] = json!("lost");
        ask(admin, &served, "create", "no-such-namespace", "lost", &nowhere)
            .await
            .refused(404, "NotFound");
    }
    server.stop().await;
}
