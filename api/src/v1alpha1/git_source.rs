//! GitSource: a repository of manifests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::meta::{Condition, Duration, LocalObjectReference, Time};
use crate::resource;

resource! {
    /// A git repository whose manifests are kept applied, with the rights of an account of its namespace. Deleting it leaves
    /// what it applied.
    GitSource, "panda.dev", "v1alpha1", "gitsources", namespaced: true {
        /// What is wanted.
        spec: GitSourceSpec,
        /// What came of it.
        #[serde(default)]
        status: GitSourceStatus,
    }
}

/// Spec of a [`GitSource`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GitSourceSpec {
    /// Where the repository is: `https://…`, `ssh://…`, or `file:///…` below a folder that the operator allows.
    pub url: String,
    /// Branch, tag or commit; empty: the branch that the repository names itself.
    #[serde(rename = "ref", skip_serializing_if = "String::is_empty")]
    pub ref_: String,
    /// Folder with the manifests, relative to the top of the repository, looked through with all folders below; empty: the
    /// top.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// How often the repository is looked at and drift is healed; 10s to 24h, default 5m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Duration>,
    /// Longest time for getting the repository; at most 30m, default 2m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// ServiceAccount of the same namespace with whose rights everything is read and written; default `default`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_account_name: String,
    /// Secret of the same namespace that opens the repository: `username` and `password` for https, `identity` (a private
    /// key) and `known_hosts` for ssh. The account must be allowed to read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_ref: Option<LocalObjectReference>,
    /// Removes what an earlier commit held and a later one does not; absent: nothing is ever removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prune: Option<GitSourcePrune>,
    /// True: nothing is fetched, applied or removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
}

/// See [`GitSourceSpec::prune`]. A repository that cannot be read, and one without manifests, never removes anything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GitSourcePrune {
    /// Most of its objects, in percent, that one commit may remove; more is refused until this is raised. 0 to 100, default
    /// 50.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_lost_percent: Option<u32>,
}

/// Status of a [`GitSource`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GitSourceStatus {
    /// Generation that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The commit that was seen last.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub observed_commit: String,
    /// The commit that was last applied as a whole.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub applied_commit: String,
    /// When the last look at the repository ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_sync_time: Option<Time>,
    /// Id that its objects carry in the label `applyset.kubernetes.io/part-of`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub apply_set: String,
    /// Kinds of its objects, as `Kind.group`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    /// Namespaces of its objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// How many objects came to what.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<GitSourceCounts>,
    /// What came of each object: those that need a look first, 250 at most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<GitSourceObject>,
    /// `Ready`: the newest commit is applied. `Fetched`: the repository could be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// How many objects of a [`GitSource`] came to what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GitSourceCounts {
    /// In the repository.
    pub total: u32,
    /// As the repository wants them.
    pub applied: u32,
    /// That could not be made so.
    pub failed: u32,
    /// Removed in the last look.
    pub pruned: u32,
    /// Not in the repository any more and still there.
    pub kept: u32,
}

/// What came of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GitSourceObject {
    /// `group/version`, or the version alone for the core group.
    pub api_version: String,
    /// The kind.
    pub kind: String,
    /// The namespace; empty for kinds without.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name.
    pub name: String,
    /// What came of it.
    pub result: GitSourceResult,
    /// Why, as a stable word; empty when there is nothing to say.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The same as a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// See [`GitSourceObject::result`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum GitSourceResult {
    /// It could not be made what the repository wants.
    Failed,
    /// It is not in the repository any more, and was left.
    Kept,
    /// It was removed.
    Pruned,
    /// It is what the repository wants.
    #[default]
    Applied,
}
