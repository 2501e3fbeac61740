//! The roles and bindings that are always there. Made at each start where they are missing; rules that are missing in
//! them are put back, further rules are left alone. The annotation below, set to `false`, keeps a role as it is.

use panda_api::meta::{LabelSelector, ObjectMeta};
use panda_api::rbac::{AggregationRule, GROUP, PolicyRule, RoleRef, Subject};
use panda_api::{ClusterRole, ClusterRoleBinding, scheme};

use super::rbac::RUN_ROLE;
use super::{CONTROLLERS, MASTERS, covers};
use crate::authn::AUTHENTICATED;
use crate::registry::{Error, Part, Registry};

/// As upstream: `false` means that the server leaves the object as it is.
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const BOOTSTRAPPING: &str = "kubernetes.io/bootstrapping";
const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];
const PANDA: &str = "panda.dev";

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| (*word).to_owned()).collect()
}

fn rule(verbs: &[&str], group: &str, resources: &[&str]) -> PolicyRule {
    PolicyRule {
        verbs: words(verbs),
        api_groups: vec![group.to_owned()],
        resources: words(resources),
        ..PolicyRule::default()
    }
}

fn paths(paths: &[&str]) -> PolicyRule {
    PolicyRule {
        verbs: words(&["get"]),
        non_resource_urls: words(paths),
        ..PolicyRule::default()
    }
}

/// What looking on takes: no Secrets, and nothing that a run printed or made.
fn view() -> Vec<PolicyRule> {
    vec![
        rule(
            READ,
            PANDA,
            &[
                "agents",
                "agents/status",
                "devices",
                "devices/status",
                "gitsources",
                "gitsources/status",
                "runs",
                "runs/status",
                "tasks",
                "tasks/status",
            ],
        ),
        rule(
            READ,
            PANDA,
            &[
                "approvals",
                "memories",
                "plans",
                "policies",
                "schedules",
                "skills",
                "workspaces",
            ],
        ),
        rule(
            READ,
            "",
            &[
                "configmaps",
                "events",
                "namespaces",
                "resourcequotas",
                "serviceaccounts",
            ],
        ),
        rule(READ, "events.k8s.io", &["events"]),
        rule(READ, "coordination.k8s.io", &["leases"]),
    ]
}

/// What working takes. Making a Task or an Agent is running code.
fn edit() -> Vec<PolicyRule> {
    let mut rules = view();
    rules.extend([
        rule(WRITE, PANDA, &["agents", "gitsources", "tasks"]),
        rule(WRITE, PANDA, &["memories", "plans", "schedules", "skills"]),
        rule(
            &["get"],
            PANDA,
            &["runs/artifacts", "runs/events", "runs/log", "tasks/log"],
        ),
        rule(&["delete", "deletecollection"], PANDA, &["runs"]),
        rule(READ, "", &["secrets"]),
        rule(WRITE, "", &["configmaps", "events", "secrets", "serviceaccounts"]),
        rule(&["create"], "", &["serviceaccounts/token"]),
        rule(WRITE, "events.k8s.io", &["events"]),
    ]);
    rules
}

/// What running a namespace takes: who else works there, and what its agents may do.
fn admin() -> Vec<PolicyRule> {
    let mut rules = edit();
    rules.extend([
        rule(READ, GROUP, &["rolebindings", "roles"]),
        rule(WRITE, GROUP, &["rolebindings", "roles"]),
        rule(
            &["create"],
            "authorization.k8s.io",
            &["localsubjectaccessreviews"],
        ),
        rule(&["create"], PANDA, &["approvals/decision"]),
        rule(WRITE, PANDA, &["policies"]),
    ]);
    rules
}

/// What every Run has in its own namespace. What its Tasks may hold is bounded by its own Task.
fn run() -> Vec<PolicyRule> {
    vec![
        rule(READ, PANDA, &["agents", "runs", "tasks"]),
        rule(&["create"], PANDA, &["tasks"]),
        rule(READ, "", &["configmaps", "events"]),
    ]
}

/// What the controllers need: everything of Panda's own, and of the rest what collecting garbage and emptying
/// namespaces takes. Of Secrets they see the metadata and may remove them; the values stay hidden.
fn controllers() -> Vec<PolicyRule> {
    let collect = ["get", "list", "watch", "patch", "delete", "deletecollection"];
    vec![
        rule(&["*"], PANDA, &["*"]),
        rule(&["*"], "coordination.k8s.io", &["*"]),
        rule(&["*"], "certificates.k8s.io", &["*"]),
        rule(&["*"], "events.k8s.io", &["*"]),
        rule(
            &["*"],
            "",
            &[
                "configmaps",
                "events",
                "namespaces",
                "namespaces/finalize",
                "namespaces/status",
            ],
        ),
        rule(
            &collect,
            "",
            &["resourcequotas", "secrets/metadata", "serviceaccounts"],
        ),
        rule(&["delete", "deletecollection"], "", &["secrets"]),
        // What a GitSource holds is written with the rights of the account that it names.
        rule(&["impersonate"], "", &["serviceaccounts"]),
        rule(
            &collect,
            GROUP,
            &["clusterrolebindings", "clusterroles", "rolebindings", "roles"],
        ),
        rule(
            &collect,
            panda_api::admission::GROUP,
            &["validatingadmissionpolicies", "validatingadmissionpolicybindings"],
        ),
    ]
}

