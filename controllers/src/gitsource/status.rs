//! What a look at a repository came to, as the status of its source.

use std::time::Duration;

use jiff::Timestamp;
use panda_api::meta::{Condition, Time, set_condition};
use panda_api::{GitSource, GitSourceCounts, GitSourceObject, GitSourceResult, apply_set};
use panda_client::runtime::events::Severity;

use super::plan::{Held, Plan as Decided};
use crate::framework::{Basis, Notice, Plan, Target, cut, to_value};

/// Objects that a status lists.
const MAX_OBJECTS: usize = 250;
/// Kinds and namespaces that a status lists.
const MAX_WORDS: usize = 1000;
/// Longest sentence, in bytes.
const MAX_MESSAGE: usize = 512;
/// Between looks when nothing is said.
const INTERVAL: Duration = Duration::from_secs(300);
/// Longest time to the next look when something went wrong.
const RETRY: Duration = Duration::from_secs(60);
const READY: &str = "Ready";
const FETCHED: &str = "Fetched";

/// What came of one look.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It is not wanted.
    Suspended,
    /// It stopped before anything was applied.
    Stopped {
        /// The commit, when it is known.
        commit: Option<String>,
        /// A stable word.
        reason: &'static str,
        /// The same as a sentence.
        message: String,
    },
    /// Everything was tried.
    Tried(Box<Tried>),
}

/// What came of applying a commit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tried {
    /// The commit.
    pub commit: String,
    /// The objects that it holds.
    pub desired: Vec<Target>,
    /// What was decided.
    pub decided: Decided,
    /// What could not be applied or removed: a stable word and a sentence.
    pub failed: Vec<(Target, String, String)>,
    /// What was removed.
    pub pruned: Vec<Target>,
    /// Kinds and namespaces of the set.
    pub kinds: Vec<String>,
    /// See `kinds`.
    pub namespaces: Vec<String>,
}

/// How long until the next look, counted from the end of this one.
#[must_use]
pub fn interval(source: &GitSource) -> Duration {
    source
        .spec
        .interval
        .as_ref()
        .map_or(INTERVAL, |interval| interval.get())
}

/// The id of a source's set.
#[must_use]
pub fn set_of(source: &GitSource) -> String {
    let meta = &source.metadata;
    apply_set::id(&meta.name, &meta.namespace, "GitSource", "panda.dev")
}

/// How long to wait until the next look; none: look now.
#[must_use]
pub fn due(source: &GitSource, now: Timestamp) -> Option<Duration> {
    let status = &source.status;
    if status.observed_generation != Some(source.metadata.generation) {
        return None;
    }
    let ready = status
        .conditions
        .iter()
        .any(|c| c.type_ == READY && c.status == "True");
    let pause = if ready {
        interval(source)
    } else {
        interval(source).min(RETRY)
    };
    let since = now.duration_since(status.last_sync_time?.0);
    // A clock that went back is no reason to wait for ever.
    let since = Duration::try_from(since).unwrap_or(pause);
    pause.checked_sub(since).filter(|left| !left.is_zero())
}

/// The status that tells of an outcome, and when to look again.
#[must_use]
pub fn plan(source: &GitSource, outcome: &Outcome, now: Timestamp) -> Plan {
    let now = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    let mut changed = source.clone();
    let generation = Some(source.metadata.generation);
    let status = &mut changed.status;
    status.observed_generation = generation;
    status.apply_set = set_of(source);
    let mut condition = |type_: &str, state: &str, reason: &str, message: &str| {
        let new = Condition {
            type_: type_.to_owned(),
            status: state.to_owned(),
            observed_generation: generation,
            last_transition_time: now,
            reason: reason.to_owned(),
            message: cut(message, MAX_MESSAGE),
        };
        set_condition(&mut status.conditions, new);
    };
    let (reason, message, ready) = match outcome {
        Outcome::Suspended => {
            condition(READY, "Unknown", "Suspended", "spec.suspend is true");
            ("Suspended", "spec.suspend is true".to_owned(), None)
        }
        Outcome::Stopped {
            commit,
            reason,
            message,
        } => {
            let fetched = if commit.is_some() { "True" } else { "False" };
            let (why, words) = if commit.is_some() {
                ("Fetched", "")
            } else {
                (*reason, message.as_str())
            };
            condition(FETCHED, fetched, why, words);
            condition(READY, "False", reason, message);
            (*reason, message.clone(), Some(false))
        }
        Outcome::Tried(tried) => {
            condition(FETCHED, "True", "Fetched", "");
            let (state, reason, message) = verdict(tried);
            condition(READY, state, reason, &message);
            (reason, message, Some(state == "True"))
        }
    };
    match outcome {
        Outcome::Suspended => {}
        Outcome::Stopped { commit, .. } => {
            if let Some(commit) = commit {
                status.observed_commit.clone_from(commit);
            }
            status.last_sync_time = Some(now);
        }
        Outcome::Tried(tried) => {
            tell(&mut changed, tried, ready == Some(true));
            changed.status.last_sync_time = Some(now);
        }
    }
    let mut plan = Plan {
        basis: Some(Basis::of(source)),
        requeue: match ready {
            None => None,
            Some(true) => Some(interval(source)),
            Some(false) => Some(interval(source).min(RETRY)),
        },
        ..Plan::default()
    };
    let before = source.status.conditions.iter().find(|c| c.type_ == READY);
    let news = before.is_none_or(|before| before.reason != reason)
        || source.status.applied_commit != changed.status.applied_commit;
    if news && let Some(ready) = ready {
        plan.events.push(Notice {
            severity: if ready {
                Severity::Normal
            } else {
                Severity::Warning
            },
            reason: if ready { "Applied" } else { "NotApplied" },
            message: cut(&format!("{reason}: {message}"), MAX_MESSAGE),
        });
    }
    if changed.status != source.status {
        plan.status = Some(to_value(&changed));
    }
    plan
}

