//! Roles and bindings in memory, as rules by whom they are granted to.

use std::collections::{BTreeMap, HashMap};

use panda_api::meta::selector::Labels;
use panda_api::rbac::{PolicyRule, RoleRef, Subject};
use panda_api::{ClusterRole, ClusterRoleBinding, Resource, Role, RoleBinding};

use crate::authn::User;

type Named<K> = BTreeMap<String, K>;

/// The four kinds, by namespace and name.
#[derive(Debug, Default)]
pub(super) struct Index {
    roles: HashMap<String, Named<Role>>,
    bindings: HashMap<String, Named<RoleBinding>>,
    cluster_roles: Named<ClusterRole>,
    cluster_bindings: Named<ClusterRoleBinding>,
    /// Rules of each ClusterRole, those that it takes from others included.
    effective: HashMap<String, Vec<PolicyRule>>,
}

/// One of the four kinds.
pub(super) trait Indexed: Resource {
    fn put(self, index: &mut Index);
    fn remove(index: &mut Index, namespace: &str, name: &str);
    fn clear(index: &mut Index);
}

macro_rules! namespaced {
    ($kind:ty, $field:ident) => {
        impl Indexed for $kind {
            fn put(self, index: &mut Index) {
                let (namespace, name) = (self.metadata.namespace.clone(), self.metadata.name.clone());
                index
                    .$field
                    .entry(namespace)
                    .or_default()
                    .insert(name, self);
            }

            fn remove(index: &mut Index, namespace: &str, name: &str) {
                if let Some(objects) = index.$field.get_mut(namespace) {
                    objects.remove(name);
                    if objects.is_empty() {
                        index.$field.remove(namespace);
                    }
                }
            }

            fn clear(index: &mut Index) {
                index.$field.clear();
            }
        }
    };
}

macro_rules! clustered {
    ($kind:ty, $field:ident) => {
        impl Indexed for $kind {
            fn put(self, index: &mut Index) {
                index.$field.insert(self.metadata.name.clone(), self);
            }

            fn remove(index: &mut Index, _namespace: &str, name: &str) {
                index.$field.remove(name);
            }

            fn clear(index: &mut Index) {
                index.$field.clear();
            }
        }
    };
}

namespaced!(Role, roles);
namespaced!(RoleBinding, bindings);
clustered!(ClusterRole, cluster_roles);
clustered!(ClusterRoleBinding, cluster_bindings);

impl Index {
    /// Works the aggregated roles out anew, after a change of ClusterRoles.
    pub(super) fn aggregate(&mut self) {
        let taken = |role: &ClusterRole| {
            let selectors = role
                .aggregation_rule
                .iter()
                .flat_map(|a| &a.cluster_role_selectors);
            let selectors: Vec<Labels> = selectors.map(Labels::from).collect();
            let others = self.cluster_roles.values().filter(|other| {
                other.metadata.name != role.metadata.name
                    // A selector that selects everything would be a slip, not a wish.
                    && selectors.iter().any(|s| !s.is_empty() && s.matches(&other.metadata.labels))
            });
            let mut rules = role.rules.clone();
            rules.extend(others.flat_map(|other| other.rules.iter().cloned()));
            rules
        };
        let effective = self
            .cluster_roles
            .values()
            .map(|role| (role.metadata.name.clone(), taken(role)))
            .collect();
        self.effective = effective;
    }

    /// The rules of a role: of a namespace, or a ClusterRole where the namespace is empty.
    pub(super) fn role(&self, namespace: &str, name: &str) -> Option<&[PolicyRule]> {
        if namespace.is_empty() {
            return self.effective.get(name).map(Vec::as_slice);
        }
        Some(&self.roles.get(namespace)?.get(name)?.rules)
    }

    /// The rules that `user` is granted everywhere, and in `namespace` if there is one.
    pub(super) fn granted<'a>(
        &'a self,
        user: &'a User,
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a PolicyRule> {
        let everywhere = self
            .cluster_bindings
            .values()
            .filter(move |binding| is_among(user, &binding.subjects))
            .filter_map(|binding| self.referenced("", &binding.role_ref));
        let here = self
            .bindings
            .get(namespace)
            .into_iter()
            .flat_map(BTreeMap::values)
            .filter(move |binding| is_among(user, &binding.subjects))
            .filter_map(move |binding| self.referenced(namespace, &binding.role_ref));
        everywhere.chain(here).flatten()
    }

    fn referenced(&self, namespace: &str, role: &RoleRef) -> Option<&[PolicyRule]> {
        match role.kind.as_str() {
            "ClusterRole" => self.role("", &role.name),
            "Role" if !namespace.is_empty() => self.role(namespace, &role.name),
            _ => None,
        }
    }
}

fn is_among(user: &User, subjects: &[Subject]) -> bool {
    subjects.iter().any(|subject| match subject.kind.as_str() {
        "User" => subject.name == user.name,
        "Group" => user.is_in(&subject.name),
        "ServiceAccount" => user
            .name
            .strip_prefix("system:serviceaccount:")
            .and_then(|rest| rest.split_once(':'))
            .is_some_and(|(namespace, name)| namespace == subject.namespace && name == subject.name),
        _ => false,
    })
}
