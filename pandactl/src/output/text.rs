//! Text for terminals: what comes from elsewhere cannot move the cursor, change colours or hide itself.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthChar;

/// Characters that change how others are shown, or show nothing at all.
const fn is_tricky(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

fn escape(out: &mut String, c: char) {
    let code = u32::from(c);
    let _: std::fmt::Result = if code < 0x100 {
        write!(out, "\\x{code:02x}")
    } else {
        write!(out, "\\u{{{code:x}}}")
    };
}

/// One line: breaks and tabs become spaces, control characters become visible.
#[must_use]
pub fn line(text: &str) -> String {
    clean(text, false)
}

/// Several lines: breaks and tabs stay, control characters become visible.
#[must_use]
pub fn lines(text: &str) -> String {
    clean(text, true)
}

fn clean(text: &str, keep_breaks: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' if keep_breaks => out.push(c),
            '\r' if keep_breaks => {}
            '\n' | '\t' | '\r' => out.push(' '),
            c if c.is_control() || is_tricky(c) => escape(&mut out, c),
            c => out.push(c),
        }
    }
    out
}

/// Columns that a text takes on a terminal.
#[must_use]
pub fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// Columns of prose: what every terminal has.
const PROSE: usize = 80;

/// Longest command in backquotes that is kept on one line.
const COMMAND: usize = 60;

/// Prose in lines of at most 80 columns, indented. An empty line divides paragraphs. Commands in backquotes, and words
/// that are longer than a line, stay whole, so that they can be copied.
#[must_use]
pub fn wrap(words: &str, indent: usize) -> String {
    let pad = " ".repeat(indent);
    let mut out = String::new();
    for block in words.split("\n\n") {
        let mut row = String::new();
        let mut word = String::new();
        for part in block.split_whitespace() {
            if !word.is_empty() {
                word.push(' ');
            }
            word.push_str(&line(part));
            if word.matches('`').count() % 2 == 1 && width(&word) < COMMAND {
                continue;
            }
            if !row.is_empty() && indent + width(&row) + 1 + width(&word) > PROSE {
                let _: std::fmt::Result = writeln!(out, "{pad}{row}");
                row.clear();
            }
            if !row.is_empty() {
                row.push(' ');
            }
            row.push_str(&std::mem::take(&mut word));
        }
        if !word.is_empty() {
            let gap = if row.is_empty() { "" } else { " " };
            row = format!("{row}{gap}{word}");
        }
        if !row.is_empty() {
            let _: std::fmt::Result = writeln!(out, "{pad}{row}");
        }
    }
    out
}

/// Cuts a text to `columns`, with an ellipsis when something is missing.
#[must_use]
pub fn fit(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        let wide = c.width().unwrap_or(0);
        if used + wide + 1 > columns {
            break;
        }
        used += wide;
        out.push(c);
    }
    if columns > 0 {
        out.push('…');
    }
    out
}

/// Every line with `prefix` before it.
#[must_use]
pub fn indent(text: &str, prefix: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        if line.is_empty() {
            out.push('\n');
        } else {
            let _: std::fmt::Result = writeln!(out, "{prefix}{line}");
        }
    }
    out
}

/// Bytes of a log for a terminal: colours (`ESC [ … m`) may stay, everything else that a terminal would obey becomes
/// visible. Works on any split of a stream: at most one unfinished sequence or character is held back.
#[derive(Debug)]
pub struct LogCleaner {
    color: bool,
    held: Vec<u8>,
}

impl LogCleaner {
    /// `color`: whether colours stay.
    #[must_use]
    pub const fn new(color: bool) -> Self {
        Self {
            color,
            held: Vec::new(),
        }
    }

    /// What `bytes` come to.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(bytes);
        let mut out = String::with_capacity(all.len());
        let mut rest = all.as_slice();
        while !rest.is_empty() {
            if rest[0] == 0x1b {
                match sgr(rest) {
                    Sgr::Whole(end) => {
                        if self.color {
                            out.push_str(&String::from_utf8_lossy(&rest[..end]));
                        }
                        rest = &rest[end..];
                    }
                    Sgr::Unfinished => {
                        self.held = rest.to_vec();
                        break;
                    }
                    Sgr::Other => {
                        out.push_str("\\x1b");
                        rest = &rest[1..];
                    }
                }
                continue;
            }
            let end = rest.iter().position(|&b| b == 0x1b).unwrap_or(rest.len());
            let (part, tail) = rest.split_at(end);
            let whole = if tail.is_empty() {
                part.len() - unfinished(part)
            } else {
                part.len()
            };
            out.push_str(&lines(&String::from_utf8_lossy(&part[..whole])));
            if whole < part.len() {
                self.held = part[whole..].to_vec();
                break;
            }
            rest = tail;
        }
        out
    }

    /// What is left at the end.
    pub fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        lines(&String::from_utf8_lossy(&held))
    }
}

