//! ValidatingAdmissionPolicies: rules of the operator, asked of every creation and update by a client, after defaults
//! and the kind's own rules.
//!
//! What an expression may cost is bounded for the whole request (`panda_api::cel`): one that is too expensive fails like
//! any other, and `failurePolicy` says what that means. Policies are not asked about policies: a bad one can always be
//! taken away.

use std::collections::BTreeMap;

use panda_api::admission::{
    self, MatchResources, NamedExpression, PolicyBindingSpec, PolicySpec, ResourceRule, Validation,
};
use panda_api::cel::{Budget, EvalError, Program};
use panda_api::meta::selector::Labels;
use panda_api::meta::{LabelSelector, Reason};
use panda_api::validation::admission::VARIABLES;
use panda_api::{Namespace, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, scheme};
use serde_json::{Value, json};

use crate::audit::event::Notes;
use crate::authn::User;
use crate::filters::Warnings;
use crate::registry::{Admitting, Error, Registry, Resource, meta};

/// The policies in force, for one request.
#[derive(Debug)]
pub(crate) struct Policies {
    bound: Vec<Bound>,
    namespace: Value,
    user: Value,
    dry_run: bool,
    warnings: Warnings,
    notes: Notes,
}

#[derive(Debug)]
struct Bound {
    policy: ValidatingAdmissionPolicy,
    binding: String,
    spec: PolicyBindingSpec,
}

/// What a policy comes to.
enum Verdict {
    Fine,
    Broken { message: String, reason: Reason },
}

