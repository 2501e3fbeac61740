//! The list of kinds.

use std::sync::LazyLock;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde_json::Value;

use super::columns::{self, Column};
use super::prepare::{self, Error, Operation, Prepared};
use super::schema;
use super::shape::Shape;
use crate::access::{
    LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectReview, SelfSubjectRulesReview,
    SubjectAccessReview, TokenReview,
};
use crate::events;
use crate::validation::Rules;
use crate::{
    Agent, CertificateSigningRequest, ClusterRole, ClusterRoleBinding, ConfigMap, Device, Event, GitSource,
    Lease, Namespace, Resource, ResourceQuota, Role, RoleBinding, Run, Secret, ServiceAccount, Task,
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};

/// What the system knows about a kind.
#[derive(Debug)]
pub struct KindInfo {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version within the group.
    pub version: &'static str,
    /// Kind, in CamelCase.
    pub kind: &'static str,
    /// Plural, lower case: the name in URLs.
    pub plural: &'static str,
    /// Singular, lower case.
    pub singular: &'static str,
    /// Abbreviations for the command line.
    pub short_names: &'static [&'static str],
    /// Names of groups of kinds that it belongs to.
    pub categories: &'static [&'static str],
    /// Whether objects live in a namespace.
    pub namespaced: bool,
    /// Whether `status` is written through a subresource of its own.
    pub has_status: bool,
    /// What may be done with it.
    pub verbs: &'static [&'static str],
    /// Paths that field selectors may name.
    pub selectable_fields: &'static [&'static str],
    /// Columns of its table, in order.
    pub columns: &'static [Column],
    /// Name of its schema in OpenAPI, for example `dev.panda.v1alpha1.Task`.
    pub definition_name: &'static str,
    cells: fn(&Value, Timestamp) -> Vec<Value>,
    finish: prepare::Finish,
    schema: Value,
    shape: Shape,
}

impl KindInfo {
    /// `group/version`, or the version alone for the core group.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `plural.group`, or the plural alone for the core group: the name in messages.
    #[must_use]
    pub fn resource_name(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_owned()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// The kind of a list of it.
    #[must_use]
    pub fn list_kind(&self) -> String {
        format!("{}List", self.kind)
    }

    /// The published JSON Schema (structural, OpenAPI 3.0 dialect).
    #[must_use]
    pub const fn schema(&self) -> &Value {
        &self.schema
    }

    /// The cells of an object's row, one for each of [`Self::columns`]. Ages are counted up to `now`.
    #[must_use]
    pub fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        (self.cells)(object, now)
    }

    /// Whether a field selector may name `path`.
    #[must_use]
    pub fn is_selectable(&self, path: &str) -> bool {
        self.selectable_fields.contains(&path)
    }

    pub(crate) const fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(super) fn finish(&self, value: Value, operation: &Operation<'_>) -> Result<Prepared, Error> {
        (self.finish)(value, operation)
    }
}

/// What field selectors see at `path`: the value as text, empty when absent. `None` when the kind does not offer `path`.
#[must_use]
pub fn selectable_field(info: &KindInfo, object: &Value, path: &str) -> Option<String> {
    if !info.is_selectable(path) {
        return None;
    }
    let value = path.split('.').try_fold(object, |at, key| at.get(key));
    Some(match value {
        Some(Value::String(text)) => text.clone(),
        Some(value @ (Value::Bool(_) | Value::Number(_))) => value.to_string(),
        _ => String::new(),
    })
}

const VERBS: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];
const PANDA: &[&str] = &["panda", "all"];
const NAME: &str = "metadata.name";
const NAMESPACE: &str = "metadata.namespace";

/// What the types themselves do not say.
struct Words {
    singular: &'static str,
    short_names: &'static [&'static str],
    has_status: bool,
    selectable_fields: &'static [&'static str],
    definition_name: &'static str,
    columns: &'static [Column],
    cells: fn(&Value, Timestamp) -> Vec<Value>,
}

fn kind<K: Rules + JsonSchema>(words: Words) -> KindInfo {
    let published = schema::of::<K>();
    let shape = Shape::compile(&published);
    let mut published = published;
    if let Some(root) = published.as_object_mut() {
        root.insert(
            "x-kubernetes-group-version-kind".into(),
            serde_json::json!([{"group": K::GROUP, "version": K::VERSION, "kind": K::KIND}]),
        );
    }
    KindInfo {
        group: K::GROUP,
        version: K::VERSION,
        kind: K::KIND,
        plural: K::PLURAL,
        singular: words.singular,
        short_names: words.short_names,
        categories: if K::GROUP == "panda.dev" { PANDA } else { &[] },
        namespaced: K::NAMESPACED,
        has_status: words.has_status,
        verbs: VERBS,
        selectable_fields: words.selectable_fields,
        columns: words.columns,
        definition_name: words.definition_name,
        cells: words.cells,
        finish: prepare::finish::<K>,
        schema: published,
        shape,
    }
}

