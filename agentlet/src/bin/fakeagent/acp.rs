//! The agent's side of an ACP conversation.

use std::io::{self, BufRead as _};

use serde_json::{Value, json};

const SESSION: &str = "s1";

/// A conversation whose prompt waits for its answer.
pub(crate) struct Talk {
    prompt: Value,
    calls: u32,
}

impl Talk {
    /// Answers everything up to the prompt.
    pub(crate) fn open() -> io::Result<Self> {
        loop {
            let message = read()?;
            let result = match message["method"].as_str().unwrap_or_default() {
                "initialize" => json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}),
                "session/new" => json!({"sessionId": SESSION, "modes": {
                    "currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask"}]}}),
                "session/prompt" => {
                    return Ok(Self {
                        prompt: message["id"].clone(),
                        calls: 0,
                    });
                }
                _ => json!({}),
            };
            write(&json!({"jsonrpc": "2.0", "id": message["id"], "result": result}))?;
        }
    }

    fn update(update: &Value) -> io::Result<()> {
        write(&json!({"jsonrpc": "2.0", "method": "session/update",
                      "params": {"sessionId": SESSION, "update": update}}))
    }

    pub(crate) fn say(text: &str) -> io::Result<()> {
        Self::update(
            &json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}),
        )
    }

    pub(crate) fn call(&mut self, input: &str) -> io::Result<()> {
        self.calls += 1;
        Self::update(&json!({
            "sessionUpdate": "tool_call", "toolCallId": self.calls.to_string(), "title": "Terminal", "name": "shell",
            "kind": "execute", "status": "in_progress", "rawInput": {"command": input},
        }))
    }

    /// Asks whether it may, and says on standard error what the answer was.
    pub(crate) fn ask(input: &str) -> io::Result<()> {
        let options = json!([
            {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
            {"optionId": "no", "name": "No", "kind": "reject_once"},
        ]);
        write(
            &json!({"jsonrpc": "2.0", "id": "ask", "method": "session/request_permission", "params": {
                "sessionId": SESSION, "options": options,
                "toolCall": {"toolCallId": "ask", "title": "Terminal", "kind": "execute", "rawInput": {"command": input}},
            }}),
        )?;
        eprintln!("answered {}", read()?["result"]["outcome"]);
        Ok(())
    }

    /// Waits until it is told to cancel.
    pub(crate) fn wait_for_cancel() -> io::Result<()> {
        while read()?["method"] != "session/cancel" {}
        Ok(())
    }

    /// Requests, and nobody who reads the answers.
    pub(crate) fn flood(requests: u64) -> io::Result<()> {
        let method = "x".repeat(150);
        for n in 0..requests {
            write(&json!({"jsonrpc": "2.0", "id": n, "method": method, "params": {}}))?;
        }
        Ok(())
    }

    pub(crate) fn end(&self, reason: &str) -> io::Result<()> {
        let usage = json!({"inputTokens": 10, "outputTokens": 2});
        write(&json!({"jsonrpc": "2.0", "id": self.prompt, "result": {"stopReason": reason, "usage": usage}}))
    }
}

fn read() -> io::Result<Value> {
    let mut line = String::new();
    if io::stdin().lock().read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&line)?)
}

fn write(message: &Value) -> io::Result<()> {
    super::say(&format!("{message}\n"))
}
