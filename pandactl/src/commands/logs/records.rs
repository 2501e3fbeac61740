//! Records of a log to text, counting how far the log was read.

use panda_api::logline::{Renderer, View};

/// Longer than any record of a log.
const LONGEST: usize = 1 << 20;

/// Reads records, in any pieces, and renders them.
#[derive(Debug)]
pub(super) struct Reader {
    renderer: Renderer,
    rest: Vec<u8>,
    offset: u64,
}

impl Reader {
    pub(super) const fn new(view: View) -> Self {
        Self {
            renderer: Renderer::new(view),
            rest: Vec::new(),
            offset: 0,
        }
    }

    /// Where the next record starts: what was rendered is never asked for again.
    pub(super) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Forgets half a record: it will be read again, from [`Self::offset`].
    pub(super) fn broken(&mut self) {
        self.rest.clear();
    }

    /// Appends to `out` what `bytes` complete.
    pub(super) fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        self.rest.extend_from_slice(bytes);
        let all = std::mem::take(&mut self.rest);
        let mut rest = all.as_slice();
        while let Some(end) = rest.iter().position(|&b| b == b'\n') {
            let (line, tail) = rest.split_at(end + 1);
            rest = tail;
            if let Some((from, to)) = gap(line) {
                self.offset = to;
                self.renderer.gap(to.saturating_sub(from), out);
                continue;
            }
            self.offset += line.len() as u64;
            self.renderer.record(line, out);
        }
        if rest.len() > LONGEST {
            // No record is that long: what the server sends is not a log. Skipped rather than kept.
            self.offset += rest.len() as u64;
        } else {
            self.rest = rest.to_vec();
        }
    }
}

/// `gap FROM TO`: these bytes of the log are not there.
fn gap(line: &[u8]) -> Option<(u64, u64)> {
    let text = std::str::from_utf8(line).ok()?.trim_end().strip_prefix("gap ")?;
    let (from, to) = text.split_once(' ')?;
    Some((from.parse().ok()?, to.parse().ok()?))
}

/// The last lines of a text.
pub(super) fn last_lines(text: &[u8], count: usize) -> &[u8] {
    if count == 0 {
        return &[];
    }
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let mut left = count;
    for (at, byte) in body.iter().enumerate().rev() {
        if *byte == b'\n' {
            left -= 1;
            if left == 0 {
                return &text[at + 1..];
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use panda_api::logline::{self, Origin};
    use proptest::prelude::*;

    use super::*;

    fn log(records: &[(Origin, bool, Vec<u8>)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (at, (origin, partial, bytes)) in records.iter().enumerate() {
            let time = Timestamp::from_second(i64::try_from(at).unwrap()).unwrap();
            logline::encode(&mut out, time, *origin, *partial, bytes);
        }
        out
    }

    #[test]
    fn records_become_lines_and_gaps_are_visible() {
        let mut bytes = log(&[
            (Origin::Stdout, true, b"half ".to_vec()),
            (Origin::Stdout, false, b"line".to_vec()),
        ]);
        let first = bytes.len() as u64;
        bytes.extend_from_slice(format!("gap {first} {}\n", first + 100).as_bytes());
        bytes.extend(log(&[(Origin::System, false, b"started".to_vec())]));
        let (mut reader, mut out) = (Reader::new(View::default()), Vec::new());
        reader.push(&bytes, &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "half line\n[100 bytes of the log were not kept]\npanda: started\n"
        );
        assert!(reader.offset() > first + 100);
    }

    #[test]
    fn last_lines_count_an_unfinished_one() {
        assert_eq!(last_lines(b"a\nb\nc\n", 2), b"b\nc\n");
        assert_eq!(last_lines(b"a\nb\nc", 1), b"c");
        assert_eq!(last_lines(b"a\n", 5), b"a\n");
        assert_eq!(last_lines(b"a\n", 0), b"");
    }

    proptest! {
        #[test]
        fn a_connection_cut_anywhere_loses_and_repeats_nothing(
            records in prop::collection::vec((prop::bool::ANY, prop::collection::vec(prop::num::u8::ANY, 0..20)), 0..12),
            cuts in prop::collection::vec(0_usize..400, 0..6),
        ) {
            let records: Vec<_> = records
                .into_iter()
                .map(|(partial, bytes)| (Origin::Stdout, partial, bytes.into_iter().map(|b| if b == b'\n' { b' ' } else { b }).collect()))
                .collect();
            let bytes = log(&records);
            let mut whole = Vec::new();
            Reader::new(View::default()).push(&bytes, &mut whole);
            let (mut reader, mut out) = (Reader::new(View::default()), Vec::new());
            for cut in cuts {
                // What a connection brings before it breaks, from where the reader was.
                let from = usize::try_from(reader.offset()).unwrap();
                let to = (from + cut).min(bytes.len());
                reader.push(&bytes[from..to], &mut out);
                reader.broken();
            }
            let from = usize::try_from(reader.offset()).unwrap();
            reader.push(&bytes[from..], &mut out);
            prop_assert_eq!(out, whole);
        }
    }
}
