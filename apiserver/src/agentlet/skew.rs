//! Condition `ClockSkew` of a Device: whether its wall clock is the server's. For people alone: no lease, grant or bound
//! is counted on a wall clock, but the times that the device reports are read by people.

use std::time::Duration;

use jiff::Timestamp;
use panda_api::meta::{Condition, set_condition};
use tonic::Status;

use super::{Agentlets, DeviceId, session};

/// Type of the condition.
pub(super) const CLOCK_SKEW: &str = "ClockSkew";
/// How often a lost race is run again.
const ATTEMPTS: usize = 4;

/// What a session last found.
#[derive(Debug, Default)]
pub(super) struct Verdict(Option<bool>);

/// How far the device's clock is ahead of `now`, in milliseconds; none when the device does not say.
fn ahead(wall_time_ms: u64, now: Timestamp) -> Option<i64> {
    let told = i64::try_from(wall_time_ms).ok().filter(|told| *told > 0)?;
    Some(told.saturating_sub(now.as_millisecond()))
}

fn condition(ahead: i64, skewed: bool, now: Timestamp) -> Condition {
    let seconds = ahead.unsigned_abs() / 1000;
    let where_to = if ahead < 0 { "behind" } else { "ahead of" };
    let message = if skewed {
        format!(
            "the device's clock is {seconds} s {where_to} the server's, and so are the times that it reports"
        )
    } else {
        "the clocks of device and server agree".to_owned()
    };
    Condition {
        type_: CLOCK_SKEW.to_owned(),
        status: if skewed { "True" } else { "False" }.to_owned(),
        observed_generation: None,
        last_transition_time: now.into(),
        reason: if skewed { "ClocksDiffer" } else { "ClocksAgree" }.to_owned(),
        message,
    }
}

impl Agentlets {
    /// Compares the device's wall clock, as just received, with ours. What is on its way for long looks like a clock
    /// that is behind; the next renewal puts that right.
    pub(super) async fn compare_clocks(
        &self,
        device: &DeviceId,
        wall_time_ms: u64,
        verdict: &mut Verdict,
    ) -> Result<(), Status> {
        let now = self.clock.now();
        let Some(ahead) = ahead(wall_time_ms, now) else {
            return Ok(());
        };
        let skewed = Duration::from_millis(ahead.unsigned_abs()) > self.max_clock_skew;
        if verdict.0 == Some(skewed) {
            return Ok(());
        }
        for _ in 0..ATTEMPTS {
            let mut stored = self.member(device).await?;
            let conditions = &mut stored.object.status.conditions;
            let old = conditions.iter().find(|condition| condition.type_ == CLOCK_SKEW);
            // A clock that was never wrong is not spoken of.
            if old.map_or(!skewed, |old| (old.status == "True") == skewed) {
                verdict.0 = Some(skewed);
                return Ok(());
            }
            set_condition(conditions, condition(ahead, skewed, now));
            match self.objects.commit(vec![stored.write()]).await {
                Ok(_) => {
                    tracing::info!(device = %device.name, ahead_ms = ahead, skewed, "clock of a device");
                    verdict.0 = Some(skewed);
                    return Ok(());
                }
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(session::internal(error)),
            }
        }
        // The next renewal tries again.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_times_are_no_panic_and_silence_is_no_verdict() {
        let now: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        let at = u64::try_from(now.as_millisecond()).unwrap();
        assert_eq!(ahead(0, now), None);
        assert_eq!(ahead(u64::MAX, now), None);
        assert_eq!(ahead(at, now), Some(0));
        assert_eq!(ahead(at - 95_000, now), Some(-95_000));
        assert!(ahead(1, now).unwrap() < 0);
        assert!(ahead(i64::MAX.unsigned_abs(), now).unwrap() > 0);
        assert!(condition(-95_000, true, now).message.contains("95 s behind"));
    }
}
