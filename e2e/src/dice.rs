//! Randomness that a seed gives back.

use std::time::Duration;

/// A small generator of our own: the seed is all there is to a schedule.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The generator of this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number below `n`.
    ///
    /// # Panics
    /// When `n` is 0.
    pub const fn below(&mut self, n: u64) -> u64 {
        // splitmix64, https://prng.di.unimi.it/splitmix64.c (public domain)
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    /// A time from `least` to below `most`, in whole milliseconds.
    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let width = u64::try_from(most.saturating_sub(least).as_millis()).unwrap_or(u64::MAX);
        least + Duration::from_millis(self.below(width.max(1)))
    }

    /// One of these.
    ///
    /// # Panics
    /// When there is none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        let at = self.below(items.len() as u64);
        &items[usize::try_from(at).unwrap_or(0)]
    }
}

/// The seed that the environment asks for (`PANDA_SEED`), or this one; it is printed, so that a failure can be replayed.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "the seed of a failure is given back through the environment"
)]
pub fn seed_or(default: u64) -> u64 {
    let asked = std::env::var("PANDA_SEED").ok();
    let seed = asked.and_then(|text| text.parse().ok()).unwrap_or(default);
    eprintln!("PANDA_SEED={seed}");
    seed
}
