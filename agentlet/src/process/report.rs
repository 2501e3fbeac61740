//! What the floor enforced, in the words of the API.

use panda_api::{DeviceSandbox, SandboxLayer, SandboxProfile, SandboxReport};
use panda_sandbox::Report;

/// What was enforced for a run, for `Run.status.sandbox`.
#[must_use]
pub fn run_sandbox(report: &Report) -> SandboxReport {
    SandboxReport {
        profile: Some(SandboxProfile::Off),
        floor: floor(report),
        layers: layers(report),
    }
}

/// What a device can enforce, for `Device.status.sandbox`; `report` is that of [`panda_sandbox::probe`].
#[must_use]
pub fn device_sandbox(report: &Report) -> DeviceSandbox {
    DeviceSandbox {
        default: Some(SandboxProfile::Off),
        profiles: vec![SandboxProfile::Off],
        floor: floor(report),
        layers: layers(report),
    }
}

fn floor(report: &Report) -> String {
    if report.holds() { "Full" } else { "None" }.into()
}

fn layers(report: &Report) -> Vec<SandboxLayer> {
    let layer = |l: &panda_sandbox::LayerReport| SandboxLayer {
        name: l.layer.name().into(),
        strength: l.strength.name().into(),
        reason: l.reason.clone(),
    };
    report.layers.iter().map(layer).collect()
}
