//! OpenAI Chat Completions.

use serde_json::{Value, json};

use super::fault::Failed;
use super::tools::Tool;
use super::{Answer, Api, Request, USED, data, list, results_since_prompt, text};

#[derive(Debug, Default)]
pub(super) struct Chat;

impl Api for Chat {
    fn read(&self, body: &Value, _path: &str) -> Request {
        let messages = list(body, "messages");
        let turns: Vec<bool> = messages
            .iter()
            .filter_map(|message| match message["role"].as_str() {
                Some("user") => Some(true),
                Some("tool") => Some(false),
                _ => None,
            })
            .collect();
        let shape = &body["response_format"]["json_schema"]["schema"];
        Request {
            model: text(&body["model"]),
            stream: body["stream"] == true,
            tools: list(body, "tools")
                .iter()
                .map(|tool| Tool {
                    name: text(&tool["function"]["name"]),
                    schema: tool["function"]["parameters"].clone(),
                })
                .collect(),
            results: results_since_prompt(&turns),
            length: messages.len(),
            shape: shape.is_object().then(|| shape.clone()),
        }
    }

    fn whole(&self, model: &str, answer: &Answer) -> Value {
        let message = match answer {
            Answer::Nothing => json!({"role": "assistant", "content": ""}),
            Answer::Text(text) => json!({"role": "assistant", "content": text}),
            Answer::Call { id, name, arguments } => json!({
                "role": "assistant", "content": null,
                "tool_calls": [{"id": id, "type": "function",
                                "function": {"name": name, "arguments": arguments.to_string()}}],
            }),
        };
        json!({
            "id": "chatcmpl-scripted", "object": "chat.completion", "created": 0, "model": model,
            "choices": [{"index": 0, "message": message, "finish_reason": finish(answer)}],
            "usage": usage(),
        })
    }

    fn events(&self, model: &str, answer: &Answer) -> Vec<String> {
        let deltas = match answer {
            Answer::Nothing => vec![json!({"role": "assistant", "content": ""})],
            Answer::Text(text) => vec![
                json!({"role": "assistant", "content": ""}),
                json!({"content": text}),
            ],
            Answer::Call { id, name, arguments } => vec![
                json!({"role": "assistant", "content": null, "tool_calls": [
                    {"index": 0, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}]}),
                json!({"tool_calls": [{"index": 0, "function": {"arguments": arguments.to_string()}}]}),
            ],
        };
        let chunk = |delta: Value, finish: Option<&str>| {
            json!({
                "id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 0, "model": model,
                "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
            })
        };
        let mut events: Vec<Value> = deltas.into_iter().map(|delta| chunk(delta, None)).collect();
        events.push(chunk(json!({}), Some(finish(answer))));
        let mut last = chunk(json!({}), None);
        last["choices"] = json!([]);
        last["usage"] = usage();
        events.push(last);
        let mut events: Vec<String> = events.iter().map(data).collect();
        events.push("data: [DONE]\n\n".into());
        events
    }

    fn error(&self, failed: &Failed) -> Value {
        json!({"error": {"message": failed.message, "type": failed.kind, "code": failed.code, "param": null}})
    }
}

const fn finish(answer: &Answer) -> &'static str {
    match answer {
        Answer::Text(_) | Answer::Nothing => "stop",
        Answer::Call { .. } => "tool_calls",
    }
}

fn usage() -> Value {
    let (input, cached, output) = USED;
    json!({
        "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    })
}
