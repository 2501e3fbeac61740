//! What a device reports about a run.

use panda_api::meta::Time;
use panda_api::{
    Failure, LogStatus, PublishStatus, RunPhase, SandboxReport, TaskResult, Usage, VerifyResult,
};
use serde::{Deserialize, Serialize};

/// One change of a run's status, as the device saw it. Absent fields change nothing.
///
/// Reports of one run are applied in the order of their outbox numbers; one that would leave a terminal phase is
/// answered as stale.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunReport {
    /// New phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<RunPhase>,
    /// When the agent's process started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the attempt ended, by the device's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The agent's own session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// What it used so far, in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// What the checks said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify: Option<Vec<VerifyResult>>,
    /// Paths that changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed_files: Option<Vec<String>>,
    /// `2 files changed, ...`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diffstat: Option<String>,
    /// What was really enforced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxReport>,
    /// Most processes at one time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// The log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<LogStatus>,
    /// What came out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<TaskResult>,
    /// How publication went.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publish: Option<PublishStatus>,
    /// A line for the Run's events: reason and message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<(String, String)>,
}
