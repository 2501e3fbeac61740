//! `rbac.authorization.k8s.io/v1`: Role, ClusterRole and their bindings, in upstream's shapes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::access::null_as_empty;
use crate::meta::LabelSelector;
use crate::resource;

/// The API group of these kinds.
pub const GROUP: &str = "rbac.authorization.k8s.io";

resource! {
    /// What may be done in one namespace. Grants nothing until it is bound.
    Role, "rbac.authorization.k8s.io", "v1", "roles", namespaced: true {
        /// Rules; each adds, none takes away.
        #[serde(default, deserialize_with = "null_as_empty")]
        rules: Vec<PolicyRule>,
    }
}

resource! {
    /// What may be done everywhere, or, bound by a RoleBinding, in one namespace.
    ClusterRole, "rbac.authorization.k8s.io", "v1", "clusterroles", namespaced: false {
        /// Rules; each adds, none takes away.
        #[serde(default, deserialize_with = "null_as_empty")]
        rules: Vec<PolicyRule>,
        /// Further rules: those of every ClusterRole with these labels.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        aggregation_rule: Option<AggregationRule>,
    }
}

resource! {
    /// Grants a Role or a ClusterRole in one namespace.
    RoleBinding, "rbac.authorization.k8s.io", "v1", "rolebindings", namespaced: true {
        /// To whom.
        #[serde(default, deserialize_with = "null_as_empty", skip_serializing_if = "Vec::is_empty")]
        subjects: Vec<Subject>,
        /// What. Never changes: make another binding instead.
        #[serde(default)]
        role_ref: RoleRef,
    }
}

resource! {
    /// Grants a ClusterRole everywhere.
    ClusterRoleBinding, "rbac.authorization.k8s.io", "v1", "clusterrolebindings", namespaced: false {
        /// To whom.
        #[serde(default, deserialize_with = "null_as_empty", skip_serializing_if = "Vec::is_empty")]
        subjects: Vec<Subject>,
        /// What. Never changes: make another binding instead.
        #[serde(default)]
        role_ref: RoleRef,
    }
}

/// One rule: every verb on every one of the resources, or on every one of the paths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRule {
    /// Verbs; `*` is all.
    #[schemars(required)]
    pub verbs: Vec<String>,
    /// API groups; empty text is the core group, `*` all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    /// Resources: `tasks`, `tasks/status`, `*/status`, `*`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    /// Only objects of these names; empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    /// Paths that are no resources, in ClusterRoles only: `/metrics`, `/healthz/*`, `*`.
    #[serde(rename = "nonResourceURLs", skip_serializing_if = "Vec::is_empty")]
    pub non_resource_urls: Vec<String>,
}

/// Where a ClusterRole takes further rules from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AggregationRule {
    /// ClusterRoles that any of these selects.
    pub cluster_role_selectors: Vec<LabelSelector>,
}

/// To whom a binding grants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Subject {
    /// `User`, `Group` or `ServiceAccount`.
    #[schemars(required)]
    pub kind: String,
    /// `rbac.authorization.k8s.io` for users and groups, empty for accounts.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    /// Name.
    #[schemars(required)]
    pub name: String,
    /// Namespace of a ServiceAccount.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
}

/// Which role a binding grants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RoleRef {
    /// `rbac.authorization.k8s.io`.
    pub api_group: String,
    /// `Role` or `ClusterRole`.
    #[schemars(required)]
    pub kind: String,
    /// Name.
    #[schemars(required)]
    pub name: String,
}
