//! A model server on loopback that follows a script: what a real agent CLI talks to in tests.
//!
//! It speaks OpenAI's Chat Completions, streaming or not. Which step of the script comes next is read from the
//! conversation (tool results since the last prompt), so retries and resumed sessions need no state. Requests that
//! offer no tools are side requests (titles and the like) and get a short text.

use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::header::CONTENT_TYPE;
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// One answer of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Asks the agent to run a command in its shell tool, whatever that is called.
    Shell(String),
    /// Says something; with this the turn ends.
    Say(String),
}

/// A request that came in.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Model asked for.
    pub model: String,
    /// Step of the script that it got; none for a side request.
    pub step: Option<usize>,
    /// The credential that came with it.
    pub authorization: String,
    /// Names of the tools that it offered.
    pub tools: Vec<String>,
}

struct Shared {
    script: Vec<Step>,
    seen: Mutex<Vec<Seen>>,
}

/// A running model server; it stops when dropped.
pub struct ModelServer {
    port: u16,
    shared: Arc<Shared>,
    _stop: DropGuard,
}

impl std::fmt::Debug for ModelServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelServer")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// Names that agents give to the tool that runs commands, best first.
const SHELL_TOOLS: &[&str] = &[
    "run_terminal_command",
    "bash",
    "shell",
    "run_shell_command",
    "execute_command",
    "local_shell",
    "Bash",
    "Shell",
];

impl ModelServer {
    /// Serves `script` on a free loopback port.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start(script: Vec<Step>) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            script,
            seen: Mutex::default(),
        });
        let app = Router::new()
            .route("/v1/chat/completions", post(chat))
            .route(
                "/v1/models",
                get(|| async { axum::Json(json!({"object": "list", "data": [{"id": "scripted"}]})) }),
            )
            .with_state(Arc::clone(&shared));
        let token = CancellationToken::new();
        let stopped = token.clone().cancelled_owned();
        tokio::spawn(async move { axum::serve(listener, app).with_graceful_shutdown(stopped).await });
        Ok(Self {
            port,
            shared,
            _stop: token.drop_guard(),
        })
    }

    /// Base URL for clients of the OpenAI kind, `/v1` included.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.port)
    }

    /// Requests so far.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.shared
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

async fn chat(State(shared): State<Arc<Shared>>, headers: http::HeaderMap, body: Bytes) -> Response {
    let Ok(request) = serde_json::from_slice::<Value>(&body) else {
        return (http::StatusCode::BAD_REQUEST, "the body is no JSON").into_response();
    };
    let tools = tool_names(&request);
    let messages = request["messages"].as_array().cloned().unwrap_or_default();
    let step = (!tools.is_empty()).then(|| results_since_prompt(&messages));
    let answer = match step {
        None => Answer::Text("Scripted title".into()),
        Some(step) => match shared.script.get(step).or(shared.script.last()) {
            Some(Step::Shell(command)) => shell_call(&request, command, messages.len()),
            Some(Step::Say(text)) => Answer::Text(text.clone()),
            None => Answer::Text("The script is empty.".into()),
        },
    };
    let model = request["model"].as_str().unwrap_or("scripted").to_owned();
    let authorization = headers
        .get("authorization")
        .and_then(|v| v.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    let seen = Seen {
        model: model.clone(),
        step,
        authorization,
        tools,
    };
    shared
        .seen
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(seen);
    if request["stream"].as_bool() == Some(true) {
        stream(&model, &answer)
    } else {
        whole(&model, &answer)
    }
}

enum Answer {
    Text(String),
    Call {
        id: String,
        name: String,
        arguments: String,
    },
}

impl Answer {
    const fn finish(&self) -> &'static str {
        match self {
            Self::Text(_) => "stop",
            Self::Call { .. } => "tool_calls",
        }
    }
}

