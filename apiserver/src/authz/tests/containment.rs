//! A Run's Tasks against its own: what each right comes to is worked out by other means than the rules.

use std::collections::BTreeSet;

use panda_api::TaskSpec;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::authz::containment::excess;

fn spec(value: Value) -> TaskSpec {
    serde_json::from_value(value).unwrap()
}

#[test]
fn each_right_is_refused_by_its_field() {
    let own = json!({
        "prompt": "p", "agents": [{"name": "a"}, {"name": "b"}], "approval": {"policy": "strict"},
        "env": [{"name": "T", "valueFrom": {"secretKeyRef": {"name": "gh", "key": "token"}}}],
        "workspace": {"git": {"path": "/repos/web", "credentialsRef": {"name": "gh"}}, "result": {"push": "OnSuccess"}},
        "sandbox": {"profile": "Standard", "network": {"mode": "Allow", "allow": ["x.io"]}, "limits": {"memory": "4Gi"}},
        "device": {"name": "pi", "selector": {"matchLabels": {"zone": "lab"}}},
        "budget": {"tokens": 100, "money": {"amount": "5.00", "currency": "USD"}}, "priority": 3,
        "skills": ["s"], "inputs": [{"name": "i", "from": {"task": "t", "artifact": "r"}}],
    });
    assert_eq!(excess(&spec(own.clone()), &spec(own.clone())), None);
    for (path, value, field) in [
        (
            "/env/0/valueFrom/secretKeyRef/key",
            json!("other"),
            Some("spec.env"),
        ),
        ("/env", json!([{"name": "X", "value": "1"}]), None),
        ("/agents", json!([]), Some("spec.agents")),
        ("/agents", json!([{"name": "b", "model": "other"}]), None),
        ("/agents", json!([{"name": "c"}]), Some("spec.agents")),
        (
            "/verify",
            json!([{"name": "v", "agent": "c"}]),
            Some("spec.verify"),
        ),
        (
            "/verify",
            json!([{"name": "v", "command": ["x"], "network": "Host"}]),
            Some("spec.verify"),
        ),
        (
            "/verify",
            json!([{"name": "v", "command": ["x"], "network": "None"}]),
            None,
        ),
        (
            "/workspace/git/path",
            json!("/repos/other"),
            Some("spec.workspace"),
        ),
        (
            "/workspace/git",
            json!({"url": "https://x.io/a"}),
            Some("spec.workspace"),
        ),
        (
            "/workspace/git/credentialsRef/name",
            json!("other"),
            Some("spec.workspace"),
        ),
        ("/workspace/git/ref", json!("v2"), None),
        ("/workspace/result/branch", json!("main"), Some("spec.workspace")),
        ("/workspace/result/push", json!("Never"), None),
        ("/workspace", Value::Null, None),
        ("/sandbox", Value::Null, Some("spec.sandbox.profile")),
        ("/sandbox/profile", json!("Off"), Some("spec.sandbox.profile")),
        ("/sandbox/profile", json!("Strict"), None),
        (
            "/sandbox/network/mode",
            json!("Host"),
            Some("spec.sandbox.network"),
        ),
        ("/sandbox/network/mode", json!("ModelOnly"), None),
        (
            "/sandbox/network/allow",
            json!(["x.io", "y.io"]),
            Some("spec.sandbox.network"),
        ),
        (
            "/sandbox/limits/memory",
            json!("5Gi"),
            Some("spec.sandbox.limits"),
        ),
        ("/sandbox/limits/memory", json!("4096Mi"), None),
        ("/sandbox/limits", Value::Null, Some("spec.sandbox.limits")),
        ("/device/name", json!("laptop"), Some("spec.device.name")),
        ("/device", Value::Null, Some("spec.device.name")),
        (
            "/device/selector/matchLabels",
            json!({"zone": "home"}),
            Some("spec.device.selector"),
        ),
        (
            "/device/selector/matchLabels",
            json!({"zone": "lab", "gpu": "1"}),
            None,
        ),
        (
            "/device/tolerations",
            json!([{"operator": "Exists"}]),
            Some("spec.device.tolerations"),
        ),
        ("/budget/tokens", json!(101), Some("spec.budget")),
        ("/budget/tokens", json!(99), None),
        ("/budget", Value::Null, Some("spec.budget")),
        ("/budget/money/amount", json!("5.01"), Some("spec.budget")),
        ("/budget/money/currency", json!("EUR"), Some("spec.budget")),
        ("/priority", json!(4), Some("spec.priority")),
        ("/preemption", json!("Lower"), Some("spec.preemption")),
        ("/approval", Value::Null, Some("spec.approval")),
        ("/apiAccess", json!(true), Some("spec.apiAccess")),
        ("/skills", json!(["s", "t"]), Some("spec.skills")),
        ("/memory", json!({"user": true}), Some("spec.memory")),
        ("/inputs/0/from/task", json!("u"), Some("spec.inputs")),
        ("/prompt", json!("something else"), None),
    ] {
        let mut child = own.clone();
        match child.pointer_mut(path) {
            Some(at) => *at = value.clone(),
            None => {
                let (parent, key) = path.rsplit_once('/').unwrap();
                child.pointer_mut(parent).unwrap()[key] = value.clone();
            }
        }
        let child = without_null(child);
        let found = excess(&spec(own.clone()), &spec(child)).map(|(field, _)| field);
        assert_eq!(found, field, "{path} = {value}");
    }
}

