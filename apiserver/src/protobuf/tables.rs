//! Field numbers of the kinds that are read, from upstream's published `.proto` files.

use super::Type::{
    Bool, Bytes, BytesMap, Ignored, Int, Message as One, Messages as Many, MicroTime, Text, TextMap, Texts,
    TextsMap, Time,
};
use super::{Field, Message, Type};

const fn f(number: u64, name: &'static str, type_: Type) -> Field {
    Field { number, name, type_ }
}

macro_rules! message {
    ($table:ident, $name:literal, $($number:literal $field:literal $type_:expr),* $(,)?) => {
        pub(super) static $table: Message = Message {
            name: $name,
            fields: &[$(f($number, $field, $type_)),*],
        };
    };
}

message!(TYPE_META, "TypeMeta", 1 "apiVersion" Text, 2 "kind" Text);
message!(TEXTS, "ExtraValue", 1 "items" Texts);
message!(OWNER, "OwnerReference",
    1 "kind" Text, 3 "name" Text, 4 "uid" Text, 5 "apiVersion" Text, 6 "controller" Bool,
    7 "blockOwnerDeletion" Bool);
message!(METADATA, "ObjectMeta",
    1 "name" Text, 2 "generateName" Text, 3 "namespace" Text, 4 "selfLink" Ignored, 5 "uid" Text,
    6 "resourceVersion" Text, 7 "generation" Ignored, 8 "creationTimestamp" Ignored, 9 "deletionTimestamp" Ignored,
    10 "deletionGracePeriodSeconds" Ignored, 11 "labels" TextMap, 12 "annotations" TextMap,
    13 "ownerReferences" Many(&OWNER), 14 "finalizers" Texts, 17 "managedFields" Ignored);

message!(NAMESPACE_SPEC, "NamespaceSpec", 1 "finalizers" Texts);
message!(NAMESPACE, "Namespace", 1 "metadata" One(&METADATA), 2 "spec" One(&NAMESPACE_SPEC), 3 "status" Ignored);
message!(ACCOUNT, "ServiceAccount", 1 "metadata" One(&METADATA), 4 "automountServiceAccountToken" Bool);
message!(SECRET, "Secret",
    1 "metadata" One(&METADATA), 2 "data" BytesMap, 3 "type" Text, 4 "stringData" TextMap, 5 "immutable" Bool);
message!(CONFIG_MAP, "ConfigMap",
    1 "metadata" One(&METADATA), 2 "data" TextMap, 3 "binaryData" BytesMap, 4 "immutable" Bool);

message!(RULE, "PolicyRule",
    1 "verbs" Texts, 2 "apiGroups" Texts, 3 "resources" Texts, 4 "resourceNames" Texts, 5 "nonResourceURLs" Texts);
message!(REQUIREMENT, "LabelSelectorRequirement", 1 "key" Text, 2 "operator" Text, 3 "values" Texts);
message!(SELECTOR, "LabelSelector", 1 "matchLabels" TextMap, 2 "matchExpressions" Many(&REQUIREMENT));
message!(AGGREGATION, "AggregationRule", 1 "clusterRoleSelectors" Many(&SELECTOR));
message!(SUBJECT, "Subject", 1 "kind" Text, 2 "apiGroup" Text, 3 "name" Text, 4 "namespace" Text);
message!(ROLE_REF, "RoleRef", 1 "apiGroup" Text, 2 "kind" Text, 3 "name" Text);
message!(ROLE, "Role", 1 "metadata" One(&METADATA), 2 "rules" Many(&RULE));
message!(CLUSTER_ROLE, "ClusterRole",
    1 "metadata" One(&METADATA), 2 "rules" Many(&RULE), 3 "aggregationRule" One(&AGGREGATION));
message!(BINDING, "RoleBinding",
    1 "metadata" One(&METADATA), 2 "subjects" Many(&SUBJECT), 3 "roleRef" One(&ROLE_REF));

