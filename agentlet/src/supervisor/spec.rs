//! What is to be run and how it is watched. Written once by the agentlet, never changed.

use std::path::PathBuf;
use std::time::Duration;

use panda_api::DisconnectPolicy;
use panda_sandbox::User;
use serde::{Deserialize, Serialize};

use super::log::Caps;
use super::secrets::SecretUse;
use crate::driver::DriverConfig;
use crate::process::StopPolicy;

/// One job: what the supervisor reads from `spec.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobSpec {
    /// Whose attempt it is.
    pub fence: JobFence,
    /// Boot of the device that it was written under; void under another.
    pub boot_id: String,
    /// What is run.
    pub program: Program,
    /// Commands run before it, one after the other, in the same environment with HOME as working directory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pre_run: Vec<Vec<String>>,
    /// How it is talked to and how its end is judged.
    pub driver: DriverConfig,
    /// How long it may be silent, and work.
    pub limits: Limits,
    /// How it is stopped.
    #[serde(default)]
    pub stop: StopPolicy,
    /// What happens when the grant ends.
    #[serde(default)]
    pub on_disconnect: DisconnectRule,
    /// Longest time between TERM and KILL when the grant ends, whatever `stop` says: the control plane starts another
    /// attempt after it.
    #[serde(default = "grant_grace")]
    pub grant_grace: Duration,
    /// How much of each output is kept.
    #[serde(default)]
    pub log: Caps,
    /// Values of Secrets that it needs, by reference; with it, the supervisor expects a [`super::Handover`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<SecretUse>,
    /// File that only holds space: given back when the disk is full, so that the end can be written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<PathBuf>,
    /// The device's journal of starts; absent: none is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts: Option<PathBuf>,
    /// Program and arguments of the floor's helper stage; empty: the supervisor's own program with `exec-floor`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub helper: Vec<String>,
}

/// The usual [`JobSpec::grant_grace`].
#[must_use]
pub const fn grant_grace() -> Duration {
    Duration::from_secs(10)
}

/// Whose attempt it is: the fence of every report about it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobFence {
    /// Uid of the Task.
    pub task_uid: String,
    /// Uid of the Run.
    pub run_uid: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// Epoch of the Lease at binding.
    pub epoch: i32,
    /// Uid of the device.
    pub device_uid: String,
}

/// What is run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Program {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub cwd: PathBuf,
    /// HOME, where the commands before the run work.
    pub home: PathBuf,
    /// User, when the agentlet is root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    /// Whether that user runs nothing but this job, so that every process of it belongs to the job.
    pub user_is_exclusive: bool,
    /// Paths that it must not see.
    pub hidden: Vec<PathBuf>,
    /// Paths beneath them that it may see.
    pub visible: Vec<PathBuf>,
}

/// How long an agent may be silent, and work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Until the first sign of life: output, event, or processor time.
    pub first_output: Duration,
    /// Without output, event, processor time or a new child.
    pub silence: Duration,
    /// Working time in all; frozen time does not count.
    pub attempt: Duration,
    /// How often in a row the same tool calls may be made; 0: as often as they like.
    #[serde(default)]
    pub repeat: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            first_output: Duration::from_secs(120),
            silence: Duration::from_secs(240),
            attempt: Duration::from_secs(30 * 60),
            repeat: 8,
        }
    }
}

/// What happens when the grant ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DisconnectRule {
    /// Whether the run goes on, freezes or ends.
    pub policy: DisconnectPolicy,
    /// When it ends all the same, counted from the grant's end.
    pub after: Duration,
}

impl Default for DisconnectRule {
    fn default() -> Self {
        Self {
            policy: DisconnectPolicy::Continue,
            after: Duration::from_secs(600),
        }
    }
}
