use panda_api::{FailureMatch, FailureReason as R};

use super::*;

fn judge(failures: Vec<FailureRule>, exit_codes: &[(i32, R)]) -> Judge {
    Judge::new(&DriverConfig {
        failures,
        exit_codes: exit_codes.iter().copied().collect(),
        ..DriverConfig::default()
    })
    .unwrap()
}

fn rule(reason: R, set: impl FnOnce(&mut FailureMatch)) -> FailureRule {
    let mut match_ = FailureMatch::default();
    set(&mut match_);
    FailureRule {
        match_,
        reason,
        ..FailureRule::default()
    }
}

fn code(code: i32) -> TurnEnd {
    TurnEnd {
        exit: Exit {
            code: Some(code),
            ..Exit::default()
        },
        ..TurnEnd::default()
    }
}

fn reason(judge: &Judge, turn: Turn, end: &TurnEnd) -> Option<R> {
    judge.decide(turn, end).failure.map(|f| f.reason)
}

/// A turn in which everything that can go wrong did.
fn worst() -> Turn {
    Turn {
        error: Some("upstream says no".into()),
        stderr: "quota exceeded".into(),
        stop_reason: Some("refusal".into()),
        stop_ok: Some(false),
        speaks: true,
        ..Turn::default()
    }
}

#[test]
fn the_signals_are_weighed_in_their_order() {
    let rules = vec![rule(R::QuotaExceeded, |m| m.stderr = "quota".into())];
    let judge = judge(rules, &[(7, R::ContextLimit)]);
    let mut end = code(7);
    end.ours = Some(Failure {
        reason: R::Cancelled,
        ..Failure::default()
    });
    end.exit.oom = true;
    assert_eq!(
        reason(&judge, worst(), &end),
        Some(R::Cancelled),
        "what we did ourselves comes first"
    );
    end.ours = None;
    assert_eq!(reason(&judge, worst(), &end), Some(R::OutOfMemory));
    end.exit.oom = false;
    assert_eq!(
        reason(&judge, worst(), &end),
        Some(R::QuotaExceeded),
        "a rule names the error"
    );
    let mut turn = worst();
    turn.stderr.clear();
    assert_eq!(
        reason(&judge, turn.clone(), &end),
        Some(R::ContextLimit),
        "the exit code names the error"
    );
    assert_eq!(reason(&judge, turn.clone(), &code(1)), Some(R::AgentError));
    turn.error = None;
    assert_eq!(reason(&judge, turn.clone(), &code(0)), Some(R::EmptyTurn));
    turn.did_something = true;
    assert_eq!(
        reason(&judge, turn.clone(), &code(0)),
        Some(R::AgentError),
        "the stop reason"
    );
    turn.stop_ok = None;
    assert_eq!(
        reason(&judge, turn.clone(), &code(7)),
        Some(R::ContextLimit),
        "the exit code's meaning"
    );
    assert_eq!(
        reason(&judge, turn.clone(), &code(3)),
        Some(R::AgentError),
        "the exit code"
    );
    assert_eq!(reason(&judge, turn, &code(0)), None);
}

#[test]
fn all_conditions_of_a_rule_must_hold_and_one_without_any_never_does() {
    let both = rule(R::RateLimited, |m| {
        m.text = "limit".into();
        m.stop_reason = "refusal".into();
    });
    let judge = judge(vec![rule(R::AuthFailed, |_| {}), both], &[]);
    let mut turn = Turn {
        text: "a limit".into(),
        did_something: true,
        ..Turn::default()
    };
    assert_eq!(reason(&judge, turn.clone(), &code(0)), None);
    turn.stop_reason = Some("refusal".into());
    assert_eq!(reason(&judge, turn, &code(0)), Some(R::RateLimited));
}

#[test]
fn an_empty_turn_can_have_a_meaning_of_its_own() {
    let judge = judge(vec![rule(R::Overloaded, |m| m.empty_turn = Some(true))], &[]);
    let empty = Turn {
        speaks: true,
        ..Turn::default()
    };
    assert_eq!(reason(&judge, empty, &code(0)), Some(R::Overloaded));
}

#[test]
fn a_rule_that_is_no_regular_expression_is_refused_with_its_place() {
    let config = DriverConfig {
        failures: vec![rule(R::AuthFailed, |m| m.stderr = "(".into())],
        ..DriverConfig::default()
    };
    let error = Judge::new(&config).unwrap_err();
    assert!(
        error.to_string().starts_with("failures[0].match.stderr:"),
        "{error}"
    );
}

#[test]
fn reset_times_are_read_in_every_form() {
    let now = Time::from("2026-11-30T20:00:00Z".parse::<jiff::Timestamp>().unwrap());
    let at = |value: Value| {
        let time = reset_time(&serde_json::json!({"t": value}), "t", Some(now));
        time.map(|t| t.to_string())
    };
    let same = Some("2026-11-30T20:30:00Z".to_owned());
    assert_eq!(at(1_796_070_600_i64.into()), same);
    assert_eq!(at(1_796_070_600_000_i64.into()), same);
    assert_eq!(at("2026-11-30T20:30:00Z".into()), same);
    assert_eq!(at(1800.into()), same);
    assert_eq!(at("1800".into()), same);
    for bad in [Value::Null, "soon".into(), (-5).into(), f64::MAX.into()] {
        assert_eq!(at(bad), None);
    }
}
