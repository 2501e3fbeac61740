//! Field validation: unknown and duplicate fields, in the object and in its metadata.

use http::Method;
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Harness, Reply, TASKS};

async fn send(server: &Harness, path: &str, mode: &str, body: &str) -> Reply {
    let path = format!("{path}?dryRun=All&fieldValidation={mode}");
    let json = [("content-type", "application/json")];
    server
        .admin
        .call(Method::POST, &path, &json, body.to_owned())
        .await
}

fn warnings(reply: &Reply) -> Vec<String> {
    let all = reply.headers.get_all("warning").iter();
    all.map(|text| text.to_str().unwrap().to_owned()).collect()
}

const TASK: &str = r#"{"apiVersion":"panda.dev/v1alpha1","kind":"Task","metadata":{"name":"a","nope":1,"labels":{"l":"1","l":"2"}},
    "spec":{"prompt":"p","prompt":"q","verify":[{"name":"v","command":["true"],"wat":1}],"hm":{}}}"#;
const MAP: &str = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","nope":1},"data":{"k":"a","k":"b"},"hm":1}"#;

#[tokio::test(flavor = "multi_thread")]
async fn one_strict_error_names_every_unknown_and_duplicate_field_of_every_kind() {
    let server = Harness::start().await;
    for (path, kind, body, fields) in [
        (
            TASKS,
            "Task in version \"v1alpha1\" cannot be handled as a Task",
            TASK,
            &[
                "unknown field \"metadata.nope\"",
                "unknown field \"spec.hm\"",
                "unknown field \"spec.verify[0].wat\"",
                "duplicate field \"metadata.labels.l\"",
                "duplicate field \"spec.prompt\"",
            ][..],
        ),
        (
            CONFIG_MAPS,
            "ConfigMap in version \"v1\" cannot be handled as a ConfigMap",
            MAP,
            &[
                "unknown field \"metadata.nope\"",
                "unknown field \"hm\"",
                "duplicate field \"data.k\"",
            ],
        ),
    ] {
        let status = send(&server, path, "Strict", body)
            .await
            .refused(400, "BadRequest");
        let message = status["message"].as_str().unwrap();
        assert!(
            message.starts_with(&format!("{kind}: strict decoding error: ")),
            "{message}"
        );
        let warned = send(&server, path, "Warn", body).await;
        let texts = warnings(&warned);
        for field in fields {
            assert!(message.contains(field), "{field} is not in {message}");
            let text = format!("299 - \"{}\"", field.replace('"', "\\\""));
            assert!(texts.contains(&text), "{field} is not in {texts:?}");
        }
        assert_eq!(texts.len(), fields.len(), "{texts:?}");
        let (unknown, duplicate) = (
            message.rfind("unknown field").unwrap(),
            message.find("duplicate field").unwrap(),
        );
        assert!(unknown < duplicate, "{message}");
        let ignored = send(&server, path, "Ignore", body).await;
        assert!(warnings(&ignored).is_empty());
        // In every mode what is not in the schema is gone.
        for object in [warned.expect(201), ignored.expect(201)] {
            let text = object.to_string();
            for word in ["nope", "\"hm\"", "\"wat\""] {
                assert!(!text.contains(word), "{text}");
            }
        }
        send(&server, path, "Maybe", body).await.refused(422, "Invalid");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_and_patches_are_validated_alike() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let made = admin.post(TASKS, &super::task("a", "x")).await.expect(201);
    let one = format!("{TASKS}/a");
    let mut odd = made.clone();
    odd["spec"]["hm"] = json!(1);
    let strict = format!("{one}?fieldValidation=Strict");
    for reply in [
        admin.put(&strict, &odd).await,
        admin.merge(&strict, &json!({"spec": {"hm": 1}})).await,
        admin
            .json_patch(&strict, &json!([{"op": "add", "path": "/spec/hm", "value": 1}]))
            .await,
    ] {
        let status = reply.refused(400, "BadRequest");
        assert!(
            status["message"]
                .as_str()
                .unwrap()
                .contains("unknown field \"spec.hm\""),
            "{status}"
        );
    }
    assert_eq!(admin.get(&one).await.expect(200), made);
    // Nothing is left of it, so nothing has changed.
    let warned = admin.put(&one, &odd).await;
    assert_eq!(warned.expect(200), made);
    assert_eq!(warnings(&warned), ["299 - \"unknown field \\\"spec.hm\\\"\""]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_and_mistyped_fields_are_named() {
    let server = Harness::start().await;
    let object = |spec: Value| json!({"apiVersion": "panda.dev/v1alpha1", "kind": "Task", "metadata": {"name": "a"}, "spec": spec});
    for (spec, field, reason) in [
        (json!({}), "spec.prompt", "FieldValueRequired"),
        (
            json!({"prompt": {"not": "text"}}),
            "spec.prompt",
            "FieldValueTypeInvalid",
        ),
        (
            json!({"prompt": "p", "mode": "Sideways"}),
            "spec.mode",
            "FieldValueNotSupported",
        ),
        (
            json!({"prompt": "p", "verify": [{"command": ["true"]}]}),
            "spec.verify[0].name",
            "FieldValueRequired",
        ),
    ] {
        let status = server
            .admin
            .post(TASKS, &object(spec))
            .await
            .refused(422, "Invalid");
        let causes = status["details"]["causes"].as_array().unwrap();
        assert!(
            causes
                .iter()
                .any(|cause| cause["field"] == field && cause["reason"] == reason),
            "{field} {reason}: {status}"
        );
    }
    server.stop().await;
}
