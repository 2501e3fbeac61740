//! One round.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use panda_api::meta::Time;
use panda_api::room::{Amounts, allocatable, needs};
use panda_api::{Device, FailureClass, Refusal, RefusalReason, Run, RunPhase};
use serde_json::json;

use super::absent;
use super::load::Load;
use super::memory::Memory;
use super::plugins::{self, Candidate};
use super::score::score;
use crate::framework::{Action, Basis, Plan, Target, since, to_value};

/// Waiting this long raises urgency by one.
const AGEING: Duration = Duration::from_secs(60);
/// A Run that waited this long for resources has a device held free for it.
const STARVING: Duration = Duration::from_secs(300);
/// Rounds come at least this often while something waits, whatever the watches say.
const REVIEW: Duration = Duration::from_secs(30);
/// Most refusals that a status holds.
const MAX_REFUSALS: usize = 64;

/// What the caches show.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// All Runs.
    pub runs: Vec<Arc<Run>>,
    /// All Devices.
    pub devices: Vec<Arc<Device>>,
    /// Uid of each Run that was bound lately, and the device: the cache may not show it yet.
    pub assumed: BTreeMap<String, String>,
}

/// Plans one round: a plan for each Run that is bound or whose reasons for waiting changed, the most urgent first.
///
/// The plans are independent. A conflict on one Run must not keep the others waiting.
#[must_use]
pub fn plan(view: &View, now: Timestamp) -> Vec<Plan> {
    let mut round = Round::new(view, now);
    let waiting = round.waiting();
    waiting.into_iter().filter_map(|run| round.place(run)).collect()
}

/// When to look again although nothing changed.
pub(super) fn requeue(view: &View) -> Option<Duration> {
    view.runs
        .iter()
        .any(|run| is_waiting(run, view))
        .then_some(REVIEW)
}

fn is_waiting(run: &Run, view: &View) -> bool {
    run.spec.device_name.is_empty()
        && matches!(run.status.phase, None | Some(RunPhase::Pending))
        && run.spec.pause != Some(true)
        && run.spec.cancel != Some(true)
        && run.metadata.deletion_timestamp.is_none()
        && !view.assumed.contains_key(&run.metadata.uid)
}

struct Round<'a> {
    view: &'a View,
    now: Timestamp,
    loads: BTreeMap<&'a str, Load>,
    /// Each device with what Runs may take of it, read once a round.
    devices: Vec<(&'a Device, Amounts)>,
    /// Devices that are kept free, and for whom.
    held: BTreeMap<&'a str, String>,
    /// By uid of their Task: the other Runs, for preference.
    former: BTreeMap<&'a str, Vec<&'a Run>>,
    memory: Memory<'a>,
}

impl<'a> Round<'a> {
    fn new(view: &'a View, now: Timestamp) -> Self {
        let mut loads: BTreeMap<&str, Load> = BTreeMap::new();
        let mut former: BTreeMap<&str, Vec<&Run>> = BTreeMap::new();
        let mut memory = Memory::default();
        for run in &view.runs {
            let device = if run.spec.device_name.is_empty() {
                view.assumed.get(&run.metadata.uid)
            } else {
                Some(&run.spec.device_name)
            };
            let Some(device) = device else { continue };
            if !run.status.phase.is_some_and(RunPhase::is_terminal) {
                loads.entry(device).or_default().add(run);
            }
            former.entry(&run.spec.task_ref.uid).or_default().push(run);
            memory.learn(run);
        }
        let devices = view.devices.iter().map(|device| (&**device, allocatable(device)));
        Self {
            view,
            now,
            loads,
            devices: devices.collect(),
            held: BTreeMap::new(),
            former,
            memory,
        }
    }

