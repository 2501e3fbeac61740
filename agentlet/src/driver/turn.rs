//! What a turn left behind, and what it means.
//!
//! Exit codes lie, and so do stop reasons: several signals are weighed in a fixed order, and the first that speaks
//! decides.

use panda_api::meta::Time;
use panda_api::{Failure, FailureClass, FailureReason, FailureRule, Usage};
use regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::{DriverConfig, Error, MAX_EVENT, MAX_RAW, last_words, paths, plain};
use crate::process::Exit;

/// Longest summary, in characters.
const SUMMARY: usize = 2000;

/// How the process of a turn ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TurnEnd {
    /// How it ended.
    pub exit: Exit,
    /// Set when it was we who ended it: a cancel, a watchdog, a limit.
    pub ours: Option<Failure>,
    /// Now, for times that are given as seconds to wait.
    pub now: Option<Time>,
}

/// What came of a turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TurnOutcome {
    /// Why it failed; absent: it succeeded.
    pub failure: Option<Failure>,
    /// The agent's last words, cut.
    pub summary: String,
    /// The agent's own session.
    pub session: String,
    /// What it used.
    pub usage: Usage,
}

/// What a turn left behind.
#[derive(Clone, Debug, Default)]
pub(super) struct Turn {
    /// Last words of the model.
    pub(super) text: String,
    pub(super) stderr: String,
    pub(super) session: String,
    pub(super) usage: Usage,
    /// Message of an error that no later success took back.
    pub(super) error: Option<String>,
    /// Why the turn ended, as the agent says it.
    pub(super) stop_reason: Option<String>,
    /// Whether that means success; absent when the agent did not say.
    pub(super) stop_ok: Option<bool>,
    /// Whether the agent speaks in events, so that a turn without any can be told.
    pub(super) speaks: bool,
    /// Model text or tool calls.
    pub(super) did_something: bool,
    /// Failure rules that matched something as it went by: index of the rule, what it matched.
    pub(super) matched: Vec<(usize, Value)>,
    /// The JSON-RPC error that ended the turn.
    pub(super) rpc: Option<RpcError>,
    /// What was wrong with how the agent spoke.
    pub(super) broken: Option<String>,
}

impl Turn {
    /// Notes which rules match what went by; of several matches the newest counts.
    pub(super) fn look(&mut self, judge: &Judge, seen: &Seen<'_>) {
        for (rule, value) in judge.matching(seen) {
            self.matched.retain(|(n, _)| *n != rule);
            self.matched.push((rule, value));
        }
    }
}

/// An error of JSON-RPC.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RpcError {
    pub(super) code: i64,
    pub(super) message: String,
    pub(super) data: Value,
}

impl RpcError {
    /// What it says, for people.
    pub(super) fn words(&self) -> String {
        let data = match &self.data {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            data => ["message", "details", "error"]
                .iter()
                .find_map(|name| data[*name].as_str())
                .map_or_else(|| data.to_string(), str::to_owned),
        };
        let words = match (self.message.trim(), data.trim()) {
            (message, "") => message.to_owned(),
            (message, data) => format!("{message}: {data}"),
        };
        let words: String = words.chars().take(MAX_RAW).collect();
        if words.is_empty() {
            format!("error {}", self.code)
        } else {
            words
        }
    }
}

/// Something that went by, and the parts of it that rules speak of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'a> {
    pub(super) event: &'a Value,
    /// The update of an ACP session.
    pub(super) update: Option<&'a Value>,
    /// The data of an error.
    pub(super) data: Option<&'a Value>,
}

impl<'a> Seen<'a> {
    /// An event of a dialect, in which everything stands.
    pub(super) const fn event(event: &'a Value) -> Self {
        Self {
            event,
            update: Some(event),
            data: Some(event),
        }
    }
}

/// The rules of one agent, compiled.
#[derive(Debug)]
pub(super) struct Judge {
    rules: Vec<Rule>,
    exit_codes: std::collections::BTreeMap<i32, FailureReason>,
}

#[derive(Debug)]
struct Rule {
    rule: FailureRule,
    text: Option<Regex>,
    stderr: Option<Regex>,
}

impl Judge {
    pub(super) fn new(config: &DriverConfig) -> Result<Self, Error> {
        let rules = config.failures.iter().enumerate().map(|(index, rule)| {
            let compile = |field, pattern: &str| {
                if pattern.is_empty() {
                    return Ok(None);
                }
                RegexBuilder::new(pattern)
                    .size_limit(1 << 20)
                    .build()
                    .map(Some)
                    .map_err(|e| Error::BadRule {
                        index,
                        field,
                        because: e.to_string(),
                    })
            };
            Ok(Rule {
                text: compile("text", &rule.match_.text)?,
                stderr: compile("stderr", &rule.match_.stderr)?,
                rule: rule.clone(),
            })
        });
        Ok(Self {
            rules: rules.collect::<Result<_, _>>()?,
            exit_codes: config.exit_codes.clone(),
        })
    }

