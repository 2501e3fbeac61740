//! A model server on loopback that follows a script: what a real agent CLI talks to in tests.
//!
//! It speaks four APIs, streaming or not. Which step of the script comes next is read from the conversation (tool
//! results since the last prompt), so retries and resumed sessions need no state. Requests that offer no tools are side
//! requests (titles and the like) and get a short text, or JSON of the shape that they ask for.
//!
//! | module | idea |
//! |---|---|
//! | `chat` | OpenAI Chat Completions |
//! | `responses` | OpenAI Responses |
//! | `messages` | Anthropic Messages |
//! | `gemini` | Gemini `generateContent` and `streamGenerateContent` |
//! | `tools` | a call of whatever the agent calls its shell |
//! | `fault` | what a model server does wrong |

mod chat;
mod fault;
mod gemini;
mod messages;
mod responses;
mod tools;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use fault::Fault;
use tools::Tool;

/// One answer of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Asks the agent to run a command in its shell tool, whatever that is called.
    Shell(String),
    /// Says something; with this the turn ends.
    Say(String),
    /// Goes wrong, every time that this step is asked for.
    Fault(Fault),
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
    /// Messages of the conversation so far.
    pub messages: usize,
}

/// What all APIs have in common in a request.
#[derive(Debug, Default)]
struct Request {
    model: String,
    stream: bool,
    tools: Vec<Tool>,
    /// Tool results since the last prompt.
    results: usize,
    /// Messages in all: makes ids of calls different.
    length: usize,
    /// Shape of the JSON that is wanted.
    shape: Option<Value>,
}

/// What is answered.
#[derive(Debug, PartialEq)]
enum Answer {
    Text(String),
    Call {
        id: String,
        name: String,
        arguments: Value,
    },
    /// Neither text nor call.
    Nothing,
}

/// Tokens that every answer says it used, so that what is booked can be checked.
const USED: (u64, u64, u64) = (1200, 200, 34);

/// One of the wire protocols.
trait Api: Send + Sync + 'static {
    fn read(&self, body: &Value, path: &str) -> Request;
    fn whole(&self, model: &str, answer: &Answer) -> Value;
    /// Events of a stream, each with its end.
    fn events(&self, model: &str, answer: &Answer) -> Vec<String>;
    /// Body of an error.
    fn error(&self, fault: &fault::Failed) -> Value;
}

struct Shared {
    script: Vec<Step>,
    /// Scripts of single models, by their names.
    models: BTreeMap<String, Vec<Step>>,
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

impl ModelServer {
    /// Serves `script` on a free loopback port.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start(script: Vec<Step>) -> std::io::Result<Self> {
        Self::start_with(script, BTreeMap::new()).await
    }

    /// The same, with scripts of their own for some models.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start_with(script: Vec<Step>, models: BTreeMap<String, Vec<Step>>) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            script,
            models,
            seen: Mutex::default(),
        });
        let count = || async { axum::Json(json!({"input_tokens": USED.0})) };
        let models = || async { axum::Json(json!({"object": "list", "data": [{"id": "scripted"}]})) };
        let app = Router::new()
            .route("/v1/chat/completions", post(serve::<chat::Chat>))
            .route("/v1/responses", post(serve::<responses::Responses>))
            .route("/v1/messages", post(serve::<messages::Messages>))
            .route("/v1/messages/count_tokens", post(count))
            .route("/v1/models", get(models))
            .route("/v1beta/models/{*call}", post(gemini_call))
            .with_state(Arc::clone(&shared));
        let token = CancellationToken::new();
        let stopped = token.clone().cancelled_owned();
        // A request that stalls would hold up a graceful end for ever.
        tokio::spawn(async move {
            tokio::select! {
                served = axum::serve(listener, app) => served,
                () = stopped => Ok(()),
            }
        });
        Ok(Self {
            port,
            shared,
            _stop: token.drop_guard(),
        })
    }

    /// Base URL for clients of the OpenAI kind, `/v1` included.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("{}/v1", self.root_url())
    }

    /// Base URL for clients that add the version themselves.
    #[must_use]
    pub fn root_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
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

async fn serve<A: Api + Default>(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    answer(&shared, &A::default(), "", &headers, &body).await
}

/// `MODEL:METHOD`.
async fn gemini_call(
    State(shared): State<Arc<Shared>>,
    Path(call): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if call.ends_with(":countTokens") {
        return axum::Json(json!({"totalTokens": USED.0})).into_response();
    }
    answer(&shared, &gemini::Gemini, &call, &headers, &body).await
}

async fn answer(shared: &Shared, api: &dyn Api, path: &str, headers: &HeaderMap, body: &[u8]) -> Response {
    let Ok(body) = serde_json::from_slice::<Value>(body) else {
        return (StatusCode::BAD_REQUEST, "the body is no JSON").into_response();
    };
    let request = api.read(&body, path);
    let step = (!request.tools.is_empty()).then_some(request.results);
    let credential = ["authorization", "x-api-key", "x-goog-api-key"];
    let credential = credential
        .iter()
        .find_map(|name| headers.get(*name)?.to_str().ok());
    shared
        .seen
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(Seen {
            model: request.model.clone(),
            step,
            authorization: credential.unwrap_or_default().to_owned(),
            tools: request.tools.iter().map(|tool| tool.name.clone()).collect(),
            messages: request.length,
        });
    let script = shared.models.get(&request.model).unwrap_or(&shared.script);
    let scripted = step.and_then(|step| script.get(step).or(script.last()));
    let answer = match (step, scripted) {
        (None, _) => Answer::Text(match &request.shape {
            Some(shape) => tools::filler(shape).to_string(),
            None => "Scripted title".into(),
        }),
        (_, Some(Step::Shell(command))) => tools::shell_call(&request, command),
        (_, Some(Step::Say(text))) => Answer::Text(text.clone()),
        (_, Some(Step::Fault(fault))) => match fault.answer(api, &request).await {
            Ok(response) => return response,
            Err(answer) => answer,
        },
        (_, None) => Answer::Text("The script is empty.".into()),
    };
    if request.stream {
        let events = api.events(&request.model, &answer).concat();
        event_stream(Body::from(events))
    } else {
        axum::Json(api.whole(&request.model, &answer)).into_response()
    }
}

fn event_stream(body: Body) -> Response {
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// An event of a stream that has no name.
fn data(event: &Value) -> String {
    format!("data: {event}\n\n")
}

/// An event that has its type as its name, too.
fn named(event: &Value) -> String {
    let name = event["type"].as_str().unwrap_or_default();
    format!("event: {name}\ndata: {event}\n\n")
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[][..], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// How many tool results stand behind the last prompt of a person: `true` is a prompt, `false` a result.
fn results_since_prompt(turns: &[bool]) -> usize {
    let behind = turns
        .iter()
        .rposition(|is_prompt| *is_prompt)
        .map_or(0, |at| at + 1);
    turns.len() - behind
}

/// Whether a person wrote it: agents put reminders of their own into prompts.
fn is_prompt(text: &str) -> bool {
    !text.trim_start().starts_with("<system-reminder>")
}

#[cfg(test)]
mod tests;
