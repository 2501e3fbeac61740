//! Whether the device can run the agent.

use panda_api::RefusalReason;

use super::Candidate;

type Verdict = Result<(), (RefusalReason, String)>;

/// The agent offers what the Run asks for.
pub(super) fn capable(c: &Candidate<'_>) -> Verdict {
    let needed = c.run.spec.requires.as_ref().map_or(&[][..], |r| &r.capabilities);
    let offered = c
        .run
        .spec
        .agent_spec
        .as_ref()
        .map_or(&[][..], |a| &a.capabilities);
    match needed.iter().find(|capability| !offered.contains(capability)) {
        None => Ok(()),
        Some(missing) => Err((
            RefusalReason::MissingCapability,
            format!("agent {:?} does not offer {missing}", c.run.spec.agent.name),
        )),
    }
}

/// The agent was found on the device, can be driven there and is logged in.
pub(super) fn installed(c: &Candidate<'_>) -> Verdict {
    let name = &c.run.spec.agent.name;
    let found = c
        .device
        .status
        .agents
        .iter()
        .find(|agent| agent.namespace == c.run.metadata.namespace && agent.name == *name);
    let Some(agent) = found else {
        return Err((
            RefusalReason::AgentNotFound,
            format!("agent {name:?} was not found on it"),
        ));
    };
    if agent.driver.is_none() {
        let why = if agent.reason.is_empty() {
            "no driver fits"
        } else {
            &agent.reason
        };
        return Err((
            RefusalReason::AgentNotFound,
            format!("agent {name:?} cannot run on it: {why}"),
        ));
    }
    if agent.logged_in == Some(false) && !brings_login(c) {
        return Err((
            RefusalReason::AgentNotLoggedIn,
            format!("agent {name:?} is not logged in on it"),
        ));
    }
    Ok(())
}

/// Whether the Run has its login with it.
fn brings_login(c: &Candidate<'_>) -> bool {
    let spec = c.run.spec.agent_spec.as_ref();
    spec.is_some_and(|spec| spec.brings_login(&c.run.spec.env))
}
