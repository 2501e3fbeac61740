//! How long an observer has known that a result is on its way.

use std::collections::BTreeMap;
use std::time::Duration;

use panda_api::Run;

/// Since when, on the observer's monotonic clock, results of Runs that were Lost have been announced; by uid of the Run.
/// An observer that starts anew counts from when it first sees the announcement: to wait longer costs time alone.
#[derive(Clone, Debug, Default)]
pub struct Announced(BTreeMap<String, Duration>);

impl Announced {
    /// Looks at the Runs of the Task; what is not among them is forgotten. How long each announcement has been known.
    pub fn observe<'a>(
        &mut self,
        runs: impl Iterator<Item = &'a Run>,
        now: Duration,
    ) -> BTreeMap<String, Duration> {
        let before = std::mem::take(&mut self.0);
        let announced = runs.filter(|run| {
            let late = run.status.late_result.as_ref();
            late.is_some_and(|late| late.announced_time.is_some() && late.phase.is_none())
        });
        for run in announced {
            let uid = run.metadata.uid.clone();
            let since = before.get(&uid).copied().unwrap_or(now);
            self.0.insert(uid, since);
        }
        let waited = self.0.iter();
        waited
            .map(|(uid, since)| (uid.clone(), now.saturating_sub(*since)))
            .collect()
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
