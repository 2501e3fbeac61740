//! The tables that come with the agentlet: where each dialect keeps what matters.

use panda_api::{EventPath, JsonlDialect, UsagePaths};

/// A dialect that need not be written down in a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Builtin {
    /// Where events keep what matters.
    pub dialect: JsonlDialect,
    /// Where usage is read from, when the manifest does not say.
    pub usage: UsagePaths,
}

/// Names of the built-in dialects.
pub const NAMES: [&str; 5] = ["claude", "codex", "gemini", "grok", "opencode"];

/// A built-in dialect by its name.
#[must_use]
pub fn dialect(name: &str) -> Option<Builtin> {
    match name {
        "claude" => Some(claude()),
        "codex" => Some(codex()),
        "gemini" => Some(gemini()),
        "grok" => Some(grok()),
        "opencode" => Some(opencode()),
        _ => None,
    }
}

fn at(event: &str, path: &str) -> EventPath {
    EventPath {
        event: event.into(),
        path: path.into(),
        ..EventPath::default()
    }
}

fn when(event: &str, path: &str, when_path: &str, when: &str) -> EventPath {
    EventPath {
        when_path: when_path.into(),
        when: when.into(),
        ..at(event, path)
    }
}

fn usage(event: &str, input: &str, output: &str, cached: &str, includes_cached: bool) -> UsagePaths {
    UsagePaths {
        event: event.into(),
        input: input.into(),
        output: output.into(),
        cached: cached.into(),
        input_includes_cached: Some(includes_cached),
        ..UsagePaths::default()
    }
}

/// One content block an event. The result says `success` also when it is an error.
fn claude() -> Builtin {
    Builtin {
        dialect: JsonlDialect {
            text: vec![at("assistant", "message.content.*.text")],
            tool_call: vec![when(
                "assistant",
                "message.content.*.name",
                "message.content.*.type",
                "tool_use",
            )],
            tool_input: vec![at("assistant", "message.content.*.input")],
            session: vec![at("", "session_id")],
            error: vec![
                when("result", "result", "is_error", "true"),
                when("result", "errors.*", "is_error", "true"),
                when("result", "error.message", "is_error", "true"),
            ],
            end: vec![at("result", "subtype")],
            ok_stop_reasons: vec!["success".into()],
            ..JsonlDialect::default()
        },
        usage: UsagePaths {
            money: "total_cost_usd".into(),
            ..usage(
                "result",
                "usage.input_tokens",
                "usage.output_tokens",
                "usage.cache_read_input_tokens",
                false,
            )
        },
    }
}

/// An item of type `error` is a notice; what counts is `error` and `turn.failed`.
fn codex() -> Builtin {
    let tools = ["command_execution", "file_change", "mcp_tool_call", "web_search"];
    let call = |event, kind| when(event, "item.type", "item.type", kind);
    Builtin {
        dialect: JsonlDialect {
            text: vec![when("item.completed", "item.text", "item.type", "agent_message")],
            tool_call: tools
                .iter()
                .map(|kind| match *kind {
                    // Told only when it is done.
                    "file_change" => call("item.completed", kind),
                    _ => call("item.started", kind),
                })
                .collect(),
            tool_input: vec![
                when("item.started", "item.command", "item.type", "command_execution"),
                when("item.completed", "item.changes", "item.type", "file_change"),
                when("item.started", "item.arguments", "item.type", "mcp_tool_call"),
                when("item.started", "item.query", "item.type", "web_search"),
            ],
            session: vec![at("thread.started", "thread_id")],
            error: vec![at("error", "message"), at("turn.failed", "error.message")],
            end: vec![at("turn.completed", "type")],
            ..JsonlDialect::default()
        },
        usage: usage(
            "turn.completed",
            "usage.input_tokens",
            "usage.output_tokens",
            "usage.cached_input_tokens",
            true,
        ),
    }
}

fn gemini() -> Builtin {
    Builtin {
        dialect: JsonlDialect {
            text: vec![when("message", "content", "role", "assistant")],
            tool_call: vec![at("tool_use", "tool_name")],
            tool_input: vec![at("tool_use", "parameters")],
            session: vec![at("init", "session_id")],
            error: vec![
                when("error", "message", "severity", "error"),
                when("result", "error.message", "status", "error"),
            ],
            end: vec![at("result", "status")],
            ok_stop_reasons: vec!["success".into()],
            ..JsonlDialect::default()
        },
        usage: usage(
            "result",
            "stats.input_tokens",
            "stats.output_tokens",
            "stats.cached",
            true,
        ),
    }
}

/// The session's name comes with the last event only.
fn grok() -> Builtin {
    Builtin {
        dialect: JsonlDialect {
            text: vec![at("text", "data")],
            tool_call: vec![at("tool_call", "toolName")],
            tool_input: vec![at("tool_call", "rawInput")],
            session: vec![at("end", "sessionId")],
            error: vec![at("error", "message")],
            end: vec![at("end", "stopReason")],
            ok_stop_reasons: vec!["end_turn".into()],
            ..JsonlDialect::default()
        },
        usage: usage(
            "end",
            "usage.input_tokens",
            "usage.output_tokens",
            "usage.cache_read_input_tokens",
            false,
        ),
    }
}

/// There is no last event: the newest step says why it ended, and amounts are of one step each.
fn opencode() -> Builtin {
    Builtin {
        dialect: JsonlDialect {
            text: vec![at("text", "part.text")],
            tool_call: vec![at("tool_use", "part.tool")],
            tool_input: vec![at("tool_use", "part.state.input")],
            session: vec![at("", "sessionID")],
            error: vec![at("error", "error.data.message"), at("error", "error.name")],
            end: vec![at("step_finish", "part.reason")],
            ok_stop_reasons: vec!["stop".into()],
            ..JsonlDialect::default()
        },
        usage: UsagePaths {
            money: "part.cost".into(),
            per_event: Some(true),
            ..usage(
                "step_finish",
                "part.tokens.input",
                "part.tokens.output",
                "part.tokens.cache.read",
                false,
            )
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_table_that_says_the_most_needed() {
        for name in NAMES {
            let builtin = dialect(name).unwrap();
            let d = builtin.dialect;
            assert!(
                !d.text.is_empty()
                    && !d.tool_call.is_empty()
                    && !d.tool_input.is_empty()
                    && !d.session.is_empty(),
                "{name}"
            );
            assert!(!d.error.is_empty() && !d.end.is_empty(), "{name}");
            assert!(!builtin.usage.event.is_empty(), "{name}");
        }
        assert_eq!(dialect("klingon"), None);
    }
}
