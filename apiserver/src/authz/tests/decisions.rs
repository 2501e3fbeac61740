use http::Method;
use panda_api::rbac::{PolicyRule, RoleRef, Subject};
use panda_api::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};

use crate::authn::{AUTHENTICATED, Device, Principal, RunIdentity, User};
use crate::authz::index::{Index, Indexed};
use crate::authz::rules::{allows, covers, shortfall};
use crate::authz::{Attributes, guard, refusal};
use crate::authz::{Decision, MASTERS};
use crate::request::RequestInfo;

pub(super) fn rule(verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]) -> PolicyRule {
    let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect();
    PolicyRule {
        verbs: words(verbs),
        api_groups: words(groups),
        resources: words(resources),
        resource_names: words(names),
        ..PolicyRule::default()
    }
}

fn user(name: &str, groups: &[&str]) -> User {
    User {
        name: name.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        ..User::default()
    }
}

fn request(method: Method, path: &str) -> RequestInfo {
    RequestInfo::new(&method, &path.parse().unwrap(), false)
}

#[test]
fn rules_grant_what_upstreams_do() {
    let get = |resource: &'static str, subresource: &'static str, name: &'static str| Attributes {
        verb: "get",
        group: "panda.dev",
        resource,
        subresource,
        name,
        ..Attributes::default()
    };
    let p = &["panda.dev"];
    for (rule, attributes, want) in [
        (rule(&["get"], p, &["tasks"], &[]), get("tasks", "", "a"), true),
        (
            rule(&["get"], p, &["tasks"], &[]),
            get("tasks", "log", "a"),
            false,
        ),
        (
            rule(&["get"], p, &["tasks/log"], &[]),
            get("tasks", "log", "a"),
            true,
        ),
        (
            rule(&["get"], p, &["tasks/log"], &[]),
            get("tasks", "", "a"),
            false,
        ),
        (rule(&["get"], p, &["*/log"], &[]), get("runs", "log", "a"), true),
        (
            rule(&["get"], p, &["*/log"], &[]),
            get("runs", "status", "a"),
            false,
        ),
        (rule(&["*"], p, &["*"], &[]), get("runs", "artifacts", "a"), true),
        (rule(&["*"], &["*"], &["tasks"], &[]), get("tasks", "", "a"), true),
        (
            rule(&["get"], &[""], &["tasks"], &[]),
            get("tasks", "", "a"),
            false,
        ),
        (rule(&["list"], p, &["tasks"], &[]), get("tasks", "", "a"), false),
        (rule(&["get"], p, &["tasks"], &["a"]), get("tasks", "", "a"), true),
        (
            rule(&["get"], p, &["tasks"], &["a"]),
            get("tasks", "", "b"),
            false,
        ),
        (rule(&["get"], p, &["tasks"], &["a"]), get("tasks", "", ""), false),
    ] {
        assert_eq!(allows(&rule, &attributes), want, "{rule:?} {attributes:?}");
    }
    let metadata = rule(&["list"], &[""], &["secrets/metadata"], &[]);
    let list = Attributes {
        verb: "list",
        resource: "secrets",
        ..Attributes::default()
    };
    assert!(!allows(&metadata, &list), "values");
    assert!(allows(
        &metadata,
        &Attributes {
            metadata_only: true,
            ..list
        }
    ));
}

#[test]
fn paths_are_matched_whole_or_by_their_start() {
    for (entry, path, want) in [
        ("/metrics", "/metrics", true),
        ("/metrics", "/metrics/x", false),
        ("/apis/*", "/apis/panda.dev", true),
        ("/apis/*", "/apis", false),
        ("*", "/anything", true),
    ] {
        let rule = PolicyRule {
            verbs: vec!["get".into()],
            non_resource_urls: vec![entry.into()],
            ..PolicyRule::default()
        };
        let attributes = Attributes {
            verb: "get",
            path,
            ..Attributes::default()
        };
        assert_eq!(allows(&rule, &attributes), want, "{entry} {path}");
        let object = Attributes {
            resource: "tasks",
            ..attributes
        };
        assert!(!allows(&rule, &object), "a path's rule grants no object");
    }
}

