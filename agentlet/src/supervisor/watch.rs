//! When an agent counts as silent, stalled or too slow. Pure: time comes in as a parameter.

use std::time::Duration;

use super::spec::Limits;
use crate::process::Sample;

/// Processor time below this share of the time between two samples is the ticking of an idle program, not work.
const BUSY_PER_MILLE: u128 = 50;

/// What has run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expired {
    /// Not one sign of life.
    FirstOutput,
    /// Nothing more.
    Silence,
    /// Working time.
    Attempt,
}

/// The watchdogs of one attempt. Time is counted from any fixed point.
#[derive(Debug)]
pub(super) struct Watch {
    limits: Limits,
    started: Duration,
    /// Last output, event, processor time or change of children.
    sign: Duration,
    heard: bool,
    frozen_since: Option<Duration>,
    frozen: Duration,
    sampled: Option<(Duration, Duration)>,
}

impl Watch {
    pub(super) const fn new(limits: Limits, now: Duration) -> Self {
        Self {
            limits,
            started: now,
            sign: now,
            heard: false,
            frozen_since: None,
            frozen: Duration::ZERO,
            sampled: None,
        }
    }

    /// Output or an event; says whether it is the first.
    pub(super) fn output(&mut self, now: Duration) -> bool {
        self.sign = now;
        !std::mem::replace(&mut self.heard, true)
    }

    /// What the tree is doing.
    pub(super) fn sample(&mut self, now: Duration, sample: Sample) {
        if let Some((then, cpu)) = self.sampled {
            let used = sample.cpu.saturating_sub(cpu).as_micros();
            let passed = now.saturating_sub(then).as_micros();
            if sample.changed || used * 1000 > passed * BUSY_PER_MILLE {
                self.sign = now;
            }
        }
        self.sampled = Some((now, sample.cpu));
    }

    pub(super) fn freeze(&mut self, now: Duration) {
        self.frozen_since.get_or_insert(now);
    }

    pub(super) fn thaw(&mut self, now: Duration) {
        if let Some(since) = self.frozen_since.take() {
            let asleep = now.saturating_sub(since);
            self.frozen += asleep;
            // Silence goes on where it was.
            self.sign += asleep;
        }
    }

    pub(super) const fn is_frozen(&self) -> bool {
        self.frozen_since.is_some()
    }

    /// Working time so far.
    pub(super) fn worked(&self, now: Duration) -> Duration {
        let until = self.frozen_since.unwrap_or(now);
        until.saturating_sub(self.started).saturating_sub(self.frozen)
    }

    pub(super) fn expired(&self, now: Duration) -> Option<Expired> {
        if self.frozen_since.is_some() {
            return None;
        }
        if self.worked(now) >= self.limits.attempt {
            return Some(Expired::Attempt);
        }
        let silent = now.saturating_sub(self.sign);
        match self.heard {
            false if silent >= self.limits.first_output => Some(Expired::FirstOutput),
            true if silent >= self.limits.silence => Some(Expired::Silence),
            _ => None,
        }
    }

    /// How often to look: often enough for the shortest limit, never more than twenty times a second.
    pub(super) fn interval(&self) -> Duration {
        let shortest = self
            .limits
            .first_output
            .min(self.limits.silence)
            .min(self.limits.attempt);
        (shortest / 10).clamp(Duration::from_millis(50), Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn watch() -> Watch {
        Watch::new(
            Limits {
                first_output: s(10),
                silence: s(20),
                attempt: s(100),
                repeat: 0,
            },
            s(1000),
        )
    }

    fn sample(cpu_ms: u64, changed: bool) -> Sample {
        Sample {
            cpu: Duration::from_millis(cpu_ms),
            processes: 1,
            changed,
        }
    }

    #[test]
    fn without_any_sign_of_life_the_first_output_is_missing() {
        let w = watch();
        assert_eq!(w.expired(s(1009)), None);
        assert_eq!(w.expired(s(1010)), Some(Expired::FirstOutput));
    }

    #[test]
    fn after_output_silence_counts_and_not_the_first_output() {
        let mut w = watch();
        assert!(w.output(s(1005)));
        assert!(!w.output(s(1006)));
        assert_eq!(w.expired(s(1025)), None);
        assert_eq!(w.expired(s(1026)), Some(Expired::Silence));
    }

    #[test]
    fn a_silent_build_that_uses_the_processor_is_not_stalled() {
        let mut w = watch();
        w.output(s(1000));
        for t in 1..60 {
            w.sample(s(1000 + t), sample(t * 900, false));
            assert_eq!(w.expired(s(1000 + t)), None);
        }
    }

    #[test]
    fn the_ticking_of_an_idle_program_is_no_sign_of_life() {
        let mut w = watch();
        w.output(s(1000));
        for t in 0..=20 {
            w.sample(s(1000 + t), sample(t * 10, false));
        }
        assert_eq!(w.expired(s(1020)), Some(Expired::Silence));
    }

    #[test]
    fn coming_and_going_children_are_a_sign_of_life() {
        let mut w = watch();
        w.output(s(1000));
        w.sample(s(1001), sample(0, true));
        w.sample(s(1019), sample(0, true));
        assert_eq!(w.expired(s(1038)), None);
        assert_eq!(w.expired(s(1039)), Some(Expired::Silence));
    }

    #[test]
    fn frozen_time_counts_neither_as_silence_nor_as_work() {
        let mut w = watch();
        w.output(s(1000));
        w.freeze(s(1010));
        assert_eq!(w.expired(s(5000)), None);
        w.thaw(s(5000));
        assert_eq!(w.worked(s(5000)), s(10));
        assert_eq!(w.expired(s(5009)), None);
        assert_eq!(w.expired(s(5010)), Some(Expired::Silence));
        w.output(s(5010));
        w.output(s(5089));
        assert_eq!(w.expired(s(5090)), Some(Expired::Attempt));
    }
}
