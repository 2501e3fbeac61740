//! Device: a machine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::SandboxLayer;
use super::agent::DriverKind;
use super::shared::*;
use crate::meta::{Condition, Time};
use crate::resource;

resource! {
    /// A machine that runs agents, like a Node.
    Device, "panda.dev", "v1alpha1", "devices", namespaced: false {
        /// What is wanted of it.
        #[serde(default)]
        spec: DeviceSpec,
        /// What it reports.
        #[serde(default)]
        status: DeviceStatus,
    }
}

/// Spec of a [`Device`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceSpec {
    /// True: cordoned, nothing new is bound to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unschedulable: Option<bool>,
    /// Keeps work away that does not tolerate them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Most runs at one time; absent: what the device reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_runs: Option<u32>,
}

/// Status of a [`Device`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceStatus {
    /// Generation that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// SHA-256 of the device's public key.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key_fingerprint: String,
    /// When the newest certificate of the device ends; it renews it long before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_expires: Option<Time>,
    /// What it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<ResourceRequest>,
    /// What runs may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocatable: Option<ResourceRequest>,
    /// Most runs at one time, by its own configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_runs: Option<u32>,
    /// Runs that it works on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<u32>,
    /// What it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub info: Option<DeviceInfo>,
    /// Agents found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<DeviceAgent>,
    /// What its owner allows: the agentlet's own configuration, read-only here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<OwnerConfig>,
    /// What it can enforce.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<DeviceSandbox>,
    /// `Ready`, `DiskPressure`, ...
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// What a device is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceInfo {
    /// `linux`, `darwin`.
    pub os: String,
    /// `amd64`, `arm64`.
    pub arch: String,
    /// Kernel release.
    pub kernel: String,
    /// Host name; for people, never an identity.
    pub hostname: String,
    /// Version of the agentlet.
    pub agentlet_version: String,
    /// `Micro`, `Standard` or `Full`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub device_class: String,
    /// Boot id.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
}

/// An agent found on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceAgent {
    /// Namespace of the Agent.
    pub namespace: String,
    /// Name of the Agent.
    pub name: String,
    /// Generation of the Agent that was probed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Absolute path of the program.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Version found.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Driver that would be used; absent: the agent cannot run here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<DriverKind>,
    /// Whether it is logged in; absent: no login is needed or known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logged_in: Option<bool>,
    /// Why it cannot run here.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// What the owner of a device allows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerConfig {
    /// Namespaces that it serves; `*` for all.
    pub namespaces: Vec<String>,
    /// Canonical paths under which repositories may be used.
    pub workspace_roots: Vec<String>,
    /// Weakest profile that it accepts.
    pub min_sandbox: SandboxProfile,
    /// Agents whose login files may be lent to runs.
    pub logins: Vec<String>,
}

impl Default for OwnerConfig {
    fn default() -> Self {
        Self {
            namespaces: vec!["*".into()],
            workspace_roots: Vec::new(),
            min_sandbox: SandboxProfile::Off,
            logins: Vec::new(),
        }
    }
}

/// What a device can enforce.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceSandbox {
    /// Profile that runs get when they name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<SandboxProfile>,
    /// Profiles that it can enforce.
    pub profiles: Vec<SandboxProfile>,
    /// `Full` or `None`: whether the floor holds.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub floor: String,
    /// Layers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<SandboxLayer>,
}
