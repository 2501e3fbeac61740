//! Rules of roles, bindings and accounts, as upstream has them.

use super::names::{is_dns_label, is_dns_subdomain};
use super::{Checker, Rules};
use crate::access::{
    LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectReview, SelfSubjectRulesReview,
    ServiceAccount, SubjectAccessReview, TokenReview,
};
use crate::meta::field_path::Path;
use crate::rbac::{ClusterRole, ClusterRoleBinding, GROUP, PolicyRule, Role, RoleBinding, RoleRef, Subject};

/// Most rules of a role, and most words of one list in a rule.
const MAX_RULES: usize = 512;
/// Most subjects of a binding.
const MAX_SUBJECTS: usize = 1024;

/// Whether a name may stand as one part of a path, which is all that upstream asks of these kinds.
pub(super) fn path_segment(path: &Path<'_>, name: &str, cx: &mut Checker) {
    if name.is_empty() {
        cx.required(path, "");
    } else if name.len() > 253 {
        cx.too_long(path, 253);
    } else if matches!(name, "." | "..") {
        cx.invalid(path, name, "may not be '.' or '..'");
    } else if name.contains(['/', '%']) || name.chars().any(char::is_control) {
        cx.invalid(path, name, "may not contain '/', '%' or control characters");
    }
}

fn rules(rules: &[PolicyRule], namespaced: bool, cx: &mut Checker) {
    let root = Path::root();
    let path = root.key("rules");
    if cx.too_many(&path, rules.len(), MAX_RULES) {
        return;
    }
    for (index, rule) in rules.iter().enumerate() {
        one_rule(rule, &path.index(index), namespaced, cx);
    }
}

fn one_rule(rule: &PolicyRule, path: &Path<'_>, namespaced: bool, cx: &mut Checker) {
    for (field, list) in [
        ("verbs", &rule.verbs),
        ("apiGroups", &rule.api_groups),
        ("resources", &rule.resources),
        ("resourceNames", &rule.resource_names),
        ("nonResourceURLs", &rule.non_resource_urls),
    ] {
        if cx.too_many(&path.key(field), list.len(), MAX_RULES) {
            return;
        }
        let long = list.iter().position(|word| word.len() > 253);
        if let Some(at) = long {
            cx.too_long(&path.key(field).index(at), 253);
        }
    }
    if rule.verbs.is_empty() {
        cx.required(&path.key("verbs"), "verbs must contain at least one value");
    }
    if !rule.non_resource_urls.is_empty() {
        let at = path.key("nonResourceURLs");
        if namespaced {
            cx.invalid(
                &at,
                &rule.non_resource_urls.join(","),
                "namespaced rules cannot apply to non-resource URLs",
            );
        }
        if !(rule.api_groups.is_empty() && rule.resources.is_empty() && rule.resource_names.is_empty()) {
            cx.invalid(
                &at,
                &rule.non_resource_urls.join(","),
                "rules cannot apply to both regular resources and non-resource URLs",
            );
        }
        return;
    }
    if rule.api_groups.is_empty() {
        cx.required(
            &path.key("apiGroups"),
            "resource rules must supply at least one api group",
        );
    }
    if rule.resources.is_empty() {
        cx.required(
            &path.key("resources"),
            "resource rules must supply at least one resource",
        );
    }
}

impl Rules for Role {
    fn check(&self, cx: &mut Checker) {
        rules(&self.rules, true, cx);
    }
}

impl Rules for ClusterRole {
    fn check(&self, cx: &mut Checker) {
        rules(&self.rules, false, cx);
        let Some(aggregation) = &self.aggregation_rule else {
            return;
        };
        let root = Path::root();
        let path = root.key("aggregationRule");
        let path = path.key("clusterRoleSelectors");
        if aggregation.cluster_role_selectors.is_empty() {
            cx.required(
                &path,
                "at least one clusterRoleSelector required if aggregationRule is non-nil",
            );
        }
        cx.too_many(&path, aggregation.cluster_role_selectors.len(), MAX_RULES);
    }
}