static KINDS: LazyLock<Vec<KindInfo>> = LazyLock::new(|| {
    vec![
        kind::<Task>(Words {
            singular: "task",
            short_names: &["tk"],
            has_status: true,
            selectable_fields: &[NAME, NAMESPACE, "status.phase"],
            definition_name: "dev.panda.v1alpha1.Task",
            columns: columns::TASK,
            cells: columns::task,
        }),
        kind::<Run>(Words {
            singular: "run",
            short_names: &[],
            has_status: true,
            selectable_fields: &[
                NAME,
                NAMESPACE,
                "spec.deviceName",
                "spec.taskRef.name",
                "status.phase",
            ],
            definition_name: "dev.panda.v1alpha1.Run",
            columns: columns::RUN,
            cells: columns::run,
        }),
        kind::<Agent>(Words {
            singular: "agent",
            short_names: &["ag"],
            has_status: true,
            selectable_fields: &[NAME, NAMESPACE],
            definition_name: "dev.panda.v1alpha1.Agent",
            columns: columns::AGENT,
            cells: columns::agent,
        }),
        kind::<Device>(Words {
            singular: "device",
            short_names: &["dev"],
            has_status: true,
            selectable_fields: &[NAME, NAMESPACE],
            definition_name: "dev.panda.v1alpha1.Device",
            columns: columns::DEVICE,
            cells: columns::device,
        }),
        kind::<GitSource>(Words {
            singular: "gitsource",
            short_names: &["gs"],
            has_status: true,
            selectable_fields: &[NAME, NAMESPACE],
            definition_name: "dev.panda.v1alpha1.GitSource",
            columns: columns::GIT_SOURCE,
            cells: columns::git_source,
        }),
        kind::<Namespace>(Words {
            singular: "namespace",
            short_names: &["ns"],
            has_status: true,
            selectable_fields: &[NAME, NAMESPACE, "status.phase"],
            definition_name: "io.k8s.api.core.v1.Namespace",
            columns: columns::NAMESPACE,
            cells: columns::namespace,
        }),
        kind::<Secret>(Words {
            singular: "secret",
            short_names: &[],
            has_status: false,
            selectable_fields: &[NAME, NAMESPACE, "type"],
            definition_name: "io.k8s.api.core.v1.Secret",
            columns: columns::SECRET,
            cells: columns::secret,
        }),
        kind::<ConfigMap>(Words {
            singular: "configmap",
            short_names: &["cm"],
            has_status: false,
            selectable_fields: &[NAME, NAMESPACE],
            definition_name: "io.k8s.api.core.v1.ConfigMap",
            columns: columns::CONFIG_MAP,
            cells: columns::config_map,
        }),
        kind::<Event>(Words {
            singular: "event",
            short_names: &["ev"],
            has_status: false,
            selectable_fields: &[
                NAME,
                NAMESPACE,
                "involvedObject.apiVersion",
                "involvedObject.kind",
                "involvedObject.name",
                "involvedObject.namespace",
                "involvedObject.uid",
                "reason",
                "reportingComponent",
                "type",
            ],
            definition_name: "io.k8s.api.core.v1.Event",
            columns: columns::EVENT,
            cells: columns::event,
        }),
        kind::<Lease>(Words {
            singular: "lease",
            short_names: &[],
            has_status: false,
            selectable_fields: &[NAME, NAMESPACE],
            definition_name: "io.k8s.api.coordination.v1.Lease",
            columns: columns::LEASE,
            cells: columns::lease,
        }),
        kind::<ServiceAccount>(Words {
            singular: "serviceaccount",
            short_names: &["sa"],
            ..plain("io.k8s.api.core.v1.ServiceAccount")
        }),
        kind::<Role>(Words {
            singular: "role",
            ..plain("io.k8s.api.rbac.v1.Role")
        }),
        kind::<ClusterRole>(Words {
            singular: "clusterrole",
            ..plain("io.k8s.api.rbac.v1.ClusterRole")
        }),
        kind::<RoleBinding>(Words {
            singular: "rolebinding",
            columns: columns::BINDING,
            cells: columns::binding,
            ..plain("io.k8s.api.rbac.v1.RoleBinding")
        }),
        kind::<ClusterRoleBinding>(Words {
            singular: "clusterrolebinding",
            columns: columns::BINDING,
            cells: columns::binding,
            ..plain("io.k8s.api.rbac.v1.ClusterRoleBinding")
        }),
        kind::<CertificateSigningRequest>(Words {
            singular: "certificatesigningrequest",
            short_names: &["csr"],
            has_status: true,
            selectable_fields: &[NAME, NAMESPACE, "spec.signerName"],
            definition_name: "io.k8s.api.certificates.v1.CertificateSigningRequest",
            columns: columns::CERTIFICATE_REQUEST,
            cells: columns::certificate_request,
        }),
        kind::<ResourceQuota>(Words {
            singular: "resourcequota",
            short_names: &["quota"],
            has_status: true,
            columns: columns::QUOTA,
            cells: columns::quota,
            ..plain("io.k8s.api.core.v1.ResourceQuota")
        }),
        kind::<ValidatingAdmissionPolicy>(Words {
            singular: "validatingadmissionpolicy",
            ..plain("io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicy")
        }),
        kind::<ValidatingAdmissionPolicyBinding>(Words {
            singular: "validatingadmissionpolicybinding",
            ..plain("io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicyBinding")
        }),
    ]
});