#[test]
fn nobody_covers_more_than_their_rules_do_together() {
    let own = [
        rule(&["get", "list"], &["panda.dev"], &["tasks"], &[]),
        rule(&["get"], &["panda.dev"], &["runs"], &[]),
        rule(&["create"], &[""], &["configmaps"], &["a", "b"]),
    ];
    let p = &["panda.dev"];
    for (wanted, good) in [
        (rule(&["get"], p, &["tasks", "runs"], &[]), true),
        (rule(&["get", "list"], p, &["tasks", "runs"], &[]), false),
        (rule(&["get"], p, &["tasks"], &["x"]), true),
        (rule(&["get"], p, &["tasks/log"], &[]), false),
        (rule(&["*"], p, &["tasks"], &[]), false),
        (rule(&["get"], &["*"], &["tasks"], &[]), false),
        (rule(&["get"], p, &["*"], &[]), false),
        (rule(&["create"], &[""], &["configmaps"], &["a"]), true),
        (rule(&["create"], &[""], &["configmaps"], &["a", "b"]), true),
        (rule(&["create"], &[""], &["configmaps"], &["c"]), false),
        (rule(&["create"], &[""], &["configmaps"], &[]), false),
    ] {
        assert_eq!(covers(&own, std::slice::from_ref(&wanted)), good, "{wanted:?}");
    }
    let why = shortfall(&own, &[rule(&["get", "list"], p, &["tasks", "runs"], &[])]);
    assert_eq!(why.unwrap(), "list runs.panda.dev");
    let many: Vec<String> = (0..500).map(|n| format!("r{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let huge = rule(&many, &many, &many, &many);
    assert!(shortfall(&own, &[huge]).unwrap().contains("too large"));
}

fn subject(kind: &str, name: &str, namespace: &str) -> Subject {
    Subject {
        kind: kind.into(),
        name: name.into(),
        namespace: namespace.into(),
        ..Subject::default()
    }
}

fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef {
        kind: kind.into(),
        name: name.into(),
        ..RoleRef::default()
    }
}

#[test]
fn bindings_reach_their_subjects_in_their_namespace_only() {
    let mut index = Index::default();
    let mut role = Role::default();
    role.metadata.name = "reader".into();
    role.metadata.namespace = "web".into();
    role.rules = vec![rule(&["get"], &["panda.dev"], &["tasks"], &[])];
    role.put(&mut index);
    let mut shared = ClusterRole::default();
    shared.metadata.name = "shared".into();
    shared.rules = vec![rule(&["get"], &["panda.dev"], &["agents"], &[])];
    shared.put(&mut index);
    for (name, namespace, role, subjects) in [
        (
            "a",
            "web",
            role_ref("Role", "reader"),
            vec![subject("User", "jo", "")],
        ),
        (
            "b",
            "web",
            role_ref("ClusterRole", "shared"),
            vec![subject("Group", "staff", "")],
        ),
        (
            "c",
            "ops",
            role_ref("Role", "reader"),
            vec![subject("User", "jo", "")],
        ),
        (
            "d",
            "ops",
            role_ref("ClusterRole", "gone"),
            vec![subject("User", "jo", "")],
        ),
        (
            "e",
            "web",
            role_ref("ClusterRole", "shared"),
            vec![subject("ServiceAccount", "bot", "ci")],
        ),
    ] {
        let mut binding = RoleBinding::default();
        binding.metadata.name = name.into();
        binding.metadata.namespace = namespace.into();
        binding.role_ref = role;
        binding.subjects = subjects;
        binding.put(&mut index);
    }
    index.aggregate();
    let count = |user: &User, namespace: &str| index.granted(user, namespace).count();
    let jo = user("jo", &["staff"]);
    assert_eq!(count(&jo, "web"), 2);
    assert_eq!(count(&jo, "ops"), 0, "that namespace has no such role");
    assert_eq!(count(&jo, ""), 0);
    assert_eq!(count(&user("jo2", &[]), "web"), 0);
    assert_eq!(count(&user("system:serviceaccount:ci:bot", &[]), "web"), 1);
    assert_eq!(count(&user("system:serviceaccount:ops:bot", &[]), "web"), 0);

    let mut everywhere = ClusterRoleBinding::default();
    everywhere.metadata.name = "all".into();
    everywhere.role_ref = role_ref("ClusterRole", "shared");
    everywhere.subjects = vec![subject("User", "jo", "")];
    everywhere.put(&mut index);
    let count = |index: &Index, namespace: &str| index.granted(&jo, namespace).count();
    assert_eq!(
        (count(&index, "web"), count(&index, "x"), count(&index, "")),
        (3, 1, 1)
    );
    ClusterRoleBinding::remove(&mut index, "", "all");
    RoleBinding::remove(&mut index, "web", "a");
    assert_eq!((count(&index, "web"), count(&index, "x")), (1, 0));
}

#[test]
fn roles_take_the_rules_of_those_labelled_for_them() {
    let mut index = Index::default();
    for (name, label) in [("view", None), ("more", Some("view")), ("other", Some("edit"))] {
        let mut role = ClusterRole::default();
        role.metadata.name = name.into();
        role.rules = vec![rule(&["get"], &["x"], &[name], &[])];
        if let Some(label) = label {
            role.metadata.labels.insert(format!("to-{label}"), "true".into());
        }
        if name == "view" {
            let selector = serde_json::from_value(serde_json::json!({"matchLabels": {"to-view": "true"}}));
            role.aggregation_rule = Some(panda_api::rbac::AggregationRule {
                cluster_role_selectors: vec![selector.unwrap(), Default::default()],
            });
        }
        role.put(&mut index);
    }
    index.aggregate();
    let names = |name: &str| -> Vec<String> {
        let rules = index.role("", name).unwrap();
        rules.iter().map(|rule| rule.resources[0].clone()).collect()
    };
    assert_eq!(names("view"), ["view", "more"]);
    assert_eq!(names("more"), ["more"]);
}

pub(super) fn a_run() -> User {
    User {
        name: "panda:run:web:u".into(),
        groups: vec!["panda:runs".into(), AUTHENTICATED.into()],
        principal: Principal::Run(RunIdentity {
            namespace: "web".into(),
            name: "fix-1".into(),
            uid: "u".into(),
            epoch: 1,
            task: "fix".into(),
        }),
        ..User::default()
    }
}

#[test]
fn devices_and_join_tokens_do_only_what_they_are_for() {
    let device = User {
        groups: vec![MASTERS.into()],
        principal: Principal::Device(Device {
            name: "pi".into(),
            uid: "u".into(),
        }),
        ..user("panda:device:pi", &[])
    };
    let join = User {
        groups: vec![MASTERS.into()],
        principal: Principal::Join {
            token: "abc".into(),
            device: None,
        },
        ..user("panda:join:abc", &[])
    };
    let csr = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    for (method, path, for_device, for_join) in [
        (Method::POST, "/panda.agentlet.v1.Agentlet/Session", true, false),
        (Method::POST, csr, true, true),
        (Method::GET, &*format!("{csr}/a"), true, true),
        (Method::GET, csr, false, false),
        (Method::PUT, &*format!("{csr}/a/approval"), false, false),
        (Method::DELETE, &*format!("{csr}/a"), false, false),
        (Method::GET, "/api/v1/namespaces/web/secrets/a", false, false),
        (Method::GET, "/apis", false, false),
        (Method::GET, "/apis/panda.dev/v1alpha1/devices/pi", false, false),
        (
            Method::POST,
            "/apis/panda.dev/v1alpha1/namespaces/web/tasks",
            false,
            false,
        ),
    ] {
        let request = request(method, path);
        for (user, want) in [(&device, for_device), (&join, for_join)] {
            let decision = guard::decide(user, &Attributes::from(&request)).unwrap();
            assert_eq!(decision.is_allowed(), want, "{} {path}", user.name);
            assert!(want || matches!(decision, Decision::Deny(_)));
        }
    }
}

#[test]
fn runs_are_denied_whatever_roles_say() {
    let tasks = "/apis/panda.dev/v1alpha1/namespaces/web/tasks";
    let run = a_run();
    for (method, path, left_to_roles) in [
        (Method::GET, tasks, true),
        (Method::POST, tasks, true),
        (Method::PATCH, &*format!("{tasks}/a"), true),
        (Method::DELETE, &*format!("{tasks}/a"), true),
        (Method::PATCH, &*format!("{tasks}/a/status"), false),
        (
            Method::POST,
            "/apis/panda.dev/v1alpha1/namespaces/ops/tasks",
            false,
        ),
        (Method::GET, "/apis/panda.dev/v1alpha1/namespaces/ops/tasks", true),
        (Method::POST, "/api/v1/namespaces/web/configmaps", true),
        (Method::GET, "/api/v1/namespaces/web/secrets", false),
        (Method::GET, "/api/v1/namespaces/web/secrets/a", false),
        (Method::POST, "/api/v1/namespaces/web/secrets", false),
        (Method::POST, "/api/v1/namespaces/web/serviceaccounts", false),
        (
            Method::POST,
            "/api/v1/namespaces/web/serviceaccounts/a/token",
            false,
        ),
        (
            Method::GET,
            "/apis/rbac.authorization.k8s.io/v1/namespaces/web/roles",
            false,
        ),
        (
            Method::POST,
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            false,
        ),
        (
            Method::PUT,
            "/apis/certificates.k8s.io/v1/certificatesigningrequests/a/approval",
            false,
        ),
        (
            Method::POST,
            "/apis/panda.dev/v1alpha1/namespaces/web/approvals/a/decision",
            false,
        ),
        (
            Method::POST,
            "/apis/panda.dev/v1alpha1/namespaces/web/agents",
            false,
        ),
        (
            Method::POST,
            "/apis/panda.dev/v1alpha1/namespaces/web/runs",
            false,
        ),
        (
            Method::POST,
            "/apis/panda.dev/v1alpha1/namespaces/web/runs/a/binding",
            false,
        ),
        (Method::PATCH, "/apis/panda.dev/v1alpha1/devices/pi", false),
        (Method::POST, "/api/v1/namespaces", false),
        (Method::POST, "/apis/authentication.k8s.io/v1/tokenreviews", false),
        (
            Method::POST,
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            false,
        ),
        (
            Method::POST,
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            true,
        ),
        (Method::POST, "/panda.agentlet.v1.Agentlet/Session", false),
        (Method::GET, "/metrics", false),
        (Method::GET, "/apis", true),
    ] {
        let request = request(method.clone(), path);
        let decision = guard::decide(&run, &Attributes::from(&request));
        assert_eq!(decision.is_none(), left_to_roles, "{method} {path}: {decision:?}");
    }
    for (verb, resource) in [
        ("impersonate", "users"),
        ("use", "sandboxprofiles"),
        ("bind", "clusterroles"),
    ] {
        let attributes = Attributes {
            verb,
            resource,
            namespace: "web",
            ..Attributes::default()
        };
        assert!(
            matches!(guard::decide(&run, &attributes), Some(Decision::Deny(_))),
            "{verb}"
        );
    }
}

#[test]
fn a_refusal_says_who_what_and_where() {
    let jo = user("viewer", &[]);
    let tasks = request(Method::POST, "/apis/panda.dev/v1alpha1/namespaces/x/tasks");
    assert_eq!(
        refusal(&jo, &Attributes::from(&tasks), ""),
        "tasks.panda.dev is forbidden: User \"viewer\" cannot create resource \"tasks\" in API group \
         \"panda.dev\" in the namespace \"x\""
    );
    let device = request(Method::DELETE, "/apis/panda.dev/v1alpha1/devices/pi");
    let text = refusal(&jo, &Attributes::from(&device), "why");
    assert!(text.ends_with("at the cluster scope: why"));
    assert!(text.starts_with("devices.panda.dev \"pi\" is forbidden"));
    let artifact = request(
        Method::GET,
        "/apis/panda.dev/v1alpha1/namespaces/x/runs/r/artifacts/out.txt",
    );
    assert_eq!(Attributes::from(&artifact).subresource, "artifacts");
}
