//! Exponential back-off with seeded jitter.

use std::time::Duration;

/// A small seeded random sequence (splitmix64), for jitter only: the same seed gives the same sequence.
#[derive(Clone, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// A sequence that starts at `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A delay between half of `delay` and `delay`, so that many waiters do not return in one instant.
    pub fn spread(&mut self, delay: Duration) -> Duration {
        let thousandths = 500 + u32::try_from(self.next_u64() % 501).unwrap_or(500);
        delay.saturating_mul(thousandths) / 1000
    }
}

/// How long to wait before the next try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Delay after the first failure.
    pub base: Duration,
    /// No delay is longer.
    pub cap: Duration,
}

impl Backoff {
    /// Doubles from `base` up to `cap`.
    #[must_use]
    pub const fn new(base: Duration, cap: Duration) -> Self {
        Self { base, cap }
    }

    /// Delay after `failures` failures in a row (1 after the first), without jitter.
    #[must_use]
    pub fn delay(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.base.saturating_mul(1 << doublings).min(self.cap)
    }

    /// The same, spread by `jitter`.
    pub fn jittered(&self, failures: u32, jitter: &mut Jitter) -> Duration {
        jitter.spread(self.delay(failures))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_cap() {
        let b = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let delays: Vec<u128> = (1..=6).map(|n| b.delay(n).as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(b.delay(u32::MAX), Duration::from_secs(1));
    }

    #[test]
    fn jitter_stays_between_half_and_whole_and_repeats_with_its_seed() {
        let whole = Duration::from_secs(10);
        let (mut a, mut b) = (Jitter::new(7), Jitter::new(7));
        for _ in 0..1000 {
            let delay = a.spread(whole);
            assert!(delay >= whole / 2 && delay <= whole, "{delay:?}");
            assert_eq!(delay, b.spread(whole));
        }
    }
}