fn without_null(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(_, value)| !value.is_null());
            kept.map(|(key, value)| (key, without_null(value))).collect()
        }
        other => other,
    }
}

fn pick(words: &'static [&'static str]) -> impl Strategy<Value = Value> {
    proptest::sample::select(words).prop_map(|word| if word.is_empty() { Value::Null } else { json!(word) })
}

fn some(words: &'static [&'static str]) -> impl Strategy<Value = Vec<&'static str>> {
    proptest::sample::subsequence(words, 0..=words.len())
}

/// Specs over a small world, so that one is often within the other.
fn any_spec() -> impl Strategy<Value = Value> {
    let sandbox = (
        pick(&["", "Strict", "Standard", "Off"]),
        pick(&["", "None", "ModelOnly", "Allow", "Host"]),
        some(&["x.io", "y.io"]),
        proptest::option::of(1i64..4),
    );
    let place = (
        pick(&["", "pi", "laptop"]),
        some(&["zone", "gpu"]),
        some(&["a", "b"]),
        some(&["s1", "s2"]),
    );
    let git = (
        pick(&["", "/web", "/ops"]),
        pick(&["", "gh"]),
        any::<bool>(),
        pick(&["", "main"]),
    );
    let rest = (
        pick(&["", "None", "ModelOnly", "Allow", "Host"]),
        proptest::option::of(1u64..4),
        0i32..3,
        any::<bool>(),
        pick(&["", "a", "b"]),
    );
    (sandbox, place, git, rest).prop_map(|(sandbox, place, git, rest)| {
        let (profile, mode, allow, pids) = sandbox;
        let (device, labels, agents, secrets) = place;
        let (path, credentials, push, branch) = git;
        let (check, tokens, priority, access, reviewer) = rest;
        let labels: serde_json::Map<String, Value> = labels.into_iter().map(|l| (l.to_owned(), json!("1"))).collect();
        let named = |names: Vec<&str>| names.into_iter().map(|n| json!({"name": n})).collect::<Vec<_>>();
        let env: Vec<Value> = secrets
            .into_iter()
            .map(|n| json!({"name": n.to_uppercase(), "valueFrom": {"secretKeyRef": {"name": n, "key": "k"}}}))
            .collect();
        let git = (!path.is_null()).then(|| {
            let credentials = (!credentials.is_null()).then(|| json!({"name": credentials}));
            json!({"path": path, "credentialsRef": credentials})
        });
        without_null(json!({
            "prompt": "p", "agents": named(agents), "env": env, "priority": priority, "apiAccess": access,
            "sandbox": without_null(json!({
                "profile": profile, "network": without_null(json!({"mode": mode, "allow": allow})),
                "limits": without_null(json!({"pids": pids})),
            })),
            "device": without_null(json!({"name": device, "selector": {"matchLabels": labels}})),
            "workspace": without_null(json!({
                "git": git.map(without_null),
                "result": without_null(json!({"push": if push {"OnSuccess"} else {"Never"}, "branch": branch})),
            })),
            "verify": [without_null(json!({"name": "v", "network": check, "agent": reviewer}))],
            "budget": without_null(json!({"tokens": tokens})),
        }))
    })
}

