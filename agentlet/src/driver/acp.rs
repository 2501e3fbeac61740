//! A conversation in the Agent Client Protocol: JSON-RPC over the standard streams.
//!
//! What an agent says is read field by field, and only the fields that matter: unknown ones, and unknown kinds of
//! updates, are no reason to fail. Neither files nor terminals are offered to the agent: it works in its own folder with its own hands.

mod calls;
mod consent;
mod wire;

use panda_api::{Usage, UsagePaths};
use serde_json::{Value, json};

use self::calls::Calls;
use self::wire::Kind;
use super::lines::{Line, Lines};
use super::turn::{Judge, RpcError, Seen, Turn};
use super::{
    AcpConfig, AgentEvent, Driver, DriverConfig, Launch, MAX_RAW, MAX_TEXT, Output, Tail, TurnEnd,
    TurnOutcome, other, paths, usage,
};
use crate::process::Exit;

/// Version of the protocol.
const VERSION: u64 = 1;
/// Longest message: an edit names a file's old and new text.
const MAX_MESSAGE: usize = 8 << 20;
/// Longest name of a session.
const MAX_SESSION: usize = 512;
/// Where usage stands in the answer to a prompt, when the manifest does not say.
const USAGE: [(&str, &str, &str); 2] = [
    (
        "usage.inputTokens",
        "usage.outputTokens",
        "usage.cachedReadTokens",
    ),
    (
        "_meta.quota.token_count.input_tokens",
        "_meta.quota.token_count.output_tokens",
        "",
    ),
];

/// What was asked last and is not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Initialize,
    Authenticate,
    Resume,
    Load,
    New,
    Mode,
    /// The same, with agents that have their mode among other options.
    ModeOption,
    Prompt,
    /// Nothing more is said.
    Over,
}

