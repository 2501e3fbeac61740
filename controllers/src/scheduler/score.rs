//! Which of the devices that could take a Run is best.

use panda_api::room::slots;

use super::plugins::{Candidate, unwelcome};

/// Weight of the workspace being there already, or of a former failure there.
const BIAS: i64 = 500;
const UNWELCOME: i64 = 2000;

/// Weight of another Run having worked with the repository there: its mirror is warm.
const WARM: i64 = 200;

/// The more the better: what stays free, in thousandths, for slots and for the scarcest resource; the workspace of a
/// former attempt, the repository of any former run; taints that only prefer to keep the Run away.
pub(super) fn score(candidate: &Candidate<'_>, bias: i64, warm: bool) -> i64 {
    let free_slots = slots(candidate.device).map_or(500, |slots| {
        let slots = i64::from(slots.max(1));
        (slots - i64::from(candidate.load.runs)).max(0) * 1000 / slots
    });
    let left = candidate.have.less(candidate.load.used).less(candidate.needs);
    let scarcest = candidate
        .have
        .named()
        .zip(left.named())
        .filter(|((_, have), _)| !have.is_zero())
        .map(|((_, have), (_, left))| left.milli() * 1000 / have.milli())
        .min()
        .and_then(|share| i64::try_from(share).ok())
        .unwrap_or(500);
    free_slots + scarcest + bias * BIAS + i64::from(warm) * WARM - unwelcome(candidate) * UNWELCOME
}
