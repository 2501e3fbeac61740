//! What holds for every kind.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::validation::FieldReason;

fn task() -> Value {
    json!({
        "apiVersion": "panda.dev/v1alpha1", "kind": "Task",
        "metadata": {"name": "t", "namespace": "default"},
        "spec": {"prompt": "p"},
    })
}

fn task_info() -> &'static KindInfo {
    by_kind("panda.dev/v1alpha1", "Task").unwrap()
}

fn each_property(schema: &Value, path: &str, visit: &mut impl FnMut(&str, &Value)) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        visit(&path, property);
        each_property(property, &path, visit);
    }
    for key in ["items", "additionalProperties"] {
        if schema.get(key).is_some() {
            each_property(&schema[key], path, visit);
        }
    }
}

#[test]
fn every_field_of_every_kind_has_a_description() {
    for info in served() {
        let mut lacking = Vec::new();
        each_property(info.schema(), info.kind, &mut |path, schema| {
            if schema["description"].as_str().is_none_or(|d| d.trim().is_empty()) {
                lacking.push(path.to_owned());
            }
        });
        assert_eq!(lacking, Vec::<String>::new());
        assert!(info.schema()["description"].is_string(), "{}", info.kind);
    }
}

#[test]
fn schemas_hold_no_reference_and_no_null() {
    for info in served() {
        let text = info.schema().to_string();
        for word in ["$ref", "$defs", "anyOf", "oneOf", "\"null\""] {
            assert!(!text.contains(word), "{} has {word}", info.kind);
        }
    }
}

#[test]
fn every_row_has_a_cell_for_each_column() {
    let now = Timestamp::UNIX_EPOCH;
    for info in served() {
        for object in [
            json!({}),
            json!({"metadata": {"name": "x"}, "status": [], "spec": 3}),
        ] {
            assert_eq!(
                info.cells(&object, now).len(),
                info.columns.len(),
                "{}",
                info.kind
            );
        }
        assert_eq!(
            info.columns.iter().filter(|c| c.format == "name").count(),
            1,
            "{}",
            info.kind
        );
    }
}

#[test]
fn kinds_are_found_by_what_people_type() {
    for (word, kind) in [
        ("tasks", "Task"),
        ("task", "Task"),
        ("tk", "Task"),
        ("Task", "Task"),
        ("tasks.panda.dev", "Task"),
        ("tasks.v1alpha1.panda.dev", "Task"),
        ("dev", "Device"),
        ("ns", "Namespace"),
        ("cm", "ConfigMap"),
        ("leases.coordination.k8s.io", "Lease"),
    ] {
        assert_eq!(by_word(word).map(|k| k.kind), Some(kind), "{word}");
    }
    assert!(by_word("pods").is_none() && by_word("tasks.example.com").is_none());
    assert_eq!(of::<crate::Lease>().resource_name(), "leases.coordination.k8s.io");
    assert_eq!(of::<crate::Secret>().api_version(), "v1");
}

#[test]
fn unknown_fields_are_named_with_their_paths_and_removed() {
    let mut object = task();
    object["spec"]["agentz"] = json!([1]);
    object["spec"]["agents"] = json!([{"name": "a"}, {"name": "b", "modle": "x"}]);
    object["metadata"]["lables"] = json!({});
    let prepared = prepare(task_info(), object, Operation::Create).unwrap();
    let names: Vec<String> = prepared.unknown_fields.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["metadata.lables", "spec.agentz", "spec.agents[1].modle"]);
    assert_eq!(prepared.object["spec"]["agents"][1], json!({"name": "b"}));
    assert!(prepared.object["spec"].get("agentz").is_none());
}