impl Step {
    /// The method that is asked for.
    const fn method(self) -> &'static str {
        match self {
            Self::Initialize => "initialize",
            Self::Authenticate => "authenticate",
            Self::Resume => "session/resume",
            Self::Load => "session/load",
            Self::New => "session/new",
            Self::Mode => "session/set_mode",
            Self::ModeOption => "session/set_config_option",
            Self::Prompt => "session/prompt",
            Self::Over => "",
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Acp {
    config: AcpConfig,
    usage: Option<UsagePaths>,
    judge: Judge,
    lines: Lines,
    stderr: Tail,
    /// Lines that are no messages: the only words of an agent that fails before it speaks.
    raw: Tail,
    turn: Turn,
    step: Step,
    /// Id of what was asked last.
    id: u64,
    /// Ways in which the agent goes on with a session.
    resumes: bool,
    loads: bool,
    calls: Calls,
    /// The next text begins a new message.
    new_message: bool,
    message: Option<String>,
    cancelling: bool,
}

impl Acp {
    pub(super) fn new(config: &DriverConfig, acp: AcpConfig, judge: Judge) -> Self {
        Self {
            config: acp,
            usage: config.usage.clone(),
            judge,
            lines: Lines::up_to(MAX_MESSAGE),
            stderr: Tail::default(),
            raw: Tail::default(),
            turn: Turn {
                speaks: true,
                ..Turn::default()
            },
            step: Step::Initialize,
            id: 0,
            resumes: false,
            loads: false,
            calls: Calls::default(),
            new_message: true,
            message: None,
            cancelling: false,
        }
    }

    fn ask(&mut self, step: Step, params: &Value) -> Vec<Output> {
        self.id += 1;
        self.step = step;
        vec![Output::Write(wire::request(self.id, step.method(), params))]
    }

    fn over(&mut self, event: AgentEvent) -> Vec<Output> {
        self.step = Step::Over;
        vec![Output::Event(event), Output::CloseStdin, Output::TurnOver]
    }

    /// The agent does not speak the protocol.
    fn broken(&mut self, why: String) -> Vec<Output> {
        let message = format!("broke the Agent Client Protocol: {why}");
        self.turn.broken = Some(message.clone());
        self.over(AgentEvent::Error { message })
    }

    fn line(&mut self, line: Line) -> Vec<Output> {
        if self.step == Step::Over {
            return Vec::new();
        }
        let bytes = match line {
            Line::TooLong(_) => return self.broken(format!("a message is longer than {MAX_MESSAGE} bytes")),
            Line::Whole(bytes) => bytes,
        };
        let Some(first) = bytes.iter().find(|b| !b.is_ascii_whitespace()) else {
            return Vec::new();
        };
        if *first != b'{' {
            // A banner or a warning that some library wrote.
            self.raw.push(&bytes);
            self.raw.push(b"\n");
            let line = String::from_utf8_lossy(&bytes).chars().take(MAX_RAW).collect();
            return vec![Output::Event(AgentEvent::Raw { line })];
        }
        match wire::parse(&bytes) {
            Err(why) => self.broken(why),
            Ok((message, Kind::Request { id, method })) => self.asked(&id, &method, &message),
            Ok((message, Kind::Notification { method })) => self.told(&method, message, bytes.len()),
            Ok((message, Kind::Response { id, result })) => {
                if id != self.id {
                    return vec![Output::Event(other(message, bytes.len()))];
                }
                match result {
                    Ok(result) => self.answered(&result),
                    Err(error) => self.refused(error, &message),
                }
            }
        }
    }

    /// The agent asks.
    fn asked(&mut self, id: &Value, method: &str, message: &Value) -> Vec<Output> {
        if method != "session/request_permission" {
            let why = format!("{method:.200}: not offered by this client");
            return vec![Output::Write(wire::refusal(id, wire::METHOD_NOT_FOUND, &why))];
        }
        let params = &message["params"];
        if !params["options"].is_array() || !params["toolCall"].is_object() {
            let why = "options and toolCall are needed";
            return vec![Output::Write(wire::refusal(id, wire::INVALID_PARAMS, why))];
        }
        let mut outputs = self.call(&params["toolCall"]);
        let (answer, event) = consent::answer(params, self.config.consent, self.cancelling);
        outputs.push(Output::Event(event));
        outputs.push(Output::Write(wire::result(id, &answer)));
        outputs
    }

    /// The agent tells.
    fn told(&mut self, method: &str, message: Value, size: usize) -> Vec<Output> {
        let params = &message["params"];
        let update = (method == "session/update").then(|| &params["update"]);
        let seen = Seen {
            event: &message,
            update,
            data: None,
        };
        self.turn.look(&self.judge, &seen);
        // What comes before the prompt is the past of a session that was loaded.
        let ours = params["sessionId"].as_str() == Some(&self.turn.session) && self.step == Step::Prompt;
        let Some(update) = update.filter(|_| ours) else {
            return vec![Output::Event(other(message, size))];
        };
        match update["sessionUpdate"].as_str() {
            Some("agent_message_chunk") => {
                let Some(text) = update["content"]["text"].as_str() else {
                    return vec![Output::Event(other(message, size))];
                };
                let text = text.to_owned();
                let id = update["messageId"].as_str();
                self.text(&text, id.map(|id| id.chars().take(MAX_SESSION).collect()));
                vec![Output::Event(AgentEvent::Text { text })]
            }
            Some("tool_call" | "tool_call_update") => self.call(update),
            _ => vec![Output::Event(other(message, size))],
        }
    }

    fn call(&mut self, fields: &Value) -> Vec<Output> {
        self.new_message = true;
        self.turn.did_something = true;
        let event = self.calls.update(fields);
        event.map(Output::Event).into_iter().collect()
    }

    fn text(&mut self, text: &str, message: Option<String>) {
        if message.is_some() && message != self.message {
            self.new_message = true;
        }
        self.message = message;
        if std::mem::take(&mut self.new_message) {
            self.turn.text.clear();
        }
        self.turn.did_something |= !text.trim().is_empty();
        if self.turn.text.len() + text.len() <= MAX_TEXT {
            self.turn.text.push_str(text);
        }
    }

    /// The agent answers what was asked last.
    fn answered(&mut self, result: &Value) -> Vec<Output> {
        match self.step {
            Step::Initialize => self.initialized(result),
            Step::Authenticate => self.open(),
            Step::Resume | Step::Load => {
                let session = self.config.session.clone();
                self.opened(session, result)
            }
            Step::New => match result["sessionId"].as_str() {
                Some(id) if !id.is_empty() && id.len() <= MAX_SESSION => self.opened(id.to_owned(), result),
                _ => self.broken("session/new answered without a usable sessionId".into()),
            },
            Step::Mode | Step::ModeOption => self.prompt(),
            Step::Prompt => self.prompted(result),
            Step::Over => Vec::new(),
        }
    }

    fn refused(&mut self, error: RpcError, message: &Value) -> Vec<Output> {
        if matches!(self.step, Step::Resume | Step::Load) {
            // A fresh session is better than none.
            let message = format!(
                "session {:?} cannot be resumed: {}",
                self.config.session,
                error.words()
            );
            let mut outputs = vec![Output::Event(AgentEvent::Error { message })];
            outputs.extend(self.new_session());
            return outputs;
        }
        let seen = Seen {
            event: message,
            update: None,
            data: Some(&error.data),
        };
        self.turn.look(&self.judge, &seen);
        let message = format!("{}: {}", self.step.method(), error.words());
        self.turn.error = Some(message.clone());
        self.turn.rpc = Some(error);
        self.over(AgentEvent::Error { message })
    }

    fn initialized(&mut self, result: &Value) -> Vec<Output> {
        if result["protocolVersion"] != VERSION {
            let version = &result["protocolVersion"];
            return self.broken(format!(
                "it speaks version {version:.20}, and only {VERSION} is spoken here"
            ));
        }
        let agent = &result["agentCapabilities"];
        self.loads = agent["loadSession"] == true;
        self.resumes = agent["sessionCapabilities"]["resume"].is_object();
        if self.config.authenticate.is_empty() {
            return self.open();
        }
        let params = json!({"methodId": self.config.authenticate});
        self.ask(Step::Authenticate, &params)
    }

    /// Goes on with the session that was asked for, where the agent can.
    fn open(&mut self) -> Vec<Output> {
        // Without repeating the past, if there is a choice.
        let step = match (self.config.session.is_empty(), self.resumes, self.loads) {
            (false, true, _) => Step::Resume,
            (false, false, true) => Step::Load,
            _ => return self.new_session(),
        };
        let params = json!({"sessionId": self.config.session, "cwd": self.config.cwd, "mcpServers": []});
        self.ask(step, &params)
    }

    fn new_session(&mut self) -> Vec<Output> {
        let params = json!({"cwd": self.config.cwd, "mcpServers": []});
        self.ask(Step::New, &params)
    }

    fn opened(&mut self, session: String, result: &Value) -> Vec<Output> {
        self.turn.session.clone_from(&session);
        let mut outputs = vec![Output::Event(AgentEvent::Session { id: session })];
        outputs.extend(self.set_mode(result));
        outputs
    }

    /// Sets the mode, also when the agent says that it has it already: defaults change, and lie.
    fn set_mode(&mut self, result: &Value) -> Vec<Output> {
        let (mode, session) = (self.config.mode.clone(), self.turn.session.clone());
        if mode.is_empty() {
            return self.prompt();
        }
        let modes: Vec<&str> = paths::all(result, "modes.availableModes.*.id")
            .into_iter()
            .filter_map(Value::as_str)
            .collect();
        if modes.contains(&mode.as_str()) {
            return self.ask(Step::Mode, &json!({"sessionId": session, "modeId": mode}));
        }
        let options = result["configOptions"].as_array().map_or(&[][..], Vec::as_slice);
        let option = options
            .iter()
            .find(|option| option["category"] == "mode" || option["id"] == "mode");
        let known = option.is_some_and(|option| {
            let flat = paths::all(option, "options.*.value");
            let grouped = paths::all(option, "options.*.options.*.value");
            flat.into_iter()
                .chain(grouped)
                .any(|value| value.as_str() == Some(&mode))
        });
        if let Some(id) = option.filter(|_| known).and_then(|option| option["id"].as_str()) {
            let params = json!({"sessionId": session, "configId": id, "value": mode});
            return self.ask(Step::ModeOption, &params);
        }
        let known: String = modes.join(", ").chars().take(MAX_RAW).collect();
        self.broken(format!(
            "the session has no mode {mode:?} (it has: {known}); name one of them in the Agent's permissions"
        ))
    }

    fn prompt(&mut self) -> Vec<Output> {
        let text = json!({"type": "text", "text": std::mem::take(&mut self.config.prompt)});
        let params = json!({"sessionId": self.turn.session, "prompt": [text]});
        self.ask(Step::Prompt, &params)
    }

    fn prompted(&mut self, result: &Value) -> Vec<Output> {
        let Some(reason) = result["stopReason"].as_str() else {
            return self.broken("session/prompt answered without a stopReason".into());
        };
        let reason: String = reason.chars().take(MAX_SESSION).collect();
        self.turn.stop_ok = Some(reason == "end_turn");
        self.turn.stop_reason = Some(reason.clone());
        let mut outputs = Vec::new();
        if let Some(usage) = self.used(result) {
            self.turn.usage = usage.clone();
            outputs.push(Output::Event(AgentEvent::Usage { usage }));
        }
        outputs.extend(self.over(AgentEvent::End { stop_reason: reason }));
        outputs
    }

    fn used(&self, result: &Value) -> Option<Usage> {
        if let Some(paths) = &self.usage {
            return usage::amounts(paths, result).map(|(usage, _)| usage);
        }
        USAGE.iter().find_map(|(input, output, cached)| {
            let paths = UsagePaths {
                input: (*input).into(),
                output: (*output).into(),
                cached: (*cached).into(),
                input_includes_cached: Some(false),
                ..UsagePaths::default()
            };
            usage::amounts(&paths, result).map(|(usage, _)| usage)
        })
    }
}

impl Driver for Acp {
    fn launch(&self) -> Launch {
        Launch { stdin: true }
    }

    fn start(&mut self) -> Vec<Output> {
        let params = json!({
            "protocolVersion": VERSION,
            "clientCapabilities": {"fs": {"readTextFile": false, "writeTextFile": false}, "terminal": false},
            "clientInfo": {"name": "panda", "version": env!("CARGO_PKG_VERSION")},
        });
        self.ask(Step::Initialize, &params)
    }

    fn stdout(&mut self, bytes: &[u8]) -> Vec<Output> {
        let lines = self.lines.push(bytes);
        lines.into_iter().flat_map(|line| self.line(line)).collect()
    }

    fn stderr(&mut self, bytes: &[u8]) -> Vec<Output> {
        self.stderr.push(bytes);
        Vec::new()
    }

    fn cancel(&mut self) -> Vec<Output> {
        let before = std::mem::replace(&mut self.cancelling, true);
        if self.step != Step::Prompt || before {
            self.step = Step::Over;
            return vec![Output::CloseStdin];
        }
        let params = json!({"sessionId": self.turn.session});
        vec![Output::Write(wire::notification("session/cancel", &params))]
    }

    fn end_of_output(&mut self) -> Vec<Output> {
        let rest = self.lines.finish();
        rest.map_or_else(Vec::new, |line| self.line(line))
    }

    fn finish(self: Box<Self>, end: &TurnEnd) -> TurnOutcome {
        let mut turn = self.turn;
        turn.stderr = self.stderr.text();
        if turn.stderr.trim().is_empty() {
            turn.stderr = self.raw.text();
        }
        turn.usage.turns = u64::from(turn.did_something);
        let mut end = end.clone();
        if self.step == Step::Over {
            // What the process does once the turn is over says nothing of the turn.
            end.exit = Exit {
                code: Some(0),
                signal: None,
                oom: end.exit.oom,
            };
        } else if end.exit.success() {
            turn.broken = Some(format!("ended without answering {}", self.step.method()));
        }
        self.judge.decide(turn, &end)
    }
}

#[cfg(test)]
mod tests;
