//! Defaults, rules and their words, kind by kind.

mod agent;
mod upstream;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::FieldReason::{self, *};
use crate::scheme::{Error, KindInfo, Operation, Prepared, by_kind, prepare};

fn info(object: &Value) -> &'static KindInfo {
    by_kind(
        object["apiVersion"].as_str().unwrap(),
        object["kind"].as_str().unwrap(),
    )
    .unwrap()
}

fn create(object: Value) -> Result<Prepared, Error> {
    prepare(info(&object), object, Operation::Create)
}

fn created(object: Value) -> Value {
    create(object).unwrap_or_else(|e| panic!("{e:?}")).object
}

fn update(old: &Value, new: Value) -> Result<Prepared, Error> {
    prepare(info(&new), new, Operation::Update { old })
}

fn faults(result: Result<Prepared, Error>) -> Vec<(String, FieldReason)> {
    match result {
        Ok(_) => Vec::new(),
        Err(Error::Invalid(errors)) => errors.iter().map(|e| (e.field.to_string(), e.reason)).collect(),
        Err(Error::Malformed(text)) => panic!("malformed: {text}"),
    }
}

fn task(spec: Value) -> Value {
    let mut object = json!({"apiVersion": "panda.dev/v1alpha1", "kind": "Task", "metadata": {"name": "t", "namespace": "web"}, "spec": {"prompt": "p"}});
    merge(&mut object["spec"], spec);
    object
}

fn agent(spec: Value) -> Value {
    let mut object = json!({"apiVersion": "panda.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "a", "namespace": "web"},
        "spec": {"drivers": [{"kind": "Exec", "command": ["sh", "-c", "{{prompt}}"]}]}});
    merge(&mut object["spec"], spec);
    object
}

fn run(spec: Value) -> Value {
    let mut object = json!({"apiVersion": "panda.dev/v1alpha1", "kind": "Run", "metadata": {"name": "r", "namespace": "web"},
        "spec": {"taskRef": {"name": "t", "uid": "u"}, "attempt": 1, "prompt": "p", "agent": {"name": "a"}}});
    merge(&mut object["spec"], spec);
    object
}

fn merge(into: &mut Value, from: Value) {
    if let Value::Object(from) = from {
        for (key, value) in from {
            into[key] = value;
        }
    }
}

/// The only fault of the object made from `spec`.
#[track_caller]
fn refused(object: Value, field: &str, reason: FieldReason) {
    let text = object.to_string();
    assert_eq!(faults(create(object)), [(field.to_owned(), reason)], "{text}");
}

#[test]
fn a_task_gets_the_documented_defaults_and_no_others() {
    assert_eq!(
        created(task(json!({})))["spec"],
        json!({
            "prompt": "p", "mode": "Direct",
            "device": {"onDisconnect": {"policy": "Continue", "after": "10m", "onReturn": "KeepFirst"}},
            "supervision": {"silence": "4m", "firstOutput": "2m", "rounds": 5},
            "retry": {"limit": 2, "backoff": {"base": "1s", "factor": 2, "cap": "5m", "jitter": "Full"}},
            "attemptTimeout": "30m",
        })
    );
    let partial = created(task(
        json!({"retry": {"backoff": {"cap": "1m"}}, "supervision": {"rounds": 0}}),
    ));
    assert_eq!(partial["spec"]["retry"]["backoff"]["base"], "1s");
    assert_eq!(partial["spec"]["retry"]["backoff"]["cap"], "1m");
    assert_eq!(partial["spec"]["supervision"]["rounds"], 0);
}

#[test]
fn every_rule_for_disconnection_is_accepted_within_bounds() {
    for policy in ["Continue", "Pause", "Stop"] {
        for on_return in ["KeepFirst", "KeepOld", "KeepNew"] {
            let rule = json!({"policy": policy, "after": "168h", "onReturn": on_return});
            let made = created(task(json!({"device": {"onDisconnect": rule.clone()}})));
            assert_eq!(made["spec"]["device"]["onDisconnect"]["policy"], rule["policy"]);
            assert_eq!(
                made["spec"]["device"]["onDisconnect"]["onReturn"],
                rule["onReturn"]
            );
        }
    }
    for after in ["0s", "169h"] {
        refused(
            task(json!({"device": {"onDisconnect": {"after": after}}})),
            "spec.device.onDisconnect.after",
            Invalid,
        );
    }
}