#[test]
fn every_type_error_is_reported_with_its_path() {
    let mut object = task();
    object["spec"]["prompt"] = json!(3);
    object["spec"]["agents"] = json!([{"name": "a", "model": false}, "b"]);
    object["spec"]["attemptTimeout"] = json!("soon");
    object["spec"]["priority"] = json!(1.5);
    object["spec"]["mode"] = json!("direct");
    object["metadata"]["labels"] = json!({"a": 1});
    let Err(Error::Invalid(errors)) = prepare(task_info(), object, Operation::Create) else {
        panic!("accepted")
    };
    let found: Vec<(String, FieldReason)> = errors.iter().map(|e| (e.field.to_string(), e.reason)).collect();
    let t = FieldReason::TypeInvalid;
    assert_eq!(
        found,
        [
            ("metadata.labels.a".to_owned(), t),
            ("spec.agents[0].model".to_owned(), t),
            ("spec.agents[1]".to_owned(), t),
            ("spec.attemptTimeout".to_owned(), FieldReason::Invalid),
            ("spec.mode".to_owned(), FieldReason::NotSupported),
            ("spec.priority".to_owned(), t),
            ("spec.prompt".to_owned(), t),
        ]
    );
}

#[test]
fn a_null_field_is_an_absent_one_and_a_null_in_a_map_is_refused() {
    let mut object = task();
    object["spec"]["agents"] = Value::Null;
    object["metadata"]["labels"] = Value::Null;
    object["metadata"]["creationTimestamp"] = Value::Null;
    let prepared = prepare(task_info(), object.clone(), Operation::Create).unwrap();
    assert_eq!(prepared, prepare(task_info(), task(), Operation::Create).unwrap());
    object["metadata"]["labels"] = json!({"tilde": null});
    let Err(Error::Invalid(errors)) = prepare(task_info(), object, Operation::Create) else {
        panic!("accepted")
    };
    assert_eq!(
        errors[0].to_string(),
        "metadata.labels.tilde: Invalid value: null: must be a string, is null"
    );
}

#[test]
fn what_only_the_server_sets_is_ignored_at_creation() {
    let mut object = task();
    for (field, value) in [
        ("uid", "u"),
        ("resourceVersion", "7"),
        ("creationTimestamp", "2026-01-02T03:04:05Z"),
    ] {
        object["metadata"][field] = value.into();
    }
    object["metadata"]["generation"] = 9.into();
    object["status"] = json!({"phase": "Succeeded"});
    let prepared = prepare(task_info(), object, Operation::Create).unwrap();
    assert_eq!(
        prepared.object["metadata"],
        json!({"name": "t", "namespace": "default", "generation": 1})
    );
    assert!(prepared.object["status"].get("phase").is_none());
}

#[test]
fn an_update_that_changes_nothing_gives_the_stored_object() {
    let mut old = prepare(task_info(), task(), Operation::Create).unwrap().object;
    old["metadata"]["uid"] = "u".into();
    old["metadata"]["resourceVersion"] = "7".into();
    old["metadata"]["creationTimestamp"] = "2026-01-02T03:04:05Z".into();
    old["status"]["phase"] = "Running".into();
    let same = prepare(task_info(), task(), Operation::Update { old: &old }).unwrap();
    assert_eq!(same.object, old);
    let mut changed = task();
    changed["spec"]["prompt"] = "q".into();
    changed["status"] = json!({"phase": "Failed"});
    let changed = prepare(task_info(), changed, Operation::Update { old: &old }).unwrap();
    assert_eq!(changed.object["metadata"]["generation"], 2);
    assert_eq!(changed.object["status"]["phase"], "Running");
    let mut status = changed.object.clone();
    status["status"]["phase"] = "Failed".into();
    status["spec"]["prompt"] = "ignored".into();
    status["metadata"]["labels"] = json!({"ignored": "too"});
    let after = prepare(task_info(), status, Operation::UpdateStatus { old: &old }).unwrap();
    assert_eq!(after.object["status"]["phase"], "Failed");
    assert_eq!(after.object["spec"], old["spec"]);
    assert_eq!(after.object["metadata"], old["metadata"]);
}

