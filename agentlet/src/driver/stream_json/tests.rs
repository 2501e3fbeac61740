use panda_api::{DriverKind, FailureMatch, FailureReason as R, FailureRule};
use proptest::prelude::*;

use super::*;
use crate::driver::{build, dialect};

fn config(consent: Consent) -> DriverConfig {
    let claude = dialect("claude").unwrap();
    DriverConfig {
        kind: DriverKind::StreamJson,
        dialect: Some(claude.dialect),
        usage: Some(claude.usage),
        stream_json: Some(StreamJsonConfig {
            prompt: "Mend it".into(),
            consent,
        }),
        ..DriverConfig::default()
    }
}

#[derive(Debug, Default, PartialEq)]
struct Told {
    events: Vec<AgentEvent>,
    written: Vec<Value>,
    closed: bool,
    over: bool,
}

impl Told {
    fn take(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Event(event) => self.events.push(event),
                Output::Write(bytes) => self.written.push(serde_json::from_slice(&bytes).unwrap()),
                Output::CloseStdin => self.closed = true,
                Output::TurnOver => self.over = true,
            }
        }
    }
}

/// A whole turn, its output cut into pieces.
fn play(config: &DriverConfig, said: &[Value], piece: usize, exit: i32) -> (Told, TurnOutcome) {
    let mut driver = build(config).unwrap();
    let mut told = Told::default();
    told.take(driver.start());
    let text: Vec<String> = said.iter().map(|message| format!("{message}\n")).collect();
    for bytes in text.concat().as_bytes().chunks(piece) {
        told.take(driver.stdout(bytes));
    }
    told.take(driver.end_of_output());
    let end = TurnEnd {
        exit: Exit {
            code: Some(exit),
            ..Exit::default()
        },
        ..TurnEnd::default()
    };
    (told, driver.finish(&end))
}

fn says(block: &Value) -> Value {
    json!({"type": "assistant", "session_id": "s1", "message": {"role": "assistant", "content": [block]}})
}

fn asks(tool: &str, input: &Value) -> Value {
    json!({"type": "control_request", "request_id": format!("ask-{tool}"),
           "request": {"subtype": "can_use_tool", "tool_name": tool, "input": input}})
}

fn result(subtype: &str, error: bool, more: &Value) -> Value {
    let mut result = json!({
        "type": "result", "subtype": subtype, "is_error": error, "session_id": "s1", "total_cost_usd": 0.5,
        "usage": {"input_tokens": 1000, "cache_read_input_tokens": 200, "output_tokens": 34},
    });
    for (name, value) in more.as_object().unwrap() {
        result[name] = value.clone();
    }
    result
}

/// A turn that asks for two tools and succeeds.
fn turn() -> Vec<Value> {
    vec![
        json!({"type": "control_response", "response": {"subtype": "success", "request_id": "initialize", "response": {}}}),
        json!({"type": "system", "subtype": "init", "session_id": "s1"}),
        json!({"type": "stream_event", "event": {"type": "content_block_delta"}, "session_id": "s1"}),
        says(&json!({"type": "text", "text": "Let me see."})),
        says(&json!({"type": "tool_use", "id": "t1", "name": "Write", "input": {"file_path": "a"}})),
        asks("Write", &json!({"file_path": "a"})),
        says(&json!({"type": "tool_use", "id": "t2", "name": "Bash", "input": {"command": "ls"}})),
        asks("Bash", &json!({"command": "ls"})),
        says(&json!({"type": "text", "text": "All done."})),
        result("success", false, &json!({"result": "All done."})),
    ]
}

#[test]
fn a_turn_is_prompted_answered_and_over_with_its_result() {
    // Claude Code ends with 1 after an interrupted turn, and after a good one its code says nothing either.
    let (told, outcome) = play(&config(Consent::All), &turn(), 1 << 20, 1);
    assert_eq!(outcome.failure, None);
    assert_eq!(
        (outcome.summary.as_str(), outcome.session.as_str()),
        ("All done.", "s1")
    );
    assert_eq!(
        (outcome.usage.input_tokens, outcome.usage.cached_tokens),
        (1200, 200)
    );
    assert_eq!(outcome.usage.money.unwrap().amount, "0.5");
    assert!(told.over && told.closed);
    let [initialize, prompt, write, bash] = told.written.as_slice() else {
        panic!("{:#?}", told.written);
    };
    assert_eq!(initialize["request"]["subtype"], "initialize");
    assert_eq!(prompt["message"]["content"][0]["text"], "Mend it");
    for (answer, id, input) in [
        (write, "ask-Write", json!({"file_path": "a"})),
        (bash, "ask-Bash", json!({"command": "ls"})),
    ] {
        assert_eq!(answer["type"], "control_response");
        assert_eq!(answer["response"]["request_id"], id);
        assert_eq!(
            answer["response"]["response"],
            json!({"behavior": "allow", "updatedInput": input})
        );
    }
    let pieces = told
        .events
        .iter()
        .filter(|event| matches!(event, AgentEvent::Other { event } if event["type"] == "stream_event"));
    assert_eq!(pieces.count(), 0);
}

