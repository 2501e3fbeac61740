//! One JSON event a line, understood by a table of field paths.

use panda_api::{EventPath, JsonlDialect, Usage, UsagePaths};
use serde_json::Value;

use super::lines::{Line, Lines};
use super::turn::{Judge, Seen, Turn};
use super::{
    AgentEvent, Driver, DriverConfig, Launch, MAX_RAW, MAX_TEXT, Output, Tail, TurnEnd, TurnOutcome,
    input_text, other, paths, stdin_outputs, usage,
};

/// See the module.
#[derive(Debug)]
pub(super) struct Jsonl {
    stdin: Option<String>,
    dialect: JsonlDialect,
    usage_paths: Option<UsagePaths>,
    judge: Judge,
    lines: Lines,
    stderr: Tail,
    /// What was said in lines that are no events: the only words of an agent that fails before it speaks.
    raw: Tail,
    pub(super) turn: Turn,
    /// The next text begins a new message.
    new_message: bool,
    money: f64,
}

impl Jsonl {
    pub(super) fn new(config: &DriverConfig, dialect: JsonlDialect, judge: Judge) -> Self {
        Self {
            stdin: config.stdin.clone(),
            dialect,
            usage_paths: config.usage.clone(),
            judge,
            lines: Lines::default(),
            stderr: Tail::default(),
            raw: Tail::default(),
            turn: Turn {
                speaks: true,
                ..Turn::default()
            },
            new_message: true,
            money: 0.0,
        }
    }

    pub(super) fn line(&mut self, line: Line) -> Vec<Output> {
        let bytes = match line {
            Line::TooLong(shown) => return vec![self.raw(&shown)],
            Line::Whole(bytes) => bytes,
        };
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Vec::new();
        }
        match parse(&bytes) {
            Some(event) => self.event(event, bytes.len()),
            None => vec![self.raw(&bytes)],
        }
    }

    fn raw(&mut self, bytes: &[u8]) -> Output {
        self.raw.push(bytes);
        self.raw.push(b"\n");
        let line = String::from_utf8_lossy(bytes).chars().take(MAX_RAW).collect();
        Output::Event(AgentEvent::Raw { line })
    }

    /// One event of `size` bytes.
    pub(super) fn event(&mut self, event: Value, size: usize) -> Vec<Output> {
        self.turn.look(&self.judge, &Seen::event(&event));
        let mut events = Vec::new();
        for id in self.values(&self.dialect.session, &event) {
            if !id.is_empty() && id != self.turn.session {
                self.turn.session.clone_from(&id);
                events.push(AgentEvent::Session { id });
            }
        }
        let mut understood = !events.is_empty() && !self.dialect.session.iter().any(|p| p.event.is_empty());
        for text in self.values(&self.dialect.text, &event) {
            understood = true;
            self.text(&text);
            events.push(AgentEvent::Text { text });
        }
        let inputs = self.inputs(&event);
        for (n, name) in self
            .values(&self.dialect.tool_call, &event)
            .into_iter()
            .enumerate()
        {
            understood = true;
            self.new_message = true;
            self.alive();
            let (id, input) = (String::new(), inputs.get(n).cloned());
            events.push(AgentEvent::ToolCall { id, name, input });
        }
        if let Some(usage) = self.usage(&event) {
            understood = true;
            events.push(AgentEvent::Usage { usage });
        }
        if let Some(reason) = self.end(&event) {
            understood = true;
            events.push(AgentEvent::End { stop_reason: reason });
        }
        // The first that says something: later ones are fallbacks.
        let error = self
            .values(&self.dialect.error, &event)
            .into_iter()
            .find(|m| !m.trim().is_empty());
        if let Some(message) = error {
            understood = true;
            let message: String = message.chars().take(MAX_RAW).collect();
            self.turn.error = Some(message.clone());
            events.push(AgentEvent::Error { message });
        }
        if !understood {
            events.push(other(event, size));
        }
        events.into_iter().map(Output::Event).collect()
    }

    /// The model goes on: what was wrong before did not end the turn.
    fn alive(&mut self) {
        self.turn.did_something = true;
        self.turn.error = None;
    }

    fn text(&mut self, text: &str) {
        if std::mem::take(&mut self.new_message) {
            self.turn.text.clear();
        }
        if !text.trim().is_empty() {
            self.alive();
        }
        if self.turn.text.len() + text.len() <= MAX_TEXT {
            self.turn.text.push_str(text);
        }
    }

    fn end(&mut self, event: &Value) -> Option<String> {
        let reason = self.values(&self.dialect.end, event).into_iter().next()?;
        let ok = &self.dialect.ok_stop_reasons;
        self.turn.stop_ok = Some(ok.is_empty() || ok.contains(&reason));
        self.turn.stop_reason = Some(reason.clone());
        Some(reason)
    }

    /// Adds up where amounts are of one event each, else the newest counts.
    fn usage(&mut self, event: &Value) -> Option<Usage> {
        let paths = self.usage_paths.as_ref()?;
        if !paths.event.is_empty() && self.kind(event) != paths.event {
            return None;
        }
        let (amounts, money) = usage::amounts(paths, event)?;
        let total = &mut self.turn.usage;
        if !paths.per_event.unwrap_or(false) {
            *total = Usage::default();
            self.money = 0.0;
        }
        total.input_tokens = total.input_tokens.saturating_add(amounts.input_tokens);
        total.output_tokens = total.output_tokens.saturating_add(amounts.output_tokens);
        total.cached_tokens = total.cached_tokens.saturating_add(amounts.cached_tokens);
        if let Some(money) = money {
            self.money += money;
            total.money = Some(usage::dollars(self.money));
        }
        Some(total.clone())
    }

    fn kind(&self, event: &Value) -> String {
        let path = if self.dialect.type_path.is_empty() {
            "type"
        } else {
            &self.dialect.type_path
        };
        paths::first(event, path)
            .and_then(paths::text)
            .unwrap_or_default()
    }

    /// Texts at all paths that fit this event.
    fn values(&self, wanted: &[EventPath], event: &Value) -> Vec<String> {
        let found = self.found(wanted, event);
        found.into_iter().filter_map(paths::text).collect()
    }

    /// What tools are called with.
    fn inputs(&self, event: &Value) -> Vec<String> {
        let found = self.found(&self.dialect.tool_input, event);
        found.into_iter().map(input_text).collect()
    }

    fn found<'a>(&self, wanted: &[EventPath], event: &'a Value) -> Vec<&'a Value> {
        let kind = self.kind(event);
        let fits = |p: &&EventPath| {
            (p.event.is_empty() || p.event == kind)
                && (p.when_path.is_empty()
                    || paths::all(event, &p.when_path)
                        .into_iter()
                        .any(|v| paths::text(v).as_deref() == Some(p.when.as_str())))
        };
        let found = wanted.iter().filter(fits);
        found.flat_map(|p| paths::all(event, &p.path)).collect()
    }
}

