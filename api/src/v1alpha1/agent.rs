//! Agent: how to run one kind of agent.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::shared::*;
use crate::meta::{Condition, Duration};
use crate::resource;

resource! {
    /// How to run one kind of agent: a new one is added by YAML only.
    Agent, "panda.dev", "v1alpha1", "agents", namespaced: true {
        /// How it is found, started, watched and understood.
        #[serde(default)]
        spec: AgentSpec,
        /// Where it is found.
        #[serde(default)]
        status: AgentStatus,
    }
}

/// Spec of an [`Agent`]. Placeholders `{{name}}` are replaced inside one argv element each and never pass a shell.
///
/// Known placeholders: `prompt`, `model`, `session`, `workspace`, `home`, `value` (limits), `baseUrl`, `run`, `task`, and
/// in `files` alone `credential`: such a file never lies on a disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentSpec {
    /// Name for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub display_name: String,
    /// What it can do, for example `code.edit`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// Where it comes from: a pin and a hint; nothing is installed unasked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub install: Option<Value>,
    /// How a device finds out that it is there; absent: it is when `command[0]` is on the PATH.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detect: Option<DetectSpec>,
    /// Ways to run it; the first that the device can run is used.
    pub drivers: Vec<DriverSpec>,
    /// Environment of the agent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
    /// Files written into the run's HOME before it starts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<AgentFile>,
    /// Commands run once in the run's HOME before the agent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pre_run: Vec<Vec<String>>,
    /// What its standard input is; default `Null`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<StdinMode>,
    /// Models and how to reach them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<ModelsSpec>,
    /// A subscription login of the device's owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login: Option<Value>,
    /// How each level of permission is asked for: `readOnly`, `ask`, `edits`, `all`; always set explicitly.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub permissions: BTreeMap<String, PermissionLevel>,
    /// How limits are handed over.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, LimitSpec>,
    /// How tool servers are handed over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcp: Option<Value>,
    /// Where skills go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skills: Option<Value>,
    /// Which file gives it context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<Value>,
    /// How it is stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopSpec>,
    /// Exit codes with a meaning: code to failure reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub exit_codes: BTreeMap<String, super::FailureReason>,
    /// Rules that recognise failures, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<FailureRule>,
    /// Where usage is read from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsagePaths>,
    /// How many runs of it a device takes at one time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// What it costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<PriceSpec>,
    /// What one run of it needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequest>,
    /// Oddities to allow for.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub quirks: BTreeMap<String, Value>,
}

/// How a device finds out that an agent is there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DetectSpec {
    /// Program and arguments that print the version.
    pub argv: Vec<String>,
    /// Regular expression; its first group is the version.
    #[serde(rename = "match", skip_serializing_if = "String::is_empty")]
    pub match_: String,
    /// How to tell that it is logged in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logged_in: Option<LoggedIn>,
}

/// Any of these says that the agent is logged in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LoggedIn {
    /// Environment variables.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Files under the owner's home.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
}

/// One way to run an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DriverSpec {
    /// How it speaks.
    pub kind: DriverKind,
    /// Which field paths its lines have; see [`JsonlDialect`] for `Jsonl`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dialect: String,
    /// Field paths of a `Jsonl` dialect that is not built in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<JsonlDialect>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// How an earlier session is resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume: Option<ResumeSpec>,
    /// Capabilities announced to an ACP agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_capabilities: Option<Value>,
    /// ACP authentication method.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub authenticate: String,
    /// Environment for this driver only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
}

/// See [`DriverSpec::kind`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DriverKind {
    /// Standard output is text; success is the exit code and the checks.
    #[default]
    Exec,
    /// One JSON event a line on standard output.
    Jsonl,
    /// Agent Client Protocol.
    #[serde(rename = "ACP")]
    Acp,
    /// Two-way JSON lines.
    StreamJson,
    /// JSON-RPC application server.
    AppServer,
    /// A terminal that a person attaches to.
    Pty,
}

/// Where a JSON-lines dialect keeps what matters. An event is recognised by the value at `type_path`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct JsonlDialect {
    /// Path of the event's type; default `type`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub type_path: String,
    /// Events that carry text of the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub text: Vec<EventPath>,
    /// Events that are tool calls; the path leads to the tool's name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_call: Vec<EventPath>,
    /// What the tools of the same event are called with, in the same order: by it a call that repeats is known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_input: Vec<EventPath>,
    /// Events that carry the session id.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub session: Vec<EventPath>,
    /// Events that are errors; the path leads to the message.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub error: Vec<EventPath>,
    /// Events that end the turn; the path leads to the stop reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub end: Vec<EventPath>,
    /// Stop reasons that mean success; empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ok_stop_reasons: Vec<String>,
}

/// A value in a kind of event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EventPath {
    /// The event's type; empty: any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub event: String,
    /// Dotted path of the value in the event; `*` takes every item of an array.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Only when the value at this path ...
    #[serde(skip_serializing_if = "String::is_empty")]
    pub when_path: String,
    /// ... is this text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub when: String,
}

/// How an earlier session is resumed: by more arguments or by another command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResumeSpec {
    /// Arguments added at the end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub append: Vec<String>,
    /// Command used instead.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
}

