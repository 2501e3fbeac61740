//! Rules about what an object holds, asked of every write that a client makes, where the object is complete.
//!
//! * Nobody grants more than they have: a role's rules must be covered by the author's own (or the author has the
//!   verb `escalate`), a bound role's too (or the verb `bind`).
//! * A Task without walls (`sandbox.profile: Off`, `network.mode: Host`) needs the verb `use` on `sandboxprofiles`
//!   named `Off` or `Host`, whenever what it runs changes.
//! * A Run's Tasks stay within the Run's own: see `containment`.

use std::sync::Arc;

use panda_api::rbac::{self, PolicyRule};
use panda_api::{
    ClusterRole, ClusterRoleBinding, NetworkMode, Resource as Typed, Role, RoleBinding, Run, SandboxProfile,
    Task, TaskSpec,
};
use serde_json::Value;

use super::{Attributes, Authorizer, containment, shortfall};
use crate::authn::User;
use crate::policy::Policies;
use crate::registry::{Admit, Admitting, Error, Registry, Resource, meta};

/// The rules for one user's writes.
#[derive(Clone)]
pub(crate) struct Admission {
    user: Arc<User>,
    authorizer: Arc<dyn Authorizer>,
    /// What a Run's Tasks may hold.
    own: Option<Arc<TaskSpec>>,
    /// The operator's rules, asked last.
    policies: Option<Arc<Policies>>,
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admission")
            .field("user", &self.user.name)
            .finish_non_exhaustive()
    }
}

impl Admission {
    /// The rules for `user`.
    pub(crate) async fn of(
        user: Arc<User>,
        authorizer: Arc<dyn Authorizer>,
        registry: &Registry,
    ) -> Result<Self, Error> {
        let own = match user.run() {
            None => None,
            Some(identity) => {
                let run = registry
                    .get_as::<Run>(&identity.namespace, &identity.name)
                    .await?;
                let task = registry
                    .get_as::<Task>(&identity.namespace, &identity.task)
                    .await?;
                let spec = run.zip(task).map(|(run, task)| own_rights(&run, task));
                // It has ended since it was asked who it is: nothing is within its rights.
                Some(Arc::new(spec.unwrap_or_else(nothing)))
            }
        };
        Ok(Self {
            user,
            authorizer,
            own,
            policies: None,
        })
    }
}

impl Admit for Admission {
    fn check(&self, write: &Admitting<'_>) -> Result<(), Error> {
        self.own_rules(write)?;
        self.policies
            .as_ref()
            .map_or(Ok(()), |policies| policies.check(write))
    }
}

impl Admission {
    /// With the operator's rules.
    pub(crate) fn with(mut self, policies: Option<Policies>) -> Self {
        self.policies = policies.map(Arc::new);
        self
    }

    fn own_rules(&self, write: &Admitting<'_>) -> Result<(), Error> {
        match (write.kind.group, write.kind.kind) {
            (Task::GROUP, Task::KIND) => self.task(write),
            (rbac::GROUP, Role::KIND) => {
                let old = write.old.map(decode::<Role>).transpose()?.map(|role| role.rules);
                self.role(write, old, &decode::<Role>(write.new)?.rules, false)
            }
            (rbac::GROUP, ClusterRole::KIND) => {
                let old = write.old.map(decode::<ClusterRole>).transpose()?;
                let new = decode::<ClusterRole>(write.new)?;
                // What it will take from others is not known today: only who may do everything may let it.
                let aggregates = new.aggregation_rule.is_some()
                    && old
                        .as_ref()
                        .is_none_or(|old| old.aggregation_rule != new.aggregation_rule);
                self.role(write, old.map(|role| role.rules), &new.rules, aggregates)
            }
            (rbac::GROUP, RoleBinding::KIND) => {
                let old = write.old.map(decode::<RoleBinding>).transpose()?;
                let new = decode::<RoleBinding>(write.new)?;
                let same = old.is_some_and(|old| old.subjects == new.subjects);
                self.binding(write, same, &new.role_ref)
            }
            (rbac::GROUP, ClusterRoleBinding::KIND) => {
                let old = write.old.map(decode::<ClusterRoleBinding>).transpose()?;
                let new = decode::<ClusterRoleBinding>(write.new)?;
                let same = old.is_some_and(|old| old.subjects == new.subjects);
                self.binding(write, same, &new.role_ref)
            }
            _ => Ok(()),
        }
    }
}

impl Admission {
    fn may(&self, attributes: &Attributes<'_>) -> bool {
        self.authorizer.decide(&self.user, attributes).is_allowed()
    }

    fn refuse(&self, write: &Admitting<'_>, detail: String) -> Error {
        Error::Forbidden {
            resource: Resource {
                group: write.kind.group.to_owned(),
                name: write.kind.plural.to_owned(),
            },
            name: meta::text(write.new, "name").to_owned(),
            detail,
            causes: Vec::new(),
        }
    }