#[test]
fn consent_to_edits_is_none_to_commands() {
    let answers = |consent| {
        let (told, _) = play(&config(consent), &turn(), 1 << 20, 0);
        let answers = told.written[2..].iter();
        answers
            .map(|answer| answer["response"]["response"]["behavior"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(answers(Consent::Edits), ["allow", "deny"]);
    assert_eq!(answers(Consent::Nothing), ["deny", "deny"]);
}

#[test]
fn errors_are_named_whatever_the_subtype_and_the_exit_code_say() {
    let rules = [
        ("error_max_turns", "", R::BudgetExhausted),
        ("", "Invalid API key", R::AuthFailed),
    ];
    let mut config = config(Consent::All);
    config.failures = rules
        .map(|(stop, text, reason)| FailureRule {
            match_: FailureMatch {
                stop_reason: stop.into(),
                text: text.into(),
                ..FailureMatch::default()
            },
            reason,
            ..FailureRule::default()
        })
        .into();
    let worked = says(&json!({"type": "tool_use", "name": "Bash", "input": {}}));
    let max_turns = result(
        "error_max_turns",
        true,
        &json!({"errors": ["Reached maximum number of turns (4)"]}),
    );
    let bad_key = result(
        "success",
        true,
        &json!({"result": "Invalid API key · Fix external API key"}),
    );
    let no_session = result(
        "error_during_execution",
        true,
        &json!({"errors": ["No conversation found"]}),
    );
    for (said, reason, message, session) in [
        (
            vec![worked.clone(), max_turns],
            R::BudgetExhausted,
            "Reached maximum number of turns (4)",
            "s1",
        ),
        (
            vec![bad_key],
            R::AuthFailed,
            "Invalid API key · Fix external API key",
            "s1",
        ),
        // Nothing is there to go on with: the next attempt begins anew.
        (vec![no_session], R::AgentError, "No conversation found", ""),
        (vec![worked], R::ProtocolError, "ended without a result", "s1"),
    ] {
        let (_, outcome) = play(&config, &said, 1 << 20, 0);
        let failure = outcome.failure.unwrap();
        assert_eq!((failure.reason, failure.message.as_str()), (reason, message));
        assert_eq!(outcome.session, session, "{message}");
    }
}

#[test]
fn a_turn_without_a_word_is_empty() {
    let said = [result("success", false, &json!({"result": ""}))];
    let (_, outcome) = play(&config(Consent::All), &said, 1 << 20, 0);
    assert_eq!(outcome.failure.unwrap().reason, R::EmptyTurn);
}

#[test]
fn a_cancelled_turn_is_interrupted_and_allows_nothing_more() {
    let mut driver = build(&config(Consent::All)).unwrap();
    let mut told = Told::default();
    told.take(driver.start());
    told.take(driver.cancel());
    assert_eq!(told.written.last().unwrap()["request"]["subtype"], "interrupt");
    assert!(!told.closed);
    told.take(driver.stdout(format!("{}\n", asks("Bash", &json!({}))).as_bytes()));
    assert_eq!(
        told.written.last().unwrap()["response"]["response"]["behavior"],
        "deny"
    );
    // Asked once more, it waits no longer.
    told.take(driver.cancel());
    assert!(told.closed);
}

#[test]
fn what_is_not_offered_is_refused_and_a_refused_start_ends_the_turn() {
    let hook = json!({"type": "control_request", "request_id": "h", "request": {"subtype": "hook_callback"}});
    let refused = json!({"type": "control_response", "response": {"subtype": "error", "request_id": "initialize", "error": "too old"}});
    let (told, outcome) = play(&config(Consent::All), &[hook, refused], 1 << 20, 0);
    assert_eq!(told.written[2]["response"]["subtype"], "error");
    assert_eq!(told.written[2]["response"]["request_id"], "h");
    let failure = outcome.failure.unwrap();
    assert_eq!(failure.reason, R::ProtocolError);
    assert!(failure.message.contains("too old"), "{}", failure.message);
    assert!(told.over);
}

proptest! {
    #[test]
    fn a_turn_does_not_depend_on_how_its_output_is_cut(piece in 1_usize..200) {
        let config = config(Consent::Edits);
        prop_assert_eq!(play(&config, &turn(), piece, 0), play(&config, &turn(), 1 << 20, 0));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut driver = build(&config(Consent::All)).unwrap();
        driver.start();
        driver.stdout(&bytes);
        driver.stdout(br#"
{"type":"control_request"}
"#);
        driver.end_of_output();
        driver.finish(&TurnEnd::default());
    }
}
