//! The framing of a run's log: one record a line, with time and origin, around bytes that stay as they are.
//!
//! `<RFC 3339 UTC, microseconds> <stdout|stderr|system> <F|P> <bytes>\n`. `F` is a full line: the record's own line feed
//! is the line's. `P` is a piece that no line feed followed (yet). Joining the pieces of one origin, with a line feed
//! after each `F`, gives back exactly what the process wrote. The bytes hold no line feed; anything else may occur in
//! them (NUL, lone CR, invalid UTF-8).

mod render;

use jiff::Timestamp;

pub use render::{Renderer, View};

/// Where a piece of log comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The agent's standard output.
    Stdout,
    /// The agent's standard error.
    Stderr,
    /// The platform itself.
    System,
}

impl Origin {
    /// The word in a record.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::System => "system",
        }
    }

    fn parse(word: &[u8]) -> Option<Self> {
        match word {
            b"stdout" => Some(Self::Stdout),
            b"stderr" => Some(Self::Stderr),
            b"system" => Some(Self::System),
            _ => None,
        }
    }
}

/// One record of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When the piece was read from the process.
    pub time: Timestamp,
    /// Where it comes from.
    pub origin: Origin,
    /// Whether no line feed followed.
    pub partial: bool,
    /// The bytes, without line feed.
    pub bytes: &'a [u8],
}

/// Appends one record. `bytes` must hold no line feed; one that is there is written as a space.
pub fn encode(out: &mut Vec<u8>, time: Timestamp, origin: Origin, partial: bool, bytes: &[u8]) {
    out.extend_from_slice(time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string().as_bytes());
    out.push(b' ');
    out.extend_from_slice(origin.as_str().as_bytes());
    out.extend_from_slice(if partial { b" P " } else { b" F " });
    out.extend(bytes.iter().map(|&b| if b == b'\n' { b' ' } else { b }));
    out.push(b'\n');
}

/// Reads one record from a line (with or without its line feed); `None` when it is no record.
#[must_use]
pub fn parse(line: &[u8]) -> Option<Record<'_>> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let mut parts = line.splitn(4, |&b| b == b' ');
    let time = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
    let origin = Origin::parse(parts.next()?)?;
    let partial = match parts.next()? {
        b"P" => true,
        b"F" => false,
        _ => return None,
    };
    Some(Record {
        time,
        origin,
        partial,
        bytes: parts.next()?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_come_back(bytes: Vec<u8>, partial: bool, micros in 0_i64..4_000_000_000_000_000) {
            let bytes: Vec<u8> = bytes.into_iter().filter(|&b| b != b'\n').collect();
            let time = Timestamp::from_microsecond(micros).unwrap();
            let mut out = Vec::new();
            encode(&mut out, time, Origin::Stderr, partial, &bytes);
            prop_assert_eq!(out.iter().filter(|&&b| b == b'\n').count(), 1);
            prop_assert_eq!(parse(&out), Some(Record { time, origin: Origin::Stderr, partial, bytes: &bytes }));
        }

        #[test]
        fn anything_else_is_no_record_and_no_panic(bytes: Vec<u8>) {
            // Whatever is taken for a record says the same when it is written again.
            if let Some(record) = parse(&bytes) {
                let mut out = Vec::new();
                encode(&mut out, record.time, record.origin, record.partial, record.bytes);
                let again = parse(&out).map(|again| (again.origin, again.partial, again.bytes.len()));
                prop_assert_eq!(again, Some((record.origin, record.partial, record.bytes.len())));
            }
        }
    }

    #[test]
    fn a_record_is_readable() {
        let mut out = Vec::new();
        encode(
            &mut out,
            Timestamp::from_second(1).unwrap(),
            Origin::Stdout,
            false,
            b"hello",
        );
        assert_eq!(out, b"1970-01-01T00:00:01.000000Z stdout F hello\n");
    }
}
