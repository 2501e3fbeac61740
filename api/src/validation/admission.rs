//! Rules of quotas, policies and their bindings.

use super::{Checker, Rules, is_dns_subdomain};
use crate::admission::{
    MatchResources, NamedExpression, PolicySpec, ResourceQuota, ResourceRule, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, counted,
};
use crate::cel::Program;
use crate::meta::field_path::Path;
use crate::scheme;

/// Variables of every expression.
pub const VARIABLES: [&str; 5] = ["object", "oldObject", "request", "namespaceObject", "variables"];
/// Most rules of one kind in a policy.
const MAX: usize = 64;

impl Rules for ResourceQuota {
    fn check(&self, cx: &mut Checker) {
        let root = Path::root();
        let spec = root.key("spec");
        let hard = spec.key("hard");
        if cx.too_many(&hard, self.spec.hard.len(), MAX) {
            return;
        }
        for (name, most) in &self.spec.hard {
            let path = hard.key(name);
            let known = counted(name).is_some_and(|(plural, group)| {
                scheme::kinds()
                    .iter()
                    .any(|kind| kind.namespaced && kind.plural == plural && kind.group == group)
            });
            if !known {
                cx.invalid(
                    &path,
                    name,
                    "only counts of namespaced kinds are implemented, for example count/tasks.panda.dev or count/configmaps",
                );
            }
            if most.parse::<u32>().is_err() {
                cx.invalid(&path, most, "must be a whole number that is not negative");
            }
        }
    }
}

impl Rules for ValidatingAdmissionPolicy {
    fn set_defaults(&mut self) {
        if self.spec.failure_policy.is_empty() {
            self.spec.failure_policy = "Fail".to_owned();
        }
    }

    fn check(&self, cx: &mut Checker) {
        let root = Path::root();
        let path = root.key("spec");
        let PolicySpec {
            param_kind,
            match_constraints,
            match_conditions,
            variables,
            validations,
            failure_policy,
            audit_annotations,
        } = &self.spec;
        if param_kind.is_some() {
            cx.not_implemented(&path.key("paramKind"));
        }
        if !audit_annotations.is_empty() {
            cx.not_implemented(&path.key("auditAnnotations"));
        }
        if !matches!(failure_policy.as_str(), "Fail" | "Ignore") {
            cx.not_supported(&path.key("failurePolicy"), failure_policy, &["Fail", "Ignore"]);
        }
        let constraints = path.key("matchConstraints");
        if match_constraints.resource_rules.is_empty() {
            cx.required(&constraints.key("resourceRules"), "");
        }
        matching(&constraints, match_constraints, cx);
        named(&path.key("matchConditions"), match_conditions, cx);
        named(&path.key("variables"), variables, cx);
        let path = path.key("validations");
        if validations.is_empty() {
            cx.required(&path, "a policy without validations says nothing");
        }
        if cx.too_many(&path, validations.len(), MAX) {
            return;
        }
        for (index, validation) in validations.iter().enumerate() {
            let path = path.index(index);
            expression(&path.key("expression"), &validation.expression, cx);
            if !validation.message_expression.is_empty() {
                expression(&path.key("messageExpression"), &validation.message_expression, cx);
            }
            let known = [
                "",
                "Invalid",
                "Forbidden",
                "Unauthorized",
                "RequestEntityTooLarge",
            ];
            if !known.contains(&validation.reason.as_str()) {
                cx.not_supported(&path.key("reason"), &validation.reason, &known[1..]);
            }
            if validation.message.len() > 1024 {
                cx.too_long(&path.key("message"), 1024);
            }
        }
    }
}

impl Rules for ValidatingAdmissionPolicyBinding {
    fn check(&self, cx: &mut Checker) {
        let root = Path::root();
        let path = root.key("spec");
        if !is_dns_subdomain(&self.spec.policy_name) {
            cx.invalid(
                &path.key("policyName"),
                &self.spec.policy_name,
                "must be the name of a policy",
            );
        }
        if self.spec.param_ref.is_some() {
            cx.not_implemented(&path.key("paramRef"));
        }
        if let Some(resources) = &self.spec.match_resources {
            matching(&path.key("matchResources"), resources, cx);
        }
        let actions = &self.spec.validation_actions;
        let path = path.key("validationActions");
        if actions.is_empty() {
            cx.required(&path, "");
        }
        let known = ["Deny", "Warn", "Audit"];
        for (index, action) in actions.iter().enumerate() {
            if !known.contains(&action.as_str()) {
                cx.not_supported(&path.index(index), action, &known);
            } else if actions[..index].contains(action) {
                cx.duplicate(&path.index(index), action);
            }
        }
        let has = |action: &str| actions.iter().any(|found| found == action);
        if has("Deny") && has("Warn") {
            cx.invalid(
                &path,
                "Deny, Warn",
                "must not contain both Deny and Warn: one message is enough",
            );
        }
    }
}

fn matching(path: &Path<'_>, resources: &MatchResources, cx: &mut Checker) {
    if !matches!(resources.match_policy.as_str(), "" | "Exact" | "Equivalent") {
        cx.not_supported(
            &path.key("matchPolicy"),
            &resources.match_policy,
            &["Exact", "Equivalent"],
        );
    }
    for (field, rules) in [
        ("resourceRules", &resources.resource_rules),
        ("excludeResourceRules", &resources.exclude_resource_rules),
    ] {
        let path = path.key(field);
        if cx.too_many(&path, rules.len(), MAX) {
            continue;
        }
        for (index, rule) in rules.iter().enumerate() {
            rule_of(&path.index(index), rule, cx);
        }
    }
}

fn rule_of(path: &Path<'_>, rule: &ResourceRule, cx: &mut Checker) {
    for (field, values) in [
        ("apiGroups", &rule.api_groups),
        ("apiVersions", &rule.api_versions),
        ("operations", &rule.operations),
        ("resources", &rule.resources),
    ] {
        if values.is_empty() {
            cx.required(&path.key(field), "");
        }
    }
    for (index, operation) in rule.operations.iter().enumerate() {
        if !matches!(operation.as_str(), "CREATE" | "UPDATE") {
            let path = path.key("operations");
            cx.not_supported(&path.index(index), operation, &["CREATE", "UPDATE"]);
        }
    }
    for (index, resource) in rule.resources.iter().enumerate() {
        if resource.contains('/') {
            let path = path.key("resources");
            cx.invalid(
                &path.index(index),
                resource,
                "subresources are not implemented yet",
            );
        }
    }
    if !matches!(rule.scope.as_str(), "" | "*" | "Cluster" | "Namespaced") {
        cx.not_supported(&path.key("scope"), &rule.scope, &["*", "Cluster", "Namespaced"]);
    }
}

fn named(path: &Path<'_>, expressions: &[NamedExpression], cx: &mut Checker) {
    if cx.too_many(path, expressions.len(), MAX) {
        return;
    }
    for (index, one) in expressions.iter().enumerate() {
        let path = path.index(index);
        if one.name.is_empty() || one.name.len() > 63 {
            cx.required(&path.key("name"), "a name of at most 63 bytes");
        }
        if expressions[..index].iter().any(|other| other.name == one.name) {
            cx.duplicate(&path.key("name"), &one.name);
        }
        expression(&path.key("expression"), &one.expression, cx);
    }
}

fn expression(path: &Path<'_>, text: &str, cx: &mut Checker) {
    if text.trim().is_empty() {
        cx.required(path, "");
    } else if let Err(error) = Program::compile(text, &VARIABLES) {
        cx.invalid(path, text, format!("no expression: {error}"));
    }
}
