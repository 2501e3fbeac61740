//! How agents are talked to, and how the end of a turn is judged.
//!
//! A driver does no input or output of its own: bytes go in, [`Output`]s come out, and the supervisor moves them. So a
//! recorded session is a test, cut at any byte.
//!
//! | module | idea |
//! |---|---|
//! | `acp` | a conversation in the Agent Client Protocol |
//! | `exec` | standard output is text |
//! | `jsonl` | one JSON event a line, understood by a table of field paths |
//! | `dialects` | the tables that come with the agentlet |
//! | `lines` | lines out of a stream of bytes, within a bound |
//! | `paths` | dotted paths into JSON |
//! | [`render`] | an Agent manifest turned into a job |
//! | `stream_json` | a conversation in JSON lines both ways |
//! | `turn` | what a turn left behind, and what it means |
//! | `usage` | amounts that an agent says it used |

mod acp;
mod dialects;
mod exec;
mod jsonl;
mod lines;
mod paths;
mod plain;
pub mod render;
mod stream_json;
mod turn;
mod usage;

use std::collections::BTreeMap;
use std::path::PathBuf;

use bytes::Bytes;
use panda_api::{DriverKind, FailureReason, FailureRule, JsonlDialect, Usage, UsagePaths};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

pub(crate) use plain::plain;

pub use dialects::{Builtin, NAMES as DIALECTS, dialect};
pub(crate) use turn::is_retryable;
pub use turn::{TurnEnd, TurnOutcome};

/// How one agent is talked to and judged: the part of its manifest that the supervisor needs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DriverConfig {
    /// How it speaks.
    pub kind: DriverKind,
    /// Field paths of its lines, for `Jsonl`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dialect: Option<JsonlDialect>,
    /// Text for its standard input, which is then closed; absent: the null device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Where usage is read from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsagePaths>,
    /// Rules that recognise failures, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<FailureRule>,
    /// Exit codes with a meaning.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub exit_codes: BTreeMap<i32, FailureReason>,
    /// What is said in a conversation, for `ACP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acp: Option<AcpConfig>,
    /// What is said in a conversation, for `StreamJson`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_json: Option<StreamJsonConfig>,
}

/// What an agent is asked for that speaks JSON lines both ways.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamJsonConfig {
    /// The prompt.
    pub prompt: String,
    /// What is answered when the agent asks whether it may.
    pub consent: Consent,
}

/// What an ACP agent is asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AcpConfig {
    /// The prompt.
    pub prompt: String,
    /// Working directory of the session.
    pub cwd: PathBuf,
    /// Session to go on with; empty for a new one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub session: String,
    /// Method of authentication; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub authenticate: String,
    /// Mode of the session; empty leaves it to the command line.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mode: String,
    /// What is answered when the agent asks whether it may.
    pub consent: Consent,
}

/// What is answered when an agent asks whether it may, as long as nobody is there to be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Consent {
    /// No.
    #[default]
    Nothing,
    /// Yes to reading and editing files, no to everything else.
    Edits,
    /// Yes.
    All,
}

/// What a driver needs of the process that it talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Whether standard input is a pipe that the driver writes to; else it is the null device.
    pub stdin: bool,
}

/// Something that an agent did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum AgentEvent {
    /// Words of the model.
    Text {
        /// The words, or a piece of them.
        text: String,
    },
    /// A tool was called. Told again with the same `id` when more is known of the call.
    ToolCall {
        /// Which call it is; empty when the agent gives none.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        id: String,
        /// Name of the tool.
        name: String,
        /// What it is called with: JSON with sorted keys, or the digest of that when it is long.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<String>,
    },
    /// The agent asked whether it may, and was answered.
    Permission {
        /// What it wants to do.
        what: String,
        /// The answer.
        allowed: bool,
    },
    /// The agent's own session.
    Session {
        /// As the agent names it.
        id: String,
    },
    /// What was used so far, in all.
    Usage {
        /// Amounts.
        usage: Usage,
    },
    /// Something went wrong; not necessarily for good.
    Error {
        /// As the agent says it.
        message: String,
    },
    /// The turn ended.
    End {
        /// Why, as the agent says it.
        stop_reason: String,
    },
    /// A line that is an event and is not understood.
    Other {
        /// The event.
        event: Value,
    },
    /// A line that is no event, or one too long to be read.
    Raw {
        /// Its beginning, as text.
        line: String,
    },
}

/// What the supervisor is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Pass this on.
    Event(AgentEvent),
    /// Write this to standard input.
    Write(Bytes),
    /// Close standard input.
    CloseStdin,
    /// Nothing more is expected of the agent: it may end, and is ended if it does not.
    TurnOver,
}

/// Talks to one agent for one turn.
pub trait Driver: Send + std::fmt::Debug {
    /// What it needs.
    fn launch(&self) -> Launch;
    /// The process runs.
    fn start(&mut self) -> Vec<Output>;
    /// Bytes of standard output, cut anywhere.
    fn stdout(&mut self, bytes: &[u8]) -> Vec<Output>;
    /// Bytes of standard error, cut anywhere.
    fn stderr(&mut self, bytes: &[u8]) -> Vec<Output>;
    /// The turn is to end: what the agent should be told before the signals. [`Output::Write`] says that it answers
    /// with the end of its turn, for which it gets a moment.
    fn cancel(&mut self) -> Vec<Output>;
    /// Standard output has ended: what was held back for a line break.
    fn end_of_output(&mut self) -> Vec<Output> {
        Vec::new()
    }
    /// The process is gone and its output read to the end.
    fn finish(self: Box<Self>, end: &TurnEnd) -> TurnOutcome;
}

