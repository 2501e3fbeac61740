//! Reasons for waiting.

use panda_api::Refusal;
use panda_api::meta::Time;

/// Keeps the time since when each refusal has stood.
pub(crate) fn since(new: Vec<Refusal>, old: &[Refusal], now: Time) -> Vec<Refusal> {
    new.into_iter()
        .map(|refusal| Refusal {
            since: old
                .iter()
                .find(|o| o.device == refusal.device && o.reason == refusal.reason)
                .and_then(|o| o.since)
                .or(Some(now)),
            ..refusal
        })
        .collect()
}
