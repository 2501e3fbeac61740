//! Renewals on their way, and the grants that their answers make.

use std::collections::BTreeMap;
use std::time::Duration;

/// Renewals without answer that are remembered.
const REMEMBERED: usize = 16;

/// Between renewals until the first grant has said how long grants are, and the longest time ever.
const FIRST: Duration = Duration::from_secs(10);
/// Shortest time between renewals.
const SHORTEST: Duration = Duration::from_millis(50);

/// When each renewal was sent.
#[derive(Debug)]
pub(super) struct Renewals {
    /// Set by configuration.
    every: Option<Duration>,
    /// Length of the last grant.
    ttl: Option<Duration>,
    next: u64,
    sent: BTreeMap<u64, Duration>,
}

impl Renewals {
    pub(super) const fn new(every: Option<Duration>) -> Self {
        Self {
            every,
            ttl: None,
            next: 0,
            sent: BTreeMap::new(),
        }
    }

    /// Time between renewals: as configured, else a quarter of the last grant.
    pub(super) fn period(&self) -> Duration {
        let quarter = self.ttl.map_or(FIRST, |ttl| (ttl / 4).min(FIRST));
        self.every.unwrap_or(quarter).max(SHORTEST)
    }

    /// Number of a renewal that is sent at `now`.
    pub(super) fn send(&mut self, now: Duration) -> u64 {
        self.next += 1;
        self.sent.insert(self.next, now);
        if self.sent.len() > REMEMBERED {
            self.sent.pop_first();
        }
        self.next
    }

    /// End of the grant that answers renewal `seq`: `ttl` from when that was *sent*. `None` for an unknown number.
    pub(super) fn answer(&mut self, seq: u64, ttl: Duration) -> Option<Duration> {
        let sent = self.sent.remove(&seq)?;
        self.ttl = Some(ttl);
        // The server answers in order; older ones get no answer any more.
        self.sent.retain(|other, _| *other > seq);
        sent.checked_add(ttl)
    }

    /// How long the oldest renewal has waited.
    pub(super) fn waited(&self, now: Duration) -> Duration {
        self.sent
            .first_key_value()
            .map_or(Duration::ZERO, |(_, sent)| now.saturating_sub(*sent))
    }

    /// A session is over: its renewals get no answer.
    pub(super) fn clear(&mut self) {
        self.sent.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn counts_from_when_the_renewal_was_sent() {
        let mut renewals = Renewals::new(None);
        let first = renewals.send(S * 10);
        let second = renewals.send(S * 20);
        assert_eq!(renewals.waited(S * 25), S * 15);
        assert_eq!(renewals.answer(second, S * 40), Some(S * 60));
        assert_eq!(renewals.answer(second, S * 40), None, "an answer counts once");
        assert_eq!(renewals.answer(first, S * 40), None, "answers come in order");
        assert_eq!(renewals.waited(S * 99), Duration::ZERO);
    }

    #[test]
    fn renews_four_times_a_grant_unless_told_otherwise() {
        let mut renewals = Renewals::new(None);
        assert_eq!(renewals.period(), S * 10);
        for (ttl, period) in [(S * 40, S * 10), (S * 4, S), (S * 400, S * 10)] {
            let seq = renewals.send(S);
            assert!(renewals.answer(seq, ttl).is_some());
            assert_eq!(renewals.period(), period);
        }
        let seq = renewals.send(S);
        assert_eq!(renewals.answer(seq, Duration::ZERO), Some(S));
        assert_eq!(renewals.period(), SHORTEST, "never a busy loop");
        assert_eq!(Renewals::new(Some(S * 3)).period(), S * 3);
    }

    #[test]
    fn numbers_of_an_older_session_mean_nothing() {
        let mut renewals = Renewals::new(None);
        let old = renewals.send(S);
        renewals.clear();
        assert!(renewals.send(S * 2) > old);
        assert_eq!(renewals.answer(old, S * 40), None);
        assert_eq!(renewals.answer(999, S * 40), None);
    }
}
