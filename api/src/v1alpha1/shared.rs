//! Parts that several kinds share.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::meta::{Duration, LabelSelector, LocalObjectReference};

/// An amount of money as an exact decimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Money {
    /// Decimal number, for example `5.00`.
    pub amount: String,
    /// ISO 4217 code, for example `USD`.
    pub currency: String,
}

/// What an attempt used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// Tokens read by the model, cached ones included.
    pub input_tokens: u64,
    /// Tokens written by the model.
    pub output_tokens: u64,
    /// Tokens read from the provider's cache.
    pub cached_tokens: u64,
    /// What it cost, when known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub money: Option<Money>,
    /// Time the agent worked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_clock: Option<Duration>,
    /// Turns of the agent.
    pub turns: u64,
}

/// Content in the blob store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BlobRef {
    /// `sha256:` and 64 hexadecimal digits.
    pub digest: String,
    /// Size in bytes.
    pub size: u64,
}

/// A named artifact of a Run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Artifact {
    /// Name, as in `spec.outputs[].name`, or `patch`, `bundle`.
    pub name: String,
    /// Path in the workspace that it was read from; bytes that are not UTF-8 are written `\xNN`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// `sha256:` and 64 hexadecimal digits.
    pub digest: String,
    /// Size in bytes.
    pub size: u64,
}

/// What came out of an attempt or a Task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskResult {
    /// One line: the agent's last words, cut.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// The agent's answer, for questions.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub answer: String,
    /// Branch that holds the result, once published.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub branch: String,
    /// Commit that holds the result.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub commit: String,
    /// Commit that the work started from.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub base_commit: String,
    /// The change as a patch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<BlobRef>,
    /// The commits as a git bundle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundle: Option<BlobRef>,
    /// Declared outputs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
}

/// Environment variable of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvVar {
    /// Name.
    #[schemars(required)]
    pub name: String,
    /// Value, in clear.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Where the value comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_from: Option<EnvVarSource>,
}

impl EnvVar {
    /// The key of a Secret that its value comes from.
    #[must_use]
    pub fn secret_key_ref(&self) -> Option<&SecretKeyRef> {
        self.value_from.as_ref()?.secret_key_ref.as_ref()
    }
}

/// Where the value of an [`EnvVar`] comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvVarSource {
    /// A key of a Secret in the same namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<SecretKeyRef>,
}

/// A key of a Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretKeyRef {
    /// Name of the Secret.
    pub name: String,
    /// Key in it.
    pub key: String,
}

/// An agent to try, with a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentChoice {
    /// Name of an Agent in the same namespace.
    #[schemars(required)]
    pub name: String,
    /// Model; empty for the agent's own default.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub model: String,
}

/// What an agent must be able to do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Requirements {
    /// Capabilities that the Agent must list, all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
}

/// Which device may run the work, and what happens when it is out of reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceRequest {
    /// Hard pin to one device; still goes through the scheduler.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Labels that the device must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Taints that the work tolerates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// What must be free on the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequest>,
    /// What happens while the device is out of reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_disconnect: Option<OnDisconnect>,
}

/// A taint that work tolerates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    /// Taint key; empty with operator `Exists` tolerates every taint.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// `Equal` (default) or `Exists`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operator: String,
    /// Value for `Equal`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// Effect to tolerate; empty for all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub effect: String,
}

/// Keeps work away from a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    /// Key.
    pub key: String,
    /// Value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// Resources as Kubernetes quantities.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceRequest {
    /// Processors, for example `1` or `500m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Memory, for example `1Gi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Disk, for example `2Gi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    /// Memory of graphics processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_memory: Option<String>,
}

/// What happens to a run while its device is out of reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OnDisconnect {
    /// Whether the run goes on, freezes or ends when its grant ends.
    pub policy: DisconnectPolicy,
    /// How long it may go on (or stay frozen) after its grant ended.
    pub after: Duration,
    /// Whose result counts when the device comes back.
    pub on_return: ReturnPolicy,
}

impl Default for OnDisconnect {
    fn default() -> Self {
        Self {
            policy: DisconnectPolicy::Continue,
            after: Duration::from_secs(600),
            on_return: ReturnPolicy::KeepFirst,
        }
    }
}

