//! How long there is.

use std::time::Duration;

use jiff::Timestamp;
use panda_api::meta::Time;
use panda_api::{Agent, Task, VerifySpec};

const DEFAULT_ATTEMPT: Duration = Duration::from_secs(30 * 60);
const DEFAULT_CHECK: Duration = Duration::from_secs(10 * 60);
const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// A stamp as it is stored, so that a status compares equal after a round trip.
pub(super) fn stamp(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// `from` plus `length`; the end of time where that is past it.
pub(super) fn after(from: Timestamp, length: Duration) -> Timestamp {
    from.checked_add(length).unwrap_or(Timestamp::MAX)
}

/// How long from `now` to `then`; nothing when it has passed.
pub(super) fn until(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or(Duration::ZERO)
}

/// A time as it is stored, never earlier than `time`.
pub(super) fn microseconds(time: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(time.as_microsecond()).map_or(time, |cut| {
        if cut < time {
            after(cut, Duration::from_micros(1))
        } else {
            cut
        }
    })
}

/// Time limits of one Task in one rerun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// When everything must have ended; `None` for no limit.
    pub(super) end: Option<Timestamp>,
    /// What the agent may work in one attempt.
    pub(super) attempt: Duration,
    /// What must be left after the agent: its stop and the checks.
    reserve: Duration,
    /// Whether a full attempt could ever fit.
    fits_once: bool,
}

impl Limits {
    /// Limits of `task`, whose rerun started at `start`, for attempts by `agent`.
    pub(super) fn of(task: &Task, start: Option<Time>, agent: Option<&Agent>) -> Self {
        let attempt = task
            .spec
            .attempt_timeout
            .as_ref()
            .map_or(DEFAULT_ATTEMPT, |t| t.get());
        let grace = agent
            .and_then(|a| a.spec.stop.as_ref()?.grace.as_ref())
            .map_or(DEFAULT_GRACE, |g| g.get());
        let reserve = task
            .spec
            .verify
            .iter()
            .map(check_timeout)
            .fold(grace, Duration::saturating_add);
        let length = task.spec.deadline.as_ref().map(|d| d.get());
        Self {
            end: length.and_then(|length| Some(after(start?.0, length))),
            attempt,
            reserve,
            fits_once: length.is_none_or(|length| attempt.saturating_add(reserve) <= length),
        }
    }

    /// What an attempt that starts at `at` may take; `None` when it cannot fit.
    ///
    /// When a full attempt fits the deadline at all, only full attempts are started. When the deadline is shorter
    /// than one attempt may take, attempts are cut to what is left.
    pub(super) fn fit(&self, at: Timestamp) -> Option<Duration> {
        let Some(end) = self.end else {
            return Some(self.attempt);
        };
        let left = until(end, at).checked_sub(self.reserve)?;
        if self.fits_once {
            (left >= self.attempt).then_some(self.attempt)
        } else {
            (!left.is_zero()).then(|| left.min(self.attempt))
        }
    }

    /// The last moment at which an attempt may start.
    pub(super) fn latest_start(&self) -> Option<Timestamp> {
        let needed = if self.fits_once {
            self.attempt.saturating_add(self.reserve)
        } else {
            self.reserve
        };
        self.end
            .map(|end| end.checked_sub(needed).unwrap_or(Timestamp::MIN))
    }
}

fn check_timeout(check: &VerifySpec) -> Duration {
    check.timeout.as_ref().map_or(DEFAULT_CHECK, |t| t.get())
}
