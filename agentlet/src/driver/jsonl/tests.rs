use panda_api::{DriverKind, FailureMatch, FailureReason, FailureRule};
use serde_json::json;

use super::*;
use crate::driver::{DIALECTS, build, dialect};
use crate::process::Exit;

fn config(name: &str) -> DriverConfig {
    let builtin = dialect(name).unwrap();
    DriverConfig {
        kind: DriverKind::Jsonl,
        dialect: Some(builtin.dialect),
        usage: Some(builtin.usage),
        ..DriverConfig::default()
    }
}

fn exit(code: i32) -> TurnEnd {
    TurnEnd {
        exit: Exit {
            code: Some(code),
            ..Exit::default()
        },
        ..TurnEnd::default()
    }
}

/// Feeds a whole output in pieces.
fn play(config: &DriverConfig, stdout: &[u8], piece: usize, end: &TurnEnd) -> (Vec<AgentEvent>, TurnOutcome) {
    let mut driver = build(config).unwrap();
    let mut outputs = driver.start();
    for bytes in stdout.chunks(piece) {
        outputs.extend(driver.stdout(bytes));
    }
    outputs.extend(driver.end_of_output());
    let events = outputs
        .into_iter()
        .filter_map(|o| match o {
            Output::Event(event) => Some(event),
            Output::Write(_) | Output::CloseStdin | Output::TurnOver => None,
        })
        .collect();
    (events, driver.finish(end))
}

fn lines(events: &[Value]) -> Vec<u8> {
    let lines: Vec<_> = events.iter().map(|e| format!("{e}\n")).collect();
    lines.concat().into_bytes()
}

/// What each built-in dialect says in a turn that calls a tool and succeeds.
fn success(name: &str) -> Vec<Value> {
    match name {
        "claude" => vec![
            json!({"type": "system", "subtype": "init", "session_id": "s1"}),
            json!({"type": "assistant", "session_id": "s1", "message": {"content": [{"type": "text", "text": "Let me see."}]}}),
            json!({"type": "assistant", "session_id": "s1", "message": {"content": [{"type": "tool_use", "name": "Write", "input": {}}]}}),
            json!({"type": "user", "session_id": "s1", "message": {"content": [{"type": "tool_result", "content": "ok"}]}}),
            json!({"type": "assistant", "session_id": "s1", "message": {"content": [{"type": "text", "text": "All done."}]}}),
            json!({"type": "result", "subtype": "success", "is_error": false, "result": "All done.", "session_id": "s1", "total_cost_usd": 0.01251,
                   "usage": {"input_tokens": 1000, "cache_read_input_tokens": 200, "output_tokens": 34}}),
        ],
        "codex" => vec![
            json!({"type": "thread.started", "thread_id": "s1"}),
            json!({"type": "item.completed", "item": {"type": "error", "message": "only a notice"}}),
            json!({"type": "item.started", "item": {"type": "command_execution", "command": "touch x"}}),
            json!({"type": "item.completed", "item": {"type": "command_execution", "exit_code": 0}}),
            json!({"type": "item.completed", "item": {"type": "agent_message", "text": "All done."}}),
            json!({"type": "turn.completed", "usage": {"input_tokens": 1200, "cached_input_tokens": 200, "output_tokens": 34}}),
        ],
        "gemini" => vec![
            json!({"type": "init", "session_id": "s1"}),
            json!({"type": "message", "role": "user", "content": "the prompt"}),
            json!({"type": "tool_use", "tool_name": "write_file"}),
            json!({"type": "tool_result", "status": "success"}),
            json!({"type": "message", "role": "assistant", "content": "All ", "delta": true}),
            json!({"type": "message", "role": "assistant", "content": "done.", "delta": true}),
            json!({"type": "result", "status": "success", "stats": {"input_tokens": 1200, "cached": 200, "output_tokens": 34}}),
        ],
        "grok" => vec![
            json!({"type": "available_commands"}),
            json!({"type": "tool_call", "toolName": "write", "status": "pending"}),
            json!({"type": "tool_call_update", "status": "completed"}),
            json!({"type": "text", "data": "All "}),
            json!({"type": "text", "data": "done."}),
            json!({"type": "end", "stopReason": "end_turn", "sessionId": "s1",
                   "usage": {"input_tokens": 1000, "cache_read_input_tokens": 200, "output_tokens": 34}}),
        ],
        "opencode" => vec![
            json!({"type": "step_start", "sessionID": "s1"}),
            json!({"type": "tool_use", "sessionID": "s1", "part": {"tool": "write"}}),
            json!({"type": "step_finish", "sessionID": "s1", "part": {"reason": "tool-calls", "cost": 0.5, "tokens": {"input": 600, "output": 20, "cache": {"read": 100}}}}),
            json!({"type": "text", "sessionID": "s1", "part": {"text": "All done."}}),
            json!({"type": "step_finish", "sessionID": "s1", "part": {"reason": "stop", "cost": 0.25, "tokens": {"input": 400, "output": 14, "cache": {"read": 100}}}}),
        ],
        other => unreachable!("{other}"),
    }
}