    /// Runs that wait for a device, the most urgent first.
    fn waiting(&self) -> Vec<&'a Run> {
        let mut waiting: Vec<&Run> = self
            .view
            .runs
            .iter()
            .map(|run| &**run)
            .filter(|run| is_waiting(run, self.view))
            .collect();
        waiting.sort_by_cached_key(|run| {
            let meta = &run.metadata;
            let since = meta.creation_timestamp;
            (
                -self.urgency(run),
                since,
                meta.namespace.clone(),
                meta.name.clone(),
            )
        });
        waiting
    }

    fn urgency(&self, run: &Run) -> i64 {
        let priority = i64::from(run.spec.priority.unwrap_or_default());
        let minutes = self.waited(run).as_secs() / AGEING.as_secs();
        priority.saturating_add(i64::try_from(minutes).unwrap_or(i64::MAX))
    }

    fn waited(&self, run: &Run) -> Duration {
        run.metadata
            .creation_timestamp
            .and_then(|since| Duration::try_from(self.now.duration_since(since.0)).ok())
            .unwrap_or_default()
    }

    /// Binds a Run, or says why not.
    fn place(&mut self, run: &'a Run) -> Option<Plan> {
        let no_load = Load::default();
        let mut refusals = Vec::new();
        let mut best: Option<(i64, &'a Device)> = None;
        // Devices that would do, if what they told others were not so any more.
        let mut doubtful: Option<(i64, &'a Device)> = None;
        let needs = needs(run);
        for &(device, have) in &self.devices {
            let name = device.metadata.name.as_str();
            let load = self.loads.get(name).unwrap_or(&no_load);
            let candidate = Candidate {
                run,
                device,
                load,
                needs,
                have,
            };
            if let Err(refusal) = self.admit(name, run, &candidate) {
                refusals.push(refusal);
                continue;
            }
            let score = score(&candidate, self.bias(run, name), self.memory.was_there(run, name));
            let word = self.memory.refusal(run, name, self.now);
            let group = if let Some((reason, message)) = word {
                refusals.push(plugins::refuse(name, reason, message));
                let former = self.former.get(run.spec.task_ref.uid.as_str());
                if absent::answered(former, run, name, self.now) {
                    continue;
                }
                &mut doubtful
            } else {
                &mut best
            };
            // Of equals the first by name wins.
            if group.is_none_or(|(top, _)| score > top) {
                *group = Some((score, device));
            }
        }
        let doubtful = doubtful.filter(|_| !absent::is_hope_left(&refusals));
        let Some((_, device)) = best.or(doubtful) else {
            self.hold(run, &refusals);
            return self.refuse(run, refusals);
        };
        self.loads
            .entry(device.metadata.name.as_str())
            .or_default()
            .add(run);
        let profile = plugins::profile(run, device);
        Some(Plan {
            actions: vec![Action::Bind {
                target: Target::of(run),
                body: json!({
                    "deviceName": device.metadata.name,
                    "sandboxProfile": format!("{profile:?}"),
                }),
            }],
            ..Plan::default()
        })
    }

    fn admit(&self, name: &str, run: &Run, candidate: &Candidate<'_>) -> Result<(), Refusal> {
        plugins::filter(candidate)?;
        match self.held.get(name) {
            Some(uid) if *uid != run.metadata.uid => Err(plugins::refuse(
                name,
                RefusalReason::InsufficientResources,
                "kept free for a run that has waited longer and needs more".into(),
            )),
            _ => Ok(()),
        }
    }

    /// Keeps a device free for a Run that has starved: otherwise smaller ones take what falls free, for ever.
    fn hold(&mut self, run: &'a Run, refusals: &[Refusal]) {
        if self.waited(run) < STARVING {
            return;
        }
        let lacking: BTreeSet<&str> = refusals
            .iter()
            .filter(|r| r.reason == RefusalReason::InsufficientResources)
            .map(|r| r.device.as_str())
            .collect();
        let free = self.devices.iter().find(|(device, have)| {
            let name = device.metadata.name.as_str();
            lacking.contains(name) && !self.held.contains_key(name) && have.lacking(needs(run)).is_none()
        });
        if let Some((device, _)) = free {
            self.held
                .insert(device.metadata.name.as_str(), run.metadata.uid.clone());
        }
    }

    /// How much a Run is drawn to a device by what its Task did there before.
    fn bias(&self, run: &Run, device: &str) -> i64 {
        let former = self.former.get(run.spec.task_ref.uid.as_str());
        former
            .into_iter()
            .flatten()
            .filter(|other| other.spec.rerun == run.spec.rerun)
            .filter(|other| other.spec.device_name == device)
            .max_by_key(|other| other.spec.attempt)
            .map_or(0, |other| {
                let fault = other.status.failure.as_ref().map(|f| f.reason.class());
                let lost = other.status.phase == Some(RunPhase::Lost);
                // The workspace is there, unless the device itself was what failed.
                if lost || fault == Some(FailureClass::Device) {
                    -1
                } else {
                    1
                }
            })
    }

    /// Says why no device takes the Run.
    fn refuse(&self, run: &Run, mut refusals: Vec<Refusal>) -> Option<Plan> {
        if let Some(pinned) = self.pinned_to_nothing(run) {
            refusals = vec![pinned];
        } else if refusals.is_empty() {
            refusals.push(plugins::refuse(
                "",
                RefusalReason::DeviceNotReady,
                "no device has joined yet".into(),
            ));
        }
        if let Some(failed) = absent::hopeless(run, &refusals, self.now) {
            return Some(Plan {
                basis: Some(Basis::of(run)),
                status: Some(to_value(&failed)),
                ..Plan::default()
            });
        }
        let refusals = bounded(refusals);
        let refusals = since(refusals, &run.status.unschedulable, stamp(self.now));
        if refusals == run.status.unschedulable && run.status.phase.is_some() {
            return None;
        }
        let mut changed = run.clone();
        changed.status.phase = Some(RunPhase::Pending);
        changed.status.unschedulable = refusals;
        Some(Plan {
            basis: Some(Basis::of(run)),
            status: Some(to_value(&changed)),
            ..Plan::default()
        })
    }

    fn pinned_to_nothing(&self, run: &Run) -> Option<Refusal> {
        let pin = run
            .spec
            .device
            .as_ref()
            .map(|d| d.name.as_str())
            .filter(|n| !n.is_empty())?;
        let exists = self.view.devices.iter().any(|device| device.metadata.name == pin);
        (!exists).then(|| {
            plugins::refuse(
                pin,
                RefusalReason::DeviceNotReady,
                format!("no device called {pin:?} has joined"),
            )
        })
    }
}

/// A time as status fields hold it.
pub(super) fn stamp(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// At most [`MAX_REFUSALS`], with every reason among them. The last one counts those that are left out.
fn bounded(mut refusals: Vec<Refusal>) -> Vec<Refusal> {
    if refusals.len() <= MAX_REFUSALS {
        return refusals;
    }
    // A kind of refusal that only few devices give tells most. Sorting is stable: names stay in order.
    let mut counts: BTreeMap<RefusalReason, usize> = BTreeMap::new();
    for refusal in &refusals {
        *counts.entry(refusal.reason).or_default() += 1;
    }
    refusals.sort_by_key(|refusal| (counts[&refusal.reason], refusal.reason));
    let left_out = refusals.split_off(MAX_REFUSALS - 1);
    let mut rest = left_out[0].clone();
    rest.device = String::new();
    rest.message = format!("and {} devices more", left_out.len());
    refusals.push(rest);
    refusals
}
