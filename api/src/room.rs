//! What devices have to give, and what Runs take of it: the same sums for whoever places Runs and whoever binds them.

use crate::meta::Quantity;
use crate::{Device, ResourceRequest, Run};

/// Amounts of the resources that are accounted for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Processors.
    pub cpu: Option<Quantity>,
    /// Memory.
    pub memory: Option<Quantity>,
    /// Disk.
    pub disk: Option<Quantity>,
    /// Memory of graphics processors.
    pub gpu_memory: Option<Quantity>,
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

    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.zip(other, |a, b| match (a, b) {
            (Some(a), Some(b)) => a.checked_add(b).or(Some(a)),
            (a, b) => a.or(b),
        })
    }

    /// What is left of this when `used` is taken; what is not bounded stays so.
    #[must_use]
    pub fn less(self, used: Self) -> Self {
        self.zip(used, |have, used| {
            have.map(|have| have.saturating_sub(used.unwrap_or_default()))
        })
    }

    /// Names and amounts, for those that are named.
    pub fn named(self) -> impl Iterator<Item = (&'static str, Quantity)> {
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
    #[must_use]
    pub fn lacking(self, needed: Self) -> Option<&'static str> {
        needed
            .named()
            .filter(|(_, amount)| !amount.is_zero())
            .find(|(name, amount)| {
                let have = self.named().find(|(other, _)| other == name);
                have.is_none_or(|(_, have)| have < *amount)
            })
            .map(|(name, _)| name)
    }
}

/// What a Run asks for: itself, or else its agent.
#[must_use]
pub fn needs(run: &Run) -> Amounts {
    let own = Amounts::of(run.spec.device.as_ref().and_then(|d| d.resources.as_ref()));
    let agent = Amounts::of(run.spec.agent_spec.as_ref().and_then(|a| a.resources.as_ref()));
    own.zip(agent, Option::or)
}

/// What Runs may take of a device.
#[must_use]
pub fn allocatable(device: &Device) -> Amounts {
    let status = &device.status;
    Amounts::of(status.allocatable.as_ref().or(status.capacity.as_ref()))
}

/// How many Runs a device takes at one time; absent: as many as its resources allow.
#[must_use]
pub fn slots(device: &Device) -> Option<u32> {
    match (device.spec.max_runs, device.status.max_runs) {
        (Some(wanted), Some(own)) => Some(wanted.min(own)),
        (wanted, own) => wanted.or(own),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts(cpu: Option<&str>, memory: Option<&str>) -> Amounts {
        Amounts::of(Some(&ResourceRequest {
            cpu: cpu.map(Into::into),
            memory: memory.map(Into::into),
            ..ResourceRequest::default()
        }))
    }

    #[test]
    fn what_is_not_said_is_not_there_and_not_missed() {
        let have = amounts(Some("2"), None);
        assert_eq!(have.lacking(amounts(Some("2"), None)), None);
        assert_eq!(have.lacking(amounts(Some("2500m"), None)), Some("cpu"));
        assert_eq!(have.lacking(amounts(None, Some("1Gi"))), Some("memory"));
        assert_eq!(have.lacking(amounts(None, Some("0"))), None);
        let left = have.less(amounts(Some("1500m"), Some("1Gi")));
        assert_eq!(left, amounts(Some("500m"), None));
        assert_eq!(left.plus(amounts(Some("1500m"), None)), have);
    }

    #[test]
    fn the_smaller_limit_counts() {
        let mut device = Device::default();
        assert_eq!(slots(&device), None);
        device.status.max_runs = Some(4);
        assert_eq!(slots(&device), Some(4));
        device.spec.max_runs = Some(2);
        assert_eq!(slots(&device), Some(2));
    }
}
