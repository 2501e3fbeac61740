//! `admissionregistration.k8s.io/v1`: ValidatingAdmissionPolicy and its binding; and `v1` ResourceQuota. In upstream's
//! shapes; what is not done here is refused when it is set.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::access::null_as_empty;
use crate::meta::LabelSelector;
use crate::resource;

/// The API group of policies.
pub const GROUP: &str = "admissionregistration.k8s.io";

resource! {
    /// How many objects of a kind a namespace may hold.
    ResourceQuota, "", "v1", "resourcequotas", namespaced: true {
        /// What is allowed.
        #[serde(default)]
        spec: ResourceQuotaSpec,
        /// What is used.
        #[serde(default)]
        status: ResourceQuotaStatus,
    }
}

/// Spec of a [`ResourceQuota`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceQuotaSpec {
    /// Most objects, by `count/PLURAL.GROUP` (`count/PLURAL` for the core group).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hard: BTreeMap<String, String>,
}

/// Status of a [`ResourceQuota`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceQuotaStatus {
    /// What is enforced.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hard: BTreeMap<String, String>,
    /// How many there are.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub used: BTreeMap<String, String>,
}

/// What `count/...` names; the group is empty for the core group.
#[must_use]
pub fn counted(name: &str) -> Option<(&str, &str)> {
    let name = name.strip_prefix("count/")?;
    Some(
        name.split_once('.')
            .map_or((name, ""), |(plural, group)| (plural, group)),
    )
}

resource! {
    /// Rules that objects must keep to be stored, where a binding says so.
    ValidatingAdmissionPolicy, "admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", namespaced: false {
        /// The rules.
        #[serde(default)]
        spec: PolicySpec,
    }
}

/// Spec of a [`ValidatingAdmissionPolicy`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicySpec {
    /// Kind of parameters. Not implemented.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub param_kind: Option<ParamKind>,
    /// What it is about.
    pub match_constraints: MatchResources,
    /// What must be true for it to be asked at all.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[serde(deserialize_with = "null_as_empty", skip_serializing_if = "Vec::is_empty")]
    pub match_conditions: Vec<NamedExpression>,
    /// Expressions that others may use as `variables.NAME`, in order.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[serde(deserialize_with = "null_as_empty", skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<NamedExpression>,
    /// What must be true.
    #[serde(deserialize_with = "null_as_empty", skip_serializing_if = "Vec::is_empty")]
    pub validations: Vec<Validation>,
    /// What happens when an expression fails: `Fail` (default) or `Ignore`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub failure_policy: String,
    /// Further annotations of audit records. Not implemented.
    #[serde(deserialize_with = "null_as_empty", skip_serializing_if = "Vec::is_empty")]
    pub audit_annotations: Vec<AuditAnnotation>,
}

/// Names a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ParamKind {
    /// `group/version`.
    pub api_version: String,
    /// The kind.
    pub kind: String,
}

/// What a policy or a binding is about.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MatchResources {
    /// Only in namespaces with these labels. Objects without a namespace are always meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Only objects with these labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_selector: Option<LabelSelector>,
    /// Which requests; one of these.
    #[serde(deserialize_with = "null_as_empty", skip_serializing_if = "Vec::is_empty")]
    pub resource_rules: Vec<ResourceRule>,
    /// Which requests not.
    #[serde(deserialize_with = "null_as_empty", skip_serializing_if = "Vec::is_empty")]
    pub exclude_resource_rules: Vec<ResourceRule>,
    /// `Exact` or `Equivalent`; there is one version of each kind, so both mean the same.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub match_policy: String,
}

/// Some requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceRule {
    /// API groups; `*` for all.
    #[serde(deserialize_with = "null_as_empty")]
    pub api_groups: Vec<String>,
    /// Versions; `*` for all.
    #[serde(deserialize_with = "null_as_empty")]
    pub api_versions: Vec<String>,
    /// `CREATE`, `UPDATE`.
    #[serde(deserialize_with = "null_as_empty")]
    pub operations: Vec<String>,
    /// Plurals; `*` for all.
    #[serde(deserialize_with = "null_as_empty")]
    pub resources: Vec<String>,
    /// Only objects of these names.
    #[serde(deserialize_with = "null_as_empty", skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    /// `Cluster`, `Namespaced` or `*`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub scope: String,
}

/// An expression with a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamedExpression {
    /// The name.
    pub name: String,
    /// CEL.
    pub expression: String,
}

/// One rule of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Validation {
    /// CEL; must be true.
    pub expression: String,
    /// What is said when it is not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// CEL that makes the message; where it fails, `message` is said.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message_expression: String,
    /// `Invalid` (default), `Forbidden`, `Unauthorized` or `RequestEntityTooLarge`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// An annotation of audit records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AuditAnnotation {
    /// Its key.
    pub key: String,
    /// CEL.
    pub value_expression: String,
}

resource! {
    /// Puts a ValidatingAdmissionPolicy in force.
    ValidatingAdmissionPolicyBinding, "admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings",
    namespaced: false {
        /// Which, where, and with what consequence.
        #[serde(default)]
        spec: PolicyBindingSpec,
    }
}

/// Spec of a [`ValidatingAdmissionPolicyBinding`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyBindingSpec {
    /// Name of the policy.
    pub policy_name: String,
    /// Parameters. Not implemented.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub param_ref: Option<ParamRef>,
    /// Where, beside what the policy itself says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub match_resources: Option<MatchResources>,
    /// `Deny`, `Warn`, `Audit`.
    #[serde(deserialize_with = "null_as_empty")]
    pub validation_actions: Vec<String>,
}

/// Names parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ParamRef {
    /// The object's name.
    pub name: String,
}
