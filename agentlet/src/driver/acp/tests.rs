use panda_api::{DriverKind, FailureMatch, FailureReason as R, FailureRule};
use proptest::prelude::*;

use super::*;
use crate::driver::{Consent, build};

fn config(set: impl FnOnce(&mut AcpConfig)) -> DriverConfig {
    let mut acp = AcpConfig {
        prompt: "Mend it".into(),
        cwd: "/w".into(),
        consent: Consent::All,
        ..AcpConfig::default()
    };
    set(&mut acp);
    DriverConfig {
        kind: DriverKind::Acp,
        acp: Some(acp),
        ..DriverConfig::default()
    }
}

/// One side of a conversation: what the driver writes is kept, as messages.
struct Talk {
    driver: Option<Box<dyn Driver>>,
    written: Vec<Value>,
    events: Vec<AgentEvent>,
    over: bool,
}

impl Talk {
    fn new(config: &DriverConfig) -> Self {
        let mut talk = Self {
            driver: Some(build(config).unwrap()),
            written: Vec::new(),
            events: Vec::new(),
            over: false,
        };
        let outputs = talk.driver().start();
        talk.take(outputs);
        talk
    }

    fn driver(&mut self) -> &mut dyn Driver {
        self.driver.as_deref_mut().unwrap()
    }

    fn take(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Event(event) => self.events.push(event),
                Output::Write(bytes) => {
                    assert_eq!(bytes.iter().filter(|b| **b == b'\n').count(), 1);
                    self.written.push(serde_json::from_slice(&bytes).unwrap());
                }
                Output::CloseStdin => {}
                Output::TurnOver => self.over = true,
            }
        }
    }

    fn last(&self) -> &Value {
        self.written.last().unwrap()
    }

    fn hears(&mut self, message: &Value) -> &mut Self {
        self.reads(format!("{message}\n").as_bytes())
    }

    fn reads(&mut self, bytes: &[u8]) -> &mut Self {
        let outputs = self.driver().stdout(bytes);
        self.take(outputs);
        self
    }

    /// The agent answers what it was asked last.
    fn answers(&mut self, method: &str, result: Value) -> &mut Self {
        assert_eq!(self.last()["method"], method, "{:?}", self.written);
        let id = self.last()["id"].clone();
        self.hears(&json!({"jsonrpc": "2.0", "id": id, "result": result}))
    }

    fn refuses(&mut self, method: &str, error: Value) -> &mut Self {
        assert_eq!(self.last()["method"], method);
        let id = self.last()["id"].clone();
        self.hears(&json!({"jsonrpc": "2.0", "id": id, "error": error}))
    }

    fn updates(&mut self, update: Value) -> &mut Self {
        self.hears(&json!({
            "jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s1", "update": update},
        }))
    }

    fn says(&mut self, text: &str) -> &mut Self {
        self.updates(
            json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}),
        )
    }

    /// Up to the prompt.
    fn opened(config: &DriverConfig) -> Self {
        let mut talk = Self::new(config);
        talk.answers("initialize", hello())
            .answers("session/new", json!({"sessionId": "s1", "modes": modes()}));
        talk
    }

    fn ends(self) -> TurnOutcome {
        self.ends_with(Exit {
            code: Some(0),
            ..Exit::default()
        })
    }

    fn ends_with(mut self, exit: Exit) -> TurnOutcome {
        let outputs = self.driver().end_of_output();
        self.take(outputs);
        self.driver.take().unwrap().finish(&TurnEnd {
            exit,
            ours: None,
            now: Some("2026-11-30T20:00:00Z".parse::<jiff::Timestamp>().unwrap().into()),
        })
    }
}

fn hello() -> Value {
    json!({
        "protocolVersion": 1,
        "authMethods": [{"id": "api-key", "name": "Key"}],
        "agentCapabilities": {"loadSession": true, "promptCapabilities": {"image": true}},
    })
}

fn modes() -> Value {
    json!({"currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask"}, {"id": "yolo", "name": "All"}]})
}