message!(BOUND, "BoundObjectReference", 1 "kind" Text, 2 "apiVersion" Text, 3 "name" Text, 4 "uid" Text);
message!(TOKEN_REQUEST_SPEC, "TokenRequestSpec",
    1 "audiences" Texts, 3 "boundObjectRef" One(&BOUND), 4 "expirationSeconds" Int);
message!(TOKEN_REQUEST, "TokenRequest",
    1 "metadata" One(&METADATA), 2 "spec" One(&TOKEN_REQUEST_SPEC), 3 "status" Ignored);
message!(TOKEN_REVIEW_SPEC, "TokenReviewSpec", 1 "token" Text, 2 "audiences" Texts);
message!(TOKEN_REVIEW, "TokenReview",
    1 "metadata" One(&METADATA), 2 "spec" One(&TOKEN_REVIEW_SPEC), 3 "status" Ignored);
message!(SELF_REVIEW, "SelfSubjectReview", 1 "metadata" One(&METADATA), 2 "status" Ignored);

message!(ON_RESOURCE, "ResourceAttributes",
    1 "namespace" Text, 2 "verb" Text, 3 "group" Text, 4 "version" Text, 5 "resource" Text, 6 "subresource" Text,
    7 "name" Text);
message!(ON_PATH, "NonResourceAttributes", 1 "path" Text, 2 "verb" Text);
message!(SELF_ACCESS_SPEC, "SelfSubjectAccessReviewSpec",
    1 "resourceAttributes" One(&ON_RESOURCE), 2 "nonResourceAttributes" One(&ON_PATH));
message!(SELF_ACCESS, "SelfSubjectAccessReview",
    1 "metadata" One(&METADATA), 2 "spec" One(&SELF_ACCESS_SPEC), 3 "status" Ignored);
message!(ACCESS_SPEC, "SubjectAccessReviewSpec",
    1 "resourceAttributes" One(&ON_RESOURCE), 2 "nonResourceAttributes" One(&ON_PATH), 3 "user" Text,
    4 "groups" Texts, 5 "extra" TextsMap, 6 "uid" Text);
message!(ACCESS, "SubjectAccessReview",
    1 "metadata" One(&METADATA), 2 "spec" One(&ACCESS_SPEC), 3 "status" Ignored);
message!(RULES_SPEC, "SelfSubjectRulesReviewSpec", 1 "namespace" Text);
message!(RULES, "SelfSubjectRulesReview",
    1 "metadata" One(&METADATA), 2 "spec" One(&RULES_SPEC), 3 "status" Ignored);

message!(SIGNING_SPEC, "CertificateSigningRequestSpec",
    1 "request" Bytes, 2 "username" Text, 3 "uid" Text, 4 "groups" Texts, 5 "usages" Texts, 6 "extra" TextsMap,
    7 "signerName" Text, 8 "expirationSeconds" Int);
message!(SIGNING_CONDITION, "CertificateSigningRequestCondition",
    1 "type" Text, 2 "reason" Text, 3 "message" Text, 4 "lastUpdateTime" Time, 5 "lastTransitionTime" Time,
    6 "status" Text);
message!(SIGNING_STATUS, "CertificateSigningRequestStatus",
    1 "conditions" Many(&SIGNING_CONDITION), 2 "certificate" Bytes);
message!(SIGNING, "CertificateSigningRequest",
    1 "metadata" One(&METADATA), 2 "spec" One(&SIGNING_SPEC), 3 "status" One(&SIGNING_STATUS));

message!(REFERENCE, "ObjectReference",
    1 "kind" Text, 2 "namespace" Text, 3 "name" Text, 4 "uid" Text, 5 "apiVersion" Text, 6 "resourceVersion" Text,
    7 "fieldPath" Text);
