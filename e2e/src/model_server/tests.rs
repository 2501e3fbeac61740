use super::*;

/// The same conversation in all four languages: a prompt, a result, another prompt, a result; one shell tool.
fn conversations() -> Vec<(&'static str, Box<dyn Api>, Value, &'static str)> {
    let schema = json!({
        "type": "object", "required": ["command", "timeout", "description"],
        "properties": {"command": {"type": "string"}, "timeout": {"type": "number"},
                       "description": {"type": "string"}},
    });
    let chat = json!({"model": "m", "stream": true, "messages": [
        {"role": "system", "content": "s"}, {"role": "user", "content": "first"}, {"role": "tool", "content": "r"},
        {"role": "user", "content": "second"}, {"role": "assistant", "content": null},
        {"role": "tool", "content": "r"},
    ], "tools": [{"type": "function", "function": {"name": "bash", "parameters": schema}}]});
    let messages = json!({"model": "m", "stream": true, "messages": [
        {"role": "user", "content": "first"},
        {"role": "user", "content": [{"type": "tool_result", "content": "r"}]},
        {"role": "user", "content": [{"type": "text", "text": "second"}]},
        {"role": "user", "content": [{"type": "tool_result", "content": "r"},
                                     {"type": "text", "text": "<system-reminder>hush</system-reminder>"}]},
    ], "tools": [{"name": "Bash", "input_schema": schema}]});
    let responses = json!({"model": "m", "stream": true, "input": [
        {"type": "message", "role": "user", "content": "first"}, {"type": "function_call_output"},
        {"role": "user", "content": "second"}, {"type": "function_call"}, {"type": "function_call_output"},
    ], "tools": [{"type": "function", "name": "shell", "parameters": schema}]});
    let gemini = json!({"contents": [
        {"role": "user", "parts": [{"text": "first"}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "x"}}]},
        {"role": "user", "parts": [{"text": "second"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "x"}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "x"}}]},
    ], "tools": [{"functionDeclarations": [{"name": "run_shell_command", "parametersJsonSchema": schema}]}]});
    vec![
        ("bash", Box::new(chat::Chat), chat, ""),
        ("Bash", Box::new(messages::Messages), messages, ""),
        ("shell", Box::new(responses::Responses), responses, ""),
        (
            "run_shell_command",
            Box::new(gemini::Gemini),
            gemini,
            "m:streamGenerateContent",
        ),
    ]
}

#[test]
fn every_api_reads_the_step_and_calls_the_shell_with_what_its_schema_requires() {
    for (tool, api, body, path) in conversations() {
        let request = api.read(&body, path);
        assert_eq!(
            (request.model.as_str(), request.stream, request.results),
            ("m", true, 1),
            "{tool}"
        );
        let Answer::Call { name, arguments, .. } = tools::shell_call(&request, "true") else {
            panic!("no call of {tool}")
        };
        assert_eq!(name, tool);
        assert_eq!(
            arguments,
            json!({"command": "true", "timeout": 60_000, "description": "scripted"})
        );
    }
}

#[test]
fn every_api_streams_the_same_words_that_it_answers_whole() {
    for (tool, api, _, _) in conversations() {
        let said = Answer::Text("All of it".into());
        let streamed = api.events("m", &said).concat();
        let whole = api.whole("m", &said).to_string();
        assert!(whole.contains("All of it"), "{tool}: {whole}");
        let pieces = ["All of it", "All "];
        assert!(
            pieces.iter().any(|piece| streamed.contains(piece)),
            "{tool}: {streamed}"
        );
        for event in streamed.split("\n\n").filter(|event| !event.is_empty()) {
            let data = event
                .lines()
                .find_map(|line| line.strip_prefix("data: "))
                .unwrap();
            assert!(
                data == "[DONE]" || serde_json::from_str::<Value>(data).is_ok(),
                "{tool}: {data}"
            );
        }
        let nothing = api.events("m", &Answer::Nothing).concat();
        assert!(!nothing.contains("All"), "{tool}");
    }
}

#[test]
fn json_of_a_shape_has_what_the_shape_requires() {
    let shape = json!({
        "type": "OBJECT", "required": ["next", "sure"],
        "properties": {"next": {"type": "STRING", "enum": ["user", "model"]}, "sure": {"type": "BOOLEAN"},
                       "more": {"type": "STRING"}},
    });
    assert_eq!(tools::filler(&shape), json!({"next": "user", "sure": false}));
}
