//! Anthropic Messages.

use serde_json::{Value, json};

use super::fault::Failed;
use super::tools::Tool;
use super::{Answer, Api, Request, USED, is_prompt, list, named, results_since_prompt, text};

#[derive(Debug, Default)]
pub(super) struct Messages;

impl Api for Messages {
    fn read(&self, body: &Value, _path: &str) -> Request {
        let messages = list(body, "messages");
        let mut turns = Vec::new();
        for message in messages.iter().filter(|message| message["role"] == "user") {
            if message["content"].as_str().is_some_and(is_prompt) {
                turns.push(true);
            }
            for block in list(message, "content") {
                match block["type"].as_str() {
                    Some("tool_result") => turns.push(false),
                    Some("text") if block["text"].as_str().is_some_and(is_prompt) => turns.push(true),
                    _ => {}
                }
            }
        }
        let shape = &body["output_config"]["format"]["schema"];
        Request {
            model: text(&body["model"]),
            stream: body["stream"] == true,
            tools: list(body, "tools")
                .iter()
                .map(|tool| Tool {
                    name: text(&tool["name"]),
                    schema: tool["input_schema"].clone(),
                })
                .collect(),
            results: results_since_prompt(&turns),
            length: messages.len(),
            shape: shape.is_object().then(|| shape.clone()),
        }
    }

    fn whole(&self, model: &str, answer: &Answer) -> Value {
        let content = match answer {
            Answer::Nothing => json!([]),
            Answer::Text(text) => json!([{"type": "text", "text": text}]),
            Answer::Call { id, name, arguments } => {
                json!([{"type": "tool_use", "id": id, "name": name, "input": arguments}])
            }
        };
        let mut message = message(model, USED.2);
        message["content"] = content;
        message["stop_reason"] = json!(stop(answer));
        message
    }

    fn events(&self, model: &str, answer: &Answer) -> Vec<String> {
        let mut events = vec![json!({"type": "message_start", "message": message(model, 1)})];
        let block = match answer {
            Answer::Nothing => None,
            Answer::Text(text) => Some((
                json!({"type": "text", "text": ""}),
                json!({"type": "text_delta", "text": text}),
            )),
            Answer::Call { id, name, arguments } => Some((
                json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
                json!({"type": "input_json_delta", "partial_json": arguments.to_string()}),
            )),
        };
        if let Some((start, delta)) = block {
            events.push(json!({"type": "content_block_start", "index": 0, "content_block": start}));
            events.push(json!({"type": "content_block_delta", "index": 0, "delta": delta}));
            events.push(json!({"type": "content_block_stop", "index": 0}));
        }
        events.push(json!({
            "type": "message_delta", "delta": {"stop_reason": stop(answer), "stop_sequence": null},
            "usage": {"output_tokens": USED.2},
        }));
        events.push(json!({"type": "message_stop"}));
        events.iter().map(named).collect()
    }

    fn error(&self, failed: &Failed) -> Value {
        json!({"type": "error", "error": {"type": failed.kind, "message": failed.message},
               "request_id": "req_scripted"})
    }
}

const fn stop(answer: &Answer) -> &'static str {
    match answer {
        Answer::Text(_) | Answer::Nothing => "end_turn",
        Answer::Call { .. } => "tool_use",
    }
}

/// Input tokens do not count the cached ones here.
fn message(model: &str, output: u64) -> Value {
    let (input, cached, _) = USED;
    json!({
        "id": "msg_scripted", "type": "message", "role": "assistant", "model": model, "content": [],
        "stop_reason": null, "stop_sequence": null,
        "usage": {"input_tokens": input - cached, "cache_creation_input_tokens": 0,
                  "cache_read_input_tokens": cached, "output_tokens": output},
    })
}