message!(EVENT_SOURCE, "EventSource", 1 "component" Text, 2 "host" Text);
message!(EVENT_SERIES, "EventSeries", 1 "count" Int, 2 "lastObservedTime" MicroTime);
message!(EVENT, "Event",
    1 "metadata" One(&METADATA), 2 "involvedObject" One(&REFERENCE), 3 "reason" Text, 4 "message" Text,
    5 "source" One(&EVENT_SOURCE), 6 "firstTimestamp" Time, 7 "lastTimestamp" Time, 8 "count" Int, 9 "type" Text,
    10 "eventTime" MicroTime, 11 "series" One(&EVENT_SERIES), 12 "action" Text, 13 "related" One(&REFERENCE),
    14 "reportingComponent" Text, 15 "reportingInstance" Text);
message!(NEW_EVENT, "Event",
    1 "metadata" One(&METADATA), 2 "eventTime" MicroTime, 3 "series" One(&EVENT_SERIES),
    4 "reportingController" Text, 5 "reportingInstance" Text, 6 "action" Text, 7 "reason" Text,
    8 "regarding" One(&REFERENCE), 9 "related" One(&REFERENCE), 10 "note" Text, 11 "type" Text,
    12 "deprecatedSource" One(&EVENT_SOURCE), 13 "deprecatedFirstTimestamp" Time,
    14 "deprecatedLastTimestamp" Time, 15 "deprecatedCount" Int);
message!(LEASE_SPEC, "LeaseSpec",
    1 "holderIdentity" Text, 2 "leaseDurationSeconds" Int, 3 "acquireTime" MicroTime, 4 "renewTime" MicroTime,
    5 "leaseTransitions" Int, 6 "strategy" Text, 7 "preferredHolder" Text);
message!(LEASE, "Lease", 1 "metadata" One(&METADATA), 2 "spec" One(&LEASE_SPEC));

message!(PRECONDITIONS, "Preconditions", 1 "uid" Text, 2 "resourceVersion" Text);
message!(DELETE_OPTIONS, "DeleteOptions",
    1 "gracePeriodSeconds" Int, 2 "preconditions" One(&PRECONDITIONS), 3 "orphanDependents" Bool,
    4 "propagationPolicy" Text, 5 "dryRun" Texts, 6 "ignoreStoreReadErrorWithClusterBreakingPotential" Bool);

/// The table of a kind.
pub(super) fn find(api_version: &str, kind: &str) -> Option<&'static Message> {
    let rbac = "rbac.authorization.k8s.io/v1";
    let (authentication, authorization) = ("authentication.k8s.io/v1", "authorization.k8s.io/v1");
    let known: [(&str, &str, &'static Message); 19] = [
        ("v1", "Namespace", &NAMESPACE),
        ("v1", "ServiceAccount", &ACCOUNT),
        ("v1", "Secret", &SECRET),
        ("v1", "ConfigMap", &CONFIG_MAP),
        (rbac, "Role", &ROLE),
        (rbac, "ClusterRole", &CLUSTER_ROLE),
        (rbac, "RoleBinding", &BINDING),
        (rbac, "ClusterRoleBinding", &BINDING),
        (authentication, "TokenRequest", &TOKEN_REQUEST),
        (authentication, "TokenReview", &TOKEN_REVIEW),
        (authentication, "SelfSubjectReview", &SELF_REVIEW),
        (authorization, "SelfSubjectAccessReview", &SELF_ACCESS),
        (authorization, "SelfSubjectRulesReview", &RULES),
        (authorization, "SubjectAccessReview", &ACCESS),
        (authorization, "LocalSubjectAccessReview", &ACCESS),
        ("certificates.k8s.io/v1", "CertificateSigningRequest", &SIGNING),
        ("v1", "Event", &EVENT),
        ("events.k8s.io/v1", "Event", &NEW_EVENT),
        ("coordination.k8s.io/v1", "Lease", &LEASE),
    ];
    // Clients name the group and version of what they delete.
    if kind == "DeleteOptions" {
        return Some(&DELETE_OPTIONS);
    }
    let found = known
        .into_iter()
        .find(|(version, name, _)| *version == api_version && *name == kind);
    found.map(|(_, _, table)| table)
}