impl Policies {
    /// The policies that are bound; none when there are none.
    pub(crate) async fn of(
        registry: &Registry,
        user: &User,
        namespace: &str,
        dry_run: bool,
        warnings: &Warnings,
        notes: &Notes,
    ) -> Result<Option<Self>, Error> {
        let (bindings, _) = registry.list_as::<ValidatingAdmissionPolicyBinding>(None).await?;
        let mut bound = Vec::new();
        for binding in bindings {
            // One whose policy is not there says nothing, as upstream.
            let policy = registry.get_as("", &binding.spec.policy_name).await?;
            bound.extend(policy.map(|policy| Bound {
                policy,
                binding: binding.metadata.name,
                spec: binding.spec,
            }));
        }
        if bound.is_empty() {
            return Ok(None);
        }
        let namespace = match namespace {
            "" => Value::Null,
            name => match registry.get(scheme::of::<Namespace>(), "", name).await {
                Ok(object) => object.value()?,
                // The write itself will say so.
                Err(Error::NotFound { .. }) => Value::Null,
                Err(error) => return Err(error),
            },
        };
        Ok(Some(Self {
            bound,
            namespace,
            user: json!({"username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra}),
            dry_run,
            warnings: warnings.clone(),
            notes: notes.clone(),
        }))
    }

    /// Refuses what a policy denies; says or records what others found.
    pub(crate) fn check(&self, write: &Admitting<'_>) -> Result<(), Error> {
        if write.kind.group == admission::GROUP {
            return Ok(());
        }
        let mut budget = Budget::default();
        let operation = if write.old.is_some() { "UPDATE" } else { "CREATE" };
        let mut variables = None;
        for bound in &self.bound {
            let spec = &bound.policy.spec;
            let meant = self.is_meant(&spec.match_constraints, write, operation, true)
                && bound
                    .spec
                    .match_resources
                    .as_ref()
                    .is_none_or(|also| self.is_meant(also, write, operation, false));
            if !meant {
                continue;
            }
            let variables = variables.get_or_insert_with(|| self.variables(write, operation));
            let Verdict::Broken { message, reason } = judge(spec, variables, &mut budget) else {
                continue;
            };
            let (policy, binding) = (&bound.policy.metadata.name, &bound.binding);
            for action in &bound.spec.validation_actions {
                match action.as_str() {
                    "Deny" => {
                        return Err(Error::Denied {
                            resource: Resource {
                                group: write.kind.group.to_owned(),
                                name: write.kind.plural.to_owned(),
                            },
                            name: meta::text(write.new, "name").to_owned(),
                            detail: format!(
                                "ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: {message}"
                            ),
                            reason,
                        });
                    }
                    "Warn" => self.warnings.add_once(format!(
                        "Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{binding}': {message}"
                    )),
                    _ => self.notes.add(format!("{policy}/{binding}: {message}")),
                }
            }
        }
        Ok(())
    }

    fn variables(&self, write: &Admitting<'_>, operation: &str) -> BTreeMap<String, Value> {
        let kind = write.kind;
        let request = json!({
            "kind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
            "resource": {"group": kind.group, "version": kind.version, "resource": kind.plural},
            "name": meta::text(write.new, "name"),
            "namespace": write.namespace,
            "operation": operation,
            "userInfo": self.user,
            "dryRun": self.dry_run,
        });
        BTreeMap::from([
            ("object".to_owned(), write.new.clone()),
            ("oldObject".to_owned(), write.old.cloned().unwrap_or_default()),
            ("request".to_owned(), request),
            ("namespaceObject".to_owned(), self.namespace.clone()),
        ])
    }

    fn is_meant(
        &self,
        what: &MatchResources,
        write: &Admitting<'_>,
        operation: &str,
        needs_rule: bool,
    ) -> bool {
        let is = |rule: &ResourceRule| fits(rule, write, operation);
        let rules = &what.resource_rules;
        if what.exclude_resource_rules.iter().any(is)
            || !(rules.iter().any(is) || (rules.is_empty() && !needs_rule))
        {
            return false;
        }
        let of = |selector: &Option<LabelSelector>, object: &Value| {
            selector
                .as_ref()
                .is_none_or(|selector| Labels::from(selector).matches_object(object))
        };
        let namespace = write.namespace.is_empty() || of(&what.namespace_selector, &self.namespace);
        // The old object, too: a label that is taken away must not be a way out.
        let object = of(&what.object_selector, write.new)
            || write.old.is_some_and(|old| of(&what.object_selector, old));
        namespace && object
    }
}

fn fits(rule: &ResourceRule, write: &Admitting<'_>, operation: &str) -> bool {
    let kind = write.kind;
    let has = |values: &[String], wanted: &str| values.iter().any(|value| value == "*" || value == wanted);
    let name = meta::text(write.new, "name");
    has(&rule.api_groups, kind.group)
        && has(&rule.api_versions, kind.version)
        && has(&rule.operations, operation)
        && has(&rule.resources, kind.plural)
        && (rule.resource_names.is_empty() || rule.resource_names.iter().any(|known| known == name))
        && match rule.scope.as_str() {
            "Cluster" => !kind.namespaced,
            "Namespaced" => kind.namespaced,
            _ => true,
        }
}

fn judge(spec: &PolicySpec, variables: &BTreeMap<String, Value>, budget: &mut Budget) -> Verdict {
    let mut variables = variables.clone();
    match conditions(&spec.match_conditions, &variables, budget) {
        Ok(true) => {}
        Ok(false) => return Verdict::Fine,
        Err(error) => return failed(spec, &error),
    }
    // One that fails is missing, and fails whoever needs it.
    let mut own = serde_json::Map::new();
    for variable in &spec.variables {
        if let Ok(value) = run(&variable.expression, &variables, budget) {
            own.insert(variable.name.clone(), value);
            variables.insert("variables".to_owned(), Value::Object(own.clone()));
        }
    }
    variables
        .entry("variables".to_owned())
        .or_insert_with(|| json!({}));
    for validation in &spec.validations {
        match truth(&validation.expression, &variables, budget) {
            Ok(true) => {}
            Ok(false) => {
                return Verdict::Broken {
                    message: message(validation, &variables, budget),
                    reason: reason(&validation.reason),
                };
            }
            Err(error) => {
                let verdict = failed(
                    spec,
                    &format!(
                        "expression '{}' resulted in error: {error}",
                        validation.expression
                    ),
                );
                if let Verdict::Broken { .. } = verdict {
                    return verdict;
                }
            }
        }
    }
    Verdict::Fine
}

/// Whether all hold. One that does not decides over one that fails.
fn conditions(
    conditions: &[NamedExpression],
    variables: &BTreeMap<String, Value>,
    budget: &mut Budget,
) -> Result<bool, String> {
    let mut failure = None;
    for condition in conditions {
        match truth(&condition.expression, variables, budget) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => failure = Some(format!("match condition '{}': {error}", condition.name)),
        }
    }
    failure.map_or(Ok(true), Err)
}

fn failed(spec: &PolicySpec, why: &str) -> Verdict {
    if spec.failure_policy == "Ignore" {
        return Verdict::Fine;
    }
    Verdict::Broken {
        message: why.to_owned(),
        reason: Reason::Invalid,
    }
}

fn reason(word: &str) -> Reason {
    match word {
        "Forbidden" => Reason::Forbidden,
        "Unauthorized" => Reason::Unauthorized,
        "RequestEntityTooLarge" => Reason::RequestEntityTooLarge,
        _ => Reason::Invalid,
    }
}

fn message(validation: &Validation, variables: &BTreeMap<String, Value>, budget: &mut Budget) -> String {
    if !validation.message_expression.is_empty()
        && let Ok(Value::String(text)) = run(&validation.message_expression, variables, budget)
        && !text.trim().is_empty()
        && !text.contains('\n')
    {
        return text.chars().take(1024).collect();
    }
    if validation.message.is_empty() {
        format!("failed expression: {}", validation.expression)
    } else {
        validation.message.clone()
    }
}

fn truth(text: &str, variables: &BTreeMap<String, Value>, budget: &mut Budget) -> Result<bool, String> {
    match run(text, variables, budget) {
        Ok(Value::Bool(truth)) => Ok(truth),
        Ok(_) => Err("the result is no bool".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn run(text: &str, variables: &BTreeMap<String, Value>, budget: &mut Budget) -> Result<Value, EvalError> {
    // It was read when the policy was written.
    let program = Program::compile(text, &VARIABLES).map_err(|error| EvalError::Failed(error.to_string()))?;
    program.eval(variables, budget)
}