/// See [`OnDisconnect::policy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DisconnectPolicy {
    /// Work on, and end after `after`.
    #[default]
    Continue,
    /// Freeze, and end after `after`.
    Pause,
    /// End at once.
    Stop,
}

/// See [`OnDisconnect::on_return`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReturnPolicy {
    /// The first complete result to arrive counts.
    #[default]
    KeepFirst,
    /// The newer attempt counts.
    KeepNew,
    /// The older attempt counts if it finished.
    KeepOld,
}

/// Where the work happens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkspaceSpec {
    /// A git repository to work on; absent: an empty folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git: Option<GitSpec>,
    /// Globs of paths that the work may change; a change outside puts the task in Review.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub writes: Vec<String>,
    /// Where the result goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<ResultSpec>,
    /// When the folder is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retain: Option<Retain>,
}

/// A git repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GitSpec {
    /// `https` or `ssh` URL; exactly one of `url` and `path`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// Absolute path on the device, under its `workspaceRoots`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Branch, tag or commit to start from; empty for `HEAD`.
    #[serde(rename = "ref", skip_serializing_if = "String::is_empty")]
    pub ref_: String,
    /// Whether submodules are checked out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub submodules: Option<bool>,
    /// Secret with credentials for `url`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_ref: Option<LocalObjectReference>,
}

/// Where the result of git work goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResultSpec {
    /// Branch; `{{name}}` is the task's name. Default `panda/{{name}}`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub branch: String,
    /// Whether the branch is moved in the repository the work came from.
    pub push: Push,
}

/// See [`ResultSpec::push`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Push {
    /// Patch and bundle stay in the blob store.
    #[default]
    Never,
    /// The branch is moved once the result is accepted.
    OnSuccess,
}

/// When a workspace is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Retain {
    /// Always.
    Always,
    /// When the task did not succeed.
    #[default]
    OnFailure,
    /// Never.
    Never,
}

/// A file to keep from the workspace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OutputSpec {
    /// Name of the artifact.
    #[schemars(required)]
    pub name: String,
    /// Path in the workspace.
    pub path: String,
}

/// How strongly a run is walled in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SandboxSpec {
    /// Profile; absent: the device's default, resolved at binding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<SandboxProfile>,
    /// Network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkSpec>,
    /// Caps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<SandboxLimits>,
}

/// See [`SandboxSpec::profile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SandboxProfile {
    /// Everything that the device can enforce.
    Strict,
    /// The usual walls.
    Standard,
    /// No walls but the floor.
    Off,
}

/// Network of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkSpec {
    /// Mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<NetworkMode>,
    /// Hosts for mode `Allow`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
}

/// See [`NetworkSpec::mode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NetworkMode {
    /// None at all.
    None,
    /// Only the model's endpoint.
    ModelOnly,
    /// Only the listed hosts.
    Allow,
    /// The host's network.
    Host,
}

/// Caps of a sandbox, as Kubernetes quantities.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SandboxLimits {
    /// Processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<i64>,
    /// Disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
}

/// One check that the platform runs on the result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VerifySpec {
    /// Name of the check.
    #[schemars(required)]
    pub name: String,
    /// Program and arguments; exit code 0 passes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// How long it may take; default 10m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// Globs of paths taken from the base commit first, so that the agent cannot pass by editing them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub restore: Vec<String>,
    /// Network of the check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkMode>,
    /// Where it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<VerifyDevice>,
    /// A reviewing agent instead of a command.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub agent: String,
    /// What the reviewer is asked.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub prompt: String,
}

/// See [`VerifySpec::device`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VerifyDevice {
    /// The device that ran the attempt.
    #[default]
    Same,
    /// Another device.
    Other,
}

/// How an attempt is watched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SupervisionSpec {
    /// Without event, output or CPU use for this long the attempt is Stalled; default 240s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silence: Option<Duration>,
    /// Without any first sign of life for this long it is NoFirstOutput; default 120s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_output: Option<Duration>,
    /// How often a result that failed verification is sent back; default 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds: Option<u32>,
    /// Agent that judges.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub judge: String,
    /// How often in a row an agent may make the same tool calls before the attempt is LoopDetected; default 8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeat_limit: Option<u32>,
}
