//! Events without values of Secrets, also of values that come in pieces.
//!
//! Agents stream words a few letters at a time, so a value is usually cut by the borders of events. What was said is one
//! stream over all events, and so is every other text that comes in pieces (thoughts, arguments of calls): each is masked
//! as a whole, and what may still become a value waits for the next piece.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::driver::AgentEvent;
use crate::mask::{Mask, TextStream};

/// Texts in pieces that are told apart; those beyond share one stream.
const MAX_STREAMS: usize = 64;
/// Fields that tell events apart.
const KINDS: [&str; 2] = ["type", "sessionUpdate"];
/// Fields that hold a text, or a piece of one.
const WORDS: [&str; 10] = [
    "arguments",
    "content",
    "data",
    "delta",
    "output",
    "partial_json",
    "reasoning",
    "text",
    "thinking",
    "thought",
];

/// Masks the events of one agent.
#[derive(Debug)]
pub(super) struct Veil {
    mask: Mask,
    words: TextStream,
    /// Other texts, by kind of event and place in it.
    others: BTreeMap<String, TextStream>,
}

impl Veil {
    pub(super) fn new(mask: Mask) -> Self {
        Self {
            words: mask.text_stream(),
            others: BTreeMap::new(),
            mask,
        }
    }

    /// Whether there is anything to mask.
    pub(super) const fn is_empty(&self) -> bool {
        self.mask.is_empty()
    }

    /// What may be told now that `event` has come.
    pub(super) fn event(&mut self, event: &AgentEvent) -> Vec<AgentEvent> {
        match event {
            AgentEvent::Text { text } => text_of(self.words.push(text)).into_iter().collect(),
            AgentEvent::Other { event } => {
                let (mut event, mut kind) = (event.clone(), String::new());
                kinds(&event, &mut kind);
                self.other(&mut event, &kind, "");
                vec![AgentEvent::Other { event }]
            }
            event => {
                let mut told = match event {
                    AgentEvent::End { .. } => self.finish(),
                    // Whatever comes in between: a piece that is held back may go on after it.
                    _ => Vec::new(),
                };
                let masked = serde_json::to_value(event).and_then(|mut value| {
                    self.mask.json(&mut value);
                    serde_json::from_value(value)
                });
                // A value that is a word of the event's own: then it is left out.
                told.extend(masked);
                told
            }
        }
    }

    /// What was held back.
    pub(super) fn finish(&mut self) -> Vec<AgentEvent> {
        let mut told: Vec<AgentEvent> = text_of(self.words.finish()).into_iter().collect();
        for (place, mut stream) in std::mem::take(&mut self.others) {
            let rest = stream.finish();
            if !rest.is_empty() {
                let event = json!({"rest": rest, "of": self.mask.text(&place)});
                told.push(AgentEvent::Other { event });
            }
        }
        told
    }

    fn other(&mut self, value: &mut Value, kind: &str, place: &str) {
        let field = place.rsplit('/').find(|part| *part != "*").unwrap_or_default();
        match value {
            Value::String(text) if WORDS.contains(&field) => {
                let key = format!("{kind}{place}");
                let key = if self.others.len() < MAX_STREAMS || self.others.contains_key(&key) {
                    key
                } else {
                    String::new()
                };
                let mask = &self.mask;
                let stream = self.others.entry(key).or_insert_with(|| mask.text_stream());
                *text = stream.push(text);
            }
            Value::Array(items) => {
                let place = format!("{place}/*");
                items.iter_mut().for_each(|item| self.other(item, kind, &place));
            }
            Value::Object(fields) => {
                for (name, mut field) in std::mem::take(fields) {
                    self.other(&mut field, kind, &format!("{place}/{name}"));
                    fields.insert(self.mask.text(&name).into_owned(), field);
                }
            }
            other => self.mask.json(other),
        }
    }
}

fn text_of(text: String) -> Option<AgentEvent> {
    (!text.is_empty()).then_some(AgentEvent::Text { text })
}

