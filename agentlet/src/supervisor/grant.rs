//! How long a run may go on without hearing from the control plane.
//!
//! A grant ends at a point of `CLOCK_BOOTTIME`, which counts suspended time, and is void under another boot.

use std::time::Duration;

use panda_api::DisconnectPolicy;
use serde::{Deserialize, Serialize};

use super::spec::DisconnectRule;

/// A grant, as `grant.json` keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// End, since the boot of the device.
    pub deadline: Duration,
    /// That boot.
    pub boot_id: String,
}

/// What the grant says at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The run goes on.
    Go,
    /// The tree is frozen until the grant is renewed or time is up.
    Freeze,
    /// The tree ends: the grant has ended, and what may come after it too.
    End,
    /// The device was restarted since.
    OtherBoot,
}

impl Grant {
    /// Whether it reaches further than `held`, or is of another boot.
    pub(crate) fn is_newer_than(&self, held: &Self) -> bool {
        self.boot_id != held.boot_id || self.deadline > held.deadline
    }

    /// What the grant says at `now` (since boot) under `boot_id`.
    pub(super) fn verdict(&self, rule: DisconnectRule, now: Duration, boot_id: &str) -> Verdict {
        if self.boot_id != boot_id {
            return Verdict::OtherBoot;
        }
        if now < self.deadline {
            return Verdict::Go;
        }
        let over = now >= self.deadline.saturating_add(rule.after);
        match rule.policy {
            DisconnectPolicy::Stop => Verdict::End,
            DisconnectPolicy::Pause | DisconnectPolicy::Continue if over => Verdict::End,
            DisconnectPolicy::Pause => Verdict::Freeze,
            DisconnectPolicy::Continue => Verdict::Go,
        }
    }
}

/// Time since the device started, suspended time included.
#[must_use]
pub fn boottime() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // Neither field is negative on this clock.
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

/// Identity of this boot of the device.
///
/// # Errors
///
/// When the kernel does not say.
pub fn boot_id() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn at(policy: DisconnectPolicy, now: u64) -> Verdict {
        let grant = Grant {
            deadline: s(100),
            boot_id: "a".into(),
        };
        grant.verdict(DisconnectRule { policy, after: s(10) }, s(now), "a")
    }

    #[test]
    fn each_policy_acts_at_its_time() {
        use DisconnectPolicy::{Continue, Pause, Stop};
        use Verdict::{End, Freeze, Go};
        for (policy, during, after) in [(Continue, Go, End), (Pause, Freeze, End), (Stop, End, End)] {
            assert_eq!(at(policy, 99), Go);
            assert_eq!(at(policy, 100), during);
            assert_eq!(at(policy, 109), during);
            assert_eq!(at(policy, 110), after);
        }
    }

    #[test]
    fn another_boot_voids_it() {
        let grant = Grant {
            deadline: s(100),
            boot_id: "a".into(),
        };
        assert_eq!(
            grant.verdict(DisconnectRule::default(), s(1), "b"),
            Verdict::OtherBoot
        );
    }

    #[test]
    fn the_clock_runs_and_the_boot_has_a_name() {
        let a = boottime();
        assert!(a > Duration::ZERO && boottime() >= a);
        assert!(!boot_id().unwrap().is_empty());
    }
}
