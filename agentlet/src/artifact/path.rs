//! Paths of a workspace: bytes, not text.

use std::fmt::Write;

/// Writes a path as text: `\`, control characters and bytes that are not UTF-8 become `\xNN`. [`parse`] reads it back.
#[must_use]
pub fn display(path: &[u8]) -> String {
    let mut out = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\\' || c.is_control() {
                let mut buffer = [0; 4];
                for byte in c.encode_utf8(&mut buffer).bytes() {
                    escape(&mut out, byte);
                }
            } else {
                out.push(c);
            }
        }
        for byte in chunk.invalid() {
            escape(&mut out, *byte);
        }
    }
    out
}

fn escape(out: &mut String, byte: u8) {
    write!(out, "\\x{byte:02X}").expect("writing to a String cannot fail");
}

/// Reads what [`display`] wrote; `None` if it was not written by it.
#[must_use]
pub fn parse(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        if *first != b'\\' {
            out.push(*first);
            rest = tail;
            continue;
        }
        let [b'x', high, low, after @ ..] = tail else {
            return None;
        };
        let digit = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
        out.push(digit(*high)? * 16 + digit(*low)?);
        rest = after;
    }
    Some(out)
}

/// Whether some file system or version of git takes `name` for a git folder: `.git` in any case, with characters that
/// HFS+ ignores, with endings that NTFS ignores, and its short name there.
pub(crate) fn is_git_folder(name: &[u8]) -> bool {
    let text = String::from_utf8_lossy(name);
    let visible: String = text
        .chars()
        .filter(|c| {
            !matches!(c, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}')
        })
        .collect();
    let stem = visible.split([':', '\\']).next().unwrap_or_default();
    let stem = stem.trim_end_matches([' ', '.']).to_lowercase();
    stem == ".git" || stem == "git~1"
}

/// The parts of a relative path that stays beneath where it starts.
pub(crate) fn parts(path: &[u8]) -> Option<Vec<&[u8]>> {
    let parts: Vec<&[u8]> = path.split(|b| *b == b'/').collect();
    parts
        .iter()
        .all(|part| !part.is_empty() && *part != b"." && *part != b".." && !part.contains(&0))
        .then_some(parts)
}