fn verdict(tried: &Tried) -> (&'static str, &'static str, String) {
    let commit = tried.commit.get(..12).unwrap_or(&tried.commit);
    let taken = tried.decided.taken.len();
    if let Some((target, _, message)) = tried.failed.first() {
        let more = match tried.failed.len() + taken {
            1 => String::new(),
            all => format!(" (and {} more)", all - 1),
        };
        return ("False", "ApplyFailed", format!("{target}: {message}{more}"));
    }
    if let Some(target) = tried.decided.taken.keys().next() {
        let more = if taken > 1 {
            format!(" (and {} more)", taken - 1)
        } else {
            String::new()
        };
        return (
            "False",
            "OwnedByOther",
            format!("{target} belongs to another set{more}"),
        );
    }
    match &tried.decided.refused {
        Some(held @ Held::Guard(_)) => ("False", "PruneRefused", held.to_string()),
        Some(held @ Held::Incomplete) => ("False", "ListFailed", held.to_string()),
        None => (
            "True",
            "Applied",
            format!("{} objects of {commit} are applied", tried.desired.len()),
        ),
    }
}

fn tell(source: &mut GitSource, tried: &Tried, whole: bool) {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let row = |target: &Target, result, reason: &str, message: &str| GitSourceObject {
        api_version: target.kind.api_version(),
        kind: target.kind.kind.to_owned(),
        namespace: target.namespace.clone(),
        name: target.name.clone(),
        result,
        reason: reason.to_owned(),
        message: cut(message, MAX_MESSAGE),
    };
    let mut rows = Vec::new();
    for (target, reason, message) in &tried.failed {
        rows.push(row(target, GitSourceResult::Failed, reason, message));
    }
    for (target, set) in &tried.decided.taken {
        let message = format!("it belongs to the set {set}");
        rows.push(row(target, GitSourceResult::Failed, "OwnedByOther", &message));
    }
    let failed = rows.len();
    let why = match &tried.decided.refused {
        Some(Held::Guard(_)) => "PruneRefused",
        Some(Held::Incomplete) => "ListFailed",
        None => "PruneNotWanted",
    };
    for target in &tried.decided.kept {
        rows.push(row(target, GitSourceResult::Kept, why, ""));
    }
    for target in &tried.pruned {
        rows.push(row(target, GitSourceResult::Pruned, "", ""));
    }
    let trouble: std::collections::BTreeSet<&Target> = tried
        .failed
        .iter()
        .map(|(target, ..)| target)
        .chain(tried.decided.taken.keys())
        .collect();
    let good: Vec<&Target> = tried
        .desired
        .iter()
        .filter(|target| !trouble.contains(target))
        .collect();
    let applied = good.len();
    rows.extend(
        good.into_iter()
            .take(MAX_OBJECTS)
            .map(|target| row(target, GitSourceResult::Applied, "", "")),
    );
    rows.truncate(MAX_OBJECTS);
    let status = &mut source.status;
    status.observed_commit.clone_from(&tried.commit);
    if whole {
        status.applied_commit.clone_from(&tried.commit);
    }
    status.kinds = tried.kinds.iter().take(MAX_WORDS).cloned().collect();
    status.namespaces = tried.namespaces.iter().take(MAX_WORDS).cloned().collect();
    status.counts = Some(GitSourceCounts {
        total: count(tried.desired.len()),
        applied: count(applied),
        failed: count(failed),
        pruned: count(tried.pruned.len()),
        kept: count(tried.decided.kept.len()),
    });
    status.objects = rows;
}