#[test]
fn another_kind_is_malformed() {
    for (key, value) in [
        ("kind", json!("Run")),
        ("apiVersion", json!("v1")),
        ("kind", json!(null)),
        ("kind", json!(3)),
    ] {
        let mut object = task();
        object[key] = value;
        assert!(matches!(
            prepare(task_info(), object, Operation::Create),
            Err(Error::Malformed(_))
        ));
    }
    assert!(matches!(
        prepare(task_info(), json!([[]]), Operation::Create),
        Err(Error::Malformed(_))
    ));
    // Upstream's own clients leave both out.
    let map = json!({"metadata": {"name": "a", "namespace": "b"}});
    let prepared = prepare(of::<crate::ConfigMap>(), map, Operation::Create).unwrap();
    assert_eq!(prepared.object["kind"], "ConfigMap");
}

#[test]
fn the_refusal_reads_as_kubernetes_writes_it() {
    let mut object = task();
    object["metadata"]["name"] = "Bad Name".into();
    let Err(Error::Invalid(errors)) = prepare(task_info(), object, Operation::Create) else {
        panic!("accepted")
    };
    let status = crate::validation::invalid(task_info(), "Bad Name", &errors);
    assert!(
        status.message.starts_with(
            "Task.panda.dev \"Bad Name\" is invalid: metadata.name: Invalid value: \"Bad Name\": "
        ),
        "{}",
        status.message
    );
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    let details = status.details.unwrap();
    assert_eq!(
        (details.kind.as_str(), details.group.as_str()),
        ("Task", "panda.dev")
    );
    assert_eq!(details.causes[0].field, "metadata.name");
}

#[test]
fn field_selectors_see_only_what_the_kind_offers() {
    let mut object = task();
    assert_eq!(
        selectable_field(task_info(), &object, "status.phase"),
        Some(String::new())
    );
    object["status"] = json!({"phase": "Running"});
    assert_eq!(
        selectable_field(task_info(), &object, "status.phase").as_deref(),
        Some("Running")
    );
    assert_eq!(selectable_field(task_info(), &object, "spec.prompt"), None);
}

#[test]
fn ages_read_as_kubectl_prints_them() {
    for (seconds, text) in [
        (-5, "0s"),
        (119, "119s"),
        (120, "2m"),
        (330, "5m30s"),
        (3600, "60m"),
        (11_100, "3h5m"),
        (90_000, "25h"),
        (190_800, "2d5h"),
        (86_400 * 100, "100d"),
        (86_400 * 730, "2y"),
    ] {
        assert_eq!(human_duration(seconds), text);
    }
}

/// One line a field: path, type, and what restricts it.
fn outline(info: &KindInfo) -> String {
    let mut out = format!("{} {} {}\n", info.api_version(), info.kind, info.definition_name);
    each_property(info.schema(), "", &mut |path, schema| {
        let type_ = schema["type"].as_str().unwrap_or("any");
        out.push_str(&format!("  {} {type_}", path.trim_start_matches('.')));
        for key in [
            "format",
            "enum",
            "minimum",
            "maximum",
            "required",
            "x-kubernetes-list-map-keys",
        ] {
            if let Some(value) = schema
                .get(key)
                .or_else(|| schema["items"].get(key).filter(|_| key == "enum"))
            {
                out.push_str(&format!(" {}={value}", key.trim_start_matches("x-kubernetes-")));
            }
        }
        out.push('\n');
    });
    out
}

/// Set `UPDATE_GOLDEN=1` to write the file anew.
#[test]
fn the_fields_of_every_kind_are_those_on_record() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/fields.txt");
    let now: String = served().map(outline).collect();
    #[expect(
        clippy::disallowed_methods,
        reason = "a test may be asked to write its record anew"
    )]
    if std::env::var("UPDATE_GOLDEN").is_ok() {
        std::fs::write(path, &now).unwrap();
    }
    let recorded = std::fs::read_to_string(path).unwrap();
    for (line, (now, recorded)) in now.lines().zip(recorded.lines()).enumerate() {
        assert_eq!(
            now,
            recorded,
            "line {} of testdata/fields.txt; a new field goes in by UPDATE_GOLDEN=1",
            line + 1
        );
    }
    assert_eq!(now.lines().count(), recorded.lines().count());
}

