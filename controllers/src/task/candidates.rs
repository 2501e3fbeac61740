//! Which agents may make the next attempt.

use std::sync::Arc;

use jiff::Timestamp;
use panda_api::{Agent, AgentChoice, AgentOnDevice, EnvVar, FailureClass, Refusal, RefusalReason, Run, Task};

use super::view::View;

/// One candidate: an agent that exists and can do what is asked, or why not.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) choice: AgentChoice,
    pub(super) agent: Result<Arc<Agent>, Refusal>,
}

/// The candidates of a Task, in order.
pub(super) fn list(task: &Task, view: &View) -> Vec<Candidate> {
    let needed: &[String] = task.spec.requires.as_ref().map_or(&[], |r| &r.capabilities);
    if !task.spec.agents.is_empty() {
        return task
            .spec
            .agents
            .iter()
            .map(|choice| Candidate {
                choice: choice.clone(),
                agent: named(&choice.name, needed, view),
            })
            .collect();
    }
    view.agents
        .values()
        .filter(|agent| agent.metadata.deletion_timestamp.is_none() && missing(agent, needed).is_none())
        .map(|agent| Candidate {
            choice: AgentChoice {
                name: agent.metadata.name.clone(),
                model: String::new(),
            },
            agent: Ok(Arc::clone(agent)),
        })
        .collect()
}

/// Why nobody can make an attempt; for a list without a usable candidate.
pub(super) fn refusals(candidates: &[Candidate], task: &Task) -> Vec<Refusal> {
    if !candidates.is_empty() {
        return candidates
            .iter()
            .filter_map(|c| c.agent.as_ref().err().cloned())
            .collect();
    }
    let needed = task.spec.requires.as_ref().map_or(&[][..], |r| &r.capabilities);
    vec![if needed.is_empty() {
        refusal(
            RefusalReason::AgentNotFound,
            "the namespace has no Agent; apply one, or name one in spec.agents".into(),
        )
    } else {
        refusal(
            RefusalReason::MissingCapability,
            format!("no Agent of the namespace offers {}", needed.join(", ")),
        )
    }]
}

fn named(name: &str, needed: &[String], view: &View) -> Result<Arc<Agent>, Refusal> {
    let agent = view
        .agents
        .get(name)
        .filter(|agent| agent.metadata.deletion_timestamp.is_none())
        .ok_or_else(|| {
            refusal(
                RefusalReason::AgentNotFound,
                format!("the namespace has no Agent {name:?}; apply one"),
            )
        })?;
    match missing(agent, needed) {
        None => Ok(Arc::clone(agent)),
        Some(capability) => Err(refusal(
            RefusalReason::MissingCapability,
            format!("Agent {name:?} does not offer {capability}"),
        )),
    }
}

fn missing<'a>(agent: &Agent, needed: &'a [String]) -> Option<&'a String> {
    needed.iter().find(|c| !agent.spec.capabilities.contains(c))
}

fn refusal(reason: RefusalReason, message: String) -> Refusal {
    Refusal {
        device: String::new(),
        reason,
        message,
        since: None,
    }
}

/// The first usable candidate from place `from` on, round the list; one that no device can run only if all are so.
/// `env` is the environment of the Task: there may be a login in it.
pub(super) fn first_usable(candidates: &[Candidate], from: usize, env: &[EnvVar]) -> Option<usize> {
    let passed_over = |place: &usize| {
        let agent = candidates[*place].agent.as_ref();
        agent.is_ok_and(|agent| absent(agent, env))
    };
    round(candidates, from)
        .find(|place| !passed_over(place))
        .or_else(|| round(candidates, from).next())
}

/// Whether devices were looked at, and none can run it. An agent that nobody has looked for yet is not absent.
fn absent(agent: &Agent, env: &[EnvVar]) -> bool {
    let devices = &agent.status.devices;
    let logged_in = agent.spec.brings_login(env);
    // One that has a driver and is not ready lacks nothing but a login.
    let usable = |device: &AgentOnDevice| device.ready || (logged_in && device.driver.is_some());
    !devices.is_empty() && !devices.iter().any(usable)
}