fn tool_names(request: &Value) -> Vec<String> {
    let tools = request["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
    tools
        .iter()
        .filter_map(|tool| tool["function"]["name"].as_str())
        .map(str::to_owned)
        .collect()
}

/// How many tool results stand behind the last prompt of a person.
fn results_since_prompt(messages: &[Value]) -> usize {
    let prompt = messages
        .iter()
        .rposition(|message| message["role"] == "user")
        .map_or(0, |at| at + 1);
    messages[prompt..]
        .iter()
        .filter(|message| message["role"] == "tool")
        .count()
}

/// A call of whatever the agent calls its shell, with every argument that its schema requires.
fn shell_call(request: &Value, command: &str, salt: usize) -> Answer {
    let tools = request["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
    let find = |name: &&str| tools.iter().find(|tool| tool["function"]["name"] == **name);
    let Some(tool) = SHELL_TOOLS.iter().find_map(find) else {
        return Answer::Text("No shell tool was offered.".into());
    };
    let schema = &tool["function"]["parameters"];
    let mut arguments = Map::new();
    let required = schema["required"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    for name in required.iter().filter_map(Value::as_str) {
        let filler = match schema["properties"][name]["type"].as_str() {
            Some("boolean") => json!(false),
            Some("integer" | "number") => json!(60_000),
            Some("array") => json!([]),
            _ => json!("scripted"),
        };
        arguments.insert(name.to_owned(), filler);
    }
    let as_list = schema["properties"]["command"]["type"] == "array";
    arguments.insert(
        "command".into(),
        if as_list {
            json!(["sh", "-c", command])
        } else {
            json!(command)
        },
    );
    Answer::Call {
        id: format!("call_{salt}"),
        name: tool["function"]["name"].as_str().unwrap_or_default().to_owned(),
        arguments: Value::Object(arguments).to_string(),
    }
}

/// The same for every request, so that what is booked can be checked.
fn usage() -> Value {
    json!({
        "prompt_tokens": 1200, "completion_tokens": 34, "total_tokens": 1234,
        "prompt_tokens_details": {"cached_tokens": 200},
    })
}

fn whole(model: &str, answer: &Answer) -> Response {
    let message = match answer {
        Answer::Text(text) => json!({"role": "assistant", "content": text}),
        Answer::Call { id, name, arguments } => json!({
            "role": "assistant", "content": null,
            "tool_calls": [{"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}],
        }),
    };
    axum::Json(json!({
        "id": "chatcmpl-scripted", "object": "chat.completion", "created": 0, "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": answer.finish()}],
        "usage": usage(),
    }))
    .into_response()
}

fn stream(model: &str, answer: &Answer) -> Response {
    let deltas = match answer {
        Answer::Text(text) => vec![
            json!({"role": "assistant", "content": ""}),
            json!({"content": text}),
        ],
        Answer::Call { id, name, arguments } => vec![
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"index": 0, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}]}),
            json!({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}),
        ],
    };
    let chunk = |delta: Value, finish: Option<&str>| {
        json!({
            "id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 0, "model": model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        })
    };
    let mut events: Vec<Value> = deltas.into_iter().map(|delta| chunk(delta, None)).collect();
    events.push(chunk(json!({}), Some(answer.finish())));
    let mut last = chunk(json!({}), None);
    last["choices"] = json!([]);
    last["usage"] = usage();
    events.push(last);
    let mut body: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    body.push_str("data: [DONE]\n\n");
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_is_read_from_the_conversation() {
        let messages = json!([
            {"role": "system", "content": "s"},
            {"role": "user", "content": "first"},
            {"role": "tool", "content": "r"},
            {"role": "user", "content": "second"},
            {"role": "assistant", "content": null},
            {"role": "tool", "content": "r"},
        ]);
        assert_eq!(results_since_prompt(messages.as_array().unwrap()), 1);
        assert_eq!(results_since_prompt(&[]), 0);
    }

    #[test]
    fn a_call_fills_in_what_the_schema_requires() {
        let request = json!({"tools": [{"type": "function", "function": {"name": "bash", "parameters": {
            "type": "object", "required": ["command", "timeout", "description"],
            "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}, "description": {"type": "string"}},
        }}}]});
        let Answer::Call { name, arguments, .. } = shell_call(&request, "true", 1) else {
            panic!("no call")
        };
        assert_eq!(name, "bash");
        let arguments: Value = serde_json::from_str(&arguments).unwrap();
        assert_eq!(
            arguments,
            json!({"command": "true", "timeout": 60_000, "description": "scripted"})
        );
    }
}
