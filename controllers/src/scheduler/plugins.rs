//! Filters: each says why a device cannot take a Run, or nothing.

mod agent;
mod device;
mod place;
mod room;

use panda_api::room::Amounts;
use panda_api::{Device, Refusal, RefusalReason, Run};

use super::load::Load;

pub(crate) use device::tolerates;
pub(super) use device::unwelcome;
pub(super) use place::profile;

/// A Run and a device that might take it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) run: &'a Run,
    pub(super) device: &'a Device,
    pub(super) load: &'a Load,
    /// What the Run asks for.
    pub(super) needs: Amounts,
    /// What Runs may take of the device.
    pub(super) have: Amounts,
}

type Filter = fn(&Candidate<'_>) -> Result<(), (RefusalReason, String)>;

/// In order: what lasts longest and what a person can change comes first, what passes by itself last.
const FILTERS: [Filter; 13] = [
    device::named,
    device::selected,
    device::ready,
    device::schedulable,
    device::tolerated,
    device::serves_namespace,
    agent::capable,
    agent::installed,
    place::sandboxed,
    place::rooted,
    place::disk_free,
    room::has_slot,
    room::has_resources,
];

/// Passes the device, or says the first reason why not.
pub(super) fn filter(candidate: &Candidate<'_>) -> Result<(), Refusal> {
    FILTERS
        .iter()
        .try_for_each(|filter| filter(candidate))
        .map_err(|(reason, message)| refuse(&candidate.device.metadata.name, reason, message))
}

/// A refusal of a device.
pub(super) fn refuse(device: &str, reason: RefusalReason, message: String) -> Refusal {
    Refusal {
        device: device.to_owned(),
        reason,
        message,
        since: None,
    }
}

/// Whether a condition of the device is `True`.
fn condition(device: &Device, type_: &str) -> Option<bool> {
    device
        .status
        .conditions
        .iter()
        .find(|c| c.type_ == type_)
        .map(|c| c.status == "True")
}