#[test]
fn what_is_not_built_is_refused_and_asking_for_nothing_is_not() {
    for (spec, field) in [
        (json!({"mode": "Planned"}), "spec.mode"),
        (json!({"mode": "Auto"}), "spec.mode"),
        (
            json!({"device": {"resources": {"gpuMemory": "1Gi"}}}),
            "spec.device.resources.gpuMemory",
        ),
        (
            json!({"workspace": {"git": {"url": "https://x/y"}}}),
            "spec.workspace.git.url",
        ),
        (
            json!({"workspace": {"git": {"path": "/r", "submodules": true}}}),
            "spec.workspace.git.submodules",
        ),
        (
            json!({"workspace": {"git": {"path": "/r", "credentialsRef": {"name": "s"}}}}),
            "spec.workspace.git.credentialsRef",
        ),
        (
            json!({"inputs": [{"name": "a", "from": {"task": "t", "artifact": "b"}}]}),
            "spec.inputs",
        ),
        (json!({"skills": ["a"]}), "spec.skills"),
        (json!({"memory": {"project": true}}), "spec.memory"),
        (json!({"sandbox": {"limits": {"pids": 5}}}), "spec.sandbox.limits"),
        (
            json!({"sandbox": {"network": {"allow": ["x"]}}}),
            "spec.sandbox.network.allow",
        ),
        (
            json!({"verify": [{"name": "a", "agent": "r"}]}),
            "spec.verify[0].agent",
        ),
        (
            json!({"verify": [{"name": "a", "prompt": "r"}]}),
            "spec.verify[0].prompt",
        ),
        (
            json!({"verify": [{"name": "a", "command": ["x"], "device": "Other"}]}),
            "spec.verify[0].device",
        ),
        (json!({"supervision": {"judge": "j"}}), "spec.supervision.judge"),
        (json!({"approval": {"policy": "default"}}), "spec.approval"),
        (json!({"budget": {"tokens": 5}}), "spec.budget"),
        (json!({"preemption": "Lower"}), "spec.preemption"),
        (json!({"dedupeKey": "k"}), "spec.dedupeKey"),
    ] {
        let Err(Error::Invalid(errors)) = create(task(spec.clone())) else {
            panic!("{spec}")
        };
        assert_eq!(errors.len(), 1, "{spec}: {errors:?}");
        assert_eq!(errors[0].cause().field, field);
        assert_eq!(errors[0].cause().reason, "FieldValueForbidden");
        assert_eq!(errors[0].message, "Forbidden: not implemented yet");
    }
    created(task(json!({
        "mode": "Direct", "device": {"onDisconnect": {"after": "600s"}, "resources": {"gpuMemory": "0"}}, "inputs": [], "skills": [],
        "memory": {"project": false, "user": false}, "budget": {}, "preemption": "Never", "apiAccess": false, "dedupeKey": "",
        "sandbox": {"limits": {}, "network": {"allow": []}}, "workspace": {"git": {"path": "/r", "submodules": false}},
    })));
}