/// An event, also behind a progress bar that was drawn over with carriage returns.
pub(super) fn parse(line: &[u8]) -> Option<Value> {
    let object = |bytes: &[u8]| serde_json::from_slice(bytes).ok().filter(Value::is_object);
    object(line).or_else(|| {
        let trimmed = line.strip_suffix(b"\r").unwrap_or(line);
        object(trimmed.rsplit(|b| *b == b'\r').next()?)
    })
}

impl Driver for Jsonl {
    fn launch(&self) -> Launch {
        Launch {
            stdin: self.stdin.is_some(),
        }
    }

    fn start(&mut self) -> Vec<Output> {
        stdin_outputs(self.stdin.take().as_ref())
    }

    fn stdout(&mut self, bytes: &[u8]) -> Vec<Output> {
        let lines = self.lines.push(bytes);
        lines.into_iter().flat_map(|line| self.line(line)).collect()
    }

    fn stderr(&mut self, bytes: &[u8]) -> Vec<Output> {
        self.stderr.push(bytes);
        Vec::new()
    }

    fn cancel(&mut self) -> Vec<Output> {
        vec![Output::CloseStdin]
    }

    fn end_of_output(&mut self) -> Vec<Output> {
        let rest = self.lines.finish();
        rest.map_or_else(Vec::new, |line| self.line(line))
    }

    fn finish(self: Box<Self>, end: &TurnEnd) -> TurnOutcome {
        let mut turn = self.turn;
        turn.stderr = self.stderr.text();
        if turn.stderr.trim().is_empty() {
            turn.stderr = self.raw.text();
        }
        turn.usage.turns = u64::from(turn.did_something);
        self.judge.decide(turn, end)
    }
}

#[cfg(test)]
mod tests;