enum Sgr {
    Whole(usize),
    Unfinished,
    Other,
}

/// Whether `bytes`, which start with ESC, start with a colour sequence.
fn sgr(bytes: &[u8]) -> Sgr {
    const LONGEST: usize = 64;
    match bytes.get(1) {
        None => return Sgr::Unfinished,
        Some(b'[') => {}
        Some(_) => return Sgr::Other,
    }
    for (at, &byte) in bytes.iter().enumerate().skip(2).take(LONGEST) {
        match byte {
            b'm' => return Sgr::Whole(at + 1),
            b'0'..=b'9' | b';' | b':' => {}
            _ => return Sgr::Other,
        }
    }
    if bytes.len() > LONGEST {
        Sgr::Other
    } else {
        Sgr::Unfinished
    }
}

/// Bytes at the end that are the start of a character whose rest is still to come.
fn unfinished(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => bytes.len() - error.valid_up_to(),
        _ => 0,
    }
}

/// Colours for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Good.
    Green,
    /// Bad.
    Red,
    /// To be looked at.
    Yellow,
    /// Going on.
    Cyan,
    /// Headings.
    Bold,
}

/// Text in a colour, when colours are wanted.
#[must_use]
pub fn paint(text: &str, style: Style, color: bool) -> String {
    if !color || text.is_empty() {
        return text.to_owned();
    }
    let code = match style {
        Style::Green => 32,
        Style::Red => 31,
        Style::Yellow => 33,
        Style::Cyan => 36,
        Style::Bold => 1,
    };
    format!("\u{1b}[{code}m{text}\u{1b}[0m")
}

/// The colour of a phase or status.
#[must_use]
pub fn phase_style(word: &str) -> Option<Style> {
    Some(match word {
        "Succeeded" | "Ready" | "Active" | "True" => Style::Green,
        "Failed" | "Lost" | "NotReady" | "Warning" => Style::Red,
        "Running" | "Preparing" | "Verifying" | "Publishing" => Style::Cyan,
        "Review" | "WaitingForApproval" | "Paused" | "Cancelled" | "Unknown" | "Terminating" => Style::Yellow,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_becomes_visible() {
        assert_eq!(
            line("a\u{1b}[2Jb\nc\u{7}\u{202e}d"),
            "a\\x1b[2Jb c\\x07\\u{202e}d"
        );
        assert_eq!(lines("a\r\nb\tc\u{9b}31m"), "a\nb\tc\\x9b31m");
    }

    #[test]
    fn prose_is_wrapped_at_eighty_columns_and_long_words_stay_whole() {
        let long = "x".repeat(100);
        let text = wrap(&format!("{} {long}\n\nend", "日本 word ".repeat(30)), 4);
        for row in text.lines() {
            assert!(width(row) <= 80 || row.trim() == long, "{row}");
        }
        assert!(text.ends_with("\n    end\n"), "{text}");
        let command = "`pandactl get agents -o wide`";
        for before in 0..80 {
            let text = wrap(&format!("{} {command}, and then", "x ".repeat(before)), 0);
            assert!(
                text.contains(command) && text.lines().all(|row| width(row) <= 80),
                "{text}"
            );
        }
        assert_eq!(wrap("one ` left", 0), "one ` left\n");
    }

    #[test]
    fn cutting_counts_columns_not_bytes() {
        assert_eq!(fit("short", 10), "short");
        assert_eq!(fit("日本語テキスト", 7), "日本語…");
        assert_eq!(width(&fit("日本語テキスト", 6)), 5);
        assert_eq!(fit("abc", 1), "…");
        assert_eq!(fit("abc", 0), "");
    }

    #[test]
    fn logs_keep_colours_and_nothing_else_wherever_they_are_split() {
        let log = "ok \u{1b}[31mred\u{1b}[0m \u{1b}]52;c;evil\u{7} \u{1b}[2J é\n".as_bytes();
        for size in 1..log.len() {
            let mut with = LogCleaner::new(true);
            let mut text: String = log.chunks(size).map(|chunk| with.push(chunk)).collect();
            text.push_str(&with.finish());
            assert_eq!(
                text, "ok \u{1b}[31mred\u{1b}[0m \\x1b]52;c;evil\\x07 \\x1b[2J é\n",
                "{size}"
            );
            let mut without = LogCleaner::new(false);
            let text: String = log.chunks(size).map(|chunk| without.push(chunk)).collect();
            assert_eq!(text, "ok red \\x1b]52;c;evil\\x07 \\x1b[2J é\n");
        }
    }

    #[test]
    fn bad_utf8_in_a_log_is_replaced_not_fatal() {
        let mut cleaner = LogCleaner::new(true);
        let text = cleaner.push(b"a\xff\xfeb\xe2\x82") + &cleaner.finish();
        assert_eq!(text, "a\u{fffd}\u{fffd}b\u{fffd}");
    }
}