#[test]
fn fields_of_a_task_are_checked_where_they_are() {
    for (spec, field, reason) in [
        (json!({"prompt": ""}), "spec.prompt", Required),
        (json!({"prompt": null}), "spec.prompt", Required),
        (
            json!({"prompt": "x".repeat(256 * 1024 + 1)}),
            "spec.prompt",
            TooLong,
        ),
        (json!({"prompt": "a\u{0}b"}), "spec.prompt", Invalid),
        (json!({"agents": [{}]}), "spec.agents[0].name", Required),
        (json!({"agents": [{"name": "A"}]}), "spec.agents[0].name", Invalid),
        (
            json!({"agents": [{"name": "a"}, {"name": "a"}]}),
            "spec.agents[1]",
            Duplicate,
        ),
        (
            json!({"agents": vec![json!({"name": "a"}); 65]}),
            "spec.agents",
            TooMany,
        ),
        (
            json!({"requires": {"capabilities": ["Code Edit"]}}),
            "spec.requires.capabilities[0]",
            Invalid,
        ),
        (json!({"device": {"name": "a/b"}}), "spec.device.name", Invalid),
        (
            json!({"device": {"selector": {"matchLabels": {"a b": "c"}}}}),
            "spec.device.selector.matchLabels",
            Invalid,
        ),
        (
            json!({"device": {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}}),
            "spec.device.selector.matchExpressions[0].values",
            Required,
        ),
        (
            json!({"device": {"selector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}}}),
            "spec.device.selector.matchExpressions[0].operator",
            NotSupported,
        ),
        (
            json!({"device": {"tolerations": [{"operator": "Equals", "key": "a"}]}}),
            "spec.device.tolerations[0].operator",
            NotSupported,
        ),
        (
            json!({"device": {"resources": {"memory": "1gb"}}}),
            "spec.device.resources.memory",
            Invalid,
        ),
        (
            json!({"device": {"resources": {"cpu": "-1"}}}),
            "spec.device.resources.cpu",
            Invalid,
        ),
        (
            json!({"workspace": {"git": {}}}),
            "spec.workspace.git.path",
            Required,
        ),
        (
            json!({"workspace": {"git": {"path": "repos/web"}}}),
            "spec.workspace.git.path",
            Invalid,
        ),
        (
            json!({"workspace": {"git": {"path": "/repos/../etc"}}}),
            "spec.workspace.git.path",
            Invalid,
        ),
        (
            json!({"workspace": {"git": {"path": "/repos//web"}}}),
            "spec.workspace.git.path",
            Invalid,
        ),
        (
            json!({"workspace": {"git": {"path": "/r", "ref": "--upload-pack=x"}}}),
            "spec.workspace.git.ref",
            Invalid,
        ),
        (
            json!({"workspace": {"git": {"path": "/r", "ref": "a..b"}}}),
            "spec.workspace.git.ref",
            Invalid,
        ),
        (
            json!({"workspace": {"writes": [""]}}),
            "spec.workspace.writes[0]",
            Required,
        ),
        (
            json!({"workspace": {"writes": ["/etc/**"]}}),
            "spec.workspace.writes[0]",
            Invalid,
        ),
        (
            json!({"workspace": {"writes": ["src/**", "../x"]}}),
            "spec.workspace.writes[1]",
            Invalid,
        ),
        (
            json!({"workspace": {"writes": ["src/[a"]}}),
            "spec.workspace.writes[0]",
            Invalid,
        ),
        (
            json!({"workspace": {"result": {"branch": "panda/{{nmae}}"}}}),
            "spec.workspace.result.branch",
            Invalid,
        ),
        (
            json!({"workspace": {"result": {"branch": "-x/{{name}}"}}}),
            "spec.workspace.result.branch",
            Invalid,
        ),
        (
            json!({"workspace": {"result": {"branch": "x/{{name}}.lock"}}}),
            "spec.workspace.result.branch",
            Invalid,
        ),
        (
            json!({"workspace": {"result": {"push": "OnSuccess"}}}),
            "spec.workspace.result.push",
            Invalid,
        ),
        (
            json!({"outputs": [{"name": "a", "path": "/x"}]}),
            "spec.outputs[0].path",
            Invalid,
        ),
        (
            json!({"outputs": [{"name": "a", "path": "x/../../y"}]}),
            "spec.outputs[0].path",
            Invalid,
        ),
        (
            json!({"outputs": [{"name": "patch", "path": "x"}]}),
            "spec.outputs[0].name",
            Invalid,
        ),
        (
            json!({"outputs": [{"name": "a", "path": "x"}, {"name": "a", "path": "y"}]}),
            "spec.outputs[1].name",
            Duplicate,
        ),
        (json!({"env": [{"name": "1A"}]}), "spec.env[0].name", Invalid),
        (json!({"env": [{"value": "x"}]}), "spec.env[0].name", Required),
        (
            json!({"env": [{"name": "A"}, {"name": "A"}]}),
            "spec.env[1].name",
            Duplicate,
        ),
        (
            json!({"sandbox": {"profile": "Off", "network": {"mode": "ModelOnly"}}}),
            "spec.sandbox.network.mode",
            Invalid,
        ),
        (
            json!({"sandbox": {"profile": "Loose"}}),
            "spec.sandbox.profile",
            NotSupported,
        ),
        (
            json!({"verify": [{"name": "a"}]}),
            "spec.verify[0].command",
            Required,
        ),
        (
            json!({"verify": [{"name": "a", "command": [""]}]}),
            "spec.verify[0].command[0]",
            Required,
        ),
        (
            json!({"verify": [{"name": "a", "command": ["x"]}, {"name": "a", "command": ["x"]}]}),
            "spec.verify[1].name",
            Duplicate,
        ),
        (
            json!({"verify": [{"name": "a", "command": ["x"], "timeout": "0s"}]}),
            "spec.verify[0].timeout",
            Invalid,
        ),
        (
            json!({"verify": [{"name": "a", "command": ["x"], "restore": ["../t"]}]}),
            "spec.verify[0].restore[0]",
            Invalid,
        ),
        (
            json!({"supervision": {"silence": "0s"}}),
            "spec.supervision.silence",
            Invalid,
        ),
        (
            json!({"supervision": {"rounds": -1}}),
            "spec.supervision.rounds",
            Invalid,
        ),
        (
            json!({"retry": {"backoff": {"factor": 11}}}),
            "spec.retry.backoff.factor",
            Invalid,
        ),
        (
            json!({"retry": {"backoff": {"base": "10s", "cap": "1s"}}}),
            "spec.retry.backoff.cap",
            Invalid,
        ),
        (
            json!({"retry": {"nonRetryableExitCodes": [0]}}),
            "spec.retry.nonRetryableExitCodes[0]",
            Invalid,
        ),
        (json!({"attemptTimeout": "999h"}), "spec.attemptTimeout", Invalid),
        (json!({"attemptTimeout": 30}), "spec.attemptTimeout", TypeInvalid),
        (json!({"deadline": "0s"}), "spec.deadline", Invalid),
        (json!({"deadline": "soon"}), "spec.deadline", Invalid),
        (json!({"rerun": -1}), "spec.rerun", Invalid),
        (json!({"priority": 2_000_000_000}), "spec.priority", Invalid),
    ] {
        refused(task(spec), field, reason);
    }
}

#[test]
fn strong_profiles_and_templates_in_prompts_are_valid() {
    for spec in [
        json!({"sandbox": {"profile": "Strict", "network": {"mode": "None"}}}),
        json!({"sandbox": {"profile": "Standard"}}),
        json!({"sandbox": {"profile": "Off", "network": {"mode": "Host"}}}),
        json!({"sandbox": {"profile": "Off"}}),
        json!({"prompt": "fill in {{whatever}} you like"}),
        json!({"workspace": {"git": {"path": "/repos/web", "ref": "feature/x"}, "writes": ["src/**", "*.{md,txt}"], "result": {"branch": "panda/{{name}}", "push": "OnSuccess"}}}),
        json!({"agents": [{"name": "a", "model": "x"}, {"name": "a", "model": "y"}]}),
    ] {
        created(task(spec));
    }
}

#[test]
fn metadata_is_checked_for_every_kind() {
    for (meta, field, reason) in [
        (json!({"namespace": "web"}), "metadata.name", Required),
        (json!({"name": "A", "namespace": "web"}), "metadata.name", Invalid),
        (
            json!({"name": "a".repeat(254), "namespace": "web"}),
            "metadata.name",
            TooLong,
        ),
        (
            json!({"generateName": "A-", "namespace": "web"}),
            "metadata.generateName",
            Invalid,
        ),
        (json!({"name": "a"}), "metadata.namespace", Required),
        (
            json!({"name": "a", "namespace": "w.b"}),
            "metadata.namespace",
            Invalid,
        ),
        (
            json!({"name": "a", "namespace": "web", "labels": {"a": "b c"}}),
            "metadata.labels.a",
            Invalid,
        ),
        (
            json!({"name": "a", "namespace": "web", "labels": {"-a": "b"}}),
            "metadata.labels",
            Invalid,
        ),
        (
            json!({"name": "a", "namespace": "web", "annotations": {"a": "x".repeat(256 * 1024)}}),
            "metadata.annotations",
            TooLong,
        ),
        (
            json!({"name": "a", "namespace": "web", "finalizers": ["a b"]}),
            "metadata.finalizers[0]",
            Invalid,
        ),
        (
            json!({"name": "a", "namespace": "web", "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": ""}]}),
            "metadata.ownerReferences[0].uid",
            Required,
        ),
        (
            json!({"name": "a", "namespace": "web", "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x"}]}),
            "metadata.ownerReferences[0].uid",
            Required,
        ),
    ] {
        let mut object = task(json!({}));
        object["metadata"] = meta;
        refused(object, field, reason);
    }
    let generated = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "a-", "namespace": "web"}});
    created(generated);
    let device = json!({"apiVersion": "panda.dev/v1alpha1", "kind": "Device", "metadata": {"name": "d", "namespace": "web"}});
    refused(device, "metadata.namespace", Forbidden);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a.b"}});
    refused(namespace, "metadata.name", Invalid);
}