fn set_binding_defaults(role_ref: &mut RoleRef, subjects: &mut [Subject]) {
    if role_ref.api_group.is_empty() {
        role_ref.api_group = GROUP.into();
    }
    for subject in subjects {
        if subject.api_group.is_empty() && matches!(subject.kind.as_str(), "User" | "Group") {
            subject.api_group = GROUP.into();
        }
    }
}

fn role_ref(role: &RoleRef, kinds: &[&str], cx: &mut Checker) {
    let root = Path::root();
    let path = root.key("roleRef");
    if role.api_group != GROUP {
        cx.not_supported(&path.key("apiGroup"), &role.api_group, &[GROUP]);
    }
    if !kinds.contains(&role.kind.as_str()) {
        cx.not_supported(&path.key("kind"), &role.kind, kinds);
    }
    path_segment(&path.key("name"), &role.name, cx);
}

fn subjects(subjects: &[Subject], cx: &mut Checker) {
    let root = Path::root();
    let path = root.key("subjects");
    if cx.too_many(&path, subjects.len(), MAX_SUBJECTS) {
        return;
    }
    for (index, subject) in subjects.iter().enumerate() {
        let path = path.index(index);
        if subject.name.is_empty() {
            cx.required(&path.key("name"), "");
        } else if subject.name.len() > 1024 {
            cx.too_long(&path.key("name"), 1024);
        }
        match subject.kind.as_str() {
            "ServiceAccount" => {
                if !subject.api_group.is_empty() {
                    cx.not_supported(&path.key("apiGroup"), &subject.api_group, &[""]);
                }
                if !subject.name.is_empty() && !is_dns_subdomain(&subject.name) {
                    cx.invalid(&path.key("name"), &subject.name, "is no name of a ServiceAccount");
                }
                if subject.namespace.is_empty() {
                    cx.required(&path.key("namespace"), "");
                } else if !is_dns_label(&subject.namespace) {
                    cx.invalid(
                        &path.key("namespace"),
                        &subject.namespace,
                        "is no name of a namespace",
                    );
                }
            }
            "User" | "Group" => {
                if subject.api_group != GROUP {
                    cx.not_supported(&path.key("apiGroup"), &subject.api_group, &[GROUP]);
                }
                if !subject.namespace.is_empty() {
                    cx.forbidden(&path.key("namespace"), "users and groups have no namespace");
                }
            }
            other => cx.not_supported(&path.key("kind"), other, &["ServiceAccount", "User", "Group"]),
        }
    }
}

fn unchanged_role(new: &RoleRef, old: &RoleRef, cx: &mut Checker) {
    if new != old {
        let root = Path::root();
        cx.invalid(&root.key("roleRef"), &new.name, "cannot change roleRef");
    }
}

impl Rules for RoleBinding {
    fn set_defaults(&mut self) {
        let namespace = self.metadata.namespace.clone();
        set_binding_defaults(&mut self.role_ref, &mut self.subjects);
        // As upstream's client libraries do: an account without a namespace is one of the binding's own.
        for subject in &mut self.subjects {
            if subject.kind == "ServiceAccount" && subject.namespace.is_empty() {
                subject.namespace.clone_from(&namespace);
            }
        }
    }

    fn check(&self, cx: &mut Checker) {
        role_ref(&self.role_ref, &["Role", "ClusterRole"], cx);
        subjects(&self.subjects, cx);
    }

    fn check_update(&self, old: &Self, cx: &mut Checker) {
        unchanged_role(&self.role_ref, &old.role_ref, cx);
    }
}

impl Rules for ClusterRoleBinding {
    fn set_defaults(&mut self) {
        set_binding_defaults(&mut self.role_ref, &mut self.subjects);
    }

    fn check(&self, cx: &mut Checker) {
        role_ref(&self.role_ref, &["ClusterRole"], cx);
        subjects(&self.subjects, cx);
    }

    fn check_update(&self, old: &Self, cx: &mut Checker) {
        unchanged_role(&self.role_ref, &old.role_ref, cx);
    }
}

impl Rules for ServiceAccount {}
impl Rules for TokenReview {}
impl Rules for SelfSubjectReview {}
impl Rules for SelfSubjectAccessReview {}
impl Rules for SubjectAccessReview {}
impl Rules for LocalSubjectAccessReview {}
impl Rules for SelfSubjectRulesReview {}