fn reason(outcome: &TurnOutcome) -> Option<R> {
    outcome.failure.as_ref().map(|f| f.reason)
}

#[test]
fn a_turn_goes_from_the_greeting_to_the_last_word() {
    let mut talk = Talk::new(&config(|acp| {
        acp.mode = "yolo".into();
        acp.authenticate = "api-key".into();
    }));
    assert_eq!(
        talk.last()["params"]["clientCapabilities"]["fs"]["writeTextFile"],
        false
    );
    talk.answers("initialize", hello());
    assert_eq!(talk.last()["params"], json!({"methodId": "api-key"}));
    talk.answers("authenticate", json!({}));
    assert_eq!(talk.last()["params"], json!({"cwd": "/w", "mcpServers": []}));
    talk.answers("session/new", json!({"sessionId": "s1", "modes": modes()}));
    assert_eq!(
        talk.last()["params"],
        json!({"sessionId": "s1", "modeId": "yolo"}),
        "the mode is always set"
    );
    talk.answers("session/set_mode", json!({}));
    assert_eq!(
        talk.last()["params"],
        json!({"sessionId": "s1", "prompt": [{"type": "text", "text": "Mend it"}]})
    );
    talk.says("Looking.")
        .updates(json!({
            "sessionUpdate": "tool_call", "toolCallId": "c1", "title": "Terminal", "kind": "execute",
            "rawInput": {"command": "make", "a": 1}, "status": "in_progress",
        }))
        .says("All ")
        .says("done.");
    assert!(!talk.over);
    talk.answers(
        "session/prompt",
        json!({"stopReason": "end_turn", "usage": {"inputTokens": 1000, "cachedReadTokens": 200, "outputTokens": 34}}),
    );
    assert!(talk.over);
    let expected = [
        AgentEvent::Session { id: "s1".into() },
        AgentEvent::Text {
            text: "Looking.".into(),
        },
        AgentEvent::ToolCall {
            id: "c1".into(),
            name: "execute".into(),
            input: Some(r#"{"a":1,"command":"make"}"#.into()),
        },
    ];
    assert_eq!(talk.events[..3], expected);
    // What the process does once the turn is over says nothing of the turn.
    let outcome = talk.ends_with(Exit {
        signal: Some(9),
        ..Exit::default()
    });
    assert_eq!(outcome.failure, None);
    assert_eq!(
        (outcome.summary.as_str(), outcome.session.as_str()),
        ("All done.", "s1")
    );
    let usage = outcome.usage;
    assert_eq!(
        (
            usage.input_tokens,
            usage.cached_tokens,
            usage.output_tokens,
            usage.turns
        ),
        (1200, 200, 34, 1)
    );
}

#[test]
fn a_mode_may_be_an_option_and_one_that_is_missing_ends_the_turn() {
    let yolo = config(|acp| acp.mode = "yolo".into());
    let mut talk = Talk::new(&yolo);
    let options = json!([{"id": "m", "category": "mode", "type": "select", "currentValue": "ask",
                          "options": [{"value": "ask", "name": "Ask"}, {"value": "yolo", "name": "All"}]}]);
    talk.answers("initialize", hello()).answers(
        "session/new",
        json!({"sessionId": "s1", "configOptions": options}),
    );
    assert_eq!(talk.last()["method"], "session/set_config_option");
    assert_eq!(
        talk.last()["params"],
        json!({"sessionId": "s1", "configId": "m", "value": "yolo"})
    );

    let mut talk = Talk::new(&yolo);
    talk.answers("initialize", hello()).answers(
        "session/new",
        json!({"sessionId": "s1", "modes": {"availableModes": [{"id": "plan"}]}}),
    );
    assert!(talk.over);
    let failure = talk.ends().failure.unwrap();
    assert_eq!(failure.reason, R::ProtocolError);
    assert!(
        failure.message.contains("no mode \"yolo\" (it has: plan)"),
        "{}",
        failure.message
    );
}

#[test]
fn a_session_is_resumed_the_best_way_the_agent_has() {
    let resumed = config(|acp| acp.session = "s1".into());
    let mut talk = Talk::new(&resumed);
    talk.answers("initialize", hello());
    assert_eq!(
        talk.last()["params"],
        json!({"sessionId": "s1", "cwd": "/w", "mcpServers": []})
    );
    // The past, told again, is not the turn.
    talk.says("Old words.").answers("session/load", json!({}));
    assert_eq!(talk.last()["method"], "session/prompt");
    talk.answers("session/prompt", json!({"stopReason": "end_turn"}));
    assert_eq!(reason(&talk.ends()), Some(R::EmptyTurn));

    let mut better = hello();
    better["agentCapabilities"]["sessionCapabilities"] = json!({"resume": {}});
    let mut talk = Talk::new(&resumed);
    talk.answers("initialize", better)
        .answers("session/resume", json!({}));
    assert_eq!(talk.last()["method"], "session/prompt");

    // A fresh session is better than none.
    let mut talk = Talk::new(&resumed);
    talk.answers("initialize", hello())
        .refuses(
            "session/load",
            json!({"code": -32603, "message": "No previous sessions found"}),
        )
        .answers("session/new", json!({"sessionId": "s2"}));
    assert_eq!(talk.last()["params"]["sessionId"], "s2");

    let mut talk = Talk::new(&resumed);
    talk.answers("initialize", json!({"protocolVersion": 1}));
    assert_eq!(talk.last()["method"], "session/new");
}

fn permission(kind: &str, options: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": "p-7", "method": "session/request_permission", "params": {
        "sessionId": "s1", "options": options,
        "toolCall": {"toolCallId": "c9", "title": "harmless", "kind": kind, "rawInput": {"command": "rm x"}},
    }})
}

