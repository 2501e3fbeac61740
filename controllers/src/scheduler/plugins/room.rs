//! Whether there is room.
//!
//! Messages speak of what is asked for, not of what is free at the moment: they stand in a status, and must not change
//! with every other Run.

use panda_api::RefusalReason;
use panda_api::room::slots;

use super::Candidate;

type Verdict = Result<(), (RefusalReason, String)>;

/// The device, and the agent on it, take one more Run.
pub(super) fn has_slot(c: &Candidate<'_>) -> Verdict {
    if let Some(slots) = slots(c.device).filter(|slots| c.load.runs >= *slots) {
        return Err((
            RefusalReason::NoFreeSlot,
            format!("it takes {slots} runs at a time"),
        ));
    }
    let name = &c.run.spec.agent.name;
    let limit = c.run.spec.agent_spec.as_ref().and_then(|a| a.concurrency);
    let key = (c.run.metadata.namespace.clone(), name.clone());
    let running = c.load.agents.get(&key).copied().unwrap_or_default();
    match limit {
        Some(limit) if running >= limit => Err((
            RefusalReason::AgentBusy,
            format!("agent {name:?} takes {limit} runs at a time on one device"),
        )),
        _ => Ok(()),
    }
}

/// What is asked for is free.
pub(super) fn has_resources(c: &Candidate<'_>) -> Verdict {
    if let Some(name) = c.have.lacking(c.needs) {
        return Err((
            RefusalReason::InsufficientResources,
            format!("it does not have the {name} that is asked for"),
        ));
    }
    match c.have.less(c.load.used).lacking(c.needs) {
        None => Ok(()),
        Some(name) => Err((
            RefusalReason::InsufficientResources,
            format!("other runs leave too little {name}"),
        )),
    }
}
