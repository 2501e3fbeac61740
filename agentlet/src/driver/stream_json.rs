//! A conversation in JSON lines both ways, as Claude Code speaks it: events that a table of field paths understands,
//! and between them requests of either side.
//!
//! The prompt goes in by standard input; the turn is over with its `result`, whatever the process does then.

use bytes::Bytes;
use panda_api::JsonlDialect;
use serde_json::{Value, json};

use super::jsonl::{Jsonl, parse};
use super::lines::{Line, Lines};
use super::turn::Judge;
use super::{
    AgentEvent, Consent, Driver, DriverConfig, Launch, Output, StreamJsonConfig, TurnEnd, TurnOutcome,
    input_text,
};
use crate::process::Exit;

/// Longest message: a request to write a file has the file in it.
const MAX_MESSAGE: usize = 8 << 20;
/// Longest id that is echoed.
const MAX_ID: usize = 1 << 10;
/// Longest description of what was asked for.
const MAX_WHAT: usize = 500;
/// Ids of what is asked here; only one of each is asked in a turn.
const INITIALIZE: &str = "initialize";
const INTERRUPT: &str = "interrupt";
/// Tools that read and edit files and do nothing else.
const FILE_TOOLS: [&str; 9] = [
    "Edit",
    "Glob",
    "Grep",
    "LS",
    "MultiEdit",
    "NotebookEdit",
    "Read",
    "TodoWrite",
    "Write",
];

/// See the module.
#[derive(Debug)]
pub(super) struct StreamJson {
    config: StreamJsonConfig,
    events: Jsonl,
    lines: Lines,
    over: bool,
    cancelling: bool,
}

impl StreamJson {
    pub(super) fn new(
        config: &DriverConfig,
        stream: StreamJsonConfig,
        dialect: JsonlDialect,
        judge: Judge,
    ) -> Self {
        Self {
            config: stream,
            events: Jsonl::new(config, dialect, judge),
            lines: Lines::up_to(MAX_MESSAGE),
            over: false,
            cancelling: false,
        }
    }

    fn line(&mut self, line: Line) -> Vec<Output> {
        if self.over {
            return Vec::new();
        }
        let bytes = match line {
            Line::TooLong(_) => return self.broken(format!("a message is longer than {MAX_MESSAGE} bytes")),
            Line::Whole(bytes) => bytes,
        };
        let Some(message) = parse(&bytes) else {
            return self.events.line(Line::Whole(bytes));
        };
        match message["type"].as_str() {
            Some("control_request") => self.asked(&message),
            Some("control_response") => self.answered(&message["response"]),
            // Pieces of what comes whole later: a sign of life and nothing more.
            Some("stream_event" | "keep_alive" | "control_cancel_request") => Vec::new(),
            Some("result") => {
                let mut outputs = self.events.event(message, bytes.len());
                outputs.extend(self.end());
                outputs
            }
            _ => self.events.event(message, bytes.len()),
        }
    }

    fn end(&mut self) -> Vec<Output> {
        self.over = true;
        vec![Output::CloseStdin, Output::TurnOver]
    }

    /// The agent does not speak as it should.
    fn broken(&mut self, why: String) -> Vec<Output> {
        let message = format!("broke the conversation: {why}");
        self.events.turn.broken = Some(message.clone());
        let mut outputs = vec![Output::Event(AgentEvent::Error { message })];
        outputs.extend(self.end());
        outputs
    }

    /// The agent asks.
    fn asked(&mut self, message: &Value) -> Vec<Output> {
        let Some(id) = message["request_id"].as_str().filter(|id| id.len() <= MAX_ID) else {
            return self.broken("a request without a usable request_id".into());
        };
        let request = &message["request"];
        if request["subtype"] != "can_use_tool" {
            let answer = json!({"subtype": "error", "request_id": id, "error": "not offered by this client"});
            return vec![respond(&answer)];
        }
        let tool = request["tool_name"].as_str().unwrap_or_default();
        let allowed = !self.cancelling
            && match self.config.consent {
                Consent::All => true,
                Consent::Edits => FILE_TOOLS.contains(&tool),
                Consent::Nothing => false,
            };
        let input = &request["input"];
        let verdict = if allowed {
            json!({"behavior": "allow", "updatedInput": input})
        } else {
            json!({"behavior": "deny", "message": "not allowed in this run; go on without it"})
        };
        let what = format!("{tool} {}", input_text(input));
        vec![
            Output::Event(AgentEvent::Permission {
                what: what.chars().take(MAX_WHAT).collect(),
                allowed,
            }),
            respond(&json!({"subtype": "success", "request_id": id, "response": verdict})),
        ]
    }

    /// The agent answers. Only a refused start matters: the prompt was sent along with it.
    fn answered(&mut self, response: &Value) -> Vec<Output> {
        if response["request_id"] != INITIALIZE || response["subtype"] != "error" {
            return Vec::new();
        }
        let why: String = response["error"]
            .as_str()
            .unwrap_or_default()
            .chars()
            .take(MAX_WHAT)
            .collect();
        self.broken(format!("it refused to initialize: {why}"))
    }
}

fn write(message: &Value) -> Output {
    // JSON has no line break of its own in it.
    Output::Write(Bytes::from(format!("{message}\n")))
}

fn request(id: &str, request: &Value) -> Output {
    write(&json!({"type": "control_request", "request_id": id, "request": request}))
}

fn respond(response: &Value) -> Output {
    write(&json!({"type": "control_response", "response": response}))
}

impl Driver for StreamJson {
    fn launch(&self) -> Launch {
        Launch { stdin: true }
    }

    fn start(&mut self) -> Vec<Output> {
        let text = json!({"type": "text", "text": std::mem::take(&mut self.config.prompt)});
        let message = json!({"role": "user", "content": [text]});
        vec![
            request(INITIALIZE, &json!({"subtype": "initialize", "hooks": null})),
            write(&json!({"type": "user", "message": message, "parent_tool_use_id": null, "session_id": ""})),
        ]
    }

    fn stdout(&mut self, bytes: &[u8]) -> Vec<Output> {
        let lines = self.lines.push(bytes);
        lines.into_iter().flat_map(|line| self.line(line)).collect()
    }

    fn stderr(&mut self, bytes: &[u8]) -> Vec<Output> {
        self.events.stderr(bytes)
    }

    fn cancel(&mut self) -> Vec<Output> {
        let before = std::mem::replace(&mut self.cancelling, true);
        if self.over || before {
            return vec![Output::CloseStdin];
        }
        vec![request(INTERRUPT, &json!({"subtype": "interrupt"}))]
    }

    fn end_of_output(&mut self) -> Vec<Output> {
        let rest = self.lines.finish();
        rest.map_or_else(Vec::new, |line| self.line(line))
    }

    fn finish(mut self: Box<Self>, end: &TurnEnd) -> TurnOutcome {
        let mut end = end.clone();
        if self.over {
            // What the process does once the turn is over says nothing of the turn.
            end.exit = Exit {
                code: Some(0),
                signal: None,
                oom: end.exit.oom,
            };
        } else if end.exit.success() {
            self.events.turn.broken = Some("ended without a result".into());
        }
        Box::new(self.events).finish(&end)
    }
}

#[cfg(test)]
mod tests;