/// A file written before the agent starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentFile {
    /// Path under the run's HOME.
    pub path: String,
    /// Octal mode; default `0600`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mode: String,
    /// How values are escaped.
    pub format: FileFormat,
    /// Text with placeholders.
    pub template: String,
}

/// See [`AgentFile::format`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the formats are what they say")]
pub enum FileFormat {
    #[default]
    Raw,
    Json,
    Toml,
    Yaml,
}

/// See [`AgentSpec::stdin`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StdinMode {
    /// The null device.
    #[default]
    Null,
    /// The prompt, then closed.
    Prompt,
}

/// Models and how to reach them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelsSpec {
    /// Model when the task names none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub default: String,
    /// Models to try when that one fails.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fallback: Vec<String>,
    /// Models that the agent calls besides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub side: Vec<String>,
    /// Endpoint of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<EndpointSpec>,
}

/// Endpoint of a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSpec {
    /// Wire protocols, for example `anthropic`, `openai-chat`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub apis: Vec<String>,
    /// Base URL; empty for the agent's own.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub base_url: String,
    /// Variable that takes it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub base_url_env: String,
    /// Text added to it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub suffix: String,
    /// Where the key comes from and which variable takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential: Option<CredentialSpec>,
}

/// The key that an endpoint asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CredentialSpec {
    /// Where it comes from; without a name, it is the agent's own affair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<SecretKeyRef>,
    /// Variable that takes it. In [`AgentSpec::files`] it is `{{credential}}`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub env: String,
}

impl AgentSpec {
    /// The key of the model's endpoint, when it comes from a Secret.
    #[must_use]
    pub fn credential(&self) -> Option<&CredentialSpec> {
        let credential = self.models.as_ref()?.endpoint.as_ref()?.credential.as_ref()?;
        let named = credential
            .secret_key_ref
            .as_ref()
            .is_some_and(|r| !r.name.is_empty());
        named.then_some(credential)
    }

    /// Whether a run of it whose environment is `env` has its login with it, so that the device need not be logged in.
    #[must_use]
    pub fn brings_login(&self, env: &[EnvVar]) -> bool {
        let logins = self.detect.as_ref().and_then(|detect| detect.logged_in.as_ref());
        let names = logins.map_or(&[][..], |logins| &logins.env);
        let credential = self.credential().map(|credential| &credential.env);
        let set = env.iter().chain(&self.env).map(|variable| &variable.name);
        set.chain(credential).any(|name| names.contains(name))
    }
}

/// How one level of permission is asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PermissionLevel {
    /// ACP mode.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub acp_mode: String,
    /// Arguments to add. Over ACP with a mode, those after an element that the command does not have are left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<ArgvAdd>,
    /// Environment to add.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
}

/// Arguments to add to a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ArgvAdd {
    /// Element after which they go; empty: at the end.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub after: String,
    /// The arguments.
    pub add: Vec<String>,
}

/// How a limit is handed over; `{{value}}` is the limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LimitSpec {
    /// Arguments to add.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    /// Variable to set.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub env: String,
}

/// How an agent is stopped. The whole process tree ends in any case.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StopSpec {
    /// First signal: `TERM` (default), `INT`, `HUP` or `KILL`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub signal: String,
    /// `Group` (default) or `Process`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub to: String,
    /// Time before KILL; default 5s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace: Option<Duration>,
}

/// Recognises a failure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FailureRule {
    /// What it looks like; all that is set must hold.
    #[serde(rename = "match")]
    pub match_: FailureMatch,
    /// What it means.
    pub reason: super::FailureReason,
    /// Dotted path of the time when it passes (epoch seconds or RFC 3339), or of seconds to wait.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reset_at: String,
}

/// What a failure looks like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FailureMatch {
    /// JSON-RPC error code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc_code: Option<i64>,
    /// Dotted paths and values in the error's data.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, Value>,
    /// Dotted paths and values in an event.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub event: BTreeMap<String, Value>,
    /// Dotted paths and values in an ACP update.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub update: BTreeMap<String, Value>,
    /// Regular expression on the last text or error message.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Regular expression on standard error.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stderr: String,
    /// A turn without text and tool call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty_turn: Option<bool>,
    /// Stop reason.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stop_reason: String,
}

/// Where usage is read from: dotted paths in one kind of event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UsagePaths {
    /// The event's type.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub event: String,
    /// Input tokens.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub input: String,
    /// Output tokens.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub output: String,
    /// Cached tokens.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cached: String,
    /// Money.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub money: String,
    /// Whether `input` counts the cached tokens too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_includes_cached: Option<bool>,
    /// Whether the amounts are of one event each and add up; default false: the newest event counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_event: Option<bool>,
}

/// What an agent costs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PriceSpec {
    /// Per million input tokens.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub input_per_million: String,
    /// Per million output tokens.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub output_per_million: String,
    /// Per million cached tokens.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cached_per_million: String,
    /// ISO 4217 code.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub currency: String,
}

/// Status of an [`Agent`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentStatus {
    /// Generation that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Devices that have it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<AgentOnDevice>,
    /// Live runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<u32>,
    /// Aspects of its state.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// An agent on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentOnDevice {
    /// Device.
    pub name: String,
    /// Version found.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Driver that would be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<DriverKind>,
    /// Whether it can be used.
    pub ready: bool,
    /// Why not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}