/// Everything that a Task could do, by going through the small world and looking at the manifest's text alone.
fn rights(task: &Value) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    let text = |path: &str| {
        task.pointer(path)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let list = |path: &str| {
        task.pointer(path)
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default()
    };
    for env in list("/env") {
        out.insert(format!("secret {}", env["valueFrom"]["secretKeyRef"]["name"]));
    }
    let agents: Vec<String> = list("/agents")
        .iter()
        .map(|a| a["name"].as_str().unwrap().to_owned())
        .collect();
    for agent in ["a", "b"] {
        let reviewer = text("/verify/0/agent") == agent;
        if agents.is_empty() || agents.iter().any(|a| a == agent) || reviewer {
            out.insert(format!("agent {agent}"));
        }
    }
    for device in ["pi", "laptop"] {
        for has in [&[][..], &["zone"], &["gpu"], &["zone", "gpu"]] {
            let name = text("/device/name");
            let labels = task
                .pointer("/device/selector/matchLabels")
                .and_then(Value::as_object);
            let fits = labels.is_none_or(|wanted| wanted.keys().all(|key| has.contains(&key.as_str())));
            if fits && (name.is_empty() || name == device) {
                out.insert(format!("device {device} {has:?}"));
            }
        }
    }
    let profile = text("/sandbox/profile");
    let walls: &[&str] = match profile.as_str() {
        "Strict" => &[],
        "Standard" => &["behind Standard"],
        _ => &["behind Standard", "without walls"],
    };
    out.extend(walls.iter().map(|wall| (*wall).to_owned()));
    let open = matches!(profile.as_str(), "" | "Off");
    let reach = |mode: &str, allow: &[Value], out: &mut BTreeSet<String>| {
        let mode = match (mode, open) {
            ("", true) => "Host",
            ("", false) => "ModelOnly",
            (mode, _) => mode,
        };
        for host in ["model", "x.io", "y.io", "elsewhere"] {
            let reached = match mode {
                "None" => false,
                "ModelOnly" => host == "model",
                "Allow" => host == "model" || allow.iter().any(|a| a == host),
                _ => true,
            };
            if reached {
                out.insert(format!("reach {host}"));
            }
        }
    };
    let allow = list("/sandbox/network/allow");
    reach(&text("/sandbox/network/mode"), &allow, &mut out);
    match text("/verify/0/network").as_str() {
        "" => {}
        check => reach(check, &allow, &mut out),
    }
    let pids = task
        .pointer("/sandbox/limits/pids")
        .and_then(Value::as_i64)
        .unwrap_or(9);
    out.extend((0..pids).map(|n| format!("process {n}")));
    let tokens = task
        .pointer("/budget/tokens")
        .and_then(Value::as_u64)
        .unwrap_or(9);
    out.extend((0..tokens).map(|n| format!("token {n}")));
    out.extend((0..task["priority"].as_i64().unwrap_or(0)).map(|n| format!("priority {n}")));
    let path = text("/workspace/git/path");
    if !path.is_empty() {
        out.insert(format!("read {path}"));
        out.insert(format!("with {}", text("/workspace/git/credentialsRef/name")));
        out.insert("with ".to_owned());
    }
    if !path.is_empty() && text("/workspace/result/push") == "OnSuccess" {
        out.insert(format!("push {path} {}", text("/workspace/result/branch")));
    }
    if task["apiAccess"] == true {
        out.insert("api".to_owned());
    }
    out
}

/// `base` with some of its fields as they are in `other`, so that it often stays within the base.
fn mixed(base: &Value, other: &Value, fields: &[bool]) -> Value {
    let mut out = base.clone();
    for (name, taken) in FIELDS.iter().zip(fields) {
        if *taken {
            match other.get(name) {
                Some(value) => out[name] = value.clone(),
                None => drop(out.as_object_mut().unwrap().remove(*name)),
            }
        }
    }
    out
}

const FIELDS: [&str; 9] = [
    "agents",
    "env",
    "priority",
    "apiAccess",
    "sandbox",
    "device",
    "workspace",
    "verify",
    "budget",
];

fn few() -> impl Strategy<Value = Vec<bool>> {
    proptest::collection::vec(proptest::bool::weighted(0.2), FIELDS.len())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn a_task_within_another_has_no_right_that_the_other_lacks(
        own in any_spec(), other in any_spec(), fields in few()
    ) {
        let child = mixed(&own, &other, &fields);
        if excess(&spec(own.clone()), &spec(child.clone())).is_none() {
            let lacking: Vec<String> = rights(&child).difference(&rights(&own)).cloned().collect();
            prop_assert!(lacking.is_empty(), "{lacking:?}\nown {own}\nchild {child}");
        }
    }

    #[test]
    fn within_is_transitive(
        a in any_spec(), other in any_spec(), fields in few(), third in any_spec(), further in few()
    ) {
        let b = mixed(&a, &other, &fields);
        let c = mixed(&b, &third, &further);
        let (a, b, c) = (spec(a), spec(b), spec(c));
        if excess(&a, &b).is_none() && excess(&b, &c).is_none() {
            prop_assert_eq!(excess(&a, &c), None);
        }
    }
}
