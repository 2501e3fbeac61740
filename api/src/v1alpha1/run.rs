//! Run: one attempt.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::agent::AgentSpec;
use super::shared::*;
use crate::meta::{Condition, Duration, Time};
use crate::resource;

resource! {
    /// One attempt at a Task, like a Pod. Made by the task controller, bound once, never restarted.
    Run, "panda.dev", "v1alpha1", "runs", namespaced: true {
        /// What it does: a frozen copy of what it needs.
        #[serde(default)]
        spec: RunSpec,
        /// What has happened so far; written by the agentlet service.
        #[serde(default)]
        status: RunStatus,
    }
}

/// Spec of a [`Run`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunSpec {
    /// The Task that it belongs to.
    pub task_ref: TaskRef,
    /// What it is for.
    pub role: RunRole,
    /// Number of the attempt, from 1, over all reruns of the Task.
    pub attempt: u32,
    /// The agent and model.
    pub agent: AgentChoice,
    /// How that agent is run: the Agent's spec, frozen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_spec: Option<AgentSpec>,
    /// The device; set once, by POST to `/binding`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub device_name: String,
    /// Uid of that device.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub device_uid: String,
    /// The Lease's `leaseTransitions` at binding: the fencing epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_epoch: Option<i32>,
    /// The Task's `rerun` that it belongs to.
    pub rerun: i64,
    /// Set once the result is accepted: publish it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publish: Option<PublishSpec>,
    /// True: freeze the process tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<bool>,
    /// True: end the process tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<bool>,
    /// True, together with `cancel`: the device is to be free of it. Its Task goes on elsewhere, and no retry is spent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evict: Option<bool>,
    /// What the agent is asked, what failed before included.
    pub prompt: String,
    /// Session of an earlier attempt to go on with, where the agent can.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resume_session: String,
    /// What the agent must be able to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requires: Option<Requirements>,
    /// Which device may run it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceRequest>,
    /// Where it works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<WorkspaceSpec>,
    /// Files to keep.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub outputs: Vec<OutputSpec>,
    /// Environment of the agent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
    /// Sandbox, resolved at binding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxSpec>,
    /// Checks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub verify: Vec<VerifySpec>,
    /// How it is watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supervision: Option<SupervisionSpec>,
    /// How long the agent may work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt_timeout: Option<Duration>,
    /// Whether the agent gets a token for the API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_access: Option<bool>,
    /// Higher goes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
}

/// The Task of a Run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskRef {
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// Generation whose spec was frozen.
    pub generation: i64,
}

/// See [`RunSpec::role`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RunRole {
    /// Does the work.
    #[default]
    Worker,
    /// Reviews a result.
    Reviewer,
    /// Judges a round.
    Judge,
}

/// Publish the accepted result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PublishSpec {
    /// Fencing epoch of the Run that may publish.
    pub epoch: i32,
    /// What the branch must point to now; empty: it must not exist.
    pub expected_old_commit: String,
    /// Number of the try, from 1: publication alone is retried.
    pub try_number: u32,
}

/// Status of a [`Run`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunStatus {
    /// Generation that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<RunPhase>,
    /// Aspects of its state.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// When it was bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bind_time: Option<Time>,
    /// When the agent's process started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it ended, by the device's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Why no device took it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unschedulable: Vec<super::Refusal>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The agent's own session.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub session_id: String,
    /// What it used.
    pub usage: Usage,
    /// What the checks said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub verify: Vec<VerifyResult>,
    /// Paths that changed; bytes that are not UTF-8 are written `\xNN`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changed_files: Vec<String>,
    /// `2 files changed, 10 insertions(+), 3 deletions(-)`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub diffstat: String,
    /// What was really enforced, layer by layer.
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
    /// What the device reported after the Run was Lost: it counts only if the Task accepts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_result: Option<Box<LateResult>>,
    /// Number of the last outbox report that this status includes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outbox_seq: Option<u64>,
}

/// Where a [`Run`] stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum RunPhase {
    /// Waits for a device.
    Pending,
    /// Bound; the device makes the workspace.
    Preparing,
    /// The agent works.
    Running,
    /// Waits for a person.
    WaitingForApproval,
    /// Frozen.
    Paused,
    /// The platform checks.
    Verifying,
    /// Checked; waits for publication, or is being published.
    Publishing,
    /// Done.
    Succeeded,
    /// Failed.
    Failed,
    /// Taken away from its device.
    Lost,
    /// Ended on request.
    Cancelled,
}

impl RunPhase {
    /// Whether it never changes again.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Succeeded | Self::Failed | Self::Lost | Self::Cancelled
        )
    }
}

/// Why an attempt failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Failure {
    /// Stable word.
    pub reason: FailureReason,
    /// Sentence for people, with what to do next.
    pub message: String,
    /// Exit code of the agent, when it ended by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Whether another attempt could help.
    pub retryable: bool,
    /// Not before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<Time>,
    /// Why this device could not serve the request at all: the scheduler remembers it for a while.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<super::RefusalReason>,
}

