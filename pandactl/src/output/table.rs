//! The server's tables, for people.

use std::fmt::Write as _;

use panda_client::ApiResource;
use panda_client::table::{Column, Table};
use serde_json::Value;

use super::text::{self, Style};
use crate::session::qualified;

/// Columns between two cells.
const GAP: usize = 3;
/// A column is not made narrower than this as long as others can give.
const NARROW: usize = 8;
/// A column is never made narrower than this.
const NARROWEST: usize = 3;

/// How tables are shown.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// All columns.
    pub wide: bool,
    /// No headings.
    pub no_headers: bool,
    /// A column with the namespace.
    pub namespace: bool,
    /// A column with the labels.
    pub labels: bool,
    /// The kind before each name.
    pub kind: Option<ApiResource>,
    /// Columns of the terminal.
    pub width: Option<usize>,
    /// Colours.
    pub color: bool,
}

/// Prints tables that follow each other, as those of a watch, with columns that stay aligned.
#[derive(Debug)]
pub struct Printer {
    look: Look,
    columns: Vec<Column>,
    widths: Vec<usize>,
    headed: bool,
}

impl Printer {
    /// A printer that has printed nothing.
    #[must_use]
    pub const fn new(look: Look) -> Self {
        Self {
            look,
            columns: Vec::new(),
            widths: Vec::new(),
            headed: false,
        }
    }

    /// The text of a table.
    pub fn print(&mut self, table: &Table) -> String {
        if !table.column_definitions.is_empty() {
            self.columns.clone_from(&table.column_definitions);
        }
        let shown: Vec<usize> = (0..self.columns.len())
            .filter(|&at| self.look.wide || self.columns[at].priority == 0)
            .collect();
        let mut rows: Vec<Vec<String>> = Vec::with_capacity(table.rows.len() + 1);
        let headings = !self.headed && !self.look.no_headers && !table.rows.is_empty();
        if headings {
            self.headed = true;
            let mut row: Vec<String> = shown
                .iter()
                .map(|&at| text::line(&self.columns[at].name).to_uppercase())
                .collect();
            if self.look.namespace {
                row.insert(0, "NAMESPACE".to_owned());
            }
            if self.look.labels {
                row.push("LABELS".to_owned());
            }
            rows.push(row);
        }
        for row in &table.rows {
            let mut cells: Vec<String> = shown
                .iter()
                .map(|&at| {
                    let cell = row.cells.get(at).map_or_else(String::new, cell);
                    match &self.look.kind {
                        Some(kind) if self.columns[at].format == "name" => {
                            format!("{}/{cell}", qualified(kind))
                        }
                        _ => cell,
                    }
                })
                .collect();
            let meta = &row.object["metadata"];
            if self.look.namespace {
                cells.insert(0, text::line(meta["namespace"].as_str().unwrap_or_default()));
            }
            if self.look.labels {
                cells.push(labels(&meta["labels"]));
            }
            rows.push(cells);
        }
        self.render(&rows, &shown, headings)
    }

    fn render(&mut self, rows: &[Vec<String>], shown: &[usize], headings: bool) -> String {
        let count = rows.iter().map(Vec::len).max().unwrap_or(0);
        self.widths.resize(count.max(self.widths.len()), 0);
        for row in rows {
            for (at, cell) in row.iter().enumerate() {
                self.widths[at] = self.widths[at].max(text::width(cell));
            }
        }
        let name = usize::from(self.look.namespace)
            + shown
                .iter()
                .position(|&at| self.columns[at].format == "name")
                .unwrap_or(0);
        let widths = match self.look.width {
            Some(limit) => fitted(&self.widths, limit, name),
            None => self.widths.clone(),
        };
        let mut out = String::new();
        for (number, row) in rows.iter().enumerate() {
            let mut line = String::new();
            for (at, cell) in row.iter().enumerate() {
                if self.look.width.is_some() && widths[at] == 0 {
                    continue;
                }
                let fit = if self.look.width.is_some() {
                    text::fit(cell, widths[at])
                } else {
                    cell.clone()
                };
                let padding = (widths[at] + GAP).saturating_sub(text::width(&fit));
                let style = if headings && number == 0 {
                    Some(Style::Bold)
                } else {
                    self.is_state(at, shown)
                        .then(|| text::phase_style(cell))
                        .flatten()
                };
                line.push_str(
                    &style.map_or_else(|| fit.clone(), |style| text::paint(&fit, style, self.look.color)),
                );
                if at + 1 < row.len() {
                    line.extend(std::iter::repeat_n(' ', padding));
                }
            }
            let _: std::fmt::Result = writeln!(out, "{}", line.trim_end());
        }
        out
    }

    /// Whether a column says how things stand.
    fn is_state(&self, at: usize, shown: &[usize]) -> bool {
        at.checked_sub(usize::from(self.look.namespace))
            .and_then(|at| shown.get(at))
            .is_some_and(|&at| matches!(self.columns[at].name.as_str(), "Phase" | "Status" | "Type"))
    }
}