#[test]
fn identity_never_changes_and_deletion_takes_no_new_finalizers() {
    let mut old = created(task(json!({})));
    let mut new = task(json!({}));
    new["metadata"]["name"] = "other".into();
    assert_eq!(faults(update(&old, new)), [("metadata.name".to_owned(), Invalid)]);
    old["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
    old["metadata"]["finalizers"] = json!(["panda.dev/a"]);
    let mut new = task(json!({}));
    new["metadata"]["finalizers"] = json!(["panda.dev/a", "panda.dev/b"]);
    assert_eq!(
        faults(update(&old, new)),
        [("metadata.finalizers".to_owned(), Forbidden)]
    );
    let released = update(&old, task(json!({}))).unwrap().object;
    assert!(released["metadata"].get("finalizers").is_none());
    assert_eq!(released["metadata"]["deletionTimestamp"], "2026-01-02T03:04:05Z");
}

#[test]
fn cancel_is_sticky_and_rerun_only_grows() {
    let spec = |old: Value, new: Value| {
        let old = created(task(old));
        let prepared = update(&old, task(new)).unwrap();
        (
            prepared.object["spec"]["cancel"].clone(),
            prepared.object["spec"]["rerun"].clone(),
            prepared.warnings.len(),
        )
    };
    let (null, yes, no) = (Value::Null, json!(true), json!(false));
    assert_eq!(
        spec(json!({"cancel": true}), json!({"cancel": false})),
        (yes.clone(), null.clone(), 1)
    );
    assert_eq!(
        spec(json!({"cancel": true}), json!({})),
        (yes.clone(), null.clone(), 0)
    );
    assert_eq!(
        spec(json!({}), json!({"cancel": true})),
        (yes.clone(), null.clone(), 0)
    );
    assert_eq!(
        spec(json!({"rerun": 2}), json!({"rerun": 1})),
        (null.clone(), json!(2), 1)
    );
    assert_eq!(spec(json!({"rerun": 2}), json!({})), (null.clone(), json!(2), 0));
    assert_eq!(
        spec(json!({"cancel": true}), json!({"rerun": 1})),
        (no.clone(), json!(1), 0)
    );
    assert_eq!(
        spec(json!({"cancel": true}), json!({"rerun": 1, "cancel": true})),
        (no.clone(), json!(1), 0)
    );
    assert_eq!(
        spec(json!({}), json!({"rerun": 1, "cancel": true})),
        (no, json!(1), 1)
    );
    assert_eq!(
        spec(
            json!({"rerun": 1, "cancel": true}),
            json!({"rerun": 0, "cancel": false})
        ),
        (yes, json!(1), 2)
    );
}

#[test]
fn a_run_is_frozen_but_for_what_binding_and_people_set() {
    let old = created(run(json!({})));
    for (spec, field) in [
        (json!({"prompt": "q"}), Some("spec")),
        (json!({"attempt": 2}), Some("spec")),
        (
            json!({"deviceName": "d", "deviceUid": "du", "leaseEpoch": 1, "sandbox": {"profile": "Off"}}),
            None,
        ),
        (json!({"pause": true}), None),
        (json!({"cancel": true}), None),
        (
            json!({"publish": {"epoch": 1, "expectedOldCommit": "", "tryNumber": 1}}),
            None,
        ),
    ] {
        let found: Vec<String> = faults(update(&old, run(spec))).into_iter().map(|f| f.0).collect();
        assert_eq!(found, field.into_iter().collect::<Vec<_>>());
    }
    let bound = json!({"deviceName": "d", "deviceUid": "du", "leaseEpoch": 1, "cancel": true, "publish": {"epoch": 1, "tryNumber": 2}});
    let old = created(run(bound.clone()));
    for (key, value, field) in [
        ("deviceName", json!("e"), "spec.deviceName"),
        ("deviceUid", json!("e"), "spec.deviceUid"),
        ("leaseEpoch", json!(2), "spec.leaseEpoch"),
        ("leaseEpoch", Value::Null, "spec.leaseEpoch"),
        ("sandbox", json!({"profile": "Off"}), "spec.sandbox"),
        ("publish", json!({"epoch": 1, "tryNumber": 1}), "spec.publish"),
        ("publish", Value::Null, "spec.publish"),
    ] {
        let mut spec = bound.clone();
        spec[key] = value;
        let found: Vec<String> = faults(update(&old, run(spec))).into_iter().map(|f| f.0).collect();
        assert_eq!(found, [field]);
    }
    let mut spec = bound;
    spec["cancel"] = false.into();
    let kept = update(&old, run(spec)).unwrap();
    assert_eq!(
        (&kept.object["spec"]["cancel"], kept.warnings.len()),
        (&json!(true), 1)
    );
}

#[test]
fn a_terminal_phase_never_changes() {
    let mut old = created(run(json!({})));
    old["status"]["phase"] = "Lost".into();
    let mut new = old.clone();
    new["status"]["phase"] = "Succeeded".into();
    let refused = prepare(info(&new), new.clone(), Operation::UpdateStatus { old: &old });
    assert_eq!(faults(refused), [("status.phase".to_owned(), Invalid)]);
    new["status"]["phase"] = "Lost".into();
    new["status"]["lateResult"] = json!({"phase": "Succeeded"});
    let prepared = prepare(info(&new), new, Operation::UpdateStatus { old: &old }).unwrap();
    assert_eq!(prepared.object["status"]["lateResult"]["phase"], "Succeeded");
}

#[test]
fn conditions_are_one_of_each_type() {
    let old = created(task(json!({})));
    let condition = json!({"type": "A", "status": "Maybe", "lastTransitionTime": "2026-01-02T03:04:05Z", "reason": "R", "message": ""});
    let mut new = old.clone();
    new["status"]["conditions"] = json!([condition, condition]);
    let found = faults(prepare(info(&new), new, Operation::UpdateStatus { old: &old }));
    let names: Vec<&str> = found.iter().map(|f| f.0.as_str()).collect();
    assert_eq!(
        names,
        [
            "status.conditions[0].status",
            "status.conditions[1].type",
            "status.conditions[1].status"
        ]
    );
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Into::into),
        (-3i64..300).prop_map(Into::into),
        "[a-z0-9./-]{0,6}".prop_map(Into::into),
        proptest::sample::select(vec![
            "10m",
            "1Gi",
            "Direct",
            "Host",
            "Off",
            "src/**",
            "{{name}}",
            "2026-01-02T03:04:05.9Z"
        ])
        .prop_map(|s: &str| s.into()),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Into::into),
            proptest::collection::btree_map("[a-z]{1,4}", inner, 0..3)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