/// See [`Failure::reason`]. Each belongs to one [`FailureClass`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[expect(
    missing_docs,
    reason = "the words are the documentation; classes are on `class`"
)]
pub enum FailureReason {
    DeviceLost,
    DeviceRestarted,
    DiskFull,
    WorkspaceFailed,
    SandboxUnavailable,
    OutOfSlots,
    Evicted,
    #[default]
    Internal,
    RateLimited,
    Overloaded,
    ProviderError,
    QuotaExceeded,
    AuthFailed,
    AgentNotFound,
    AgentNotLoggedIn,
    SecretUnavailable,
    ContextLimit,
    Crashed,
    Killed,
    Stalled,
    NoFirstOutput,
    TimedOut,
    OutOfMemory,
    PidLimit,
    LoopDetected,
    ProtocolError,
    EmptyTurn,
    AgentError,
    VerifyFailed,
    SecretInResult,
    PublishConflict,
    PublishFailed,
    ScopeViolation,
    ApprovalDenied,
    ApprovalExpired,
    BudgetExhausted,
    DeadlineExceeded,
    Cancelled,
}

/// What a failure means for retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// Another device; does not spend `retry.limit`.
    Device,
    /// The next model or agent, after the provider's own pause.
    Provider,
    /// The next candidate at once; `SecretUnavailable`: the same again until the Secret is there.
    Candidate,
    /// Again, within `retry.limit`.
    Agent,
    /// Back to the agent with the failures attached, within `supervision.rounds`.
    Result,
    /// Publication alone.
    Publication,
    /// Never.
    Task,
}

impl FailureReason {
    /// The class that decides about retries.
    #[must_use]
    pub const fn class(self) -> FailureClass {
        match self {
            Self::DeviceLost
            | Self::DeviceRestarted
            | Self::DiskFull
            | Self::WorkspaceFailed
            | Self::SandboxUnavailable
            | Self::OutOfSlots
            | Self::Evicted
            | Self::Internal => FailureClass::Device,
            Self::RateLimited
            | Self::Overloaded
            | Self::ProviderError
            | Self::QuotaExceeded
            | Self::AuthFailed => FailureClass::Provider,
            Self::AgentNotFound | Self::AgentNotLoggedIn | Self::SecretUnavailable | Self::ContextLimit => {
                FailureClass::Candidate
            }
            Self::Crashed
            | Self::Killed
            | Self::Stalled
            | Self::NoFirstOutput
            | Self::TimedOut
            | Self::OutOfMemory
            | Self::PidLimit
            | Self::LoopDetected
            | Self::ProtocolError
            | Self::EmptyTurn
            | Self::AgentError => FailureClass::Agent,
            Self::VerifyFailed | Self::SecretInResult => FailureClass::Result,
            Self::PublishConflict | Self::PublishFailed => FailureClass::Publication,
            Self::ScopeViolation
            | Self::ApprovalDenied
            | Self::ApprovalExpired
            | Self::BudgetExhausted
            | Self::DeadlineExceeded
            | Self::Cancelled => FailureClass::Task,
        }
    }
}

/// What one check said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VerifyResult {
    /// Name of the check.
    pub name: String,
    /// Whether it passed.
    pub passed: bool,
    /// Exit code, when the command ended by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// How long it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<Duration>,
    /// Its output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<BlobRef>,
    /// The last lines of its output, cut.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tail: String,
    /// Device that it ran on.
    #[serde(rename = "where", skip_serializing_if = "String::is_empty")]
    pub where_: String,
    /// False when the agent could have influenced it (profile Off).
    pub trusted: bool,
    /// Why it did not pass.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What a sandbox really enforced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SandboxReport {
    /// Profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<SandboxProfile>,
    /// `Full` or `None`: whether the floor holds.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub floor: String,
    /// Layers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<SandboxLayer>,
}

/// One layer of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SandboxLayer {
    /// Name, for example `landlock`.
    pub name: String,
    /// `hard`, `soft` or `none`.
    pub strength: String,
    /// Why it is weaker, and what would help.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// The log of a Run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LogStatus {
    /// Digest of what is kept; empty while it grows.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// Bytes written in all.
    pub bytes: u64,
}

/// How publication went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PublishStatus {
    /// `Published`, `Conflict` or `Failed`.
    pub state: String,
    /// Commit that the branch points to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub commit: String,
    /// Why not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Number of the try that this answers.
    pub try_number: u32,
}

/// What a device reported after its Run was Lost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LateResult {
    /// Phase that it would have ended in; absent until its last report has arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<RunPhase>,
    /// What came out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<TaskResult>,
    /// What the checks said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub verify: Vec<VerifyResult>,
    /// Why it failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// What it used in all: not less than `status.usage` of the Run, which stays what was known when it was Lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// How publication went.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publish: Option<PublishStatus>,
    /// Paths that changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changed_files: Vec<String>,
    /// `2 files changed, ...`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub diffstat: String,
    /// When the device said that it holds a finished result which is still to arrive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub announced_time: Option<Time>,
    /// When the last report arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrival_time: Option<Time>,
}
