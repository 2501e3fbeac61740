//! Quotas: how many objects of a kind a namespace may hold.
//!
//! A creation in a namespace with quotas counts what is there and writes the new count into each quota in its own
//! transaction, at the version that it has read before it counted. So of two creations at once one fails and counts
//! again, and no quota is ever exceeded. A deletion need not be seen: the next creation counts anew, and
//! [`Registry::recount`] brings the shown numbers up to date.

use std::collections::BTreeMap;

use panda_api::admission::{ResourceQuotaStatus, counted};
use panda_api::{ResourceQuota, scheme};
use panda_store::{ListRequest, Op, Scope};

use super::plan::Plan;
use super::write::{Effect, Part, Write};
use super::{Error, Registry, encode, kinds, modify_fn, to_value};

impl Registry {
    /// Whether there are quotas in one of these namespaces.
    pub(super) async fn has_quotas(&self, namespaces: Vec<String>) -> Result<bool, Error> {
        for namespace in namespaces {
            let request = ListRequest {
                scope: quotas(&namespace),
                limit: Some(1),
                ..ListRequest::default()
            };
            if !self.store().list(request).await?.items.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What creations use of quotas: the operations that note it.
    pub(super) async fn charge(&self, plans: &[Plan]) -> Result<Vec<Op>, Error> {
        let mut ops = Vec::new();
        let mut added: BTreeMap<&str, Vec<&Plan>> = BTreeMap::new();
        for plan in plans.iter().filter(|plan| plan.effect == Effect::Created) {
            if !plan.op.key.namespace.is_empty() {
                added.entry(&plan.op.key.namespace).or_default().push(plan);
            }
        }
        for (namespace, plans) in added {
            let request = ListRequest {
                scope: quotas(namespace),
                ..ListRequest::default()
            };
            for entry in self.store().list(request).await?.items {
                let mut quota: ResourceQuota = self.open(&entry)?.typed()?;
                let requested = |name: &str| plans.iter().filter(|plan| is_of(name, plan)).count() as u64;
                let Some(plan) = plans
                    .iter()
                    .find(|plan| quota.spec.hard.keys().any(|name| is_of(name, plan)))
                else {
                    continue;
                };
                let mut used = self.used(namespace, &quota).await?;
                for (name, most) in &quota.spec.hard {
                    let (asked, there) = (requested(name), used.get(name).copied().unwrap_or(0));
                    let most: u64 = most.parse().unwrap_or(0);
                    if asked > 0 && there + asked > most {
                        return Err(exceeded(plan, &quota, name, asked, there, most));
                    }
                    *used.entry(name.clone()).or_default() += asked;
                }
                quota.status = status(&quota, &used);
                let body = encode::body(&to_value(&quota)?);
                ops.push(Op::update(entry.key.clone(), entry.revision, body));
            }
        }
        Ok(ops)
    }

    /// How many objects there are of each kind that a quota counts.
    async fn used(&self, namespace: &str, quota: &ResourceQuota) -> Result<BTreeMap<String, u64>, Error> {
        let mut used = BTreeMap::new();
        for name in quota.spec.hard.keys() {
            let Some((plural, group)) = counted(name) else {
                continue;
            };
            let request = ListRequest {
                scope: Scope::namespace(format!("{group}/{plural}"), namespace),
                limit: Some(1),
                ..ListRequest::default()
            };
            let page = self.store().list(request).await?;
            used.insert(name.clone(), page.items.len() as u64 + page.remaining);
        }
        Ok(used)
    }

    /// Brings the numbers that quotas show up to date.
    ///
    /// # Errors
    /// When the store fails.
    pub(crate) async fn recount(&self) -> Result<(), Error> {
        let (all, _) = self.list_as::<ResourceQuota>(None).await?;
        for quota in all {
            let (namespace, name) = (&quota.metadata.namespace, &quota.metadata.name);
            let status = status(&quota, &self.used(namespace, &quota).await?);
            if quota.status == status {
                continue;
            }
            let change = modify_fn::<ResourceQuota>(move |quota| {
                quota.status = status.clone();
                true
            });
            let write = Write::Modify {
                kind: scheme::of::<ResourceQuota>(),
                namespace: namespace.clone(),
                name: name.clone(),
                part: Part::Status,
                change,
            };
            match self.write(write, &Default::default()).await {
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The namespaces in which these create objects.
pub(super) fn created_in(writes: &[Write]) -> Vec<String> {
    let namespace = |write: &Write| match write {
        Write::Create { kind, namespace, .. } if kind.namespaced => Some(namespace.clone()),
        _ => None,
    };
    writes.iter().filter_map(namespace).collect()
}

fn quotas(namespace: &str) -> Scope {
    kinds::scope(scheme::of::<ResourceQuota>(), Some(namespace))
}

fn is_of(name: &str, plan: &Plan) -> bool {
    counted(name).is_some_and(|(plural, group)| plan.op.key.resource.split_once('/') == Some((group, plural)))
}

fn status(quota: &ResourceQuota, used: &BTreeMap<String, u64>) -> ResourceQuotaStatus {
    ResourceQuotaStatus {
        hard: quota.spec.hard.clone(),
        used: used
            .iter()
            .map(|(name, count)| (name.clone(), count.to_string()))
            .collect(),
    }
}

fn exceeded(plan: &Plan, quota: &ResourceQuota, name: &str, asked: u64, used: u64, most: u64) -> Error {
    let (group, plural) = plan.op.key.resource.split_once('/').unwrap_or_default();
    Error::Forbidden {
        resource: super::Resource {
            group: group.to_owned(),
            name: plural.to_owned(),
        },
        name: plan.op.key.name.to_string(),
        detail: format!(
            "exceeded quota: {}, requested: {name}={asked}, used: {name}={used}, limited: {name}={most}",
            quota.metadata.name
        ),
        causes: Vec::new(),
    }
}
