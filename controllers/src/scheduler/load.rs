//! What devices have, and what Runs take of it.

use std::collections::BTreeMap;

use panda_api::meta::Quantity;
use panda_api::{Device, ResourceRequest, Run};

/// Amounts of the resources that are accounted for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amounts {
    pub(super) cpu: Option<Quantity>,
    pub(super) memory: Option<Quantity>,
    pub(super) disk: Option<Quantity>,
    pub(super) gpu_memory: Option<Quantity>,
}

impl Amounts {
    /// What a request says; what cannot be read counts as not said (validation refuses it at the door).
    fn of(request: Option<&ResourceRequest>) -> Self {
        let read = |text: &Option<String>| text.as_ref().and_then(|text| text.parse().ok());
        request.map_or_else(Self::default, |r| Self {
            cpu: read(&r.cpu),
            memory: read(&r.memory),
            disk: read(&r.disk),
            gpu_memory: read(&r.gpu_memory),
        })
    }

    fn zip(self, other: Self, f: impl Fn(Option<Quantity>, Option<Quantity>) -> Option<Quantity>) -> Self {
        Self {
            cpu: f(self.cpu, other.cpu),
            memory: f(self.memory, other.memory),
            disk: f(self.disk, other.disk),
            gpu_memory: f(self.gpu_memory, other.gpu_memory),
        }
    }

    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| match (a, b) {
            (Some(a), Some(b)) => a.checked_add(b).or(Some(a)),
            (a, b) => a.or(b),
        })
    }

    /// What is left of this when `used` is taken; what is not bounded stays so.
    pub(super) fn less(self, used: Self) -> Self {
        self.zip(used, |have, used| {
            have.map(|have| have.saturating_sub(used.unwrap_or_default()))
        })
    }

    /// Names and amounts, for those that are named.
    pub(super) fn named(self) -> impl Iterator<Item = (&'static str, Quantity)> {
        [
            ("cpu", self.cpu),
            ("memory", self.memory),
            ("disk", self.disk),
            ("gpuMemory", self.gpu_memory),
        ]
        .into_iter()
        .filter_map(|(name, amount)| Some((name, amount?)))
    }

    /// The first resource of which there is less than is needed. A device that does not say what it has of one has
    /// none of it to give, except to those that do not ask.
    pub(super) fn lacking(self, needed: Self) -> Option<&'static str> {
        let have: BTreeMap<_, _> = self.named().collect();
        needed
            .named()
            .filter(|(_, amount)| !amount.is_zero())
            .find(|(name, amount)| have.get(name).is_none_or(|have| have < amount))
            .map(|(name, _)| name)
    }
}

/// What a Run asks for: itself, or else its agent.
pub(super) fn needs(run: &Run) -> Amounts {
    let own = Amounts::of(run.spec.device.as_ref().and_then(|d| d.resources.as_ref()));
    let agent = Amounts::of(run.spec.agent_spec.as_ref().and_then(|a| a.resources.as_ref()));
    own.zip(agent, Option::or)
}

/// What Runs take of one device.
#[derive(Clone, Debug, Default)]
pub(super) struct Load {
    pub(super) runs: u32,
    pub(super) used: Amounts,
    /// Live Runs by namespace and name of their Agent.
    pub(super) agents: BTreeMap<(String, String), u32>,
}

impl Load {
    pub(super) fn add(&mut self, run: &Run) {
        self.runs += 1;
        self.used = self.used.add(needs(run));
        let agent = (run.metadata.namespace.clone(), run.spec.agent.name.clone());
        *self.agents.entry(agent).or_default() += 1;
    }
}

/// What Runs may take of a device.
pub(super) fn allocatable(device: &Device) -> Amounts {
    let status = &device.status;
    Amounts::of(status.allocatable.as_ref().or(status.capacity.as_ref()))
}

/// How many Runs a device takes at one time; absent: as many as its resources allow.
pub(super) fn slots(device: &Device) -> Option<u32> {
    match (device.spec.max_runs, device.status.max_runs) {
        (Some(wanted), Some(own)) => Some(wanted.min(own)),
        (wanted, own) => wanted.or(own),
    }
}
