//! Answers to an agent that asks whether it may.
//!
//! Nobody is there to be asked yet, so the level of permission that the run was given answers. An option is picked by
//! its kind, never by its place or its name.

use serde_json::{Value, json};

use crate::driver::{AgentEvent, Consent, input_text};

/// Longest description of what was asked for.
const MAX_WHAT: usize = 500;

/// The answer to the parameters of a request, and what is to be told of it. A turn that is being cancelled answers
/// everything with `cancelled`.
pub(super) fn answer(params: &Value, consent: Consent, cancelling: bool) -> (Value, AgentEvent) {
    let call = &params["toolCall"];
    let kind = call["kind"].as_str().unwrap_or_default();
    let allowed = !cancelling
        && match consent {
            Consent::All => true,
            Consent::Edits => matches!(kind, "read" | "edit" | "delete" | "move" | "search" | "think"),
            Consent::Nothing => false,
        };
    let wanted = if allowed {
        ["allow_once", "allow_always"]
    } else {
        ["reject_once", "reject_always"]
    };
    let options = params["options"].as_array().map_or(&[][..], Vec::as_slice);
    let option = wanted
        .iter()
        .find_map(|kind| options.iter().find(|option| option["kind"] == *kind))
        .and_then(|option| option["optionId"].as_str())
        .filter(|_| !cancelling);
    // The title may be the model's own words: what the tool is called with says more.
    let what = match (&call["rawInput"], call["title"].as_str()) {
        (Value::Null, Some(title)) => title.to_owned(),
        (Value::Null, None) => "something that it did not describe".into(),
        (input, _) => input_text(input),
    };
    let event = AgentEvent::Permission {
        what: what.chars().take(MAX_WHAT).collect(),
        allowed: allowed && option.is_some(),
    };
    let outcome = match option {
        Some(id) => json!({"outcome": "selected", "optionId": id}),
        None => json!({"outcome": "cancelled"}),
    };
    (json!({"outcome": outcome}), event)
}