    fn role(
        &self,
        write: &Admitting<'_>,
        old: Option<Vec<PolicyRule>>,
        rules: &[PolicyRule],
        aggregates: bool,
    ) -> Result<(), Error> {
        if !aggregates && old.as_deref() == Some(rules) {
            return Ok(());
        }
        let escalate = Attributes {
            verb: "escalate",
            group: rbac::GROUP,
            resource: write.kind.plural,
            namespace: write.namespace,
            name: meta::text(write.new, "name"),
            ..Attributes::default()
        };
        if self.may(&escalate) {
            return Ok(());
        }
        let owned = self.authorizer.rules(&self.user, write.namespace);
        let everything = PolicyRule {
            verbs: vec!["*".into()],
            api_groups: vec!["*".into()],
            resources: vec!["*".into()],
            ..PolicyRule::default()
        };
        let wanted: Vec<PolicyRule> = rules
            .iter()
            .cloned()
            .chain(aggregates.then_some(everything))
            .collect();
        match shortfall(&owned, &wanted) {
            None => Ok(()),
            Some(lacking) => Err(self.refuse(
                write,
                format!(
                    "user {:?} is attempting to grant RBAC permissions not currently held: {lacking}",
                    self.user.name
                ),
            )),
        }
    }

    fn binding(&self, write: &Admitting<'_>, same: bool, role: &rbac::RoleRef) -> Result<(), Error> {
        if same {
            return Ok(());
        }
        let cluster = role.kind == ClusterRole::KIND;
        let bind = Attributes {
            verb: "bind",
            group: rbac::GROUP,
            resource: if cluster {
                ClusterRole::PLURAL
            } else {
                Role::PLURAL
            },
            namespace: write.namespace,
            name: &role.name,
            ..Attributes::default()
        };
        if self.may(&bind) {
            return Ok(());
        }
        let place = if cluster { "" } else { write.namespace };
        let Some(rules) = self.authorizer.role(place, &role.name) else {
            return Err(self.refuse(
                write,
                format!(
                    "{} {:?} does not exist (yet), and binding it needs the verb bind",
                    role.kind, role.name
                ),
            ));
        };
        let owned = self.authorizer.rules(&self.user, write.namespace);
        match shortfall(&owned, &rules) {
            None => Ok(()),
            Some(lacking) => Err(self.refuse(
                write,
                format!(
                    "user {:?} is attempting to grant RBAC permissions not currently held: {lacking}",
                    self.user.name
                ),
            )),
        }
    }

    fn task(&self, write: &Admitting<'_>) -> Result<(), Error> {
        let new = decode::<Task>(write.new)?.spec;
        if let Some(old) = write.old.map(decode::<Task>).transpose()?
            && work(&old.spec) == work(&new)
        {
            // A Run that may write this Task at all (a role says so) may still not steer one that exceeds its own.
            if self.own.is_none() {
                return Ok(());
            }
        }
        if let Some(own) = &self.own {
            return match containment::excess(own, &new) {
                None => Ok(()),
                Some((field, why)) => Err(self.refuse(write, format!("{field} {why}"))),
            };
        }
        for profile in unwalled(&new) {
            let use_ = Attributes {
                verb: "use",
                group: Task::GROUP,
                resource: "sandboxprofiles",
                namespace: write.namespace,
                name: profile,
                ..Attributes::default()
            };
            if !self.may(&use_) {
                return Err(self.refuse(
                    write,
                    format!(
                        "user {:?} may not use the sandbox profile {profile:?}: it needs the verb use on \
                         sandboxprofiles in API group \"panda.dev\"",
                        self.user.name
                    ),
                ));
            }
        }
        Ok(())
    }
}

fn decode<K: Typed>(object: &Value) -> Result<K, Error> {
    serde_json::from_value(object.clone())
        .map_err(|error| Error::BadRequest(format!("the object is no {}: {error}", K::KIND)))
}

/// What a Task does: everything but what only starts, stops or orders it.
fn work(spec: &TaskSpec) -> TaskSpec {
    TaskSpec {
        suspend: None,
        cancel: None,
        rerun: None,
        priority: None,
        ttl_after_finished: None,
        ..spec.clone()
    }
}

/// The profiles without walls that a Task asks for.
fn unwalled(spec: &TaskSpec) -> Vec<&'static str> {
    let sandbox = spec.sandbox.as_ref();
    let off = sandbox.is_some_and(|sandbox| sandbox.profile == Some(SandboxProfile::Off));
    let host = Some(NetworkMode::Host);
    let network = sandbox.and_then(|sandbox| sandbox.network.as_ref());
    let host = network.is_some_and(|network| network.mode == host)
        || spec.verify.iter().any(|check| check.network == host);
    let off = off.then_some("Off");
    off.into_iter().chain(host.then_some("Host")).collect()
}

/// The rights of a Run: those of its Task, with the walls that it really got at binding.
fn own_rights(run: &Run, task: Task) -> TaskSpec {
    let mut spec = task.spec;
    if run.spec.sandbox.is_some() {
        spec.sandbox.clone_from(&run.spec.sandbox);
    }
    spec
}

/// Rights that no Task is within: an approval policy that cannot be named.
fn nothing() -> TaskSpec {
    TaskSpec {
        approval: Some(panda_api::ApprovalSpec {
            policy: "\u{0}".to_owned(),
        }),
        ..TaskSpec::default()
    }
}
