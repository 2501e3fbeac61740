//! The forms in which a value may turn up.
//!
//! As it is; as text in JSON (also twice, and with everything beyond ASCII or every slash escaped), in XML and in a
//! shell's quotes; in URLs, by the several sets of characters that are escaped there; in base64 and base64url at each of
//! the three places in a group; in hexadecimal; reversed. Each long line of a value of several lines counts as a value.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use panda_api::secrets::{MIN_MASKED, weakness};

use super::is_break;

/// Adds every form of `value`, without line breaks.
pub(super) fn of(value: &[u8], all: &mut BTreeSet<Vec<u8>>) {
    let value = value.trim_ascii();
    encodings(value, all);
    if value.contains(&b'\n') {
        for line in value.split(|b| *b == b'\n').map(<[u8]>::trim_ascii) {
            // The frame of a key says nothing, and stands in every other one.
            if weakness(line).is_none() && !line.starts_with(b"-----") {
                encodings(line, all);
            }
        }
    }
}

fn encodings(value: &[u8], all: &mut BTreeSet<Vec<u8>>) {
    let mut add = |form: Vec<u8>| {
        let form: Vec<u8> = form.into_iter().filter(|b| !is_break(*b)).collect();
        if form.len() >= MIN_MASKED {
            all.insert(form);
        }
    };
    add(value.to_vec());
    add(value.iter().rev().copied().collect());
    add(hex::encode(value).into_bytes());
    add(hex::encode_upper(value).into_bytes());
    for set in [
        (|b| b.is_ascii_alphanumeric() || b"-._~".contains(&b)) as fn(u8) -> bool,
        |b| b.is_ascii_alphanumeric() || b"-_.!~*'()".contains(&b),
        |b| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&b),
        |b| b.is_ascii_graphic() && !b" \"#%/:;<=>?@[\\]^`{|}".contains(&b),
        |b| b.is_ascii_graphic() && !b" \"#%<>?`{}".contains(&b),
    ] {
        for upper in [true, false] {
            add(percent(value, set, upper, false));
            add(percent(value, set, upper, true));
        }
    }
    for shift in 0..3 {
        let standard = base64(value, shift);
        add(standard
            .iter()
            .map(|b| match b {
                b'+' => b'-',
                b'/' => b'_',
                other => *other,
            })
            .collect());
        // As a part of a URL, where padding and the two signs are escaped.
        add(percent(&standard, |b| b.is_ascii_alphanumeric(), true, false));
        add(standard);
    }
    if let Ok(text) = std::str::from_utf8(value) {
        add(text.chars().rev().collect::<String>().into_bytes());
        for (ascii, slash) in [(false, false), (true, false), (false, true), (true, true)] {
            let once = json(text, ascii, slash);
            add(json(&once, ascii, slash).into_bytes());
            add(once.into_bytes());
        }
        for apostrophe in ["&#39;", "&apos;", "&#x27;", "'"] {
            add(xml(text, apostrophe).into_bytes());
        }
        add(text.replace('\'', r"'\''").into_bytes());
        add(text.replace('\'', r"\'").into_bytes());
        let quoted: String = text
            .chars()
            .flat_map(|c| {
                matches!(c, '"' | '\\' | '$' | '`')
                    .then_some('\\')
                    .into_iter()
                    .chain([c])
            })
            .collect();
        add(quoted.into_bytes());
    }
}

fn percent(value: &[u8], plain: fn(u8) -> bool, upper: bool, plus: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len() * 3);
    for byte in value {
        match byte {
            b' ' if plus => out.push(b'+'),
            byte if plain(*byte) => out.push(*byte),
            byte if upper => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            byte => out.extend_from_slice(format!("%{byte:02x}").as_bytes()),
        }
    }
    out
}

/// The characters that `value` alone decides when `shift` bytes of something else stand before it in its first group.
fn base64(value: &[u8], shift: usize) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bit = |at: usize| {
        value
            .get(at / 8)
            .is_some_and(|byte| byte & (0x80 >> (at % 8)) != 0)
    };
    // Bits of the value that belong to a character that begins before it.
    let skip = (6 - shift * 8 % 6) % 6;
    let bits = value.len() * 8;
    (skip..bits.saturating_sub(5))
        .step_by(6)
        .map(|at| ALPHABET[(at..at + 6).fold(0, |sum, at| sum << 1 | usize::from(bit(at)))])
        .collect()
}

/// The inside of a JSON string.
fn json(text: &str, ascii: bool, slash: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '/' if slash => out.push_str("\\/"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if u32::from(c) < 0x20 || (ascii && !c.is_ascii()) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Into a string: it cannot fail.
                    _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out
}

fn xml(text: &str, apostrophe: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str(apostrophe),
            c => out.push(c),
        }
    }
    out
}
