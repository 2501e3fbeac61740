//! Gemini's `generateContent` and `streamGenerateContent`.

use serde_json::{Value, json};

use super::fault::Failed;
use super::tools::Tool;
use super::{Answer, Api, Request, USED, data, is_prompt, list, results_since_prompt, text};

#[derive(Debug, Default)]
pub(super) struct Gemini;

impl Api for Gemini {
    fn read(&self, body: &Value, path: &str) -> Request {
        let (model, method) = path.split_once(':').unwrap_or((path, ""));
        let contents = list(body, "contents");
        let mut turns = Vec::new();
        for content in contents {
            for part in list(content, "parts") {
                if part["functionResponse"].is_object() {
                    turns.push(false);
                } else if content["role"] == "user" && part["text"].as_str().is_some_and(is_prompt) {
                    turns.push(true);
                }
            }
        }
        let config = &body["generationConfig"];
        let shape = ["responseJsonSchema", "responseSchema"]
            .iter()
            .find_map(|name| Some(config[*name].clone()).filter(Value::is_object));
        Request {
            model: model.to_owned(),
            stream: method == "streamGenerateContent",
            tools: list(body, "tools")
                .iter()
                .flat_map(|tool| list(tool, "functionDeclarations"))
                .map(|tool| Tool {
                    name: text(&tool["name"]),
                    schema: ["parametersJsonSchema", "parameters"]
                        .iter()
                        .find_map(|name| Some(tool[*name].clone()).filter(Value::is_object))
                        .unwrap_or_default(),
                })
                .collect(),
            results: results_since_prompt(&turns),
            length: contents.len(),
            shape,
        }
    }

    fn whole(&self, model: &str, answer: &Answer) -> Value {
        let parts = match answer {
            Answer::Nothing => json!([]),
            Answer::Text(text) => json!([{"text": text}]),
            Answer::Call { id, name, arguments } => {
                json!([{"functionCall": {"id": id, "name": name, "args": arguments}}])
            }
        };
        let (input, cached, output) = USED;
        json!({
            "candidates": [{"index": 0, "content": {"role": "model", "parts": parts}, "finishReason": "STOP"}],
            "modelVersion": model, "responseId": "scripted",
            "usageMetadata": {"promptTokenCount": input, "candidatesTokenCount": output,
                              "totalTokenCount": input + output, "cachedContentTokenCount": cached},
        })
    }

    fn events(&self, model: &str, answer: &Answer) -> Vec<String> {
        let whole = self.whole(model, answer);
        let Answer::Text(text) = answer else {
            return vec![data(&whole)];
        };
        // In two pieces, the first without an end.
        let (first, second) = text.split_at(text.floor_char_boundary(text.len() / 2));
        let piece = |text: &str, last: bool| {
            let mut piece = whole.clone();
            piece["candidates"][0]["content"]["parts"] = json!([{"text": text}]);
            if !last {
                piece["candidates"][0]["finishReason"] = Value::Null;
            }
            data(&piece)
        };
        vec![piece(first, false), piece(second, true)]
    }

    fn error(&self, failed: &Failed) -> Value {
        let details = match failed.retry_after {
            Some(seconds) => json!([{
                "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": format!("{seconds}s"),
            }]),
            None => json!([]),
        };
        json!({"error": {"code": failed.status.as_u16(), "status": failed.grpc, "message": failed.message,
                         "details": details}})
    }
}
