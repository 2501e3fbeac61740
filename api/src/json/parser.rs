//! The parser: one pass, with or without places.

use std::collections::BTreeMap;

use serde_json::{Map, Number, Value};

use super::{Duplicate, Error, MAX_DEPTH};
use super::{Inner, Mark, Spans};
use crate::meta::field_path::Path;

/// Most duplicates that are reported of one text.
const MAX_DUPLICATES: usize = 100;

/// A value with the places of everything in it.
#[derive(Debug)]
pub(crate) struct Located {
    pub(crate) value: Value,
    pub(crate) spans: Spans,
    pub(crate) duplicates: Vec<Duplicate>,
}

/// The value, and whether any key stands twice.
pub(super) fn parse(bytes: &[u8]) -> Result<(Value, bool), Error> {
    let mut parser = Parser::<false>::new(bytes);
    let (value, _) = parser.document()?;
    Ok((value, parser.doubled))
}

/// The value with the places of everything in it.
pub(crate) fn parse_located(bytes: &[u8]) -> Result<Located, Error> {
    let mut parser = Parser::<true>::new(bytes);
    let (value, spans) = parser.document()?;
    Ok(Located {
        value,
        spans,
        duplicates: parser.duplicates,
    })
}

/// The values of a text that holds several, one after the other, up to the first fault. Lines count from `line`.
pub(crate) fn parse_all_located(bytes: &[u8], line: usize) -> (Vec<Located>, Option<Error>) {
    let mut parser = Parser::<true>::new(bytes);
    parser.line = line;
    let mut values = Vec::new();
    loop {
        parser.space();
        if parser.at >= bytes.len() {
            return (values, None);
        }
        match parser.value(&Path::root(), 0) {
            Ok((value, spans)) => values.push(Located {
                value,
                spans,
                duplicates: std::mem::take(&mut parser.duplicates),
            }),
            Err(error) => return (values, Some(error)),
        }
    }
}

struct Parser<'a, const TRACK: bool> {
    bytes: &'a [u8],
    at: usize,
    line: usize,
    /// The last place whose column is known: counting goes on from there, so that one endless line stays cheap.
    known: (usize, usize),
    doubled: bool,
    duplicates: Vec<Duplicate>,
}

