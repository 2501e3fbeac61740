//! Roles and bindings as an [`Authorizer`].

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::StreamExt;
use panda_api::rbac::PolicyRule;
use panda_api::{ClusterRole, ClusterRoleBinding, Resource, Role, RoleBinding, scheme};
use panda_store::{EventKind, Revision};
use tokio_util::sync::CancellationToken;

use super::index::{Index, Indexed};
use super::{Attributes, Authorizer, Decision, guard, rules};
use crate::authn::User;
use crate::registry::{self, Registry};

/// The ClusterRole whose rules every Run has in its own namespace.
pub(super) const RUN_ROLE: &str = "run";
/// First and longest wait before a broken watch begins again.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// The authoriser of a server: the rules before roles, then roles and bindings.
///
/// It answers from memory. A change of a role is in force when the watch has brought it, a moment after it was
/// written.
#[derive(Clone, Debug, Default)]
pub struct Rbac(Arc<RwLock<Index>>);

impl Rbac {
    fn with<T>(&self, read: impl FnOnce(&Index) -> T) -> T {
        // A reader cannot leave it half-changed, and the writer changes one object at a time.
        read(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change<K: Indexed>(&self, change: impl FnOnce(&mut Index)) {
        let mut index = self.0.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut index);
        if K::KIND == ClusterRole::KIND {
            index.aggregate();
        }
    }

    /// Reads all roles and bindings, for a server that is about to serve.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn load(&self, registry: &Registry) -> Result<(), registry::Error> {
        self.replace::<Role>(registry).await?;
        self.replace::<RoleBinding>(registry).await?;
        self.replace::<ClusterRole>(registry).await?;
        self.replace::<ClusterRoleBinding>(registry).await?;
        Ok(())
    }

    /// Follows all changes until `stop`.
    pub async fn run(&self, registry: &Registry, stop: CancellationToken) {
        let all = async {
            tokio::join!(
                self.follow::<Role>(registry),
                self.follow::<RoleBinding>(registry),
                self.follow::<ClusterRole>(registry),
                self.follow::<ClusterRoleBinding>(registry),
            )
        };
        tokio::select! {
            () = stop.cancelled() => {}
            _ = all => {}
        }
    }

    async fn replace<K: Indexed>(&self, registry: &Registry) -> Result<Revision, registry::Error> {
        let (objects, revision) = registry.list_as::<K>(None).await?;
        self.change::<K>(|index| {
            K::clear(index);
            for object in objects {
                object.put(index);
            }
        });
        Ok(revision)
    }

    async fn follow<K: Indexed>(&self, registry: &Registry) {
        let mut pause = RETRY.0;
        loop {
            match self.once::<K>(registry).await {
                Ok(()) => pause = RETRY.0,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        kind = K::KIND,
                        "the index of roles starts again"
                    );
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY.1);
        }
    }

    async fn once<K: Indexed>(&self, registry: &Registry) -> Result<(), registry::Error> {
        let from = self.replace::<K>(registry).await?;
        let scope = registry::scope(scheme::of::<K>(), None);
        let mut watch = registry.watch(scope, from).await?;
        while let Some(event) = watch.next().await {
            let event = event?;
            let key = &event.key;
            if event.kind == EventKind::Deleted {
                self.change::<K>(|index| K::remove(index, &key.namespace, &key.name));
                continue;
            }
            match serde_json::from_slice::<K>(&event.value) {
                Ok(object) => self.change::<K>(|index| object.put(index)),
                // What cannot be read grants nothing.
                Err(error) => {
                    tracing::error!(%key, %error, "stored object cannot be read");
                    self.change::<K>(|index| K::remove(index, &key.namespace, &key.name));
                }
            }
        }
        Ok(())
    }
}

impl Authorizer for Rbac {
    fn decide(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        if let Some(decision) = guard::decide(user, attributes) {
            return decision;
        }
        let allowed = self.with(|index| {
            let own = user.run().filter(|run| run.namespace == attributes.namespace);
            let own = own.and_then(|_| index.role("", RUN_ROLE)).unwrap_or_default();
            let mut granted = index.granted(user, attributes.namespace).chain(own);
            granted.any(|rule| rules::allows(rule, attributes))
        });
        if allowed {
            Decision::Allow
        } else {
            Decision::NoOpinion
        }
    }

    fn rules(&self, user: &User, namespace: &str) -> Vec<PolicyRule> {
        // These have what `guard` says, which no rule puts into words; for masters one does.
        match guard::decide(user, &Attributes::default()) {
            Some(Decision::Allow) => return everything(),
            Some(_) if user.run().is_none() => return Vec::new(),
            _ => {}
        }
        self.with(|index| {
            let own = user.run().filter(|run| run.namespace == namespace);
            let own = own.and_then(|_| index.role("", RUN_ROLE)).unwrap_or_default();
            index.granted(user, namespace).chain(own).cloned().collect()
        })
    }

    fn role(&self, namespace: &str, name: &str) -> Option<Vec<PolicyRule>> {
        self.with(|index| index.role(namespace, name).map(<[PolicyRule]>::to_vec))
    }
}

fn everything() -> Vec<PolicyRule> {
    let all = || vec!["*".to_owned()];
    vec![
        PolicyRule {
            verbs: all(),
            api_groups: all(),
            resources: all(),
            ..PolicyRule::default()
        },
        PolicyRule {
            verbs: all(),
            non_resource_urls: all(),
            ..PolicyRule::default()
        },
    ]
}
