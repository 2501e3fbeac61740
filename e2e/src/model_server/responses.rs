//! OpenAI Responses.

use serde_json::{Value, json};

use super::fault::Failed;
use super::tools::Tool;
use super::{Answer, Api, Request, USED, list, named, results_since_prompt, text};

#[derive(Debug, Default)]
pub(super) struct Responses;

impl Api for Responses {
    fn read(&self, body: &Value, _path: &str) -> Request {
        let input = list(body, "input");
        let turns: Vec<bool> = input
            .iter()
            .filter_map(|item| match item["type"].as_str() {
                Some("message") | None => (item["role"] == "user").then_some(true),
                Some(kind) => kind.ends_with("_output").then_some(false),
            })
            .collect();
        let shape = &body["text"]["format"]["schema"];
        Request {
            model: text(&body["model"]),
            stream: body["stream"] == true,
            tools: list(body, "tools")
                .iter()
                .filter(|tool| tool["type"] == "function")
                .map(|tool| Tool {
                    name: text(&tool["name"]),
                    schema: tool["parameters"].clone(),
                })
                .collect(),
            results: results_since_prompt(&turns),
            length: input.len(),
            shape: shape.is_object().then(|| shape.clone()),
        }
    }

    fn whole(&self, model: &str, answer: &Answer) -> Value {
        let output: Vec<Value> = item(answer).into_iter().collect();
        response(model, "completed", &json!(output))
    }

    fn events(&self, model: &str, answer: &Answer) -> Vec<String> {
        let mut events = vec![json!({
            "type": "response.created", "response": response(model, "in_progress", &json!([])),
        })];
        if let Some(item) = item(answer) {
            let mut begun = item.clone();
            begun["status"] = json!("in_progress");
            let id = item["id"].clone();
            match answer {
                Answer::Text(text) => {
                    begun["content"] = json!([]);
                    let part = |text: &str| json!({"type": "output_text", "text": text, "annotations": []});
                    let of = |kind: &str| json!({"type": kind, "item_id": id, "output_index": 0, "content_index": 0});
                    events.push(
                        json!({"type": "response.output_item.added", "output_index": 0, "item": begun}),
                    );
                    let mut event = of("response.content_part.added");
                    event["part"] = part("");
                    events.push(event);
                    let mut event = of("response.output_text.delta");
                    event["delta"] = json!(text);
                    events.push(event);
                    let mut event = of("response.output_text.done");
                    event["text"] = json!(text);
                    events.push(event);
                    let mut event = of("response.content_part.done");
                    event["part"] = part(text);
                    events.push(event);
                }
                Answer::Call { arguments, .. } => {
                    begun["arguments"] = json!("");
                    let arguments = arguments.to_string();
                    events.push(
                        json!({"type": "response.output_item.added", "output_index": 0, "item": begun}),
                    );
                    events.push(
                        json!({"type": "response.function_call_arguments.delta", "item_id": id,
                                       "output_index": 0, "delta": arguments}),
                    );
                    events.push(
                        json!({"type": "response.function_call_arguments.done", "item_id": id,
                                       "output_index": 0, "arguments": arguments}),
                    );
                }
                Answer::Nothing => {}
            }
            events.push(json!({"type": "response.output_item.done", "output_index": 0, "item": item}));
        }
        events.push(json!({"type": "response.completed", "response": self.whole(model, answer)}));
        for (n, event) in events.iter_mut().enumerate() {
            event["sequence_number"] = json!(n);
        }
        events.iter().map(named).collect()
    }

    fn error(&self, failed: &Failed) -> Value {
        json!({"error": {"message": failed.message, "type": failed.kind, "code": failed.code, "param": null}})
    }
}

fn item(answer: &Answer) -> Option<Value> {
    match answer {
        Answer::Nothing => None,
        Answer::Text(text) => Some(json!({
            "type": "message", "id": "msg_scripted", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        })),
        Answer::Call { id, name, arguments } => Some(json!({
            "type": "function_call", "id": format!("fc_{id}"), "call_id": id, "name": name,
            "arguments": arguments.to_string(), "status": "completed",
        })),
    }
}

fn response(model: &str, status: &str, output: &Value) -> Value {
    let (input, cached, tokens) = USED;
    json!({
        "id": "resp_scripted", "object": "response", "created_at": 0, "status": status, "model": model,
        "output": output, "error": null, "incomplete_details": null, "parallel_tool_calls": false,
        "usage": {"input_tokens": input, "input_tokens_details": {"cached_tokens": cached},
                  "output_tokens": tokens, "output_tokens_details": {"reasoning_tokens": 0},
                  "total_tokens": input + tokens},
    })
}
