//! Whether one Task grants more than another: what a Run may put into the Tasks that it makes.
//!
//! A Task made by a Run holds no more than the Run's own Task, right by right:
//!
//! | right | rule |
//! |---|---|
//! | Secrets | `env[].valueFrom` and `workspace.git.credentialsRef` are among its own |
//! | agents | each candidate, and each `verify[].agent`, is one of its own; where it names any, the child names some |
//! | repository | the same `url` or `path` as its own, or none; pushed only if its own is, to the same branch template |
//! | walls | profile, network and allowed hosts of task and checks no weaker; limits no higher |
//! | devices | its own pin, every requirement of its selector, no further toleration |
//! | inputs, skills, memory | among its own |
//! | budget, priority, preemption | no higher; a bound that it has, the child has |
//! | policy, API access | its own policy; API access only with its own |
//!
//! What is not in the table (prompt, plain environment, requirements, checks, timeouts, retries) grants nothing.

use std::str::FromStr;

use panda_api::meta::Quantity;
use panda_api::{
    DeviceRequest, GitSpec, Money, NetworkMode, Preemption, Push, SandboxProfile, SandboxSpec, TaskSpec,
};

/// The first right that `child` has and `own` lacks, as the path of the field and what is wrong with it.
pub(crate) fn excess(own: &TaskSpec, child: &TaskSpec) -> Option<(&'static str, &'static str)> {
    secrets(own, child)
        .or_else(|| agents(own, child))
        .or_else(|| workspace(own, child))
        .or_else(|| sandbox(own, child))
        .or_else(|| devices(own.device.as_ref(), child.device.as_ref()))
        .or_else(|| material(own, child))
        .or_else(|| bounds(own, child))
}

type Excess = Option<(&'static str, &'static str)>;

fn unless(holds: bool, field: &'static str, why: &'static str) -> Excess {
    (!holds).then_some((field, why))
}

fn subset<T: PartialEq>(own: &[T], child: &[T]) -> bool {
    child.iter().all(|item| own.contains(item))
}

fn secrets(own: &TaskSpec, child: &TaskSpec) -> Excess {
    let references = |spec: &TaskSpec| -> Vec<_> {
        let sources = spec.env.iter().filter_map(|env| env.value_from.clone());
        sources.filter_map(|source| source.secret_key_ref).collect()
    };
    unless(
        subset(&references(own), &references(child)),
        "spec.env",
        "names a Secret that the run's own task does not have",
    )
}

fn agents(own: &TaskSpec, child: &TaskSpec) -> Excess {
    if own.agents.is_empty() {
        return None;
    }
    let has = |name: &str| own.agents.iter().any(|agent| agent.name == name);
    let named = !child.agents.is_empty() && child.agents.iter().all(|agent| has(&agent.name));
    let reviewers = child
        .verify
        .iter()
        .all(|check| check.agent.is_empty() || has(&check.agent));
    unless(
        named,
        "spec.agents",
        "must name agents of the run's own task only",
    )
    .or_else(|| {
        unless(
            reviewers,
            "spec.verify",
            "must name agents of the run's own task only",
        )
    })
}

fn workspace(own: &TaskSpec, child: &TaskSpec) -> Excess {
    let git = |spec: &TaskSpec| -> Option<GitSpec> { spec.workspace.as_ref()?.git.clone() };
    let pushed = |spec: &TaskSpec| -> Option<String> {
        let result = spec.workspace.as_ref()?.result.clone()?;
        (result.push == Push::OnSuccess).then_some(result.branch)
    };
    let field = "spec.workspace";
    if let Some(child) = git(child) {
        let Some(own) = git(own) else {
            return Some((field, "the run's own task has no repository"));
        };
        let same = child.url == own.url && child.path == own.path;
        if !same {
            return Some((field, "must be the repository of the run's own task"));
        }
        if child.credentials_ref.is_some() && child.credentials_ref != own.credentials_ref {
            return Some((field, "must use the credentials of the run's own task, or none"));
        }
    }
    match pushed(child) {
        Some(branch) if pushed(own).as_ref() != Some(&branch) => Some((
            field,
            "may be pushed only as the run's own task is, to the same branch",
        )),
        _ => None,
    }
}

const fn weakness(profile: Option<SandboxProfile>) -> u8 {
    match profile {
        Some(SandboxProfile::Strict) => 0,
        Some(SandboxProfile::Standard) => 1,
        // The device decides: it may be no wall at all.
        Some(SandboxProfile::Off) | None => 2,
    }
}

/// The network that a sandbox comes to.
fn network(sandbox: Option<&SandboxSpec>) -> (NetworkMode, &[String]) {
    let profile = sandbox.and_then(|sandbox| sandbox.profile);
    let network = sandbox.and_then(|sandbox| sandbox.network.as_ref());
    let allow = network.map_or(&[][..], |network| &network.allow);
    let default = if weakness(profile) == 2 {
        NetworkMode::Host
    } else {
        NetworkMode::ModelOnly
    };
    (network.and_then(|network| network.mode).unwrap_or(default), allow)
}

const fn reach(mode: NetworkMode) -> u8 {
    match mode {
        NetworkMode::None => 0,
        NetworkMode::ModelOnly => 1,
        NetworkMode::Allow => 2,
        NetworkMode::Host => 3,
    }
}

