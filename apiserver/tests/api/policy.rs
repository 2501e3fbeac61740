//! ValidatingAdmissionPolicies, as a client meets them.

use http::Method;
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Harness, Reply};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";

/// A policy about ConfigMaps, and its binding.
async fn enforce(server: &Harness, name: &str, spec: Value, actions: &[&str], more: Value) {
    let mut policy = json!({
        "matchConstraints": {"resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]},
        ]},
    });
    policy
        .as_object_mut()
        .unwrap()
        .extend(spec.as_object().unwrap().clone());
    let policy = json!({"metadata": {"name": name}, "spec": policy});
    let path = format!("{GROUP}/validatingadmissionpolicies");
    server.admin.post(&path, &policy).await.expect(201);
    let mut binding = json!({"policyName": name, "validationActions": actions});
    binding
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let binding = json!({"metadata": {"name": name}, "spec": binding});
    let path = format!("{GROUP}/validatingadmissionpolicybindings");
    server.admin.post(&path, &binding).await.expect(201);
}

async fn create(server: &Harness, name: &str, data: Value) -> Reply {
    let object = json!({"metadata": {"name": name}, "data": data});
    server.admin.post(CONFIG_MAPS, &object).await
}

fn rule(expression: &str) -> Value {
    json!({"validations": [{"expression": expression}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_policy_denies_is_not_stored_and_says_why() {
    let server = Harness::start().await;
    let spec = json!({
        "variables": [{"name": "size", "expression": "size(object.data)"}],
        "matchConditions": [{"name": "named", "expression": "object.metadata.name.startsWith('big')"}],
        "validations": [
            {"expression": "variables.size < 3", "messageExpression": "'at most 2 entries, found ' + string(variables.size)"},
            {"expression": "request.operation == 'CREATE' || object.data == oldObject.data", "message": "data never changes", "reason": "Forbidden"},
        ],
    });
    enforce(&server, "small", spec, &["Deny"], json!({})).await;
    create(&server, "other", json!({"a": "1", "b": "2", "c": "3"}))
        .await
        .expect(201);
    let status = create(&server, "big", json!({"a": "1", "b": "2", "c": "3"}))
        .await
        .refused(422, "Invalid");
    assert_eq!(
        status["message"],
        "configmaps \"big\" is forbidden: ValidatingAdmissionPolicy 'small' with binding 'small' denied request: \
         at most 2 entries, found 3"
    );
    create(&server, "big", json!({"a": "1"})).await.expect(201);
    let one = format!("{CONFIG_MAPS}/big");
    let status = server
        .admin
        .merge(&one, &json!({"data": {"a": "2"}}))
        .await
        .refused(403, "Forbidden");
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .ends_with("data never changes"),
        "{status}"
    );
    server
        .admin
        .merge(&one, &json!({"metadata": {"labels": {"x": "y"}}}))
        .await
        .expect(200);
    let dry = format!("{CONFIG_MAPS}?dryRun=All");
    let object = json!({"metadata": {"name": "big-2"}, "data": {"a": "1", "b": "2", "c": "3"}});
    server.admin.post(&dry, &object).await.refused(422, "Invalid");
    // Without its binding it says nothing.
    let binding = format!("{GROUP}/validatingadmissionpolicybindings/small");
    server.admin.delete(&binding).await.expect(200);
    create(&server, "big-2", json!({"a": "1", "b": "2", "c": "3"}))
        .await
        .expect(201);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn warnings_go_to_the_client_and_audit_to_the_record() {
    let server = Harness::start().await;
    enforce(
        &server,
        "warns",
        rule("has(object.data.owner)"),
        &["Warn", "Audit"],
        json!({}),
    )
    .await;
    let reply = create(&server, "m", json!({"a": "1"})).await;
    reply.expect(201);
    let warning = reply.header("warning");
    assert!(
        warning.contains("'warns'") && warning.contains("failed expression: has(object.data.owner)"),
        "{warning}"
    );
    assert_eq!(
        create(&server, "n", json!({"owner": "me"}))
            .await
            .header("warning"),
        ""
    );
    let data = server.halt().await;
    let mut noted = Vec::new();
    panda_apiserver::audit::verify::read(&data.path().join("audit"), &mut |_, record| {
        let event: Value = serde_json::from_str(record.unwrap().event).unwrap();
        let note = &event["annotations"]["validation.policy.admission.k8s.io/validation_failure"];
        noted.extend(
            note.as_str()
                .map(|text| (event["objectRef"]["name"].clone(), text.to_owned())),
        );
        true
    })
    .unwrap();
    assert_eq!(noted.len(), 1);
    assert_eq!(noted[0].0, "m");
    assert!(noted[0].1.starts_with("warns/warns: "), "{noted:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_in_force_where_its_binding_says() {
    let server = Harness::start().await;
    let one = json!({"matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "strict"}}}});
    enforce(&server, "strict", rule("false"), &["Deny"], one).await;
    let namespace = json!({"metadata": {"name": "strict"}});
    server
        .admin
        .post("/api/v1/namespaces", &namespace)
        .await
        .expect(201);
    create(&server, "m", json!({})).await.expect(201);
    let there = "/api/v1/namespaces/strict/configmaps";
    let object = json!({"metadata": {"name": "m"}});
    server.admin.post(there, &object).await.refused(422, "Invalid");
    // Other kinds are not meant, and deleting always works.
    let secret = json!({"metadata": {"name": "s"}});
    server
        .admin
        .post("/api/v1/namespaces/strict/secrets", &secret)
        .await
        .expect(201);
    server.admin.delete(&format!("{CONFIG_MAPS}/m")).await.expect(200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_or_costs_too_much_is_denied_or_ignored_as_the_policy_says() {
    let server = Harness::start().await;
    let lists = "object.data.all(a, object.data.all(b, a + b != object.metadata.name))";
    for (name, expression) in [
        ("missing", "object.data.nothing == 'x'"),
        ("costly", lists),
        ("text", "'true'"),
    ] {
        enforce(&server, name, rule(expression), &["Deny"], json!({})).await;
        let data: serde_json::Map<String, Value> = (0..1000).map(|n| (format!("k{n}"), "v".into())).collect();
        let status = create(&server, "m", data.clone().into())
            .await
            .refused(422, "Invalid");
        assert!(
            status["message"].as_str().unwrap().contains("resulted in error"),
            "{status}"
        );
        let policy = format!("{GROUP}/validatingadmissionpolicies/{name}");
        server
            .admin
            .merge(&policy, &json!({"spec": {"failurePolicy": "Ignore"}}))
            .await
            .expect(200);
        create(&server, &format!("m-{name}"), data.into())
            .await
            .expect(201);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_cannot_work_is_refused_with_the_path_of_its_fault() {
    let server = Harness::start().await;
    let policies = format!("{GROUP}/validatingadmissionpolicies");
    let good = json!({"metadata": {"name": "p"}, "spec": {
        "matchConstraints": {"resourceRules": [
            {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["*"]},
        ]},
        "validations": [{"expression": "true"}],
    }});
    server
        .admin
        .post(&format!("{policies}?dryRun=All"), &good)
        .await
        .expect(201);
    for (pointer, value, field) in [
        (
            "/spec/validations/0/expression",
            json!("object.x +"),
            "spec.validations[0].expression",
        ),
        (
            "/spec/validations/0/expression",
            json!("params.x == 1"),
            "spec.validations[0].expression",
        ),
        (
            "/spec/validations/0/messageExpression",
            json!("fly()"),
            "spec.validations[0].messageExpression",
        ),
        (
            "/spec/validations/0/reason",
            json!("Why"),
            "spec.validations[0].reason",
        ),
        ("/spec/validations", json!([]), "spec.validations"),
        (
            "/spec/paramKind",
            json!({"apiVersion": "v1", "kind": "ConfigMap"}),
            "spec.paramKind",
        ),
        ("/spec/failurePolicy", json!("Maybe"), "spec.failurePolicy"),
        (
            "/spec/matchConstraints/resourceRules",
            json!([]),
            "spec.matchConstraints.resourceRules",
        ),
        (
            "/spec/matchConstraints/resourceRules/0/operations",
            json!(["DELETE"]),
            "spec.matchConstraints.resourceRules[0].operations[0]",
        ),
    ] {
        let mut bad = good.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        bad.pointer_mut(parent).unwrap()[key] = value;
        let status = server.admin.post(&policies, &bad).await.refused(422, "Invalid");
        assert_eq!(status["details"]["causes"][0]["field"], field, "{status}");
    }
    let bindings = format!("{GROUP}/validatingadmissionpolicybindings");
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny", "Warn"]}});
    server
        .admin
        .post(&bindings, &binding)
        .await
        .refused(422, "Invalid");
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"], "paramRef": {"name": "x"}}});
    let status = server
        .admin
        .call(
            Method::POST,
            &bindings,
            &[("content-type", "application/json")],
            binding.to_string(),
        )
        .await;
    assert_eq!(
        status.refused(422, "Invalid")["details"]["causes"][0]["field"],
        "spec.paramRef"
    );
    server.stop().await;
}
