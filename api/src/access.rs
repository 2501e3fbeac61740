//! ServiceAccounts and their tokens, and the reviews that ask who somebody is and what they may do:
//! `v1`, `authentication.k8s.io/v1`, `authorization.k8s.io/v1`, in upstream's shapes.
//!
//! Reviews are created, answered, and never stored.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::meta::Time;
use crate::resource;

resource! {
    /// Who a program is. Its tokens end with it.
    ServiceAccount, "", "v1", "serviceaccounts", namespaced: true {
        /// Kept for upstream's clients; nothing is mounted into a run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        automount_service_account_token: Option<bool>,
    }
}

resource! {
    /// Asks for a token of a ServiceAccount: POST to `serviceaccounts/NAME/token`.
    TokenRequest, "authentication.k8s.io", "v1", "tokenrequests", namespaced: true {
        /// What is asked for.
        #[serde(default)]
        spec: TokenRequestSpec,
        /// The answer.
        #[serde(default)]
        status: TokenRequestStatus,
    }
}

/// Spec of a [`TokenRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenRequestSpec {
    /// Who the token is for; empty: this API, which is `panda`. A token for others opens nothing here.
    #[serde(deserialize_with = "null_as_empty")]
    pub audiences: Vec<String>,
    /// Seconds until it ends, at least 600; absent: an hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration_seconds: Option<i64>,
    /// An object that the token ends with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_object_ref: Option<BoundObjectReference>,
}

/// See [`TokenRequestSpec::bound_object_ref`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BoundObjectReference {
    /// Kind.
    pub kind: String,
    /// `group/version`.
    pub api_version: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
}

/// Status of a [`TokenRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenRequestStatus {
    /// The token.
    pub token: String,
    /// When it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration_timestamp: Option<Time>,
}

/// A user as reviews show them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UserInfo {
    /// Name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub username: String,
    /// Uid.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Groups.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_empty")]
    pub groups: Vec<String>,
    /// What else is known.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

resource! {
    /// Asks who a token's bearer is.
    TokenReview, "authentication.k8s.io", "v1", "tokenreviews", namespaced: false {
        /// What is asked.
        #[serde(default)]
        spec: TokenReviewSpec,
        /// The answer.
        #[serde(default)]
        status: TokenReviewStatus,
    }
}

/// Spec of a [`TokenReview`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenReviewSpec {
    /// The token.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub token: String,
    /// Who asks for itself; empty: this API.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_empty")]
    pub audiences: Vec<String>,
}

/// Status of a [`TokenReview`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenReviewStatus {
    /// Whether the token is good.
    pub authenticated: bool,
    /// The bearer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<UserInfo>,
    /// Audiences that the token is good for, among those asked for.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_empty")]
    pub audiences: Vec<String>,
    /// Why it is not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}

resource! {
    /// Asks who one is.
    SelfSubjectReview, "authentication.k8s.io", "v1", "selfsubjectreviews", namespaced: false {
        /// The answer.
        #[serde(default)]
        status: SelfSubjectReviewStatus,
    }
}

/// Status of a [`SelfSubjectReview`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SelfSubjectReviewStatus {
    /// Who asks.
    pub user_info: UserInfo,
}

resource! {
    /// Asks whether one may do something.
    SelfSubjectAccessReview, "authorization.k8s.io", "v1", "selfsubjectaccessreviews", namespaced: false {
        /// What is asked.
        #[serde(default)]
        spec: AccessReviewSpec,
        /// The answer.
        #[serde(default)]
        status: AccessReviewStatus,
    }
}

resource! {
    /// Asks whether somebody may do something.
    SubjectAccessReview, "authorization.k8s.io", "v1", "subjectaccessreviews", namespaced: false {
        /// What is asked.
        #[serde(default)]
        spec: AccessReviewSpec,
        /// The answer.
        #[serde(default)]
        status: AccessReviewStatus,
    }
}

resource! {
    /// Asks whether somebody may do something in this namespace.
    LocalSubjectAccessReview, "authorization.k8s.io", "v1", "localsubjectaccessreviews", namespaced: true {
        /// What is asked.
        #[serde(default)]
        spec: AccessReviewSpec,
        /// The answer.
        #[serde(default)]
        status: AccessReviewStatus,
    }
}

/// What an access review asks: about an object or about a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AccessReviewSpec {
    /// About objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_attributes: Option<ResourceAttributes>,
    /// About a path that is no resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub non_resource_attributes: Option<NonResourceAttributes>,
    /// The user asked about; not in self reviews.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// The user's groups.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_empty")]
    pub groups: Vec<String>,
    /// The user's uid.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// What else is known of the user.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// An action on objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceAttributes {
    /// Namespace; empty: all, or none for cluster-scoped kinds.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Verb; `*` is all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub verb: String,
    /// API group; `*` is all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Version; `*` is all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Plural; `*` is all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource: String,
    /// Subresource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subresource: String,
    /// Name; empty: all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// An action on a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NonResourceAttributes {
    /// Path.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Verb: a method in lower case.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub verb: String,
}

/// Answer of an access review.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AccessReviewStatus {
    /// Whether it is allowed.
    pub allowed: bool,
    /// Whether it is refused whatever the roles say.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub denied: bool,
    /// Why.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What could not be found out.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub evaluation_error: String,
}

resource! {
    /// Asks for all that one may do in a namespace.
    SelfSubjectRulesReview, "authorization.k8s.io", "v1", "selfsubjectrulesreviews", namespaced: false {
        /// What is asked.
        #[serde(default)]
        spec: SelfSubjectRulesReviewSpec,
        /// The answer.
        #[serde(default)]
        status: SubjectRulesReviewStatus,
    }
}

/// Spec of a [`SelfSubjectRulesReview`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SelfSubjectRulesReviewSpec {
    /// Namespace.
    pub namespace: String,
}

/// Answer of a [`SelfSubjectRulesReview`]. Empty lists are written: upstream's clients want them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SubjectRulesReviewStatus {
    /// About objects.
    #[serde(deserialize_with = "null_as_empty")]
    pub resource_rules: Vec<ResourceRule>,
    /// About paths.
    #[serde(deserialize_with = "null_as_empty")]
    pub non_resource_rules: Vec<NonResourceRule>,
    /// Whether there may be more.
    pub incomplete: bool,
    /// Why.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub evaluation_error: String,
}

/// A rule about objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceRule {
    /// Verbs.
    pub verbs: Vec<String>,
    /// API groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    /// Resources.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    /// Only objects of these names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
}

/// A rule about paths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NonResourceRule {
    /// Verbs.
    pub verbs: Vec<String>,
    /// Paths.
    #[serde(rename = "nonResourceURLs", skip_serializing_if = "Vec::is_empty")]
    pub non_resource_urls: Vec<String>,
}

/// Upstream's typed clients write an empty list as `null`.
pub(crate) fn null_as_empty<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