fn everything() -> Vec<PolicyRule> {
    let all = PolicyRule {
        verbs: words(&["*"]),
        non_resource_urls: words(&["*"]),
        ..PolicyRule::default()
    };
    vec![rule(&["*"], "*", &["*"]), all]
}

fn roles() -> Vec<ClusterRole> {
    let discovery = paths(&[
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
        "/healthz",
        "/healthz/*",
        "/livez",
        "/livez/*",
        "/openapi",
        "/openapi/*",
        "/readyz",
        "/readyz/*",
        "/version",
        "/version/",
    ]);
    let reviews = ["selfsubjectaccessreviews", "selfsubjectrulesreviews"];
    let basic = vec![
        rule(&["create"], "authorization.k8s.io", &reviews),
        rule(&["create"], "authentication.k8s.io", &["selfsubjectreviews"]),
    ];
    let delegator = vec![
        rule(&["create"], "authentication.k8s.io", &["tokenreviews"]),
        rule(&["create"], "authorization.k8s.io", &["subjectaccessreviews"]),
    ];
    vec![
        role("cluster-admin", everything(), false),
        role("admin", admin(), true),
        role("edit", edit(), true),
        role("view", view(), true),
        role(RUN_ROLE, run(), false),
        role("system:auth-delegator", delegator, false),
        role("system:basic-user", basic, false),
        role(CONTROLLERS_ROLE, controllers(), false),
        role("system:discovery", vec![discovery], false),
        role("system:metrics-reader", vec![paths(&["/metrics"])], false),
        role(
            "system:public-info-viewer",
            vec![paths(&["/healthz", "/livez", "/readyz", "/version", "/version/"])],
            false,
        ),
    ]
}

const CONTROLLERS_ROLE: &str = "system:panda-controllers";

fn bindings() -> Vec<ClusterRoleBinding> {
    vec![
        binding("cluster-admin", "Group", MASTERS),
        binding("system:basic-user", "Group", AUTHENTICATED),
        binding("system:discovery", "Group", AUTHENTICATED),
        binding(CONTROLLERS_ROLE, "User", CONTROLLERS),
        binding("system:public-info-viewer", "Group", AUTHENTICATED),
    ]
}

fn metadata(name: &str) -> ObjectMeta {
    let mut meta = ObjectMeta::named(name);
    meta.labels.insert(BOOTSTRAPPING.into(), "rbac-defaults".into());
    meta.annotations.insert(AUTOUPDATE.into(), "true".into());
    meta
}

/// A role; one that `grows` also takes the rules of roles labelled for it.
fn role(name: &str, rules: Vec<PolicyRule>, grows: bool) -> ClusterRole {
    let label = format!("rbac.authorization.k8s.io/aggregate-to-{name}");
    let selector = LabelSelector {
        match_labels: [(label, "true".to_owned())].into(),
        ..LabelSelector::default()
    };
    ClusterRole {
        metadata: metadata(name),
        rules,
        aggregation_rule: grows.then(|| AggregationRule {
            cluster_role_selectors: vec![selector],
        }),
        ..ClusterRole::default()
    }
}

/// A binding named like the role that it grants.
fn binding(role: &str, kind: &str, subject: &str) -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: metadata(role),
        subjects: vec![Subject {
            kind: kind.into(),
            api_group: GROUP.into(),
            name: subject.into(),
            namespace: String::new(),
        }],
        role_ref: RoleRef {
            api_group: GROUP.into(),
            kind: "ClusterRole".into(),
            name: role.into(),
        },
        ..ClusterRoleBinding::default()
    }
}

fn is_kept(meta: &ObjectMeta) -> bool {
    meta.annotations
        .get(AUTOUPDATE)
        .is_some_and(|value| value == "false")
}

/// Makes what is missing, and completes what is there.
pub(crate) async fn bootstrap(registry: &Registry) -> Result<(), Error> {
    for wanted in roles() {
        match registry.create_as(&wanted).await {
            Ok(_) => continue,
            Err(Error::AlreadyExists { .. }) => {}
            Err(error) => return Err(error),
        }
        let name = wanted.metadata.name.clone();
        let complete = move |role: &mut ClusterRole| {
            if is_kept(&role.metadata) {
                return false;
            }
            let missing = wanted
                .rules
                .iter()
                .filter(|rule| !covers(&role.rules, std::slice::from_ref(rule)));
            let missing: Vec<PolicyRule> = missing.cloned().collect();
            let grows = role.aggregation_rule.is_none() && wanted.aggregation_rule.is_some();
            if grows {
                role.aggregation_rule.clone_from(&wanted.aggregation_rule);
            }
            role.rules.extend(missing.iter().cloned());
            grows || !missing.is_empty()
        };
        registry.modify_as("", &name, Part::Spec, complete).await?;
    }
    for wanted in bindings() {
        match registry.create_as(&wanted).await {
            Ok(_) => continue,
            Err(Error::AlreadyExists { .. }) => {}
            Err(error) => return Err(error),
        }
        let name = wanted.metadata.name.clone();
        let complete = move |binding: &mut ClusterRoleBinding| {
            let missing: Vec<Subject> = wanted
                .subjects
                .iter()
                .filter(|subject| !binding.subjects.contains(subject))
                .cloned()
                .collect();
            let changed = !is_kept(&binding.metadata) && !missing.is_empty();
            if changed {
                binding.subjects.extend(missing);
            }
            changed
        };
        registry.modify_as("", &name, Part::Spec, complete).await?;
    }
    tracing::debug!(
        kinds = scheme::kinds().len(),
        "the roles that are always there are there"
    );
    Ok(())
}
