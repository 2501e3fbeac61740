//! How long a run of a silent device may be alive.

use std::time::Duration;

use panda_api::{AFTER_GRANT, Lease, Run, RunPhase};
use serde::{Deserialize, Serialize};

/// When a run is taken away from a device that is out of reach.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Lost {
    /// What a device needs to end a process tree once it must end, beyond the grace that the agent's own `stop` names.
    pub kill_grace: panda_api::meta::Duration,
    /// Smallest allowance for clocks that run at different rates; one hundredth of the bound when that is more.
    pub min_margin: panda_api::meta::Duration,
}

impl Default for Lost {
    fn default() -> Self {
        Self {
            kill_grace: Duration::from_secs(15).into(),
            min_margin: Duration::from_secs(10).into(),
        }
    }
}

impl Lost {
    /// How long after its Lease was last renewed a run may be alive: the grant, what the run may go on without one,
    /// what ending it takes, and a margin. A run that never began has no process, since that needs a report that only
    /// the holder of the Lease can make: there the grant alone is waited for.
    #[must_use]
    pub fn bound(&self, run: &Run, ttl: Duration) -> Duration {
        if matches!(run.status.phase, None | Some(RunPhase::Pending)) {
            return ttl;
        }
        self.whole(ttl, run.after_grant())
    }

    /// The same for a run of which the Lease alone is left: it may have begun.
    #[must_use]
    pub fn bound_of_lease(&self, lease: &Lease, ttl: Duration) -> Duration {
        let said = lease.metadata.annotations.get(AFTER_GRANT);
        let said = said.and_then(|text| text.parse::<panda_api::meta::Duration>().ok());
        self.whole(
            ttl,
            said.map_or_else(|| Run::default().after_grant(), |said| said.get()),
        )
    }

    fn whole(&self, ttl: Duration, after_grant: Duration) -> Duration {
        let whole = ttl
            .saturating_add(after_grant)
            .saturating_add(self.kill_grace.get());
        whole.saturating_add(self.min_margin.get().max(whole / 100))
    }
}
