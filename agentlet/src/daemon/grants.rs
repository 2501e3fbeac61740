//! Renewals on their way, and the grants that their answers make.

use std::collections::BTreeMap;
use std::time::Duration;

/// Renewals without answer that are remembered.
const REMEMBERED: usize = 16;

/// When each renewal was sent.
#[derive(Debug, Default)]
pub(super) struct Renewals {
    next: u64,
    sent: BTreeMap<u64, Duration>,
}

impl Renewals {
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
        let mut renewals = Renewals::default();
        let first = renewals.send(S * 10);
        let second = renewals.send(S * 20);
        assert_eq!(renewals.waited(S * 25), S * 15);
        assert_eq!(renewals.answer(second, S * 40), Some(S * 60));
        assert_eq!(renewals.answer(second, S * 40), None, "an answer counts once");
        assert_eq!(renewals.answer(first, S * 40), None, "answers come in order");
        assert_eq!(renewals.waited(S * 99), Duration::ZERO);
    }

    #[test]
    fn numbers_of_an_older_session_mean_nothing() {
        let mut renewals = Renewals::default();
        let old = renewals.send(S);
        renewals.clear();
        assert!(renewals.send(S * 2) > old);
        assert_eq!(renewals.answer(old, S * 40), None);
        assert_eq!(renewals.answer(999, S * 40), None);
    }
}
