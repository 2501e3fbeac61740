//! The writer of `-o yaml`.
//!
//! What it writes reads back as the same value, here and in readers of YAML 1.1: whatever such a reader could take for a
//! number, a boolean, a date or null stands in quotes. Text of several lines stands as a block where a block can hold it.

use std::fmt::Write;

use serde_json::{Map, Value};

/// An object as a YAML document, ending in a line feed.
#[must_use]
pub fn to_yaml(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(entries) if !entries.is_empty() => mapping(&mut out, entries, 0, false),
        Value::Array(items) if !items.is_empty() => sequence(&mut out, items, 0, false),
        scalar => {
            // At the top there is no indentation that a block could stand in.
            flat(&mut out, scalar);
            out.push('\n');
        }
    }
    out
}

fn indent(out: &mut String, depth: usize) {
    for _ in 0..depth {
        out.push_str("  ");
    }
}

/// `started`: the cursor stands after `- `, where the first entry goes.
fn mapping(out: &mut String, entries: &Map<String, Value>, depth: usize, mut started: bool) {
    for (key, value) in entries {
        if !started {
            indent(out, depth);
        }
        started = false;
        text(out, key);
        out.push(':');
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                out.push('\n');
                mapping(out, inner, depth + 1, false);
            }
            Value::Array(items) if !items.is_empty() => {
                out.push('\n');
                sequence(out, items, depth, false);
            }
            scalar => {
                out.push(' ');
                leaf(out, scalar, depth + 1);
            }
        }
    }
}

fn sequence(out: &mut String, items: &[Value], depth: usize, mut started: bool) {
    for item in items {
        if !started {
            indent(out, depth);
        }
        started = false;
        out.push_str("- ");
        match item {
            Value::Object(inner) if !inner.is_empty() => mapping(out, inner, depth + 1, true),
            Value::Array(inner) if !inner.is_empty() => sequence(out, inner, depth + 1, true),
            scalar => leaf(out, scalar, depth + 1),
        }
    }
}

fn leaf(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::String(body) if fits_a_block(body) => block(out, body, depth),
        value => {
            flat(out, value);
            out.push('\n');
        }
    }
}

fn flat(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => drop(write!(out, "{n}")),
        Value::String(body) => text(out, body),
        Value::Array(_) => out.push_str("[]"),
        Value::Object(_) => out.push_str("{}"),
    }
}

/// Several lines, all printable, and a first line that does not start with space: its indentation is that of the block.
fn fits_a_block(body: &str) -> bool {
    let first = body.split('\n').find(|line| !line.is_empty());
    body.contains('\n')
        && first.is_some_and(|line| !line.starts_with([' ', '\t']))
        && body.chars().all(|c| c == '\n' || c == '\t' || !needs_escape(c))
}

fn block(out: &mut String, body: &str, depth: usize) {
    let (header, lines) = match body.strip_suffix('\n') {
        None => ("|-", body),
        Some(rest) if rest.ends_with('\n') => ("|+", rest),
        Some(rest) => ("|", rest),
    };
    out.push_str(header);
    out.push('\n');
    for line in lines.split('\n') {
        if !line.is_empty() {
            indent(out, depth);
            out.push_str(line);
        }
        out.push('\n');
    }
}

fn needs_escape(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

fn text(out: &mut String, body: &str) {
    if is_plain(body) {
        out.push_str(body);
        return;
    }
    out.push('"');
    for c in body.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if needs_escape(c) => drop(write!(out, "\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Whether every reader takes the bare text for text: it starts with a letter, `_` or `/`, holds nothing with a meaning
/// of its own, and is none of the words that YAML 1.1 reads as something else.
fn is_plain(body: &str) -> bool {
    const WORDS: &[&str] = &["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    let starts_well = body.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '/'));
    let only_plain = body.chars().all(|c| {
        c.is_ascii_alphanumeric()
            || matches!(c, '_' | '/' | '.' | '-' | ' ' | ':' | '+' | '=' | '@' | '(' | ')')
    });
    starts_well
        && only_plain
        && !body.ends_with([' ', ':'])
        && !body.contains(": ")
        && !WORDS.iter().any(|w| body.eq_ignore_ascii_case(w))
}
