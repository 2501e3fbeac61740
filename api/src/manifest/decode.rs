//! From bytes to text with LF line ends.

use super::MAX_FILE_BYTES;
use crate::json::Mark;

/// Why bytes are no text.
#[derive(Debug)]
pub(super) struct Fault {
    /// The text before the fault, for the message.
    pub(super) text: String,
    pub(super) at: Mark,
    pub(super) what: String,
    pub(super) remedy: &'static str,
}

pub(super) fn decode(bytes: &[u8]) -> Result<String, Fault> {
    if bytes.len() > MAX_FILE_BYTES {
        return Err(Fault {
            text: String::new(),
            at: Mark { line: 1, column: 1 },
            what: format!("file is larger than {} MiB", MAX_FILE_BYTES >> 20),
            remedy: "split the file",
        });
    }
    let text = match bytes {
        [0xEF, 0xBB, 0xBF, rest @ ..] => utf8(rest)?,
        [0xFF, 0xFE, rest @ ..] => utf16(rest, u16::from_le_bytes)?,
        [0xFE, 0xFF, rest @ ..] => utf16(rest, u16::from_be_bytes)?,
        rest => utf8(rest)?,
    };
    let text = if text.contains('\r') {
        text.replace("\r\n", "\n").replace('\r', "\n")
    } else {
        text
    };
    match text.find(|c: char| c.is_ascii_control() && !matches!(c, '\t' | '\n')) {
        None => Ok(text),
        Some(at) => {
            let c = u32::from(text[at..].chars().next().unwrap_or_default());
            Err(fault(
                &text[..at],
                format!("control character U+{c:04X}"),
                if c == 0 {
                    SAVE_AS
                } else {
                    "remove it, or write it as an escape in double quotes"
                },
            ))
        }
    }
}

const SAVE_AS: &str = "save the file as UTF-8, or as UTF-16 with a byte order mark";

fn utf8(bytes: &[u8]) -> Result<String, Fault> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|error| {
        let good = bytes.get(..error.valid_up_to()).unwrap_or_default();
        fault(
            &String::from_utf8_lossy(good),
            "text is not UTF-8".to_owned(),
            SAVE_AS,
        )
    })
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<String, Fault> {
    let mut pairs = bytes.chunks_exact(2);
    let mut text = String::with_capacity(bytes.len() / 2);
    let units = pairs.by_ref().map(|pair| match pair {
        [a, b] => unit([*a, *b]),
        _ => 0,
    });
    for c in char::decode_utf16(units) {
        match c {
            Ok(c) => text.push(c),
            Err(_) => {
                return Err(fault(
                    &text,
                    "text is not UTF-16: lone surrogate".to_owned(),
                    SAVE_AS,
                ));
            }
        }
    }
    if pairs.remainder().is_empty() {
        Ok(text)
    } else {
        Err(fault(
            &text,
            "text is not UTF-16: half a character at the end".to_owned(),
            SAVE_AS,
        ))
    }
}

/// A fault right after `good`.
fn fault(good: &str, what: String, remedy: &'static str) -> Fault {
    let good = good.replace("\r\n", "\n");
    let line_start = good.rfind('\n').map_or(0, |at| at + 1);
    Fault {
        at: Mark {
            line: good.bytes().filter(|b| *b == b'\n').count() + 1,
            column: good[line_start..].chars().count() + 1,
        },
        text: good,
        what,
        remedy,
    }
}
