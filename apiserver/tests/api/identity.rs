//! Who asks and what they may do, as clients see it.

use http::Method;
use panda_api::meta::ObjectMeta;
use panda_api::{Lease, Resource, Run, RunPhase, Task};
use panda_apiserver::pki::Subject;
use panda_store::{Body, Key, Op, Txn};
use serde_json::{Value, json};

use crate::harness::{Client, Harness, PATIENCE, Reply, TASKS};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const WHOAMI: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

async fn with_token(server: &Harness, token: &str, method: Method, path: &str, body: &Value) -> Reply {
    let bearer = format!("Bearer {token}");
    let headers = [
        ("authorization", bearer.as_str()),
        ("content-type", "application/json"),
    ];
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    server.anonymous().call(method, path, &headers, body).await
}

async fn who(server: &Harness, token: &str) -> Reply {
    with_token(server, token, Method::POST, WHOAMI, &json!({})).await
}

/// Grants a ClusterRole to a user, in the namespace `default`.
async fn grant(server: &Harness, role: &str, user: &str) {
    let binding = json!({
        "metadata": {"name": format!("{role}-{user}")}, "subjects": [{"kind": "User", "name": user}],
        "roleRef": {"kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io"},
    });
    let path = format!("{RBAC}/namespaces/default/rolebindings");
    server.admin.post(&path, &binding).await.expect(201);
}