#[test]
fn permission_follows_the_level_and_is_picked_by_kind() {
    let options = json!([
        {"optionId": "z", "name": "Always", "kind": "allow_always"},
        {"optionId": "y", "name": "Yes", "kind": "allow_once"},
        {"optionId": "n", "name": "No", "kind": "reject_once"},
    ]);
    for (consent, kind, want, allowed) in [
        (Consent::All, "execute", "y", true),
        (Consent::Edits, "edit", "y", true),
        (Consent::Edits, "execute", "n", false),
        (Consent::Nothing, "edit", "n", false),
    ] {
        let mut talk = Talk::opened(&config(|acp| acp.consent = consent));
        talk.hears(&permission(kind, &options));
        assert_eq!(
            *talk.last(),
            json!({"jsonrpc": "2.0", "id": "p-7",
                   "result": {"outcome": {"outcome": "selected", "optionId": want}}})
        );
        // What it is called with is told, not what it is called.
        let what = r#"{"command":"rm x"}"#.into();
        assert_eq!(
            *talk.events.last().unwrap(),
            AgentEvent::Permission { what, allowed }
        );
    }
    let mut talk = Talk::opened(&config(|_| {}));
    talk.hears(&permission("execute", &json!([])));
    assert_eq!(talk.last()["result"]["outcome"], json!({"outcome": "cancelled"}));
}

#[test]
fn a_cancelled_turn_is_told_and_asked_for_nothing_more() {
    let mut talk = Talk::opened(&config(|_| {}));
    let outputs = talk.driver().cancel();
    talk.take(outputs);
    assert_eq!(
        *talk.last(),
        json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s1"}})
    );
    let options = json!([{"optionId": "y", "name": "Yes", "kind": "allow_once"}]);
    talk.hears(&permission("execute", &options));
    assert_eq!(talk.last()["result"]["outcome"], json!({"outcome": "cancelled"}));
    talk.hears(&json!({"jsonrpc": "2.0", "id": 3, "result": {"stopReason": "cancelled"}}));
    assert!(talk.over);

    let mut early = Talk::new(&config(|_| {}));
    assert_eq!(
        early.driver().cancel(),
        [Output::CloseStdin],
        "no turn to cancel yet"
    );
}