#[test]
fn every_dialect_tells_text_tool_session_usage_and_success() {
    for name in DIALECTS {
        for piece in [1, 7, 100_000] {
            let (events, outcome) = play(&config(name), &lines(&success(name)), piece, &exit(0));
            assert_eq!(outcome.failure, None, "{name}");
            assert_eq!(outcome.summary, "All done.", "{name}");
            assert_eq!(outcome.session, "s1", "{name}");
            let usage = outcome.usage;
            assert_eq!(
                (usage.input_tokens, usage.cached_tokens, usage.output_tokens),
                (1200, 200, 34),
                "{name}"
            );
            let calls = events.iter().filter(|e| matches!(e, AgentEvent::ToolCall { .. }));
            assert_eq!(calls.count(), 1, "{name}");
            let sessions = events.iter().filter(|e| matches!(e, AgentEvent::Session { .. }));
            assert_eq!(sessions.count(), 1, "{name}");
        }
    }
}

#[test]
fn money_is_an_exact_decimal_that_adds_up_where_steps_do() {
    let amount = |name: &str| {
        let (_, outcome) = play(&config(name), &lines(&success(name)), 999, &exit(0));
        outcome.usage.money.unwrap().amount
    };
    assert_eq!(amount("claude"), "0.01251");
    assert_eq!(amount("opencode"), "0.75");
}

/// An error as each dialect reports it, with the exit code that goes with it.
fn error(name: &str) -> (Vec<Value>, i32) {
    match name {
        "claude" => (
            vec![
                json!({"type": "assistant", "session_id": "s", "message": {"model": "<synthetic>", "content": [{"type": "text", "text": "Invalid API key"}]}}),
                json!({"type": "result", "subtype": "success", "is_error": true, "result": "Invalid API key", "session_id": "s"}),
            ],
            0,
        ),
        "codex" => (
            vec![
                json!({"type": "error", "message": "Reconnecting... 1/2"}),
                json!({"type": "turn.failed", "error": {"message": "Invalid API key"}}),
            ],
            1,
        ),
        "gemini" => (
            vec![json!({"type": "result", "status": "error", "error": {"message": "Invalid API key"}})],
            145,
        ),
        "grok" => (vec![json!({"type": "error", "message": "Invalid API key"})], 1),
        "opencode" => (
            vec![
                json!({"type": "error", "sessionID": "s", "error": {"name": "APIError", "data": {"message": "Invalid API key"}}}),
            ],
            0,
        ),
        other => unreachable!("{other}"),
    }
}

#[test]
fn an_error_event_decides_whatever_the_exit_code_says() {
    for name in DIALECTS {
        let (events, code) = error(name);
        for code in [code, 0] {
            let (_, outcome) = play(&config(name), &lines(&events), 50, &exit(code));
            let failure = outcome.failure.unwrap();
            assert_eq!(failure.reason, FailureReason::AgentError, "{name}");
            assert_eq!(failure.message, "Invalid API key", "{name}");
        }
    }
}

#[test]
fn an_error_that_the_model_got_over_is_forgotten() {
    let mut events = vec![json!({"type": "error", "message": "Reconnecting... 1/2"})];
    events.extend(success("codex"));
    let (_, outcome) = play(&config("codex"), &lines(&events), 33, &exit(0));
    assert_eq!(outcome.failure, None);
}

#[test]
fn a_turn_without_words_and_tools_is_empty_although_it_says_success() {
    let events = [json!({"type": "end", "stopReason": "end_turn", "sessionId": "s"})];
    let (_, outcome) = play(&config("grok"), &lines(&events), 9, &exit(0));
    assert_eq!(outcome.failure.unwrap().reason, FailureReason::EmptyTurn);
}

#[test]
fn a_stop_reason_that_is_no_success_is_a_failure_in_spite_of_exit_code_0() {
    let mut events = success("grok");
    *events.last_mut().unwrap() = json!({"type": "end", "stopReason": "cancelled", "sessionId": "s"});
    let (_, outcome) = play(&config("grok"), &lines(&events), 9, &exit(0));
    let failure = outcome.failure.unwrap();
    assert_eq!(failure.reason, FailureReason::AgentError);
    assert!(failure.message.contains("cancelled"));
}

#[test]
fn a_rule_names_the_failure_and_says_when_it_passes() {
    let mut config = config("claude");
    config.failures = vec![
        FailureRule {
            match_: FailureMatch {
                event: [
                    ("type".to_owned(), json!("rate_limit_event")),
                    ("info.status".to_owned(), json!("rejected")),
                ]
                .into(),
                ..FailureMatch::default()
            },
            reason: FailureReason::QuotaExceeded,
            reset_at: "info.resetsAt".into(),
        },
        FailureRule {
            match_: FailureMatch {
                text: "(?i)invalid api key".into(),
                ..FailureMatch::default()
            },
            reason: FailureReason::AuthFailed,
            ..FailureRule::default()
        },
    ];
    let (events, code) = error("claude");
    let (_, outcome) = play(&config, &lines(&events), 64, &exit(code));
    assert_eq!(outcome.failure.unwrap().reason, FailureReason::AuthFailed);
    let mut events = events;
    events.insert(
        0,
        json!({"type": "rate_limit_event", "info": {"status": "rejected", "resetsAt": 1_796_064_553}}),
    );
    let (_, outcome) = play(&config, &lines(&events), 64, &exit(code));
    let failure = outcome.failure.unwrap();
    assert_eq!(failure.reason, FailureReason::QuotaExceeded);
    assert_eq!(failure.retry_after.unwrap().0.as_second(), 1_796_064_553);
    assert!(failure.retryable);
}