/// Waits until a role that was bound is in force.
async fn until_allowed(client: &Client, path: &str) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while client.get(path).await.status != 200 {
        assert!(tokio::time::Instant::now() < deadline, "never allowed: {path}");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

pub(crate) async fn account(server: &Harness, name: &str) -> String {
    let made = server
        .admin
        .post(ACCOUNTS, &json!({"metadata": {"name": name}}))
        .await;
    made.expect(201);
    let request = json!({"spec": {"expirationSeconds": 600}});
    let answer = server
        .admin
        .post(&format!("{ACCOUNTS}/{name}/token"), &request)
        .await
        .expect(201);
    assert_eq!(answer["kind"], "TokenRequest");
    assert!(answer["status"]["expirationTimestamp"].is_string());
    answer["status"]["token"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_ends_with_its_account() {
    let server = Harness::start().await;
    let token = account(&server, "bot").await;
    let me = who(&server, &token).await.expect(201);
    assert_eq!(
        me["status"]["userInfo"]["username"],
        "system:serviceaccount:default:bot"
    );
    assert_eq!(me["status"]["userInfo"]["groups"][0], "system:serviceaccounts");
    with_token(&server, &token, Method::GET, TASKS, &Value::Null)
        .await
        .refused(403, "Forbidden");
    server.admin.delete(&format!("{ACCOUNTS}/bot")).await.expect(200);
    who(&server, &token).await.refused(401, "Unauthorized");
    let again = account(&server, "bot").await;
    who(&server, &token).await.refused(401, "Unauthorized");
    who(&server, &again).await.expect(201);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_are_no_good_are_refused_also_where_nobody_need_be_known() {
    let server = Harness::start().await;
    let other = Harness::start().await;
    let foreign = account(&other, "bot").await;
    account(&server, "bot").await;
    for token in ["garbage", "a.b.c", "", &foreign, &"x".repeat(10_000)] {
        who(&server, token).await.refused(401, "Unauthorized");
        with_token(&server, token, Method::GET, "/version", &Value::Null)
            .await
            .refused(401, "Unauthorized");
    }
    let basic = [("authorization", "Basic YWRtaW46YWRtaW4=")];
    let reply = server.anonymous().call(Method::GET, "/version", &basic, "").await;
    reply.refused(401, "Unauthorized");
    server.anonymous().get("/version").await.expect(200);
    let for_others = json!({"spec": {"audiences": ["elsewhere"]}});
    let path = format!("{ACCOUNTS}/bot/token");
    let answer = server.admin.post(&path, &for_others).await.expect(201);
    let token = answer["status"]["token"].as_str().unwrap();
    who(&server, token).await.refused(401, "Unauthorized");
    let review = json!({"spec": {"token": token, "audiences": ["elsewhere"]}});
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let answer = server.admin.post(reviews, &review).await.expect(201);
    assert_eq!(answer["status"]["authenticated"], true);
    assert!(answer["spec"].get("token").is_none());
    let answer = server
        .admin
        .post(reviews, &json!({"spec": {"token": token}}))
        .await
        .expect(201);
    assert_eq!(answer["status"]["authenticated"], false);
    for bad in [
        json!({"expirationSeconds": 599}),
        json!({"expirationSeconds": 1i64 << 33}),
        json!({"boundObjectRef": {"kind": "Pod", "name": "x"}}),
        json!({"audiences": [""]}),
    ] {
        server
            .admin
            .post(&path, &json!({"spec": bad}))
            .await
            .refused(422, "Invalid");
    }
    let missing = format!("{ACCOUNTS}/nobody/token");
    server
        .admin
        .post(&missing, &json!({}))
        .await
        .refused(404, "NotFound");
    server.admin.get(&path).await.refused(405, "MethodNotAllowed");
    server.stop().await;
    other.stop().await;
}

async fn put<K: Resource>(server: &Harness, object: &K) {
    let meta = object.metadata();
    let key = Key::new(
        format!("{}/{}", K::GROUP, K::PLURAL),
        meta.namespace.as_str(),
        meta.name.as_str(),
    );
    let mut value = serde_json::to_value(object).unwrap();
    value["metadata"]["resourceVersion"] = json!("");
    let bytes = value.to_string();
    let gap = bytes.find(r#""resourceVersion":"""#).unwrap() + r#""resourceVersion":""#.len();
    let body = Body::new(bytes.into_bytes(), gap);
    let op = match server.store.get(key.clone()).await.unwrap() {
        Some(entry) => Op::update(key, entry.revision, body),
        None => Op::create(key, body),
    };
    server.store.commit(Txn::new(vec![op])).await.unwrap();
}

/// A Task with a token for its Run, its Run and its Lease, as binding leaves them.
fn at_work(spec: Value) -> (Task, Run, Lease) {
    let meta = |name: &str, uid: &str| ObjectMeta {
        namespace: "default".into(),
        uid: uid.into(),
        ..ObjectMeta::named(name)
    };
    let mut task = Task {
        metadata: meta("fix", "task-uid"),
        spec: serde_json::from_value(spec).unwrap(),
        ..Task::default()
    };
    task.spec.api_access = Some(true);
    let mut run = Run {
        metadata: meta("fix-1", "run-uid"),
        ..Run::default()
    };
    run.spec.task_ref.name = "fix".into();
    run.spec.task_ref.uid = "task-uid".into();
    run.spec.device_uid = "device-uid".into();
    run.spec.lease_epoch = Some(1);
    run.spec.sandbox = task.spec.sandbox.clone();
    let mut lease = Lease {
        metadata: meta("fix-1", "lease-uid"),
        ..Lease::default()
    };
    lease.spec.holder_identity = Some("device-uid".into());
    lease.spec.lease_transitions = Some(1);
    (task, run, lease)
}

fn task(name: &str, spec: Value) -> Value {
    let mut object =
        json!({"apiVersion": "panda.dev/v1alpha1", "kind": "Task", "metadata": {"name": name}, "spec": spec});
    object["spec"]["prompt"] = json!("p");
    object
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_makes_tasks_within_its_own_and_nothing_else() {
    let server = Harness::start().await;
    let own = json!({"prompt": "p", "agents": [{"name": "a"}], "sandbox": {"profile": "Off", "network": {"mode": "Host"}}});
    let (work, mut run, mut lease) = at_work(own);
    put(&server, &work).await;
    put(&server, &run).await;
    put(&server, &lease).await;
    let token = server.run_tokens.mint(&run);
    let me = who(&server, &token).await.expect(201);
    assert_eq!(me["status"]["userInfo"]["username"], "panda:run:default:run-uid");
    let post = |path: String, body: Value| {
        let (server, token) = (&server, token.as_str());
        async move { with_token(server, token, Method::POST, &path, &body).await }
    };
    let tasks = TASKS.to_owned();
    post(tasks.clone(), task("child", json!({"agents": [{"name": "a"}]})))
        .await
        .expect(201);
    let other = post(tasks.clone(), task("b", json!({"agents": [{"name": "b"}]}))).await;
    let other = other.refused(403, "Forbidden");
    assert!(
        other["message"].as_str().unwrap().contains("spec.agents"),
        "{other}"
    );
    let secret = json!({"agents": [{"name": "a"}], "env": [{"name": "T", "valueFrom": {"secretKeyRef": {"name": "gh", "key": "k"}}}]});
    post(tasks.clone(), task("c", secret))
        .await
        .refused(403, "Forbidden");
    for (path, body) in [
        (SECRETS.to_owned(), json!({"metadata": {"name": "s"}})),
        (ACCOUNTS.to_owned(), json!({"metadata": {"name": "s"}})),
        (
            format!("{RBAC}/clusterrolebindings"),
            json!({"metadata": {"name": "s"}}),
        ),
        (
            "/apis/panda.dev/v1alpha1/namespaces/panda-system/tasks".to_owned(),
            task("d", json!({})),
        ),
        (
            "/apis/panda.dev/v1alpha1/namespaces/default/agents".to_owned(),
            json!({"metadata": {"name": "s"}}),
        ),
    ] {
        post(path, body).await.refused(403, "Forbidden");
    }
    // Roles do not widen it.
    grant(&server, "cluster-admin", "panda:run:default:run-uid").await;
    let get = |path: &'static str| {
        let (server, token) = (&server, token.as_str());
        async move { with_token(server, token, Method::GET, path, &Value::Null).await }
    };
    get(TASKS).await.expect(200);
    get(SECRETS).await.refused(403, "Forbidden");

    lease.spec.lease_transitions = Some(2);
    put(&server, &lease).await;
    who(&server, &token).await.refused(401, "Unauthorized");
    lease.spec.lease_transitions = Some(1);
    put(&server, &lease).await;
    who(&server, &token).await.expect(201);
    run.status.phase = Some(RunPhase::Succeeded);
    put(&server, &run).await;
    who(&server, &token).await.refused(401, "Unauthorized");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_look_on_see_no_secret_and_no_log() {
    let server = Harness::start().await;
    grant(&server, "view", "vi").await;
    let vi = server.client(&Subject::user("vi", &[]));
    until_allowed(&vi, TASKS).await;
    for path in [SECRETS, &format!("{SECRETS}/x"), &format!("{TASKS}/x/log")] {
        vi.get(path).await.refused(403, "Forbidden");
    }
    for part in ["log", "events", "artifacts/report"] {
        let path = format!("/apis/panda.dev/v1alpha1/namespaces/default/runs/x/{part}");
        vi.get(&path).await.refused(403, "Forbidden");
    }
    vi.get("/apis/panda.dev/v1alpha1/namespaces/panda-system/tasks")
        .await
        .refused(403, "Forbidden");
    vi.post(TASKS, &task("a", json!({})))
        .await
        .refused(403, "Forbidden");
    let metadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    vi.get_as(SECRETS, metadata).await.refused(403, "Forbidden");
    let controllers = server.client(&Subject::controllers());
    controllers.get_as("/api/v1/secrets", metadata).await.expect(200);
    let both = format!("{metadata},application/json");
    controllers
        .get_as("/api/v1/secrets", &both)
        .await
        .refused(403, "Forbidden");
    controllers.get("/api/v1/secrets").await.refused(403, "Forbidden");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_grants_more_than_they_have() {
    let server = Harness::start().await;
    grant(&server, "admin", "ann").await;
    let ann = server.client(&Subject::user("ann", &[]));
    let roles = format!("{RBAC}/namespaces/default/roles");
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    until_allowed(&ann, &roles).await;
    let role = |name: &str, verb: &str, group: &str, resource: &str| json!({"metadata": {"name": name}, "rules": [{"verbs": [verb], "apiGroups": [group], "resources": [resource]}]});
    ann.post(&roles, &role("own", "get", "panda.dev", "tasks"))
        .await
        .expect(201);
    for (verb, group, resource) in [
        ("*", "*", "*"),
        ("use", "panda.dev", "sandboxprofiles"),
        ("create", "panda.dev", "runs/binding"),
        ("escalate", "rbac.authorization.k8s.io", "roles"),
    ] {
        let refused = ann.post(&roles, &role("more", verb, group, resource)).await;
        let refused = refused.refused(403, "Forbidden");
        assert!(
            refused["message"]
                .as_str()
                .unwrap()
                .contains("not currently held"),
            "{refused}"
        );
    }
    let more = json!({"rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]});
    ann.merge(&format!("{roles}/own"), &more)
        .await
        .refused(403, "Forbidden");
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    ann.merge(&format!("{roles}/own"), &label).await.expect(200);
    let bind = |name: &str, role: &str| {
        json!({"metadata": {"name": name}, "subjects": [{"kind": "User", "name": "bo"}],
            "roleRef": {"kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io"}})
    };
    ann.post(&bindings, &bind("edit", "edit")).await.expect(201);
    ann.post(&bindings, &bind("all", "cluster-admin"))
        .await
        .refused(403, "Forbidden");
    ann.post(&bindings, &bind("none", "not-there"))
        .await
        .refused(403, "Forbidden");
    ann.post(&format!("{RBAC}/clusterrolebindings"), &bind("x", "view"))
        .await
        .refused(403, "Forbidden");
    let other = json!({"roleRef": {"name": "view"}});
    let other = ann
        .merge(&format!("{bindings}/edit"), &other)
        .await
        .refused(422, "Invalid");
    assert!(
        other["message"]
            .as_str()
            .unwrap()
            .contains("cannot change roleRef")
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_without_walls_need_the_verb_use() {
    let server = Harness::start().await;
    grant(&server, "edit", "ed").await;
    let ed = server.client(&Subject::user("ed", &[]));
    until_allowed(&ed, TASKS).await;
    ed.post(TASKS, &task("plain", json!({}))).await.expect(201);
    let off = json!({"sandbox": {"profile": "Off"}});
    let refused = ed
        .post(TASKS, &task("off", off.clone()))
        .await
        .refused(403, "Forbidden");
    assert!(refused["message"].as_str().unwrap().contains("sandboxprofiles"));
    ed.merge(&format!("{TASKS}/plain"), &json!({"spec": off}))
        .await
        .refused(403, "Forbidden");
    server
        .admin
        .post(TASKS, &task("off", off.clone()))
        .await
        .expect(201);
    let prompt = json!({"spec": {"prompt": "something else"}});
    ed.merge(&format!("{TASKS}/off"), &prompt)
        .await
        .refused(403, "Forbidden");
    let cancel = json!({"spec": {"cancel": true}});
    ed.merge(&format!("{TASKS}/off"), &cancel).await.expect(200);
    let role = json!({"metadata": {"name": "unwalled"}, "rules": [
        {"verbs": ["use"], "apiGroups": ["panda.dev"], "resources": ["sandboxprofiles"], "resourceNames": ["Off"]}]});
    server
        .admin
        .post(&format!("{RBAC}/clusterroles"), &role)
        .await
        .expect(201);
    grant(&server, "unwalled", "ed").await;
    let review = json!({"spec": {"resourceAttributes": {
        "verb": "use", "group": "panda.dev", "resource": "sandboxprofiles", "name": "Off", "namespace": "default"}}});
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        if ed.post(path, &review).await.expect(201)["status"]["allowed"] == true {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline);
    }
    ed.post(TASKS, &task("off2", off)).await.expect(201);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn acting_as_another_takes_the_verb_impersonate() {
    let server = Harness::start().await;
    let ask = |client: Client, headers: Vec<(&'static str, &'static str)>| async move {
        let mut all = vec![("content-type", "application/json")];
        all.extend(headers);
        client.call(Method::POST, WHOAMI, &all, "{}").await
    };
    let admin = server.admin.clone();
    let as_jo = vec![("impersonate-user", "jo"), ("impersonate-group", "staff")];
    let me = ask(admin.clone(), as_jo.clone()).await.expect(201);
    assert_eq!(me["status"]["userInfo"]["username"], "jo");
    assert_eq!(
        me["status"]["userInfo"]["groups"],
        json!(["staff", "system:authenticated"])
    );
    let jo = server.client(&Subject::user("vi", &[]));
    ask(jo, as_jo).await.refused(403, "Forbidden");
    ask(admin.clone(), vec![("impersonate-group", "staff")])
        .await
        .refused(400, "BadRequest");
    ask(admin, vec![("impersonate-user", "jo"), ("impersonate-uid", "1")])
        .await
        .refused(400, "BadRequest");
    let device = server.client(&Subject::device("pi", "u"));
    ask(device, vec![("impersonate-user", "jo")])
        .await
        .refused(403, "Forbidden");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reviews_answer_and_are_not_stored() {
    let server = Harness::start().await;
    let authorization = "/apis/authorization.k8s.io/v1";
    let jo = server.client(&Subject::user("jo", &[]));
    let about = json!({"verb": "list", "resource": "secrets", "namespace": "default"});
    let review = json!({"spec": {"resourceAttributes": about}});
    let path = format!("{authorization}/selfsubjectaccessreviews");
    assert_eq!(
        jo.post(&path, &review).await.expect(201)["status"]["allowed"],
        false
    );
    assert_eq!(
        server.admin.post(&path, &review).await.expect(201)["status"]["allowed"],
        true
    );
    server.admin.get(&path).await.refused(405, "MethodNotAllowed");
    jo.post(&path, &json!({"spec": {}}))
        .await
        .refused(400, "BadRequest");
    let rules = format!("{authorization}/selfsubjectrulesreviews");
    let answer = jo
        .post(&rules, &json!({"spec": {"namespace": "default"}}))
        .await
        .expect(201);
    assert!(
        answer["status"]["resourceRules"]
            .as_array()
            .unwrap()
            .iter()
            .any(|r| r["resources"] == json!(["selfsubjectreviews"]))
    );
    assert_eq!(answer["status"]["incomplete"], false);
    let about_jo = json!({"spec": {"user": "jo", "resourceAttributes": about}});
    let others = format!("{authorization}/subjectaccessreviews");
    jo.post(&others, &about_jo).await.refused(403, "Forbidden");
    assert_eq!(
        server.admin.post(&others, &about_jo).await.expect(201)["status"]["allowed"],
        false
    );
    let local = format!("{authorization}/namespaces/default/localsubjectaccessreviews");
    server.admin.post(&local, &about_jo).await.expect(201);
    let elsewhere = format!("{authorization}/namespaces/panda-system/localsubjectaccessreviews");
    server
        .admin
        .post(&elsewhere, &about_jo)
        .await
        .refused(400, "BadRequest");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_built_in_role_that_lost_a_rule_gets_it_back_at_the_next_start() {
    let server = Harness::start().await;
    let view = format!("{RBAC}/clusterroles/view");
    let own = json!([{"verbs": ["get"], "apiGroups": ["x"], "resources": ["y"]}]);
    server
        .admin
        .merge(&view, &json!({"rules": own}))
        .await
        .expect(200);
    let edit = format!("{RBAC}/clusterroles/edit");
    let keep = json!({"metadata": {"annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}}, "rules": own});
    server.admin.merge(&edit, &keep).await.expect(200);
    let store = std::sync::Arc::clone(&server.store);
    let dir = server.halt().await;
    let server = Harness::over_dir(store, dir).await;
    let rules = server.admin.get(&view).await.expect(200)["rules"].clone();
    assert!(rules.as_array().unwrap().len() > 3 && rules.as_array().unwrap().contains(&own[0]));
    assert_eq!(server.admin.get(&edit).await.expect(200)["rules"], own);
    server.stop().await;
}