/// What is said of a kind that has a name and an age, and nothing else to show.
fn plain(definition_name: &'static str) -> Words {
    Words {
        singular: "",
        short_names: &[],
        has_status: false,
        selectable_fields: &[NAME, NAMESPACE],
        definition_name,
        columns: columns::PLAIN,
        cells: columns::plain,
    }
}

fn review<K: Rules + JsonSchema>(singular: &'static str, definition_name: &'static str) -> KindInfo {
    let words = Words {
        singular,
        selectable_fields: &[],
        ..plain(definition_name)
    };
    KindInfo {
        verbs: &["create"],
        ..kind::<K>(words)
    }
}

static REVIEWS: LazyLock<Vec<KindInfo>> = LazyLock::new(|| {
    vec![
        review::<TokenReview>("tokenreview", "io.k8s.api.authentication.v1.TokenReview"),
        review::<SelfSubjectReview>(
            "selfsubjectreview",
            "io.k8s.api.authentication.v1.SelfSubjectReview",
        ),
        review::<SelfSubjectAccessReview>(
            "selfsubjectaccessreview",
            "io.k8s.api.authorization.v1.SelfSubjectAccessReview",
        ),
        review::<SubjectAccessReview>(
            "subjectaccessreview",
            "io.k8s.api.authorization.v1.SubjectAccessReview",
        ),
        review::<LocalSubjectAccessReview>(
            "localsubjectaccessreview",
            "io.k8s.api.authorization.v1.LocalSubjectAccessReview",
        ),
        review::<SelfSubjectRulesReview>(
            "selfsubjectrulesreview",
            "io.k8s.api.authorization.v1.SelfSubjectRulesReview",
        ),
    ]
});

static FORMS: LazyLock<Vec<KindInfo>> = LazyLock::new(|| {
    vec![kind::<events::Event>(Words {
        singular: "event",
        short_names: &["ev"],
        has_status: false,
        selectable_fields: &[
            NAME,
            NAMESPACE,
            "reason",
            "regarding.apiVersion",
            "regarding.kind",
            "regarding.name",
            "regarding.namespace",
            "regarding.uid",
            "reportingController",
            "type",
        ],
        definition_name: "io.k8s.api.events.v1.Event",
        columns: columns::EVENT,
        cells: columns::event,
    })]
});

/// Every kind whose objects are stored.
#[must_use]
pub fn kinds() -> &'static [KindInfo] {
    &KINDS
}

/// Every kind that can only be created, which answers a question and stores nothing.
#[must_use]
pub fn reviews() -> &'static [KindInfo] {
    &REVIEWS
}

/// Every kind that is another form of a stored kind's objects.
#[must_use]
pub fn forms() -> &'static [KindInfo] {
    &FORMS
}

/// Everything that is served: stored kinds, reviews, and other forms of stored kinds.
pub fn served() -> impl Iterator<Item = &'static KindInfo> {
    kinds().iter().chain(reviews()).chain(forms())
}

/// The kind with this plural.
#[must_use]
pub fn by_plural(group: &str, version: &str, plural: &str) -> Option<&'static KindInfo> {
    served().find(|k| k.group == group && k.version == version && k.plural == plural)
}

/// The kind with this `apiVersion` and `kind`.
#[must_use]
pub fn by_kind(api_version: &str, kind: &str) -> Option<&'static KindInfo> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    served().find(|k| k.group == group && k.version == version && k.kind == kind)
}

/// The kind that a person means by `word`: plural, singular, short name or kind in any case, with the group after a dot
/// where they like (`tasks.panda.dev`).
#[must_use]
pub fn by_word(word: &str) -> Option<&'static KindInfo> {
    let word = word.to_ascii_lowercase();
    let (name, rest) = word.split_once('.').unwrap_or((&word, ""));
    served().find(|k| {
        let named = k.plural == name || k.singular == name || k.short_names.contains(&name);
        let qualified = rest.is_empty() || rest == k.group || rest == format!("{}.{}", k.version, k.group);
        named && qualified
    })
}

/// The kind of a type.
///
/// # Panics
///
/// When the type is not in the list above, which a test rules out for every type of this crate.
#[must_use]
pub fn of<K: Resource>() -> &'static KindInfo {
    by_plural(K::GROUP, K::VERSION, K::PLURAL).expect("every type of this crate is in the list of kinds")
}