/// Widths that fit a terminal: the widest columns give first, the name last. Where that is not enough, columns on the
/// right are left out: their width is 0.
fn fitted(natural: &[usize], limit: usize, name: usize) -> Vec<usize> {
    let mut widths = natural.to_vec();
    squeeze(&mut widths, limit, NARROW, name);
    for at in (1..widths.len()).rev() {
        if total(&widths) > limit && at != name {
            widths[at] = 0;
        }
    }
    squeeze(&mut widths, limit, NARROWEST, name);
    widths
}

fn total(widths: &[usize]) -> usize {
    let shown = widths.iter().filter(|width| **width > 0).count();
    widths.iter().sum::<usize>() + GAP * shown.saturating_sub(1)
}

fn squeeze(widths: &mut [usize], limit: usize, least: usize, name: usize) {
    for with_name in [false, true] {
        while total(widths) > limit {
            let widest = (0..widths.len())
                .filter(|&at| (with_name || at != name) && widths[at] > least)
                .max_by_key(|&at| widths[at]);
            let Some(at) = widest else { break };
            widths[at] -= 1;
        }
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::String(words) => text::line(words),
        Value::Null => "<none>".to_owned(),
        other => text::line(&other.to_string()),
    }
}

fn labels(value: &Value) -> String {
    let pairs: Vec<String> = value
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| text::line(&format!("{key}={}", value.as_str().unwrap_or_default())))
        .collect();
    if pairs.is_empty() {
        "<none>".to_owned()
    } else {
        pairs.join(",")
    }
}

/// Rows of text in aligned columns, as descriptions hold them.
#[must_use]
pub fn align(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count)
        .map(|at| {
            rows.iter()
                .filter_map(|row| row.get(at))
                .map(|cell| text::width(cell))
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            line.push_str(cell);
            if at + 1 < row.len() {
                line.extend(std::iter::repeat_n(' ', widths[at] + 2 - text::width(cell)));
            }
        }
        let _: std::fmt::Result = writeln!(out, "{}", line.trim_end());
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn table(rows: &[&[&str]]) -> Table {
        serde_json::from_value(json!({
            "columnDefinitions": [
                {"name": "Name", "type": "string", "format": "name", "priority": 0},
                {"name": "Phase", "type": "string", "priority": 0},
                {"name": "Message", "type": "string", "priority": 1},
            ],
            "rows": rows.iter().map(|cells| json!({
                "cells": cells,
                "object": {"metadata": {"namespace": "web", "labels": {"a": "b"}}},
            })).collect::<Vec<_>>(),
        }))
        .unwrap()
    }

    #[test]
    fn columns_are_aligned_and_wide_ones_are_hidden() {
        let mut printer = Printer::new(Look::default());
        let text = printer.print(&table(&[&["one", "Running", "m"], &["three", "Failed", "m"]]));
        assert_eq!(text, "NAME    PHASE\none     Running\nthree   Failed\n");
        let mut wide = Printer::new(Look {
            wide: true,
            namespace: true,
            labels: true,
            ..Look::default()
        });
        let text = wide.print(&table(&[&["one", "Running", "m"]]));
        assert_eq!(
            text,
            "NAMESPACE   NAME   PHASE     MESSAGE   LABELS\nweb         one    Running   m         a=b\n"
        );
    }

    #[test]
    fn headings_come_once_and_never_alone() {
        let mut printer = Printer::new(Look::default());
        assert_eq!(printer.print(&table(&[])), "");
        assert!(
            printer
                .print(&table(&[&["a", "Running", ""]]))
                .starts_with("NAME")
        );
        assert_eq!(printer.print(&table(&[&["b", "Failed", ""]])), "b      Failed\n");
    }

    #[test]
    fn nothing_is_wider_than_the_terminal() {
        for width in 20..100 {
            let look = Look {
                wide: true,
                width: Some(width),
                color: false,
                ..Look::default()
            };
            let mut printer = Printer::new(look);
            let long = "m".repeat(300);
            let text = printer.print(&table(&[&[
                "a-name-that-is-quite-long-indeed",
                "WaitingForApproval",
                &long,
            ]]));
            for line in text.lines() {
                assert!(text::width(line) <= width, "{width}: {line}");
            }
        }
    }

    #[test]
    fn cells_cannot_talk_to_the_terminal() {
        let mut printer = Printer::new(Look::default());
        let text = printer.print(&table(&[&["a\u{1b}[31m", "Run\nning", ""]]));
        assert!(
            !text.contains('\u{1b}') && text.contains("\\x1b[31m") && text.lines().count() == 2,
            "{text:?}"
        );
    }

    #[test]
    fn states_are_coloured_when_asked() {
        let mut printer = Printer::new(Look {
            color: true,
            no_headers: true,
            ..Look::default()
        });
        assert_eq!(
            printer.print(&table(&[&["a", "Failed", ""]])),
            "a   \u{1b}[31mFailed\u{1b}[0m\n"
        );
    }
}