#[test]
fn what_is_not_offered_is_refused_with_its_id() {
    let mut talk = Talk::opened(&config(|_| {}));
    for (id, method) in [
        (json!(0), "fs/read_text_file"),
        (json!("a"), "terminal/create"),
        (Value::Null, "_vendor/thing"),
    ] {
        talk.hears(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {}}));
        assert_eq!(talk.last()["id"], id);
        assert_eq!(talk.last()["error"]["code"], -32601);
    }
    talk.hears(&json!({"jsonrpc": "2.0", "id": 1, "method": "session/request_permission", "params": 5}));
    assert_eq!(talk.last()["error"]["code"], -32602);
    assert!(!talk.over);
}

#[test]
fn broken_speech_ends_the_turn_and_noise_does_not() {
    let too_long = format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"{}\"}}\n",
        "x".repeat(MAX_MESSAGE)
    );
    let deep = format!("{{\"method\":{}\n", "[".repeat(5000));
    for bad in [
        "{\"jsonrpc\":\"2.0\",\n",
        "{\"jsonrpc\":\"2.0\"}\n",
        "{\"method\":5}\n",
        "{\"id\":1}\n",
        "{\"id\":{},\"method\":\"session/request_permission\"}\n",
        &too_long,
        &deep,
    ] {
        let mut talk = Talk::opened(&config(|_| {}));
        talk.reads(b"npm warn deprecated\n\xff\xfe\n\n").says("Hm.");
        assert!(!talk.over);
        talk.reads(bad.as_bytes());
        assert!(talk.over, "{bad:.80}");
        assert_eq!(reason(&talk.ends()), Some(R::ProtocolError), "{bad:.80}");
    }
    for (method, result) in [
        ("initialize", json!({"protocolVersion": 2})),
        ("initialize", json!(null)),
    ] {
        let mut talk = Talk::new(&config(|_| {}));
        talk.answers(method, result);
        assert_eq!(reason(&talk.ends()), Some(R::ProtocolError));
    }
    let mut talk = Talk::opened(&config(|_| {}));
    talk.answers("session/prompt", json!({}));
    assert_eq!(reason(&talk.ends()), Some(R::ProtocolError));
}

#[test]
fn an_agent_that_ends_before_it_answers_has_not_succeeded() {
    let mut talk = Talk::opened(&config(|_| {}));
    talk.says("All done.");
    let failure = talk.ends().failure.unwrap();
    assert_eq!(failure.reason, R::ProtocolError);
    assert!(failure.message.contains("session/prompt"), "{}", failure.message);

    let mut talk = Talk::opened(&config(|_| {}));
    let outputs = talk.driver().stderr(b"Segmentation fault");
    talk.take(outputs);
    let outcome = talk.ends_with(Exit {
        code: Some(1),
        ..Exit::default()
    });
    assert_eq!(reason(&outcome), Some(R::AgentError));
    assert!(outcome.failure.unwrap().message.contains("Segmentation"));
}