    /// Rules that look at events and match this one, with what their `resetAt` is a path in; the other conditions of a
    /// rule are looked at in the end.
    fn matching(&self, seen: &Seen<'_>) -> Vec<(usize, Value)> {
        let look = |rule: &Rule| {
            let wanted = &rule.rule.match_;
            let parts = [
                (&wanted.event, Some(seen.event)),
                (&wanted.data, seen.data),
                (&wanted.update, seen.update),
            ];
            let mut matched = None;
            for (conditions, value) in parts.into_iter().filter(|(conditions, _)| !conditions.is_empty()) {
                let value = value?;
                let holds = |(path, want): (&String, &Value)| paths::all(value, path).contains(&want);
                if !conditions.iter().all(holds) {
                    return None;
                }
                matched = Some(value);
            }
            matched
        };
        let rules = self.rules.iter().enumerate();
        rules
            .filter_map(|(n, rule)| {
                let value = look(rule)?;
                // Kept for the time in it, as long as it is of a size that such things have.
                let small = value.to_string().len() <= MAX_EVENT;
                Some((n, if small { value.clone() } else { Value::Null }))
            })
            .collect()
    }

    /// Decides, in this order: what we did ourselves; memory; rules, which also name an error that the agent reported;
    /// broken speech; that error; the empty turn; the stop reason; the exit code.
    pub(super) fn decide(&self, turn: Turn, end: &TurnEnd) -> TurnOutcome {
        let failure = self.failure(&turn, end);
        // A session that could not be gone on with, or in which nothing could be done, is nothing to go on with.
        let useless = !turn.did_something
            && failure
                .as_ref()
                .is_some_and(|f| f.reason == FailureReason::AgentError);
        let words = if turn.text.trim().is_empty() {
            turn.error.as_deref().unwrap_or_default()
        } else {
            &turn.text
        };
        TurnOutcome {
            summary: last_words(words, SUMMARY),
            failure,
            session: if useless { String::new() } else { turn.session },
            usage: turn.usage,
        }
    }

    fn failure(&self, turn: &Turn, end: &TurnEnd) -> Option<Failure> {
        let make = |reason: FailureReason, message: String, retry_after| {
            Some(Failure {
                reason,
                message: plain(&message),
                exit_code: end.exit.code,
                retryable: is_retryable(reason),
                retry_after,
                refusal: None,
            })
        };
        if let Some(ours) = &end.ours {
            return Some(Failure {
                exit_code: end.exit.code,
                ..ours.clone()
            });
        }
        if end.exit.oom {
            return make(
                FailureReason::OutOfMemory,
                "a process of the agent was killed because memory ran out".into(),
                None,
            );
        }
        let rule = self.rules.iter().enumerate().find_map(|(n, rule)| {
            let event = turn
                .matched
                .iter()
                .rev()
                .find(|(which, _)| *which == n)
                .map(|m| &m.1);
            rule.fits(turn, event).then_some((rule, event))
        });
        if let Some((rule, event)) = rule {
            let message = turn.error.clone().unwrap_or_else(|| rule.words(turn));
            let data = event.or(turn.rpc.as_ref().map(|error| &error.data));
            let after = data
                .and_then(|data| reset_time(data, &rule.rule.reset_at, end.now))
                .or_else(|| rule.wait(&message, end.now));
            return make(rule.rule.reason, message, after);
        }
        if let Some(message) = &turn.broken {
            return make(FailureReason::ProtocolError, message.clone(), None);
        }
        if let Some(message) = &turn.error {
            let reason = end
                .exit
                .code
                .and_then(|code| self.exit_codes.get(&code).copied())
                .or_else(|| turn.rpc.as_ref().and_then(known_code))
                .unwrap_or(FailureReason::AgentError);
            return make(reason, message.clone(), None);
        }
        if let Some(signal) = end.exit.signal {
            // By somebody else: ours was looked at before.
            let (reason, who) = match signal {
                9 | 15 => (FailureReason::Killed, "from outside the platform"),
                _ => (FailureReason::Crashed, "by its own fault"),
            };
            let stderr = last_words(&turn.stderr, 500);
            return make(reason, format!("ended by signal {signal} {who}; {stderr}"), None);
        }
        let mapped = end.exit.code.and_then(|code| self.exit_codes.get(&code).copied());
        if turn.speaks && !turn.did_something && end.exit.success() && mapped.is_none() {
            return make(
                FailureReason::EmptyTurn,
                "the agent ended without a word and without calling a tool".into(),
                None,
            );
        }
        if turn.stop_ok == Some(false) {
            let why = turn.stop_reason.as_deref().unwrap_or("unknown");
            return make(
                mapped.unwrap_or(FailureReason::AgentError),
                format!("the agent stopped: {why}"),
                None,
            );
        }
        if end.exit.success() && mapped.is_none() {
            return None;
        }
        let words = [&turn.stderr, &turn.text].map(|t| last_words(t, 500));
        let words = words.iter().find(|w| !w.is_empty()).cloned().unwrap_or_default();
        let code = end.exit.code.map_or_else(|| "unknown".into(), |c| c.to_string());
        make(
            mapped.unwrap_or(FailureReason::AgentError),
            format!("exit code {code}: {words}"),
            None,
        )
    }
}

