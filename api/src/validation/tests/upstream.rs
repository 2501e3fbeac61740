use super::*;

#[test]
fn secrets_take_plain_text_and_never_repeat_a_value() {
    let secret = |more: Value| {
        let mut object =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "web"}});
        merge(&mut object, more);
        object
    };
    let stored = created(secret(
        json!({"data": {"a": "YQ==", "b": "eA=="}, "stringData": {"b": "hé"}}),
    ));
    assert_eq!(stored["data"], json!({"a": "YQ==", "b": "aMOp"}));
    assert_eq!(
        (stored.get("stringData"), &stored["type"]),
        (None, &json!("Opaque"))
    );
    for (more, field) in [
        (json!({"data": {"a": "hunter2!"}}), "data.a"),
        (json!({"data": {"a": 42_4242}}), "data.a"),
        (json!({"stringData": {"a": true}}), "stringData.a"),
        (json!({"data": {"a/b": "YQ=="}}), "data"),
    ] {
        let Err(Error::Invalid(errors)) = create(secret(more)) else {
            panic!("accepted")
        };
        assert_eq!(errors[0].field.to_string(), field);
        let text = errors[0].to_string();
        assert!(
            !text.contains("hunter2") && !text.contains("424242") && !text.contains("true"),
            "{text}"
        );
    }
    let frozen = created(secret(json!({"data": {"a": "YQ=="}, "immutable": true})));
    let changed = secret(json!({"data": {"a": "Yg=="}, "immutable": true}));
    assert_eq!(faults(update(&frozen, changed)), [("data".to_owned(), Forbidden)]);
    let thawed = secret(json!({"data": {"a": "YQ=="}}));
    assert_eq!(
        faults(update(&frozen, thawed)),
        [("immutable".to_owned(), Forbidden)]
    );
    let retyped = secret(json!({"type": "x", "data": {"a": "YQ=="}, "immutable": true}));
    assert_eq!(faults(update(&frozen, retyped)), [("type".to_owned(), Invalid)]);
}

#[test]
fn the_other_upstream_kinds_keep_their_rules() {
    let meta = json!({"name": "x", "namespace": "web"});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"a": "b"}, "binaryData": {"a": "YQ=="}});
    refused(map, "binaryData.a", Duplicate);
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": meta, "involvedObject": {"namespace": "other"}});
    refused(event, "involvedObject.namespace", Invalid);
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": meta, "type": "Bad"});
    refused(event, "type", NotSupported);
    let lease = |n: i64| json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": {"leaseTransitions": n}});
    refused(lease(-1), "spec.leaseTransitions", Invalid);
    let old = created(lease(3));
    assert_eq!(
        faults(update(&old, lease(2))),
        [("spec.leaseTransitions".to_owned(), Invalid)]
    );
    let namespace = created(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "web"}}));
    assert_eq!(namespace["status"]["phase"], "Active");
    let taint = json!({"key": "a", "effect": "NoRun"});
    let device = json!({"apiVersion": "panda.dev/v1alpha1", "kind": "Device", "metadata": {"name": "d"}, "spec": {"taints": [taint]}});
    refused(device, "spec.taints[0].effect", NotSupported);
}
