//! Names of kinds and objects, without their Rust types.

use std::fmt;

use panda_api::{
    Agent, CertificateSigningRequest, ClusterRole, ClusterRoleBinding, ConfigMap, Device, Event, GitSource,
    Lease, Namespace, Resource, ResourceQuota, Role, RoleBinding, Run, Secret, ServiceAccount, Task,
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};

/// A kind, as far as requests need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version within the group.
    pub version: &'static str,
    /// Kind, in CamelCase.
    pub kind: &'static str,
    /// Plural, as in URLs.
    pub plural: &'static str,
    /// Whether objects live in a namespace.
    pub namespaced: bool,
}

/// Every kind that the API serves and controllers may have to collect or empty a namespace of.
pub const KINDS: [Kind; 19] = [
    Kind::of::<Task>(),
    Kind::of::<Run>(),
    Kind::of::<Agent>(),
    Kind::of::<Device>(),
    Kind::of::<GitSource>(),
    Kind::of::<Lease>(),
    Kind::of::<Secret>(),
    Kind::of::<ConfigMap>(),
    Kind::of::<Event>(),
    Kind::of::<Namespace>(),
    Kind::of::<ServiceAccount>(),
    Kind::of::<Role>(),
    Kind::of::<RoleBinding>(),
    Kind::of::<ClusterRole>(),
    Kind::of::<ClusterRoleBinding>(),
    Kind::of::<CertificateSigningRequest>(),
    Kind::of::<ResourceQuota>(),
    Kind::of::<ValidatingAdmissionPolicy>(),
    Kind::of::<ValidatingAdmissionPolicyBinding>(),
];

impl Kind {
    /// The kind of a Rust type.
    #[must_use]
    pub const fn of<K: Resource>() -> Self {
        Self {
            group: K::GROUP,
            version: K::VERSION,
            kind: K::KIND,
            plural: K::PLURAL,
            namespaced: K::NAMESPACED,
        }
    }

    /// `group/version`, or the version alone for the core group.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The kind that an owner reference names, whatever its version; `None` for a kind that is not served.
    #[must_use]
    pub fn find(api_version: &str, kind: &str) -> Option<Self> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        KINDS.into_iter().find(|k| k.group == group && k.kind == kind)
    }
}

/// One object, by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace; empty for cluster-scoped kinds.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Target {
    /// The object called `name` in `namespace`.
    #[must_use]
    pub fn new<K: Resource>(namespace: &str, name: &str) -> Self {
        Self {
            kind: Kind::of::<K>(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// An object that is at hand.
    #[must_use]
    pub fn of<K: Resource>(object: &K) -> Self {
        Self::new::<K>(&object.metadata().namespace, &object.metadata().name)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{}/{}", self.kind.plural, self.name)
        } else {
            write!(f, "{}/{}/{}", self.kind.plural, self.namespace, self.name)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_kind_that_is_served_is_forgotten() {
        let served: BTreeSet<_> = panda_api::scheme::kinds()
            .iter()
            .map(|kind| (kind.group, kind.version, kind.kind, kind.plural, kind.namespaced))
            .collect();
        let known = KINDS.map(|k| (k.group, k.version, k.kind, k.plural, k.namespaced));
        assert_eq!(BTreeSet::from(known), served);
    }

    #[test]
    fn kinds_are_found_by_group_whatever_the_version() {
        assert_eq!(Kind::find("panda.dev/v9", "Run"), Some(Kind::of::<Run>()));
        assert_eq!(Kind::find("v1", "Secret"), Some(Kind::of::<Secret>()));
        assert_eq!(Kind::find("apps/v1", "Run"), None);
    }
}