impl Rule {
    /// All conditions that are set must hold; one without any never does.
    fn fits(&self, turn: &Turn, event: Option<&Value>) -> bool {
        let wanted = &self.rule.match_;
        let mut some = false;
        let mut all = true;
        let mut condition = |set: bool, holds: bool| {
            some |= set;
            all &= !set || holds;
        };
        let about_events = !(wanted.event.is_empty() && wanted.data.is_empty() && wanted.update.is_empty());
        condition(about_events, event.is_some());
        condition(
            wanted.rpc_code.is_some(),
            wanted.rpc_code == turn.rpc.as_ref().map(|error| error.code),
        );
        if let Some(text) = &self.text {
            let error = turn.error.as_deref().unwrap_or_default();
            condition(true, text.is_match(error) || text.is_match(&turn.text));
        }
        if let Some(stderr) = &self.stderr {
            condition(true, stderr.is_match(&turn.stderr));
        }
        condition(
            wanted.empty_turn.is_some(),
            wanted.empty_turn == Some(turn.speaks && !turn.did_something),
        );
        condition(
            !wanted.stop_reason.is_empty(),
            turn.stop_reason.as_deref() == Some(wanted.stop_reason.as_str()),
        );
        some && all
    }

    /// The pause that the message asks for: seconds in the group `retryAfter` of the rule's pattern.
    fn wait(&self, message: &str, now: Option<Time>) -> Option<Time> {
        let pattern = self.text.as_ref().or(self.stderr.as_ref())?;
        let seconds: f64 = pattern
            .captures(message)?
            .name("retryAfter")?
            .as_str()
            .parse()
            .ok()?;
        let wait = std::time::Duration::try_from_secs_f64(seconds).ok()?;
        Some(Time::from(now?.0.checked_add(wait).ok()?))
    }

    fn words(&self, turn: &Turn) -> String {
        let from = if self.stderr.is_some() {
            &turn.stderr
        } else {
            &turn.text
        };
        let words = last_words(from, 500);
        if words.is_empty() {
            "recognised by a failure rule of the agent".into()
        } else {
            words
        }
    }
}

/// What a code means by the protocol itself.
const fn known_code(error: &RpcError) -> Option<FailureReason> {
    match error.code {
        // ACP: authentication is required.
        -32000 => Some(FailureReason::AuthFailed),
        _ => None,
    }
}

/// Whether another attempt could help: everything but what is the task's own matter.
#[must_use]
pub(crate) const fn is_retryable(reason: FailureReason) -> bool {
    !matches!(reason.class(), FailureClass::Task)
}

/// Epoch seconds (or milliseconds), RFC 3339, or seconds to wait.
fn reset_time(event: &Value, path: &str, now: Option<Time>) -> Option<Time> {
    let value = paths::first(event, path)?;
    let number = value.as_f64().or_else(|| value.as_str()?.parse().ok());
    let Some(number) = number else {
        return Some(Time::from(value.as_str()?.parse::<jiff::Timestamp>().ok()?));
    };
    if !number.is_finite() || number < 0.0 {
        return None;
    }
    let at = |seconds: f64| {
        let duration = std::time::Duration::try_from_secs_f64(seconds).ok()?;
        jiff::Timestamp::from_second(i64::try_from(duration.as_secs()).ok()?).ok()
    };
    match number {
        // Later than 2001 in milliseconds, in seconds; anything smaller is a wait.
        n if n > 1e12 => at(n / 1000.0),
        n if n > 1e9 => at(n),
        n => {
            let wait = std::time::Duration::try_from_secs_f64(n).ok()?;
            now?.0.checked_add(wait).ok()
        }
    }
    .map(Time::from)
}

#[cfg(test)]
mod tests;
