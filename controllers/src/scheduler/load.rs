//! What Runs take of one device.

use std::collections::BTreeMap;

use panda_api::Run;
use panda_api::room::{Amounts, needs};

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
        self.used = self.used.plus(needs(run));
        let agent = (run.metadata.namespace.clone(), run.spec.agent.name.clone());
        *self.agents.entry(agent).or_default() += 1;
    }
}