fn kinds(value: &Value, out: &mut String) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(kind) if KINDS.contains(&name.as_str()) => {
                        out.push_str(kind);
                        out.push(' ');
                    }
                    field => kinds(field, out),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| kinds(item, out)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VALUE: &str = "hunter22-\"x\"";

    /// What the events say at each place, put together again.
    fn said(events: &[AgentEvent], place: &str) -> String {
        let texts = events.iter().filter_map(|event| match event {
            AgentEvent::Text { text } if place.is_empty() => Some(text.clone()),
            AgentEvent::Other { event } if !place.is_empty() => {
                let text = event.pointer(place).or_else(|| event.get("rest"));
                text.and_then(Value::as_str).map(str::to_owned)
            }
            _ => None,
        });
        texts.collect()
    }

    fn piece(kind: u8, text: &str) -> AgentEvent {
        match kind {
            0 => AgentEvent::Text { text: text.into() },
            1 => AgentEvent::Other {
                event: json!({"method": "session/update", "params": {"update": {"sessionUpdate": "agent_thought_chunk",
                    "content": {"type": "text", "text": text}}}}),
            },
            _ => AgentEvent::Other {
                event: json!({"type": "stream_event", "event": {"delta": {"type": "input_json_delta", "partial_json": text}}}),
            },
        }
    }

    const PLACES: [&str; 3] = ["", "/params/update/content/text", "/event/delta/partial_json"];

    fn between(n: u8) -> AgentEvent {
        match n {
            0 => AgentEvent::Usage {
                usage: panda_api::Usage::default(),
            },
            1 => AgentEvent::ToolCall {
                id: "1".into(),
                name: "look".into(),
                input: None,
            },
            2 => AgentEvent::Raw { line: "raw".into() },
            _ => AgentEvent::Other {
                event: json!({"type": "ping"}),
            },
        }
    }

    proptest! {
        #[test]
        fn however_a_text_is_cut_its_pieces_say_what_the_masked_whole_says(
            kind in 0..3u8, before in "[a-z\" -]{0,12}", after in "[a-z\" é]{0,12}",
            cuts in prop::collection::vec((1..4usize, prop::option::of(0..4u8)), 1..60),
        ) {
            let mask = Mask::new([VALUE.as_bytes()]);
            let whole = format!("{before}{VALUE}{after}hunter22");
            let mut veil = Veil::new(mask.clone());
            let mut told = Vec::new();
            let (mut rest, mut cuts) = (whole.chars(), cuts.into_iter().cycle());
            loop {
                let (size, other) = cuts.next().unwrap();
                let text: String = rest.by_ref().take(size).collect();
                if text.is_empty() {
                    break;
                }
                told.extend(veil.event(&piece(kind, &text)));
                if let Some(other) = other {
                    told.extend(veil.event(&between(other)));
                }
            }
            told.extend(veil.finish());
            let together = said(&told, PLACES[usize::from(kind)]);
            prop_assert!(!together.contains(VALUE));
            prop_assert_eq!(together, mask.text(&whole));
        }
    }

    #[test]
    fn pieces_of_different_texts_do_not_mix_and_the_end_tells_everything() {
        let mut veil = Veil::new(Mask::new([VALUE.as_bytes()]));
        let mut told = Vec::new();
        for (kind, text) in [
            (0, "say hun"),
            (1, "think hun"),
            (2, "hun"),
            (1, "gry"),
            (0, "ter22-\"x\" now"),
        ] {
            told.extend(veil.event(&piece(kind, text)));
        }
        let end = AgentEvent::End {
            stop_reason: "done".into(),
        };
        told.extend(veil.event(&end));
        assert_eq!(said(&told, PLACES[0]), "say [masked] now");
        assert_eq!(said(&told, PLACES[1]), "think hungryhun");
        assert_eq!(told.last(), Some(&end));
        assert!(veil.finish().is_empty());
    }
}
