//! Who may do what.
//!
//! 1. `guard` comes first and knows identities that roles may not widen: devices, runs, holders of join tokens.
//! 2. `system:masters` may do everything else.
//! 3. [`Rbac`] answers the rest out of roles and bindings, from an index in memory that a watch keeps.
//! 4. What depends on an object's content (a role that grants more than its author has, a Task without walls) is
//!    decided by `admission`, where the object is known.
//!
//! | module | holds |
//! |---|---|
//! | `guard` | the rules before roles |
//! | `rbac`, `index` | roles and bindings |
//! | `rules` | what one rule grants, and whether rules cover others |
//! | `bootstrap` | the roles that are always there |
//! | `admission` | rules about content |
//! | `containment` | whether a Task grants more than another |

pub(crate) mod admission;
mod bootstrap;
pub(crate) mod containment;
mod guard;
mod index;
mod rbac;
mod rules;
#[cfg(test)]
mod tests;

use panda_api::rbac::PolicyRule;

use crate::authn::User;
use crate::request::RequestInfo;

pub(crate) use bootstrap::bootstrap;
pub use rbac::Rbac;
pub(crate) use rules::{covers, shortfall};

/// May do everything.
pub const MASTERS: &str = "system:masters";
/// The user name of the controllers.
pub const CONTROLLERS: &str = "panda:controllers";

/// What somebody wants to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// Verb, in lower case.
    pub verb: &'a str,
    /// API group.
    pub group: &'a str,
    /// Plural; empty for a path that is no resource.
    pub resource: &'a str,
    /// Subresource.
    pub subresource: &'a str,
    /// Namespace; empty for all, and for cluster-scoped kinds.
    pub namespace: &'a str,
    /// Name; empty for the collection.
    pub name: &'a str,
    /// The path, where it is no resource.
    pub path: &'a str,
    /// Whether the answer shows metadata only.
    pub metadata_only: bool,
}

impl<'a> From<&'a RequestInfo> for Attributes<'a> {
    fn from(request: &'a RequestInfo) -> Self {
        let verb = request.verb.as_str();
        let Some(target) = &request.target else {
            return Self {
                verb,
                path: &request.path,
                ..Self::default()
            };
        };
        // `artifacts/report` is the artifact `report`: rules speak of `artifacts`.
        let subresource = target.subresource.as_deref().unwrap_or_default();
        let subresource = subresource.split('/').next().unwrap_or_default();
        Self {
            verb,
            group: &target.group,
            resource: &target.resource,
            subresource,
            namespace: &target.namespace,
            name: target.name.as_deref().unwrap_or_default(),
            path: &request.path,
            metadata_only: request.metadata_only,
        }
    }
}

impl Attributes<'_> {
    /// Whether it only reads.
    #[must_use]
    pub fn is_read(&self) -> bool {
        matches!(self.verb, "get" | "list" | "watch")
    }
}

/// What an [`Authorizer`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It may be done.
    Allow,
    /// No rule allows it.
    NoOpinion,
    /// It may not be done, whatever roles say, and why.
    Deny(&'static str),
}

impl Decision {
    /// Whether it may be done.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow)
    }
}

/// Decides about requests.
pub trait Authorizer: Send + Sync + std::fmt::Debug + 'static {
    /// Whether `user` may do this.
    fn decide(&self, user: &User, attributes: &Attributes<'_>) -> Decision;

    /// Everything that `user` may do in a namespace (empty: everywhere).
    fn rules(&self, user: &User, namespace: &str) -> Vec<PolicyRule>;

    /// The rules of a role: of a namespace, or a ClusterRole where the namespace is empty.
    fn role(&self, namespace: &str, name: &str) -> Option<Vec<PolicyRule>>;
}

/// The text of a refusal, in upstream's words.
pub(crate) fn refusal(user: &User, request: &Attributes<'_>, why: &str) -> String {
    let name = &user.name;
    let verb = request.verb;
    let why = if why.is_empty() {
        String::new()
    } else {
        format!(": {why}")
    };
    if request.resource.is_empty() {
        return format!(
            "forbidden: User {name:?} cannot {verb} path {:?}{why}",
            request.path
        );
    }
    let qualified = if request.group.is_empty() {
        request.resource.to_owned()
    } else {
        format!("{}.{}", request.resource, request.group)
    };
    let object = if request.name.is_empty() {
        String::new()
    } else {
        format!(" {:?}", request.name)
    };
    let part = if request.subresource.is_empty() {
        String::new()
    } else {
        format!("/{}", request.subresource)
    };
    let place = if request.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {:?}", request.namespace)
    };
    format!(
        "{qualified}{object} is forbidden: User {name:?} cannot {verb} resource \"{}{part}\" in API group {:?} {place}{why}",
        request.resource, request.group
    )
}
