//! Rules of `metadata`.

use std::collections::{BTreeMap, BTreeSet};

use super::names::{is_dns_label, is_dns_subdomain, is_label_value, is_qualified_name};
use super::{Checker, Rules};
use crate::meta::ObjectMeta;
use crate::meta::field_path::Path;

/// Fields that only the server sets: what a client sends there is ignored.
pub(crate) const SERVER_OWNED: &[&str] = &[
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
];

/// Most bytes of all annotations together.
const MAX_ANNOTATIONS: usize = 256 * 1024;
const MAX_LABELS: usize = 128;
const MAX_OWNERS: usize = 64;
const MAX_FINALIZERS: usize = 64;

const NAME_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
     and must start and end with an alphanumeric character (e.g. 'example.com')";
const LABEL_RULE: &str = "a lowercase RFC 1123 label must consist of at most 63 lower case alphanumeric characters or \
     '-', and must start and end with an alphanumeric character (e.g. 'my-name')";
const QUALIFIED_RULE: &str = "name part must consist of at most 63 alphanumeric characters, '-', '_' or '.', and must start \
     and end with an alphanumeric character, with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
const VALUE_RULE: &str = "a valid label must be an empty string or consist of at most 63 alphanumeric characters, '-', '_' \
     or '.', and must start and end with an alphanumeric character (e.g. 'MyValue')";

pub(crate) fn check<K: Rules>(meta: &ObjectMeta, cx: &mut Checker) {
    let root = Path::root();
    let path = root.key("metadata");
    let labels_only = K::GROUP.is_empty() && K::KIND == "Namespace";
    if K::GROUP == crate::rbac::GROUP && !meta.name.is_empty() {
        super::rbac::path_segment(&path.key("name"), &meta.name, cx);
    } else {
        check_name(meta, labels_only, &path, cx);
    }
    if K::NAMESPACED {
        namespace(&path.key("namespace"), &meta.namespace, cx);
    } else if !meta.namespace.is_empty() {
        cx.forbidden(&path.key("namespace"), "not allowed on this type");
    }
    labels(&path.key("labels"), &meta.labels, cx);
    annotations(&path.key("annotations"), &meta.annotations, cx);
    owners(meta, &path.key("ownerReferences"), cx);
    finalizers(&path.key("finalizers"), &meta.finalizers, cx);
}

fn check_name(meta: &ObjectMeta, label: bool, path: &Path<'_>, cx: &mut Checker) {
    if meta.name.is_empty() {
        if meta.generate_name.is_empty() {
            cx.required(&path.key("name"), "name or generateName is required");
        } else {
            // What the server appends ends in a letter or digit.
            let probe = format!("{}x", meta.generate_name);
            let ok = if label {
                is_dns_label(&probe)
            } else {
                is_dns_subdomain(&probe)
            };
            if !ok {
                cx.invalid(
                    &path.key("generateName"),
                    &meta.generate_name,
                    if label { LABEL_RULE } else { NAME_RULE },
                );
            }
        }
    } else if label {
        if !is_dns_label(&meta.name) {
            cx.invalid(&path.key("name"), &meta.name, LABEL_RULE);
        }
    } else {
        object_name(&path.key("name"), &meta.name, cx);
    }
}

/// The name of an object, here or as a reference.
pub(crate) fn object_name(path: &Path<'_>, name: &str, cx: &mut Checker) {
    if name.is_empty() {
        cx.required(path, "");
    } else if name.len() > 253 {
        cx.too_long(path, 253);
    } else if !is_dns_subdomain(name) {
        cx.invalid(path, name, NAME_RULE);
    }
}

fn namespace(path: &Path<'_>, name: &str, cx: &mut Checker) {
    if name.is_empty() {
        cx.required(path, "");
    } else if !is_dns_label(name) {
        cx.invalid(path, name, LABEL_RULE);
    }
}

/// Labels, here or as what a selector wants.
pub(crate) fn labels(path: &Path<'_>, labels: &BTreeMap<String, String>, cx: &mut Checker) {
    if cx.too_many(path, labels.len(), MAX_LABELS) {
        return;
    }
    for (key, value) in labels {
        label_key(path, key, cx);
        label_value(&path.key(key), value, cx);
    }
}

pub(crate) fn label_key(path: &Path<'_>, key: &str, cx: &mut Checker) {
    if !is_qualified_name(key) {
        cx.invalid(path, key, QUALIFIED_RULE);
    }
}

pub(crate) fn label_value(path: &Path<'_>, value: &str, cx: &mut Checker) {
    if !is_label_value(value) {
        cx.invalid(path, value, VALUE_RULE);
    }
}

fn annotations(path: &Path<'_>, annotations: &BTreeMap<String, String>, cx: &mut Checker) {
    let mut size = 0usize;
    for (key, value) in annotations {
        // Kubernetes lets annotation keys differ from label keys only in case.
        if !is_qualified_name(&key.to_ascii_lowercase()) {
            cx.invalid(path, key, QUALIFIED_RULE);
        }
        size = size.saturating_add(key.len()).saturating_add(value.len());
    }
    if size > MAX_ANNOTATIONS {
        cx.too_long(path, MAX_ANNOTATIONS);
    }
}

fn owners(meta: &ObjectMeta, path: &Path<'_>, cx: &mut Checker) {
    if cx.too_many(path, meta.owner_references.len(), MAX_OWNERS) {
        return;
    }
    let mut controller = false;
    let mut uids = BTreeSet::new();
    for (index, owner) in meta.owner_references.iter().enumerate() {
        let path = path.index(index);
        for (field, value) in [
            ("apiVersion", &owner.api_version),
            ("kind", &owner.kind),
            ("name", &owner.name),
            ("uid", &owner.uid),
        ] {
            if value.is_empty() {
                cx.required(&path.key(field), "must not be empty");
            }
        }
        if !owner.uid.is_empty() && !uids.insert(owner.uid.as_str()) {
            cx.duplicate(&path.key("uid"), &owner.uid);
        }
        if owner.controller == Some(true) {
            if controller {
                cx.invalid(
                    &path.key("controller"),
                    "true",
                    "only one reference can have controller set to true",
                );
            }
            controller = true;
        }
    }
}

fn finalizers(path: &Path<'_>, finalizers: &[String], cx: &mut Checker) {
    if cx.too_many(path, finalizers.len(), MAX_FINALIZERS) {
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, name) in finalizers.iter().enumerate() {
        if !is_qualified_name(name) {
            cx.invalid(&path.index(index), name, QUALIFIED_RULE);
        } else if !seen.insert(name) {
            cx.duplicate(&path.index(index), name);
        }
    }
}

pub(crate) fn check_update(new: &ObjectMeta, old: &ObjectMeta, cx: &mut Checker) {
    let root = Path::root();
    let path = root.key("metadata");
    for (field, new, old) in [
        ("name", &new.name, &old.name),
        ("namespace", &new.namespace, &old.namespace),
    ] {
        if new != old && !new.is_empty() {
            cx.invalid(&path.key(field), new, "field is immutable");
        }
    }
    if old.deletion_timestamp.is_some() {
        let added: Vec<&str> = new
            .finalizers
            .iter()
            .filter(|f| !old.finalizers.contains(f))
            .map(String::as_str)
            .collect();
        if !added.is_empty() {
            cx.forbidden(
                &path.key("finalizers"),
                format_args!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"
                ),
            );
        }
    }
}