impl<'a, const TRACK: bool> Parser<'a, TRACK> {
    const fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            line: 1,
            known: (0, 1),
            doubled: false,
            duplicates: Vec::new(),
        }
    }

    fn document(&mut self) -> Result<(Value, Spans), Error> {
        self.space();
        let found = self.value(&Path::root(), 0)?;
        self.space();
        if self.at < self.bytes.len() {
            return Err(self.error("unexpected text after the value"));
        }
        Ok(found)
    }

    /// Counts characters up to the current place, which never lies before the last one asked for on the same line.
    fn mark(&mut self) -> Mark {
        let (from, column) = self.known;
        let chars = self
            .bytes
            .get(from..self.at)
            .unwrap_or_default()
            .iter()
            .filter(|b| (**b & 0xC0) != 0x80)
            .count();
        self.known = (self.at, column + chars);
        Mark {
            line: self.line,
            column: column + chars,
        }
    }

    fn track(&mut self) -> Mark {
        if TRACK { self.mark() } else { Mark::default() }
    }

    fn error(&mut self, what: impl Into<String>) -> Error {
        let Mark { line, column } = self.mark();
        Error {
            what: what.into(),
            line,
            column,
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while let Some(b) = self.peek() {
            match b {
                b'\n' => {
                    self.line += 1;
                    self.known = (self.at + 1, 1);
                }
                b' ' | b'\t' | b'\r' => {}
                _ => return,
            }
            self.at += 1;
        }
    }

    fn value(&mut self, path: &Path<'_>, depth: usize) -> Result<(Value, Spans), Error> {
        let at = self.track();
        let value = match self.peek() {
            Some(b'{') => return self.object(path, depth, at),
            Some(b'[') => return self.array(path, depth, at),
            Some(b'"') => Value::String(self.string()?),
            Some(b't') => self.word("true", Value::Bool(true))?,
            Some(b'f') => self.word("false", Value::Bool(false))?,
            Some(b'n') => self.word("null", Value::Null)?,
            Some(b'-' | b'0'..=b'9') => Value::Number(self.number()?),
            Some(_) => return Err(self.error("expected a JSON value")),
            None => return Err(self.error("unexpected end of text")),
        };
        Ok((value, Spans::leaf(at)))
    }

    fn enter(&mut self, depth: usize) -> Result<(), Error> {
        if depth >= MAX_DEPTH {
            return Err(self.error(format!("nesting is deeper than {MAX_DEPTH}")));
        }
        self.at += 1;
        self.space();
        Ok(())
    }

    fn object(&mut self, path: &Path<'_>, depth: usize, at: Mark) -> Result<(Value, Spans), Error> {
        self.enter(depth)?;
        let mut entries = Map::new();
        let mut spans = BTreeMap::new();
        if self.peek() == Some(b'}') {
            self.at += 1;
        } else {
            loop {
                if self.peek() != Some(b'"') {
                    return Err(self.error("expected a key in double quotes"));
                }
                let key_at = self.track();
                let key = self.string()?;
                self.space();
                if self.peek() != Some(b':') {
                    return Err(self.error("expected a colon after the key"));
                }
                self.at += 1;
                self.space();
                let (value, mut inner) = self.value(&path.key(&key), depth + 1)?;
                if TRACK {
                    inner.key = key_at;
                    self.note(path, &key, key_at, &spans);
                    // The first place stays: it is the one to point at.
                    spans.entry(key.clone()).or_insert(inner);
                }
                self.doubled |= entries.insert(key, value).is_some();
                self.space();
                match self.peek() {
                    Some(b',') => {
                        self.at += 1;
                        self.space();
                    }
                    Some(b'}') => {
                        self.at += 1;
                        break;
                    }
                    Some(_) => return Err(self.error("expected a comma or a closing brace")),
                    None => return Err(self.error("unexpected end of text in an object")),
                }
            }
        }
        let inner = if TRACK { Inner::Map(spans) } else { Inner::Leaf };
        Ok((Value::Object(entries), Spans { at, key: at, inner }))
    }

    fn note(&mut self, path: &Path<'_>, key: &str, at: Mark, spans: &BTreeMap<String, Spans>) {
        if let Some(first) = spans.get(key)
            && self.duplicates.len() < MAX_DUPLICATES
        {
            self.duplicates.push(Duplicate {
                path: path.key(key).to_field_path(),
                first_line: first.key.line,
                first_column: first.key.column,
                line: at.line,
                column: at.column,
            });
        }
    }

    fn array(&mut self, path: &Path<'_>, depth: usize, at: Mark) -> Result<(Value, Spans), Error> {
        self.enter(depth)?;
        let mut items = Vec::new();
        let mut spans = Vec::new();
        if self.peek() == Some(b']') {
            self.at += 1;
        } else {
            loop {
                let (value, inner) = self.value(&path.index(items.len()), depth + 1)?;
                items.push(value);
                if TRACK {
                    spans.push(inner);
                }
                self.space();
                match self.peek() {
                    Some(b',') => {
                        self.at += 1;
                        self.space();
                    }
                    Some(b']') => {
                        self.at += 1;
                        break;
                    }
                    Some(_) => return Err(self.error("expected a comma or a closing bracket")),
                    None => return Err(self.error("unexpected end of text in an array")),
                }
            }
        }
        let inner = if TRACK { Inner::List(spans) } else { Inner::Leaf };
        Ok((Value::Array(items), Spans { at, key: at, inner }))
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, Error> {
        let end = self.at + word.len();
        if self.bytes.get(self.at..end) != Some(word.as_bytes()) {
            return Err(self.error("expected a JSON value"));
        }
        self.at = end;
        Ok(value)
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
        self.at - start
    }

    fn number(&mut self) -> Result<Number, Error> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let zero = self.peek() == Some(b'0');
        let whole = self.digits();
        if whole == 0 || (zero && whole > 1) {
            return Err(self.error("invalid number"));
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            if self.digits() == 0 {
                return Err(self.error("invalid number"));
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err(self.error("invalid number"));
            }
        }
        let text = self.bytes.get(start..self.at).unwrap_or_default();
        serde_json::from_slice(text).map_err(|_| self.error("number does not fit"))
    }

    fn string(&mut self) -> Result<String, Error> {
        self.at += 1;
        let mut out = Vec::new();
        loop {
            let start = self.at;
            while self.peek().is_some_and(|b| b != b'"' && b != b'\\' && b >= 0x20) {
                self.at += 1;
            }
            out.extend_from_slice(self.bytes.get(start..self.at).unwrap_or_default());
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return String::from_utf8(out).map_err(|_| self.error("text is not UTF-8"));
                }
                Some(b'\\') => {
                    self.at += 1;
                    let c = self.escape()?;
                    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                }
                Some(_) => return Err(self.error("control character in a string; write it as an escape")),
                None => return Err(self.error("unexpected end of text in a string")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Error> {
        let byte = self.peek();
        self.at += 1;
        Ok(match byte {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let first = self.hex()?;
                let code = if (0xD800..0xDC00).contains(&first) {
                    if self.bytes.get(self.at..self.at + 2) != Some(b"\\u") {
                        return Err(self.error("lone surrogate in a string"));
                    }
                    self.at += 2;
                    let second = self.hex()?;
                    if !(0xDC00..0xE000).contains(&second) {
                        return Err(self.error("lone surrogate in a string"));
                    }
                    0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)
                } else {
                    first
                };
                return char::from_u32(code).ok_or_else(|| self.error("lone surrogate in a string"));
            }
            _ => {
                self.at = (self.at - 1).min(self.bytes.len());
                return Err(self.error("invalid escape in a string"));
            }
        })
    }

    fn hex(&mut self) -> Result<u32, Error> {
        let digits = self.bytes.get(self.at..self.at + 4).unwrap_or_default();
        // `from_str_radix` would take a sign.
        let code = std::str::from_utf8(digits)
            .ok()
            .filter(|d| d.len() == 4 && d.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|d| u32::from_str_radix(d, 16).ok());
        match code {
            Some(code) => {
                self.at += 4;
                Ok(code)
            }
            None => Err(self.error("invalid escape in a string")),
        }
    }
}
