//! Tool calls of a session: told when first seen, and again when it is known what they are called with.

use std::collections::VecDeque;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::driver::{AgentEvent, input_text};

/// Calls that are remembered; older ones would be told anew.
const MAX_CALLS: usize = 256;
/// Longest name or title.
const MAX_NAME: usize = 200;
/// Longest id that is kept as it is.
const MAX_ID: usize = 128;

/// Where some agents say the name of a tool, before the protocol had a field for it.
const OWN_NAMES: [&str; 2] = ["/_meta/claudeCode/toolName", "/_meta/x.ai~1tool/name"];

#[derive(Debug)]
struct Call {
    id: String,
    name: String,
    title: String,
    /// Told with its input.
    complete: bool,
}

/// The newest calls.
#[derive(Debug, Default)]
pub(super) struct Calls(VecDeque<Call>);

impl Calls {
    /// What is new about a call, after `tool_call`, `tool_call_update` or the call in a request for permission.
    pub(super) fn update(&mut self, fields: &Value) -> Option<AgentEvent> {
        let text = |name: &str| fields[name].as_str();
        let id = short_id(text("toolCallId").unwrap_or_default());
        let place = self.0.iter().position(|call| call.id == id);
        let known = place.is_some();
        let call = match place {
            Some(place) => &mut self.0[place],
            None => self.add(id),
        };
        let own = OWN_NAMES.iter().find_map(|place| fields.pointer(place)?.as_str());
        let kind = text("kind").filter(|_| call.name.is_empty());
        if let Some(name) = text("name").or(own).or(kind) {
            call.name = cut(name);
        }
        if let Some(title) = text("title") {
            call.title = cut(title);
        }
        if call.complete {
            return None;
        }
        let over = matches!(text("status"), Some("completed" | "failed"));
        let input = if !is_empty(&fields["rawInput"]) {
            Some(input_text(&fields["rawInput"]))
        } else if over {
            // An agent that does not say what a tool is called with says what came of it.
            let (locations, content) = (&fields["locations"], &fields["content"]);
            Some(input_text(
                &json!({"title": call.title, "locations": locations, "content": content}),
            ))
        } else {
            None
        };
        call.complete = input.is_some();
        (!known || call.complete).then(|| AgentEvent::ToolCall {
            id: call.id.clone(),
            name: if call.name.is_empty() {
                "tool".into()
            } else {
                call.name.clone()
            },
            input,
        })
    }

    fn add(&mut self, id: String) -> &mut Call {
        if self.0.len() >= MAX_CALLS {
            self.0.pop_front();
        }
        self.0.push_back(Call {
            id,
            name: String::new(),
            title: String::new(),
            complete: false,
        });
        let newest = self.0.len() - 1;
        &mut self.0[newest]
    }
}

fn is_empty(input: &Value) -> bool {
    match input {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => false,
    }
}

fn short_id(id: &str) -> String {
    if id.len() <= MAX_ID {
        return id.to_owned();
    }
    format!("sha256:{}", hex::encode(Sha256::digest(id.as_bytes())))
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_NAME).collect()
}
