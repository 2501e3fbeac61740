//! The seams through which time and identity enter the system.
//!
//! Components take a [`Clock`] and an [`IdSource`] as parameters, so that a simulation can replay a seed exactly.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use uuid::Uuid;

/// Wall time for stamps that people read, monotonic time for every decision.
pub trait Clock: Send + Sync + std::fmt::Debug + 'static {
    /// The wall clock; may jump in either direction.
    fn now(&self) -> Timestamp;
    /// Time since an arbitrary fixed point of this process; never goes back.
    fn monotonic(&self) -> Duration;
}

/// Where uids and random suffixes come from.
pub trait IdSource: Send + Sync + std::fmt::Debug + 'static {
    /// A fresh random UUID (version 4).
    fn uuid(&self) -> Uuid;

    /// `len` characters of the vowel-free alphabet that `generateName` uses.
    fn suffix(&self, len: usize) -> String {
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut out = String::with_capacity(len);
        while out.len() < len {
            for byte in self.uuid().as_bytes() {
                if out.len() < len {
                    out.push(char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]));
                }
            }
        }
        out
    }
}

/// The machine's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the seam that everything else goes through"
    )]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn monotonic(&self) -> Duration {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }
}

/// Ids from the operating system's randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomIds;

impl IdSource for RandomIds {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the seam that everything else goes through"
    )]
    fn uuid(&self) -> Uuid {
        Uuid::new_v4()
    }
}