/// Why there is no driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Later.
    #[error("driver kind {0:?} is not implemented yet; use ACP, StreamJson, Jsonl or Exec")]
    NotImplemented(DriverKind),
    /// JSON lines without paths.
    #[error("a driver of JSON lines needs a dialect")]
    NoDialect,
    /// A conversation without anything to say.
    #[error("a driver that holds a conversation needs a prompt")]
    NoConversation,
    /// A rule that cannot be used.
    #[error("failures[{index}].match.{field}: {because}")]
    BadRule {
        /// Which rule.
        index: usize,
        /// Which field of it.
        field: &'static str,
        /// What is wrong.
        because: String,
    },
}

/// The driver that a configuration asks for.
///
/// # Errors
///
/// When there is none, or the configuration is wrong.
pub fn build(config: &DriverConfig) -> Result<Box<dyn Driver>, Error> {
    let judge = turn::Judge::new(config)?;
    match config.kind {
        DriverKind::Exec => Ok(Box::new(exec::Exec::new(config, judge))),
        DriverKind::Jsonl => {
            let dialect = config.dialect.clone().ok_or(Error::NoDialect)?;
            Ok(Box::new(jsonl::Jsonl::new(config, dialect, judge)))
        }
        DriverKind::Acp => {
            let acp = config.acp.clone().ok_or(Error::NoConversation)?;
            Ok(Box::new(acp::Acp::new(config, acp, judge)))
        }
        DriverKind::StreamJson => {
            let stream = config.stream_json.clone().ok_or(Error::NoConversation)?;
            let dialect = config.dialect.clone().ok_or(Error::NoDialect)?;
            Ok(Box::new(stream_json::StreamJson::new(
                config, stream, dialect, judge,
            )))
        }
        kind @ (DriverKind::AppServer | DriverKind::Pty) => Err(Error::NotImplemented(kind)),
    }
}

/// Whether this kind of driver is built.
#[must_use]
pub const fn is_implemented(kind: DriverKind) -> bool {
    match kind {
        DriverKind::Acp | DriverKind::Exec | DriverKind::Jsonl | DriverKind::StreamJson => true,
        DriverKind::AppServer | DriverKind::Pty => false,
    }
}

fn stdin_outputs(stdin: Option<&String>) -> Vec<Output> {
    stdin.map_or_else(Vec::new, |text| {
        vec![
            Output::Write(Bytes::copy_from_slice(text.as_bytes())),
            Output::CloseStdin,
        ]
    })
}

/// Most text of one message that is kept.
const MAX_TEXT: usize = 256 << 10;

/// Longest text of a line that is no event.
const MAX_RAW: usize = 2000;

/// Largest event that is passed on whole.
const MAX_EVENT: usize = 64 << 10;

/// An event of `size` bytes that is not understood, whole if it is not too large.
fn other(event: Value, size: usize) -> AgentEvent {
    if size <= MAX_EVENT {
        return AgentEvent::Other { event };
    }
    let line = event.to_string().chars().take(MAX_RAW).collect();
    AgentEvent::Raw { line }
}

/// Longest input of a tool call that is kept as it is.
const MAX_INPUT: usize = 2 << 10;

/// The input of a tool call, the same for inputs that mean the same: JSON with sorted keys, or its digest.
fn input_text(input: &Value) -> String {
    let text = sorted(input);
    if text.len() <= MAX_INPUT {
        return text;
    }
    format!("sha256:{}", hex::encode(Sha256::digest(text.as_bytes())))
}

fn sorted(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let sorted_map: BTreeMap<&String, &Value> = map.iter().collect();
            let fields = sorted_map
                .into_iter()
                .map(|(name, value)| format!("{}:{}", Value::from(name.as_str()), sorted(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(sorted).collect();
            format!("[{}]", items.join(","))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

/// The last part of a stream, as text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tail {
    bytes: std::collections::VecDeque<u8>,
}

impl Tail {
    const KEEP: usize = 8 << 10;

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(Self::KEEP)..];
        self.bytes.extend(bytes);
        let excess = self.bytes.len().saturating_sub(Self::KEEP);
        self.bytes.drain(..excess);
    }

    pub(crate) fn text(&self) -> String {
        let bytes: Vec<u8> = self.bytes.iter().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// At most `max` characters from the end, at the start of a line where there is one, as plain text.
pub(crate) fn last_words(text: &str, max: usize) -> String {
    let text = plain(text);
    let text = text.trim();
    let count = text.chars().count();
    if count <= max {
        return text.into();
    }
    let cut: String = text.chars().skip(count - max).collect();
    match cut.split_once('\n') {
        Some((_, rest)) if !rest.trim().is_empty() => rest.into(),
        _ => cut,
    }
}
