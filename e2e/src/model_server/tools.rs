//! A call of whatever the agent calls its shell.

use serde_json::{Map, Value, json};

use super::{Answer, Request};

/// A tool that is offered.
#[derive(Clone, Debug, Default)]
pub(super) struct Tool {
    pub(super) name: String,
    pub(super) schema: Value,
}

/// Names that agents give to the tool that runs commands, best first.
const SHELL_TOOLS: &[&str] = &[
    "run_terminal_command",
    "bash",
    "shell",
    "run_shell_command",
    "execute_command",
    "exec_command",
    "local_shell",
    "Bash",
    "Shell",
];

/// A call of the shell, with every argument that its schema requires.
pub(super) fn shell_call(request: &Request, command: &str) -> Answer {
    let find = |name: &&str| request.tools.iter().find(|tool| tool.name == **name);
    let Some(tool) = SHELL_TOOLS.iter().find_map(find) else {
        return Answer::Text("No shell tool was offered.".into());
    };
    let properties = &tool.schema["properties"];
    let mut arguments = match filler(&tool.schema) {
        Value::Object(arguments) => arguments,
        _ => Map::new(),
    };
    let name = if properties["cmd"].is_object() {
        "cmd"
    } else {
        "command"
    };
    let as_list = properties[name]["type"] == "array";
    arguments.insert(
        name.into(),
        if as_list {
            json!(["sh", "-c", command])
        } else {
            json!(command)
        },
    );
    Answer::Call {
        id: format!("call_{}", request.length),
        name: tool.name.clone(),
        arguments: Value::Object(arguments),
    }
}

/// A value of this shape: what is required, and nothing else.
pub(super) fn filler(schema: &Value) -> Value {
    if let Some(first) = schema["enum"].as_array().and_then(|values| values.first()) {
        return first.clone();
    }
    let kind = schema["type"].as_str().unwrap_or("string").to_lowercase();
    match kind.as_str() {
        "object" => super::list(schema, "required")
            .iter()
            .filter_map(Value::as_str)
            .map(|name| (name.to_owned(), filler(&schema["properties"][name])))
            .collect(),
        "boolean" => json!(false),
        "integer" | "number" => json!(60_000),
        "array" => json!([]),
        _ => json!("scripted"),
    }
}
