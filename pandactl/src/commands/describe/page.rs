//! The page that a description is written on.

use jiff::Timestamp;
use panda_api::manifest;
use serde_json::Value;

use crate::output::table::align;
use crate::output::text::{self, Style};

/// Column where values start.
const VALUES: usize = 14;

/// A description under construction. Everything that is put on it is made safe for a terminal.
#[derive(Debug)]
pub(super) struct Page {
    out: String,
    color: bool,
    now: Timestamp,
}

impl Page {
    pub(super) const fn new(color: bool, now: Timestamp) -> Self {
        Self {
            out: String::new(),
            color,
            now,
        }
    }

    pub(super) fn text(self) -> String {
        self.out
    }

    pub(super) fn age(&self, time: Timestamp) -> String {
        super::super::explain_wait::age(time, self.now)
    }

    /// `Name:  value`; nothing when there is no value.
    pub(super) fn field(&mut self, name: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        let label = format!("{name}:");
        let value = text::line(value);
        let value = text::phase_style(&value)
            .map_or_else(|| value.clone(), |style| text::paint(&value, style, self.color));
        self.out.push_str(&format!("{label:<VALUES$} {value}\n"));
    }

    pub(super) fn heading(&mut self, name: &str) {
        self.out
            .push_str(&text::paint(&format!("{name}:"), Style::Bold, self.color));
        self.out.push('\n');
    }

    pub(super) fn item(&mut self, line: &str) {
        self.out.push_str(&format!("  {}\n", text::line(line)));
    }

    /// Several lines, indented.
    pub(super) fn block(&mut self, lines: &str) {
        self.out.push_str(&text::indent(&text::lines(lines), "  "));
    }

    /// Several lines below an item.
    pub(super) fn quote(&mut self, lines: &str) {
        self.out.push_str(&text::indent(&text::lines(lines), "    | "));
    }

    pub(super) fn metadata(&mut self, object: &Value) {
        let meta = &object["metadata"];
        let word = |field: &str| meta[field].as_str().unwrap_or_default();
        self.field("Name", word("name"));
        self.field("Namespace", word("namespace"));
        for (name, field) in [("Labels", "labels"), ("Annotations", "annotations")] {
            let pairs: Vec<String> = meta[field]
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(key, _)| *key != crate::apply::merge::LAST_APPLIED)
                .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
                .collect();
            for (at, pair) in pairs.iter().enumerate() {
                self.field(
                    if at == 0 { name } else { "" },
                    &text::fit(&text::line(pair), 200),
                );
            }
        }
        if let Ok(time) = word("creationTimestamp").parse::<Timestamp>() {
            let age = self.age(time);
            self.field("Created", &format!("{} ({age} ago)", word("creationTimestamp")));
        }
        if !word("deletionTimestamp").is_empty() {
            self.field(
                "Deleting",
                &format!(
                    "since {}; waits for {}",
                    word("deletionTimestamp"),
                    meta["finalizers"]
                ),
            );
        }
    }

    /// Whatever else an object holds, as YAML.
    pub(super) fn rest(&mut self, object: &Value) {
        for (key, value) in object.as_object().into_iter().flatten() {
            if matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
                continue;
            }
            let mut value = value.clone();
            if let Some(fields) = value.as_object_mut() {
                fields.remove("conditions");
            }
            let mut name = key.clone();
            if let Some(first) = name.get_mut(..1) {
                first.make_ascii_uppercase();
            }
            match &value {
                Value::String(word) => self.field(&name, word),
                Value::Object(_) | Value::Array(_) => {
                    self.heading(&name);
                    let yaml = manifest::to_yaml(&value);
                    self.block(&yaml);
                }
                other => self.field(&name, &other.to_string()),
            }
        }
    }

    pub(super) fn conditions(&mut self, conditions: &Value) {
        let Some(conditions) = conditions.as_array().filter(|all| !all.is_empty()) else {
            return;
        };
        self.heading("Conditions");
        let mut rows = vec![
            ["TYPE", "STATUS", "REASON", "AGE", "MESSAGE"]
                .map(str::to_owned)
                .to_vec(),
        ];
        for condition in conditions {
            let word = |field: &str| text::line(condition[field].as_str().unwrap_or_default());
            let age = word("lastTransitionTime")
                .parse::<Timestamp>()
                .map_or_else(|_| String::new(), |time| self.age(time));
            rows.push(vec![
                word("type"),
                word("status"),
                word("reason"),
                age,
                word("message"),
            ]);
        }
        self.block(&align(&rows));
    }
}