#[test]
fn what_is_no_event_is_kept_and_harms_nothing() {
    let mut stdout = b"\xff\xfe\x97\nnot json\n[1,2]\n{\"type\":\n\0\n  \n".to_vec();
    stdout.extend(vec![b'x'; 3 << 20]);
    stdout.extend(b"\n 10%\r 50%\r100%\r");
    stdout.extend(lines(&success("grok")));
    stdout.extend(b"{\"type\":\"unheard of\"}");
    let (events, outcome) = play(&config("grok"), &stdout, 4096, &exit(0));
    assert_eq!(outcome.failure, None);
    assert_eq!(outcome.summary, "All done.");
    let raw = events
        .iter()
        .filter(|e| matches!(e, AgentEvent::Raw { .. }))
        .count();
    assert_eq!(raw, 6, "{events:?}");
    assert!(matches!(events.last().unwrap(), AgentEvent::Other { .. }));
}

#[test]
fn an_agent_that_fails_before_it_speaks_is_quoted() {
    let (_, outcome) = play(&config("codex"), b"Error: no rollout found\n", 5, &exit(1));
    let failure = outcome.failure.unwrap();
    assert_eq!(failure.reason, FailureReason::AgentError);
    assert!(failure.message.contains("no rollout found"), "{failure:?}");
}

#[test]
fn a_prompt_for_standard_input_is_written_and_closed() {
    let mut config = config("grok");
    config.stdin = Some("do it".into());
    let mut driver = build(&config).unwrap();
    assert!(driver.launch().stdin);
    assert_eq!(
        driver.start(),
        [Output::Write("do it".into()), Output::CloseStdin]
    );
}

/// Recorded sessions of real agents, where `PANDA_TRANSCRIPTS` names a folder of them: one folder an agent, a
/// `NAME.jsonl` with its output and a `NAME.meta.json` with its `scenario` and exit code `rc`.
#[test]
#[expect(clippy::disallowed_methods, reason = "a test that is pointed to its data")]
fn recorded_sessions_end_as_they_ended() {
    let Some(dir) = std::env::var_os("PANDA_TRANSCRIPTS") else {
        println!("skipped: PANDA_TRANSCRIPTS names no folder of recorded sessions");
        return;
    };
    let mut seen = 0;
    for name in DIALECTS {
        for entry in std::fs::read_dir(std::path::Path::new(&dir).join(name)).unwrap() {
            let path = entry.unwrap().path();
            let file = path.file_name().unwrap().to_str().unwrap().to_owned();
            let other = [
                "acp-",
                "app-server-",
                "stream-json-",
                "multi-json",
                "multi-messages-json",
            ];
            if !file.ends_with(".jsonl") || other.iter().any(|o| file.starts_with(o)) {
                continue;
            }
            let meta = std::fs::read(path.with_extension("meta.json")).unwrap();
            let meta: Value = serde_json::from_slice(&meta).unwrap();
            let rc = i32::try_from(meta["rc"].as_i64().unwrap()).unwrap();
            let mut end = exit(rc);
            if rc < 0 {
                end.exit = Exit {
                    signal: Some(-rc),
                    ..Exit::default()
                };
            }
            let stdout = std::fs::read(&path).unwrap();
            let (events, outcome) = play(&config(name), &stdout, 777, &end);
            seen += 1;
            let label = format!("{name}/{file} rc {rc}: {:?}", outcome.failure);
            println!("{label}");
            if rc != 0 {
                assert!(outcome.failure.is_some(), "{label}");
                assert!(!outcome.failure.unwrap().message.is_empty(), "{label}");
                continue;
            }
            let refused = name == "grok" && file.starts_with("write-")
                || name == "opencode" && file.starts_with("write-ask");
            if refused {
                assert!(outcome.failure.is_some(), "{label}");
            } else if [
                "say.jsonl",
                "multi.jsonl",
                "write.jsonl",
                "resume-1.jsonl",
                "resume-2.jsonl",
            ]
            .contains(&file.as_str())
            {
                assert_eq!(outcome.failure, None, "{label}");
                assert!(
                    outcome.summary.contains("FAKE-"),
                    "{label}: {:?}",
                    outcome.summary
                );
                assert!(
                    !outcome.session.is_empty() && outcome.usage.input_tokens > 0,
                    "{label}"
                );
                let called = events.iter().any(|e| matches!(e, AgentEvent::ToolCall { .. }));
                assert_eq!(
                    called,
                    ["multi.jsonl", "write.jsonl"].contains(&file.as_str()),
                    "{label}"
                );
            }
        }
    }
    assert!(seen > 50, "{seen} sessions");
}