#[test]
fn errors_are_named_by_rules_on_code_data_update_and_text() {
    let rule = |reason, set: &dyn Fn(&mut FailureMatch)| {
        let mut match_ = FailureMatch::default();
        set(&mut match_);
        FailureRule {
            match_,
            reason,
            ..FailureRule::default()
        }
    };
    let mut config = config(|_| {});
    config.failures = vec![
        FailureRule {
            reset_at: "retryAfter".into(),
            ..rule(R::QuotaExceeded, &|m| {
                m.data = [("kind".into(), json!("quota"))].into();
            })
        },
        rule(R::RateLimited, &|m| {
            m.rpc_code = Some(429);
        }),
        rule(R::Overloaded, &|m| {
            m.text = r"retry after (?P<retryAfter>\d+)s".into()
        }),
        rule(R::ProviderError, &|m| {
            m.update = [("_meta.status.type".into(), json!("systemError"))].into();
        }),
        rule(R::ApprovalDenied, &|m| m.stop_reason = "cancelled".into()),
    ];
    let prompt = |error: Value| {
        let mut talk = Talk::opened(&config);
        talk.says("Trying.").refuses("session/prompt", error);
        talk.ends().failure.unwrap()
    };
    let error = prompt(json!({"code": 1, "message": "no", "data": {"kind": "quota", "retryAfter": 60}}));
    assert_eq!(error.reason, R::QuotaExceeded);
    assert_eq!(error.retry_after.unwrap().to_string(), "2026-11-30T20:01:00Z");
    assert_eq!(
        prompt(json!({"code": 429, "message": "{}"})).reason,
        R::RateLimited
    );
    let error = prompt(json!({"code": -32603, "message": "Busy, retry after 90s"}));
    assert_eq!(error.reason, R::Overloaded);
    assert_eq!(error.retry_after.unwrap().to_string(), "2026-11-30T20:01:30Z");
    assert_eq!(
        prompt(json!({"code": -32000, "message": "Authentication required"})).reason,
        R::AuthFailed,
        "the protocol's own code"
    );
    let error =
        prompt(json!({"code": -32603, "message": "Internal error", "data": {"details": "disk is gone"}}));
    assert_eq!(error.reason, R::AgentError);
    assert!(error.message.contains("disk is gone"), "{}", error.message);

    let mut talk = Talk::opened(&config);
    talk.updates(
        json!({"sessionUpdate": "session_info_update", "_meta": {"status": {"type": "systemError"}}}),
    )
    .says("exceeded retry limit")
    .answers("session/prompt", json!({"stopReason": "end_turn"}));
    assert_eq!(
        reason(&talk.ends()),
        Some(R::ProviderError),
        "the stop reason does not outweigh it"
    );
    let mut talk = Talk::opened(&config);
    talk.says("Hm.")
        .answers("session/prompt", json!({"stopReason": "cancelled"}));
    assert_eq!(reason(&talk.ends()), Some(R::ApprovalDenied));
    let mut talk = Talk::opened(&config);
    talk.says("Hm.")
        .answers("session/prompt", json!({"stopReason": "max_tokens"}));
    assert_eq!(reason(&talk.ends()), Some(R::AgentError));
}

#[test]
fn a_call_is_told_when_seen_and_when_its_input_is_known() {
    let mut talk = Talk::opened(&config(|_| {}));
    talk.updates(json!({
        "sessionUpdate": "tool_call", "toolCallId": "a", "title": "Terminal", "name": "Bash", "rawInput": {},
        "status": "pending",
    }));
    let update =
        json!({"sessionUpdate": "tool_call_update", "toolCallId": "a", "rawInput": {"command": "ls"}});
    talk.updates(update.clone()).updates(update);
    // One that never says what it calls its tools with.
    let done = json!({
        "sessionUpdate": "tool_call_update", "toolCallId": "b", "title": "cat f", "kind": "execute",
        "status": "completed", "content": [{"type": "content", "content": {"type": "text", "text": "1"}}],
    });
    talk.updates(done);
    let calls: Vec<_> = talk
        .events
        .iter()
        .filter_map(|event| match event {
            AgentEvent::ToolCall { id, name, input } => Some((id.as_str(), name.as_str(), input.as_deref())),
            _ => None,
        })
        .collect();
    assert_eq!(
        calls[..2],
        [("a", "Bash", None), ("a", "Bash", Some(r#"{"command":"ls"}"#))]
    );
    assert_eq!(calls.len(), 3);
    assert!(calls[2].2.unwrap().contains("cat f"), "{calls:?}");
}

/// A value of the shapes that messages are made of, often with the names that the protocol uses.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3_i64..5).prop_map(Value::from),
        "[a-z/_]{0,8}".prop_map(Value::from),
        prop::sample::select(vec![
            "s1",
            "tool_call",
            "tool_call_update",
            "agent_message_chunk",
            "completed",
            "allow_once",
            "yolo",
        ])
        .prop_map(Value::from),
    ];
    let name = prop::sample::select(vec![
        "sessionId",
        "update",
        "sessionUpdate",
        "content",
        "text",
        "toolCallId",
        "rawInput",
        "status",
        "options",
        "toolCall",
        "kind",
        "optionId",
        "modes",
        "availableModes",
        "configOptions",
        "id",
        "category",
        "value",
        "stopReason",
        "usage",
        "inputTokens",
        "protocolVersion",
        "agentCapabilities",
        "loadSession",
        "code",
        "message",
        "data",
        "x",
    ]);
    leaf.prop_recursive(4, 32, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((name.clone(), inner), 0..6)
                .prop_map(|fields| fields.into_iter().map(|(n, v)| (n.to_owned(), v)).collect()),
        ]
    })
}

