//! Task: an outcome wanted.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::shared::*;
use crate::meta::{Condition, Duration, MicroTime, Time};
use crate::resource;

resource! {
    /// An outcome wanted, like a Job: what to do, who may do it, how it is checked.
    Task, "panda.dev", "v1alpha1", "tasks", namespaced: true {
        /// What is wanted.
        #[serde(default)]
        spec: TaskSpec,
        /// What has happened so far.
        #[serde(default)]
        status: TaskStatus,
    }
}

/// Spec of a [`Task`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskSpec {
    /// What the agent is asked to do, 1 B to 256 KiB.
    #[schemars(required)]
    pub prompt: String,
    /// How the work is shaped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<TaskMode>,
    /// Agents to try, in order; empty: any Agent that matches `requires`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name", "model"]))]
    pub agents: Vec<AgentChoice>,
    /// What the agent must be able to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requires: Option<Requirements>,
    /// Which device may run it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceRequest>,
    /// Where it works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<WorkspaceSpec>,
    /// Artifacts of other tasks that it needs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<InputSpec>,
    /// Files to keep.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub outputs: Vec<OutputSpec>,
    /// Skills to give the agent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<String>,
    /// Memories to give the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemorySpec>,
    /// Environment of the agent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
    /// How strongly it is walled in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxSpec>,
    /// Checks that the platform runs on the result; all must pass.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub verify: Vec<VerifySpec>,
    /// How an attempt is watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supervision: Option<SupervisionSpec>,
    /// Which policy decides what needs a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalSpec>,
    /// How failures are retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetrySpec>,
    /// How long the agent may work in one attempt; default 30m. Verification, waiting and suspension do not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt_timeout: Option<Duration>,
    /// How long everything may take, waiting included; absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Duration>,
    /// What it may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetSpec>,
    /// Higher goes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// True: nothing is started; a live attempt is frozen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// True: everything ends; sticky until `rerun` is raised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<bool>,
    /// Raised to start a finished or cancelled task afresh; never goes down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rerun: Option<i64>,
    /// Whether it may push lower work aside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption: Option<Preemption>,
    /// True: the run gets a token for this API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_access: Option<bool>,
    /// How long a finished task is kept; absent: for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_after_finished: Option<Duration>,
    /// Tasks with the same key are done once.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dedupe_key: String,
}

/// See [`TaskSpec::mode`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaskMode {
    /// One agent does it.
    #[default]
    Direct,
    /// A plan is made first.
    Planned,
    /// The planner decides.
    Auto,
}

/// An artifact of another task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InputSpec {
    /// Name here.
    pub name: String,
    /// Where it comes from.
    pub from: InputSource,
}

/// Where an input comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InputSource {
    /// Task.
    pub task: String,
    /// Artifact of that task.
    pub artifact: String,
}

/// Memories given to the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemorySpec {
    /// The project's memory.
    pub project: bool,
    /// The person's memory.
    pub user: bool,
}

/// Which policy decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ApprovalSpec {
    /// Name of the Policy.
    pub policy: String,
}

/// How failures are retried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RetrySpec {
    /// Retries after failures of the agent; default 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Pauses between attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    /// Exit codes after which no retry makes sense.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub non_retryable_exit_codes: Vec<i32>,
}

/// Exponential back-off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Backoff {
    /// First pause.
    pub base: Duration,
    /// Factor from one pause to the next, 1 to 10.
    pub factor: u32,
    /// Longest pause.
    pub cap: Duration,
    /// How pauses are spread.
    pub jitter: Jitter,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(1),
            factor: 2,
            cap: Duration::from_secs(300),
            jitter: Jitter::Full,
        }
    }
}

/// See [`Backoff::jitter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Jitter {
    /// Evenly between zero and the pause.
    #[default]
    Full,
    /// Not at all.
    None,
}

/// What a task may use, retries and children included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetSpec {
    /// Tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Money.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub money: Option<Money>,
    /// Turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<u64>,
    /// Child tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub children: Option<u64>,
}

/// See [`TaskSpec::preemption`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Preemption {
    /// Never.
    #[default]
    Never,
    /// Work of lower priority.
    Lower,
}

/// Status of a [`Task`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskStatus {
    /// Generation that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<TaskPhase>,
    /// Aspects of its state.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Attempts so far, over all reruns; the newest attempt's number.
    pub attempts: u32,
    /// Retries of this rerun, by class of failure.
    pub retries: Retries,
    /// Place in the list of candidates that the next attempt uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidate: Option<u32>,
    /// The value of `spec.rerun` that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rerun: Option<i64>,
    /// Name of the newest Run.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub current_run: String,
    /// Uid of that Run, once it was seen; until then the name is only reserved.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub current_run_uid: String,
    /// Agent of the newest Run.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub agent: String,
    /// Device of the newest Run.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub device: String,
    /// Name of the Run whose result counts; set once a rerun.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub accepted_run: String,
    /// When the next attempt may start; in microseconds, so that tasks which fail together do not return together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt_time: Option<MicroTime>,
    /// When the current rerun started: the deadline counts from here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Why it waits, a line a device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unschedulable: Vec<Refusal>,
    /// What all attempts used.
    pub usage: Usage,
    /// Names of the Runs whose usage is already in `usage`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub booked_runs: Vec<String>,
    /// Why it failed, or why the last attempt did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<super::Failure>,
    /// What came out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<TaskResult>,
}

/// Where a [`Task`] stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TaskPhase {
    /// Accepted; nothing done yet, or a pause before the next attempt.
    Pending,
    /// A plan is being made.
    Planning,
    /// Waits for a device.
    Queued,
    /// An agent works.
    Running,
    /// Frozen.
    Paused,
    /// Waits for a person's decision.
    WaitingForApproval,
    /// The platform checks the result.
    Verifying,
    /// Waits for a person's judgement of the result.
    Review,
    /// The result is being published.
    Publishing,
    /// Done, checked and published.
    Succeeded,
    /// Ended without an accepted result.
    Failed,
    /// Ended by a person.
    Cancelled,
}

impl TaskPhase {
    /// Whether nothing more happens by itself.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }
}

/// Retries by class of failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Retries {
    /// After failures of the agent.
    pub agent: u32,
    /// After failures of the model's provider.
    pub provider: u32,
    /// After failures of a device.
    pub device: u32,
    /// After Secrets that were not there.
    pub secret: u32,
    /// After results that failed verification.
    pub rounds: u32,
    /// Of publication alone.
    pub publication: u32,
}

/// Why one device (or all, when `device` is empty) cannot take a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// Device; empty when no device could.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub device: String,
    /// Stable word.
    pub reason: RefusalReason,
    /// Sentence for people.
    pub message: String,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// See [`Refusal::reason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the words are the documentation")]
pub enum RefusalReason {
    DeviceNotReady,
    Cordoned,
    TaintNotTolerated,
    SelectorMismatch,
    MissingCapability,
    AgentNotFound,
    AgentNotLoggedIn,
    InsufficientResources,
    NoFreeSlot,
    AgentBusy,
    CircuitOpen,
    SandboxUnavailable,
    NamespaceNotServed,
    WorkspaceRootDenied,
    RepositoryAbsent,
    DiskPressure,
}