fn sandbox(own: &TaskSpec, child: &TaskSpec) -> Excess {
    let (a, b) = (own.sandbox.as_ref(), child.sandbox.as_ref());
    let profile = |sandbox: Option<&SandboxSpec>| weakness(sandbox.and_then(|sandbox| sandbox.profile));
    if profile(b) > profile(a) {
        return Some((
            "spec.sandbox.profile",
            "is weaker than that of the run's own task",
        ));
    }
    let ((own_mode, own_hosts), (mode, hosts)) = (network(a), network(b));
    let hosts = mode != NetworkMode::Allow || own_mode != NetworkMode::Allow || subset(own_hosts, hosts);
    if reach(mode) > reach(own_mode) || !hosts {
        return Some((
            "spec.sandbox.network",
            "reaches further than that of the run's own task",
        ));
    }
    // A list of hosts of its own means nothing for a check, so a check may not have this mode with it.
    let checks = child.verify.iter().filter_map(|check| check.network);
    let far = checks.filter(|check| *check != NetworkMode::None).any(|check| {
        reach(check) > reach(own_mode)
            || (check == NetworkMode::Allow && own_mode == NetworkMode::Allow && mode != NetworkMode::Allow)
    });
    if far {
        return Some(("spec.verify", "a check reaches further than the run's own task"));
    }
    let limits = |sandbox: Option<&SandboxSpec>| {
        sandbox
            .and_then(|sandbox| sandbox.limits.clone())
            .unwrap_or_default()
    };
    let (own, child) = (limits(a), limits(b));
    let within = at_most(own.cpu.as_deref(), child.cpu.as_deref())
        && at_most(own.memory.as_deref(), child.memory.as_deref())
        && at_most(own.disk.as_deref(), child.disk.as_deref())
        && no_more(own.pids, child.pids);
    unless(
        within,
        "spec.sandbox.limits",
        "must be set and not above those of the run's own task",
    )
}

/// A bound that is there must be kept; an amount that cannot be read is none.
fn at_most(own: Option<&str>, child: Option<&str>) -> bool {
    let Some(own) = own else { return true };
    let amounts = child.map(|child| (Quantity::from_str(child), Quantity::from_str(own)));
    matches!(amounts, Some((Ok(child), Ok(own))) if child <= own)
}

fn no_more<T: PartialOrd>(own: Option<T>, child: Option<T>) -> bool {
    match (own, child) {
        (None, _) => true,
        (Some(own), Some(child)) => child <= own,
        (Some(_), None) => false,
    }
}

fn devices(own: Option<&DeviceRequest>, child: Option<&DeviceRequest>) -> Excess {
    let (none, other) = (DeviceRequest::default(), DeviceRequest::default());
    let (own, child) = (own.unwrap_or(&none), child.unwrap_or(&other));
    if !own.name.is_empty() && child.name != own.name {
        return Some(("spec.device.name", "must be the device of the run's own task"));
    }
    let (wanted, has) = (
        own.selector.clone().unwrap_or_default(),
        child.selector.clone().unwrap_or_default(),
    );
    let labels = wanted
        .match_labels
        .iter()
        .all(|(key, value)| has.match_labels.get(key) == Some(value));
    let kept = labels && subset(&has.match_expressions, &wanted.match_expressions);
    unless(
        kept,
        "spec.device.selector",
        "must keep every requirement of the run's own task",
    )
    .or_else(|| {
        unless(
            subset(&own.tolerations, &child.tolerations),
            "spec.device.tolerations",
            "tolerates more than the run's own task",
        )
    })
}

fn material(own: &TaskSpec, child: &TaskSpec) -> Excess {
    let sources =
        |spec: &TaskSpec| -> Vec<_> { spec.inputs.iter().map(|input| input.from.clone()).collect() };
    let memory = |spec: &TaskSpec| spec.memory.clone().unwrap_or_default();
    let (a, b) = (memory(own), memory(child));
    unless(
        subset(&sources(own), &sources(child)),
        "spec.inputs",
        "must be among those of the run's own task",
    )
    .or_else(|| {
        unless(
            subset(&own.skills, &child.skills),
            "spec.skills",
            "must be among those of the run's own task",
        )
    })
    .or_else(|| {
        unless(
            (a.project || !b.project) && (a.user || !b.user),
            "spec.memory",
            "must be among those of the run's own task",
        )
    })
}

fn bounds(own: &TaskSpec, child: &TaskSpec) -> Excess {
    let budget = |spec: &TaskSpec| spec.budget.clone().unwrap_or_default();
    let (a, b) = (budget(own), budget(child));
    let within = no_more(a.tokens, b.tokens)
        && no_more(a.turns, b.turns)
        && no_more(a.children, b.children)
        && no_more_money(a.money.as_ref(), b.money.as_ref());
    unless(
        within,
        "spec.budget",
        "must be set and not above that of the run's own task",
    )
    .or_else(|| {
        let higher = child.priority.unwrap_or(0) > own.priority.unwrap_or(0).max(0);
        unless(!higher, "spec.priority", "is above that of the run's own task")
    })
    .or_else(|| {
        let pushes = child.preemption == Some(Preemption::Lower);
        unless(
            !pushes || own.preemption == Some(Preemption::Lower),
            "spec.preemption",
            "the run's own task may push nothing aside",
        )
    })
    .or_else(|| {
        unless(
            own.approval == child.approval,
            "spec.approval",
            "must be that of the run's own task",
        )
    })
    .or_else(|| {
        unless(
            child.api_access != Some(true) || own.api_access == Some(true),
            "spec.apiAccess",
            "the run's own task has none",
        )
    })
}

/// Amounts of one currency compare; of two, they do not.
fn no_more_money(own: Option<&Money>, child: Option<&Money>) -> bool {
    match (own, child) {
        (None, _) => true,
        (Some(own), Some(child)) => {
            own.currency == child.currency && at_most(Some(&own.amount), Some(&child.amount))
        }
        (Some(_), None) => false,
    }
}