fn message() -> impl Strategy<Value = Value> {
    let method = prop::sample::select(vec![
        "session/update",
        "session/request_permission",
        "fs/read_text_file",
        "x",
    ]);
    prop_oneof![
        value(),
        (prop::option::of(0..4_i64), method, value()).prop_map(|(id, method, params)| match id {
            Some(id) => json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}),
            None => json!({"jsonrpc": "2.0", "method": method, "params": params}),
        }),
        value().prop_map(|update| {
            json!({"method": "session/update", "params": {"sessionId": "s1", "update": update}})
        }),
        (0..5_i64, value()).prop_map(|(id, result)| json!({"id": id, "result": result})),
        (0..5_i64, value()).prop_map(|(id, error)| json!({"id": id, "error": error})),
    ]
}

proptest! {
    #[test]
    fn any_messages_are_survived_and_answered_within_bounds(
        messages in prop::collection::vec(message(), 0..40),
        opened: bool,
    ) {
        let config = config(|acp| acp.mode = "yolo".into());
        let mut talk = if opened { Talk::opened(&config) } else { Talk::new(&config) };
        for message in &messages {
            let before = talk.written.len();
            talk.hears(message);
            prop_assert!(talk.written.len() <= before + 1, "one message, at most one answer");
        }
        let outcome = talk.ends();
        prop_assert!(outcome.summary.chars().count() <= 2000);
    }

    #[test]
    fn any_bytes_are_survived_however_they_are_cut(
        pieces in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..40),
                Just(b"{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":".to_vec()),
                Just(b"{}}\n".to_vec()),
                Just(b"{\"id\":1,\"result\":{\"protocolVersion\":1}}\n".to_vec()),
            ],
            0..20,
        ),
    ) {
        let mut talk = Talk::new(&config(|_| {}));
        let mut whole = Talk::new(&config(|_| {}));
        for piece in &pieces {
            talk.reads(piece);
        }
        whole.reads(&pieces.concat());
        prop_assert_eq!(&talk.written, &whole.written);
        prop_assert_eq!(talk.ends(), whole.ends());
    }
}

#[test]
fn what_is_kept_of_an_endless_conversation_is_bounded() {
    let mut config = config(|_| {});
    config.failures = vec![FailureRule {
        match_: FailureMatch {
            update: [("sessionUpdate".into(), json!("tool_call"))].into(),
            ..FailureMatch::default()
        },
        reason: R::AgentError,
        ..FailureRule::default()
    }];
    let mut acp = Acp::new(&config, config.acp.clone().unwrap(), Judge::new(&config).unwrap());
    acp.step = Step::Prompt;
    acp.turn.session = "s1".into();
    let big = "x".repeat(300 << 10);
    for n in 0..2000 {
        let update =
            json!({"sessionUpdate": "tool_call", "toolCallId": format!("{n}{big:.1000}"), "title": big});
        let text = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "y".repeat(1000)}});
        for update in [update, text] {
            let message =
                json!({"method": "session/update", "params": {"sessionId": "s1", "update": update}});
            drop(acp.told("session/update", message, 400 << 10));
        }
    }
    let kept = format!("{acp:?}").len();
    assert!(kept < 2 << 20, "{kept} bytes");
}

mod recorded;