/// The first usable candidate further down the list than `place`.
pub(super) fn further(candidates: &[Candidate], place: usize) -> Option<usize> {
    (place + 1..candidates.len()).find(|index| candidates[*index].agent.is_ok())
}

/// The usable candidate from place `from` on whose provider lets it try soonest.
pub(super) fn soonest(
    candidates: &[Candidate],
    from: usize,
    not_before: impl Fn(&str) -> Timestamp,
) -> Option<usize> {
    // Of equals the first wins: order in the list decides.
    round(candidates, from).min_by_key(|index| not_before(&candidates[*index].choice.name))
}

/// When the providers of these Runs let `agent` try again.
pub(super) fn not_before<'a>(agent: &str, runs: impl Iterator<Item = &'a Run>, now: Timestamp) -> Timestamp {
    runs.filter(|run| run.spec.agent.name == agent)
        .filter_map(|run| run.status.failure.as_ref())
        .filter(|failure| failure.reason.class() == FailureClass::Provider)
        .filter_map(|failure| failure.retry_after)
        .map(|time| time.0)
        .fold(now, Timestamp::max)
}

fn round(candidates: &[Candidate], from: usize) -> impl Iterator<Item = usize> {
    let len = candidates.len();
    (from..from + len)
        .map(move |place| place % len)
        .filter(|index| candidates[*index].agent.is_ok())
}

#[cfg(test)]
mod tests {
    use panda_api::{DetectSpec, DriverKind, LoggedIn};

    use super::*;

    fn candidate(seen: &[bool]) -> Candidate {
        let mut agent = Agent::default();
        agent.status.devices = seen
            .iter()
            .map(|ready| AgentOnDevice {
                ready: *ready,
                ..AgentOnDevice::default()
            })
            .collect();
        Candidate {
            choice: AgentChoice::default(),
            agent: Ok(Arc::new(agent)),
        }
    }

    #[test]
    fn an_agent_that_no_device_can_run_is_passed_over_while_another_can() {
        let (absent, partly, unseen) = (candidate(&[false]), candidate(&[false, true]), candidate(&[]));
        let of = |list: &[&Candidate], from| {
            first_usable(&list.iter().map(|c| (*c).clone()).collect::<Vec<_>>(), from, &[])
        };
        assert_eq!(of(&[&absent, &partly], 0), Some(1));
        assert_eq!(of(&[&partly, &absent], 1), Some(0));
        // Nobody has looked yet: order decides.
        assert_eq!(of(&[&unseen, &partly], 0), Some(0));
        // All absent: the first waits, and says for what.
        assert_eq!(of(&[&absent, &absent], 0), Some(0));
        assert_eq!(of(&[&absent, &absent], 1), Some(1));
        assert_eq!(of(&[], 0), None);
    }

    #[test]
    fn an_agent_that_lacks_only_the_login_that_the_task_brings_is_not_passed_over() {
        let mut first = candidate(&[false]);
        let agent = Arc::make_mut(first.agent.as_mut().unwrap());
        agent.status.devices[0].driver = Some(DriverKind::Acp);
        agent.spec.detect = Some(DetectSpec {
            logged_in: Some(LoggedIn {
                env: vec!["KEY".into()],
                ..LoggedIn::default()
            }),
            ..DetectSpec::default()
        });
        let list = [first, candidate(&[true])];
        let key = |name: &str| EnvVar {
            name: name.into(),
            ..EnvVar::default()
        };
        assert_eq!(first_usable(&list, 0, &[]), Some(1));
        assert_eq!(first_usable(&list, 0, &[key("OTHER")]), Some(1));
        assert_eq!(first_usable(&list, 0, &[key("KEY")]), Some(0));
    }
}
