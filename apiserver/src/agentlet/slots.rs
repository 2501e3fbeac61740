//! Room on devices at binding: two schedulers, or one with an old cache, never put more on a device than it takes.
//!
//! Bindings of one device are counted here from before their commit until the index of runs shows them. A refusal
//! too many is possible for the moment in which an end has not reached the index; the scheduler then tries again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use panda_api::room::{self, Amounts};
use panda_api::{Device, Run};
use panda_store::Revision;

/// What one Run takes of its device.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    needs: Amounts,
    namespace: String,
    agent: String,
}

impl Demand {
    pub(crate) fn of(run: &Run) -> Self {
        Self {
            needs: room::needs(run),
            namespace: run.metadata.namespace.clone(),
            agent: run.spec.agent.name.clone(),
        }
    }

    fn is_of_same_agent(&self, other: &Self) -> bool {
        self.namespace == other.namespace && self.agent == other.agent
    }
}

/// A binding under way, or committed at a revision.
type Pending = (Demand, Option<Revision>);

/// Bindings that the index may not show yet, by device uid and run uid.
#[derive(Debug, Default)]
pub(crate) struct Slots(Mutex<HashMap<String, HashMap<String, Pending>>>);

/// Room that is taken; given back when it is dropped before [`Self::committed`].
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    slots: &'a Slots,
    device: String,
    run: String,
    kept: bool,
}

/// What is lacking on `device` for `run` beside `others`.
fn lacking(device: &Device, run: &Run, others: &[&Demand]) -> Option<String> {
    let name = &device.metadata.name;
    let is_full = |limit: u32, count: usize| usize::try_from(limit).is_ok_and(|limit| count >= limit);
    if room::slots(device).is_some_and(|limit| is_full(limit, others.len())) {
        return Some(format!("device {name} has no free slot"));
    }
    let own = Demand::of(run);
    let beside = others.iter().filter(|other| other.is_of_same_agent(&own)).count();
    let limit = run.spec.agent_spec.as_ref().and_then(|agent| agent.concurrency);
    if limit.is_some_and(|limit| is_full(limit, beside)) {
        return Some(format!(
            "device {name} runs agent {:?} as often as it may",
            own.agent
        ));
    }
    let used = others
        .iter()
        .fold(Amounts::default(), |sum, other| sum.plus(other.needs));
    let left = room::allocatable(device).less(used);
    left.lacking(own.needs)
        .map(|resource| format!("device {name} has too little {resource} left"))
}

impl Slots {
    /// Takes room on a device on which the index shows `live` as of `seen`.
    ///
    /// # Errors
    /// What there is too little of.
    pub(crate) fn take(
        &self,
        device: &Device,
        run: &Run,
        live: &[Demand],
        seen: Revision,
    ) -> Result<Slot<'_>, String> {
        let (key, uid) = (&device.metadata.uid, &run.metadata.uid);
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let here = pending.entry(key.clone()).or_default();
        here.retain(|_, (_, at)| at.is_none_or(|at| at > seen));
        let under_way = here.iter().filter(|(other, _)| *other != uid);
        let others: Vec<&Demand> = live
            .iter()
            .chain(under_way.map(|(_, (demand, _))| demand))
            .collect();
        let lacking = lacking(device, run, &others);
        if lacking.is_none() {
            here.insert(uid.clone(), (Demand::of(run), None));
        }
        if here.is_empty() {
            pending.remove(key);
        }
        match lacking {
            Some(lacking) => Err(lacking),
            None => Ok(Slot {
                slots: self,
                device: key.clone(),
                run: uid.clone(),
                kept: false,
            }),
        }
    }
}

impl Slot<'_> {
    /// The binding is durable at `revision`.
    pub(crate) fn committed(mut self, revision: Revision) {
        self.kept = true;
        let mut pending = self.slots.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, at)) = pending
            .get_mut(&self.device)
            .and_then(|here| here.get_mut(&self.run))
        {
            *at = Some(revision);
        }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let mut pending = self.slots.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(here) = pending.get_mut(&self.device) {
            here.remove(&self.run);
            if here.is_empty() {
                pending.remove(&self.device);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use panda_api::meta::ObjectMeta;
    use panda_api::{AgentSpec, DeviceRequest, ResourceRequest};

    use super::*;

    fn device(name: &str, slots: Option<u32>) -> Device {
        let mut device = Device {
            metadata: ObjectMeta::named(name),
            ..Device::default()
        };
        device.metadata.uid = name.into();
        device.status.max_runs = slots;
        device
    }

    fn run(name: &str) -> Run {
        let mut run = Run {
            metadata: ObjectMeta::namespaced("web", name),
            ..Run::default()
        };
        run.metadata.uid = name.into();
        run.spec.agent.name = "a".into();
        run
    }

    fn cpu(amount: &str) -> ResourceRequest {
        ResourceRequest {
            cpu: Some(amount.into()),
            ..ResourceRequest::default()
        }
    }

    #[test]
    fn what_is_under_way_counts_until_the_index_shows_it() {
        let slots = Slots::default();
        let (d, rev) = (device("d", Some(2)), Revision);
        let take = |name: &str, live: &[Demand], seen| slots.take(&d, &run(name), live, rev(seen));
        let first = take("r1", &[], 1).unwrap();
        let second = take("r2", &[], 1).unwrap();
        assert_eq!(take("r3", &[], 1).unwrap_err(), "device d has no free slot");
        assert!(
            slots
                .take(&device("other", Some(2)), &run("r3"), &[], rev(1))
                .is_ok()
        );
        first.committed(rev(5));
        drop(second);
        // Given back; the first is not in the index yet.
        let third = take("r3", &[], 4).unwrap();
        assert!(take("r4", &[], 4).is_err());
        drop(third);
        // The index shows the first.
        let shown = [Demand::of(&run("r1"))];
        assert!(take("r3", &shown, 5).is_ok());
        assert!(
            slots
                .take(&device("d", Some(1)), &run("r3"), &shown, rev(5))
                .is_err()
        );
        assert!(slots.0.lock().unwrap().is_empty());
    }

    #[test]
    fn resources_and_the_limit_of_an_agent_are_counted_too() {
        let slots = Slots::default();
        let mut d = device("d", None);
        d.status.allocatable = Some(cpu("2"));
        let asks = |name: &str, amount: &str| {
            let mut run = run(name);
            run.spec.device = Some(DeviceRequest {
                resources: Some(cpu(amount)),
                ..DeviceRequest::default()
            });
            run
        };
        let first = slots.take(&d, &asks("r1", "1500m"), &[], Revision(1)).unwrap();
        let refused = slots.take(&d, &asks("r2", "1"), &[], Revision(1)).unwrap_err();
        assert_eq!(refused, "device d has too little cpu left");
        drop(slots.take(&d, &asks("r2", "500m"), &[], Revision(1)).unwrap());
        let mut alone = run("r3");
        alone.spec.agent_spec = Some(AgentSpec {
            concurrency: Some(1),
            ..AgentSpec::default()
        });
        assert!(slots.take(&d, &alone, &[], Revision(1)).is_err());
        alone.metadata.namespace = "elsewhere".into();
        assert!(
            slots.take(&d, &alone, &[], Revision(1)).is_ok(),
            "another agent of that name"
        );
        drop(first);
    }

    #[test]
    fn without_a_limit_everything_fits() {
        let slots = Slots::default();
        let many = vec![Demand::of(&run("x")); 1000];
        assert!(
            slots
                .take(&device("d", None), &run("r"), &many, Revision::ZERO)
                .is_ok()
        );
    }
}
