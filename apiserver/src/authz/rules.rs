//! What one rule grants, and whether a set of rules covers another.

use panda_api::rbac::PolicyRule;

use super::Attributes;

/// Most single grants that a rule is taken apart into to see whether others cover it together.
const MAX_GRANTS: usize = 20_000;

fn has(list: &[String], word: &str) -> bool {
    list.iter().any(|entry| entry == "*" || entry == word)
}

/// Whether an entry of `resources` covers `resource`, written with its subresource.
fn resource_covers(entry: &str, resource: &str) -> bool {
    if entry == "*" || entry == resource {
        return true;
    }
    match (entry.strip_prefix("*/"), resource.split_once('/')) {
        (Some(part), Some((_, subresource))) => part == subresource,
        _ => false,
    }
}

/// Whether an entry of `nonResourceURLs` covers a path.
fn path_covers(entry: &str, path: &str) -> bool {
    entry == "*"
        || entry == path
        || entry
            .strip_suffix('*')
            .is_some_and(|start| path.starts_with(start))
}

/// Whether a rule allows an action.
pub(super) fn allows(rule: &PolicyRule, attributes: &Attributes<'_>) -> bool {
    if !has(&rule.verbs, attributes.verb) {
        return false;
    }
    if attributes.resource.is_empty() {
        return rule
            .non_resource_urls
            .iter()
            .any(|entry| path_covers(entry, attributes.path));
    }
    if !has(&rule.api_groups, attributes.group) {
        return false;
    }
    let named = rule.resource_names.is_empty()
        || (!attributes.name.is_empty() && rule.resource_names.iter().any(|name| name == attributes.name));
    if !named {
        return false;
    }
    if attributes.subresource.is_empty() {
        let metadata = attributes.metadata_only && {
            let part = format!("{}/metadata", attributes.resource);
            rule.resources.contains(&part)
        };
        return metadata
            || rule
                .resources
                .iter()
                .any(|entry| resource_covers(entry, attributes.resource));
    }
    let resource = format!("{}/{}", attributes.resource, attributes.subresource);
    rule.resources
        .iter()
        .any(|entry| resource_covers(entry, &resource))
}

/// Whether `owned` grants all that `wanted` grants.
pub(crate) fn covers(owned: &[PolicyRule], wanted: &[PolicyRule]) -> bool {
    shortfall(owned, wanted).is_none()
}

/// The first of `wanted` that `owned` does not grant, in words.
pub(crate) fn shortfall(owned: &[PolicyRule], wanted: &[PolicyRule]) -> Option<String> {
    wanted.iter().find_map(|rule| lacking(owned, rule))
}

fn lacking(owned: &[PolicyRule], rule: &PolicyRule) -> Option<String> {
    if owned.iter().any(|own| rule_covers(own, rule)) {
        return None;
    }
    let names = rule.resource_names.len().max(1);
    let objects = [rule.api_groups.len(), rule.resources.len(), names];
    let size = objects
        .into_iter()
        .chain([rule.verbs.len()])
        .try_fold(1usize, usize::checked_mul)
        .unwrap_or(usize::MAX)
        .saturating_add(rule.verbs.len().saturating_mul(rule.non_resource_urls.len()));
    if size > MAX_GRANTS {
        return Some("a rule that is too large to be compared; split it".to_owned());
    }
    grants(rule)
        .find(|grant| !owned.iter().any(|own| rule_covers(own, grant)))
        .map(|grant| describe(&grant))
}

/// A rule as rules of one verb and one object each.
fn grants(rule: &PolicyRule) -> impl Iterator<Item = PolicyRule> + '_ {
    rule.verbs.iter().flat_map(move |verb| {
        let paths = rule.non_resource_urls.iter().map(move |path| PolicyRule {
            verbs: vec![verb.clone()],
            non_resource_urls: vec![path.clone()],
            ..PolicyRule::default()
        });
        let names: Vec<Vec<String>> = if rule.resource_names.is_empty() {
            vec![Vec::new()]
        } else {
            rule.resource_names
                .iter()
                .map(|name| vec![name.clone()])
                .collect()
        };
        let objects = rule.api_groups.iter().flat_map(move |group| {
            let names = names.clone();
            rule.resources.iter().flat_map(move |resource| {
                names.clone().into_iter().map(move |names| PolicyRule {
                    verbs: vec![verb.clone()],
                    api_groups: vec![group.clone()],
                    resources: vec![resource.clone()],
                    resource_names: names,
                    ..PolicyRule::default()
                })
            })
        });
        paths.chain(objects)
    })
}

fn describe(grant: &PolicyRule) -> String {
    let first = |list: &[String]| list.first().cloned().unwrap_or_default();
    let verb = first(&grant.verbs);
    if let Some(path) = grant.non_resource_urls.first() {
        return format!("{verb} {path}");
    }
    let mut text = format!("{verb} {}", first(&grant.resources));
    let group = first(&grant.api_groups);
    if !group.is_empty() {
        text.push_str(&format!(".{group}"));
    }
    if let Some(name) = grant.resource_names.first() {
        text.push_str(&format!(" {name:?}"));
    }
    text
}

/// Whether one rule covers another by itself.
fn rule_covers(own: &PolicyRule, wanted: &PolicyRule) -> bool {
    let all = |own: &[String], wanted: &[String]| wanted.iter().all(|word| has(own, word));
    let resources = wanted
        .resources
        .iter()
        .all(|resource| own.resources.iter().any(|entry| resource_covers(entry, resource)));
    let paths = wanted
        .non_resource_urls
        .iter()
        .all(|path| own.non_resource_urls.iter().any(|entry| path_covers(entry, path)));
    let names = own.resource_names.is_empty()
        || (!wanted.resource_names.is_empty()
            && wanted
                .resource_names
                .iter()
                .all(|name| own.resource_names.contains(name)));
    all(&own.verbs, &wanted.verbs) && all(&own.api_groups, &wanted.api_groups) && resources && names && paths
}