#[test]
fn the_examples_of_this_repository_are_valid() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
    let mut seen = 0;
    for folder in std::fs::read_dir(examples).unwrap() {
        for file in std::fs::read_dir(folder.unwrap().path()).into_iter().flatten() {
            let path = file.unwrap().path();
            if path.extension().is_none_or(|e| e != "yaml") {
                continue;
            }
            let manifest = crate::manifest::read(&path.display().to_string(), &std::fs::read(&path).unwrap());
            for document in manifest.into_result().unwrap() {
                let mut object = document.object;
                let info = by_kind(
                    object["apiVersion"].as_str().unwrap(),
                    object["kind"].as_str().unwrap(),
                )
                .unwrap();
                object["metadata"]["namespace"] = "default".into();
                let prepared = prepare(info, object, Operation::Create).unwrap();
                assert_eq!(
                    (prepared.unknown_fields, prepared.warnings),
                    (Vec::new(), Vec::new())
                );
                seen += 1;
            }
        }
    }
    assert!(seen >= 4, "{seen}");
}

#[test]
fn the_example_of_the_api_page_differs_only_in_what_is_not_built() {
    let text = r#"
apiVersion: panda.dev/v1alpha1
kind: Task
metadata: {name: fix-login, namespace: web}
spec:
  prompt: Fix the login redirect loop and add a regression test.
  mode: Direct
  agents:
    - {name: claude-code, model: ""}
    - {name: codex}
  requires: {capabilities: [code.edit]}
  device:
    name: ""
    selector: {matchLabels: {}, matchExpressions: []}
    tolerations: []
    resources: {cpu: "1", memory: 1Gi, disk: 2Gi, gpuMemory: "0"}
    onDisconnect: {policy: Continue, after: 10m, onReturn: KeepFirst}
  workspace:
    git: {url: "", path: /repos/web, ref: main, submodules: true, credentialsRef: {name: ""}}
    writes: ["src/**", "tests/**"]
    result: {branch: "panda/{{name}}", push: Never}
    retain: OnFailure
  inputs:  [{name: data, from: {task: collect, artifact: report}}]
  outputs: [{name: report, path: out/report.md}]
  skills: [git-hygiene]
  memory: {project: true, user: false}
  env: [{name: CI, value: "1"}, {name: TOKEN, valueFrom: {secretKeyRef: {name: gh, key: token}}}]
  sandbox: {profile: Standard, network: {mode: ModelOnly, allow: []}, limits: {cpu: "2", memory: 4Gi, pids: 512, disk: 10Gi}}
  verify:
    - {name: tests, command: [cargo, test], timeout: 10m, restore: ["tests/**"], device: Same}
    - {name: review, agent: reviewer, prompt: "Does the diff do what was asked?"}
  supervision: {silence: 240s, firstOutput: 120s, rounds: 5, judge: "", repeatLimit: 8}
  approval: {policy: default}
  retry: {limit: 2, backoff: {base: 1s, factor: 2, cap: 5m, jitter: Full}, nonRetryableExitCodes: []}
  attemptTimeout: 30m
  deadline: 4h
  budget: {tokens: 2000000, money: {amount: "5.00", currency: USD}, turns: 60, children: 8}
  priority: 0
  suspend: false
  cancel: false
  rerun: 0
  preemption: Never
  apiAccess: false
  ttlAfterFinished: 168h
  dedupeKey: ""
"#;
    let document = crate::manifest::read("api.md", text.as_bytes())
        .into_result()
        .unwrap()
        .remove(0);
    let Err(Error::Invalid(errors)) = prepare(task_info(), document.object, Operation::Create) else {
        panic!("accepted")
    };
    let mut fields: Vec<String> = errors.iter().map(|e| e.field.to_string()).collect();
    fields.sort();
    assert!(
        errors.iter().all(|e| e.reason == FieldReason::Forbidden),
        "{errors:?}"
    );
    assert_eq!(
        fields,
        [
            "spec.approval",
            "spec.budget",
            "spec.inputs",
            "spec.memory",
            "spec.sandbox.limits",
            "spec.skills",
            "spec.verify[1].agent",
            "spec.verify[1].prompt",
            "spec.workspace.git.submodules",
        ]
    );
}
