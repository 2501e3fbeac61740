//! What the task planner sees.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use panda_api::{Agent, Run, RunRole, Task, TaskStatus};

/// What the caches show about one Task.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Runs of the Task's namespace that name its uid as their owner, or bear the name of its next Run; by name.
    pub runs: BTreeMap<String, Arc<Run>>,
    /// Agents of the Task's namespace, by name.
    pub agents: BTreeMap<String, Arc<Agent>>,
    /// Names of the Secrets of the Task's namespace, where it matters whether one is there; none: not looked at.
    pub secrets: Option<BTreeSet<String>>,
    /// How long this observer has known that results of Lost Runs are on their way; by uid of the Run.
    pub announced: BTreeMap<String, Duration>,
}

/// The newest attempt, as far as the view shows it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Current<'a> {
    /// There is none in this rerun.
    None,
    /// Its name was taken in the status, its Run was never seen.
    Reserved,
    /// Its Run was seen before and is not in the view.
    Gone,
    /// Its Run.
    Seen(&'a Run),
    /// An object of that name that belongs to another.
    Foreign,
}

impl View {
    /// Working Runs of the Task.
    pub(super) fn owned<'a>(&'a self, task: &'a Task) -> impl Iterator<Item = &'a Run> {
        self.runs
            .values()
            .map(|run| &**run)
            .filter(move |run| is_owned(run, task) && run.spec.role == RunRole::Worker)
    }

    /// The newest attempt that the status speaks of.
    pub(super) fn current(&self, task: &Task, status: &TaskStatus) -> Current<'_> {
        if status.current_run.is_empty() {
            return Current::None;
        }
        match self.runs.get(&status.current_run) {
            Some(run) if !is_owned(run, task) => Current::Foreign,
            // Whatever its uid: one that was deleted before it was ever seen is made again under its name.
            Some(run) => Current::Seen(run),
            None if status.current_run_uid.is_empty() => Current::Reserved,
            None => Current::Gone,
        }
    }
}

fn is_owned(run: &Run, task: &Task) -> bool {
    run.metadata
        .controller()
        .is_some_and(|owner| owner.uid == task.metadata.uid)
}

/// Whether the Run never changes again.
pub(super) fn is_terminal(run: &Run) -> bool {
    run.status.phase.is_some_and(panda_api::RunPhase::is_terminal)
}