/// A spec with fields that exist, holding anything.
fn any_spec(kind: &'static str) -> impl Strategy<Value = Value> {
    let schema = by_kind("panda.dev/v1alpha1", kind).unwrap().schema();
    let names: Vec<String> = schema["properties"]["spec"]["properties"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    proptest::collection::btree_map(proptest::sample::select(names), any_json(), 0..5)
        .prop_map(|m| Value::Object(m.into_iter().collect()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn preparing_never_panics_and_what_was_prepared_stays_as_it_is(spec in any_spec("Task"), other in any_spec("Agent")) {
        for object in [task(spec.clone()), agent(other)] {
            if let Ok(first) = create(object) {
                let again = create(first.object.clone()).map(|p| p.object);
                prop_assert_eq!(again, Ok(first.object.clone()));
                let updated = update(&first.object, first.object.clone()).map(|p| p.object);
                prop_assert_eq!(updated, Ok(first.object));
            }
        }
    }

    #[test]
    fn good_fields_in_any_mixture_are_stable(
        limit in proptest::option::of(0u32..5), rerun in proptest::option::of(0i64..3), cancel in proptest::option::of(any::<bool>()),
        factor in proptest::option::of(1u32..10), secs in 1u64..100_000, labels in proptest::collection::btree_map("[a-z]{1,8}", "[a-z0-9]{0,8}", 0..4),
    ) {
        let mut object = task(json!({"rerun": rerun, "cancel": cancel, "attemptTimeout": format!("{secs}s"), "retry": {"limit": limit, "backoff": {"factor": factor}}}));
        object["metadata"]["labels"] = json!(labels);
        let first = created(object.clone());
        prop_assert_eq!(&created(first.clone()), &first);
        prop_assert_eq!(update(&first, object).map(|p| p.object), Ok(first));
    }
}
