//! Automatic compaction, by age and by number of revisions.
//!
//! Age is measured on the monotonic clock from when this process saw the revision, so that neither a wrong
//! wall clock nor a restart can drop history early.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{Error, Revision, Store};

/// How much history is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Events younger than this are kept, unless there are more than `max_revisions`.
    pub min_age: Duration,
    /// Most revisions kept, whatever their age.
    pub max_revisions: u64,
    /// How often to look.
    pub interval: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            min_age: Duration::from_secs(10 * 60),
            max_revisions: 200_000,
            interval: Duration::from_secs(30),
        }
    }
}

/// Compacts a store as its [`Policy`] says.
#[derive(Debug)]
pub struct Compactor<S: ?Sized> {
    policy: Policy,
    /// What the newest revision was at some time, oldest first.
    marks: VecDeque<(Instant, Revision)>,
    store: Arc<S>,
}

impl<S: Store + ?Sized> Compactor<S> {
    /// A compactor; nothing happens until it runs.
    pub fn build(store: Arc<S>, policy: Policy) -> Self {
        Self {
            policy,
            marks: VecDeque::new(),
            store,
        }
    }

    /// Compacts until the token is cancelled or the store is closed.
    pub async fn run(mut self, token: CancellationToken) {
        let mut ticks = tokio::time::interval(self.policy.interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while token.run_until_cancelled(ticks.tick()).await.is_some() {
            match self.step().await {
                Ok(()) => {}
                Err(Error::Closed) => return,
                Err(error) => tracing::warn!(%error, "compaction failed"),
            }
        }
    }

    async fn step(&mut self) -> Result<(), Error> {
        let current = self.store.current_revision().await?;
        let target = self.target(Instant::now(), current);
        if target > Revision::ZERO {
            self.store.compact(target).await?;
        }
        Ok(())
    }

    /// The revision below which history may go.
    fn target(&mut self, now: Instant, current: Revision) -> Revision {
        self.marks.push_back((now, current));
        let mut aged = Revision::ZERO;
        while let Some((seen, revision)) = self.marks.front()
            && now.duration_since(*seen) >= self.policy.min_age
        {
            aged = *revision;
            self.marks.pop_front();
        }
        aged.max(Revision(current.0.saturating_sub(self.policy.max_revisions)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    fn compactor(min_age: u64, max_revisions: u64) -> Compactor<Memory> {
        let policy = Policy {
            min_age: Duration::from_secs(min_age),
            max_revisions,
            interval: Duration::from_secs(1),
        };
        Compactor::build(Arc::new(Memory::new("uid")), policy)
    }

    #[test]
    fn keeps_what_is_young() {
        let mut compactor = compactor(10, 1000);
        let start = Instant::now();
        assert_eq!(compactor.target(start, Revision(5)), Revision(0));
        assert_eq!(
            compactor.target(start + Duration::from_secs(9), Revision(8)),
            Revision(0)
        );
        assert_eq!(
            compactor.target(start + Duration::from_secs(10), Revision(9)),
            Revision(5)
        );
        assert_eq!(
            compactor.target(start + Duration::from_secs(30), Revision(9)),
            Revision(9)
        );
    }

    #[test]
    fn a_flood_of_young_revisions_is_bounded() {
        let mut compactor = compactor(10, 1000);
        assert_eq!(compactor.target(Instant::now(), Revision(5000)), Revision(4000));
    }
}
