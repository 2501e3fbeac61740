//! From the records of a log to the text that people read.

use super::{Origin, parse};
use jiff::Timestamp;

/// What of a log is wanted, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Put the time before each line.
    pub timestamps: bool,
    /// Leave out what is older.
    pub since: Option<Timestamp>,
    /// Leave out other origins.
    pub origin: Option<Origin>,
}

/// Turns framed bytes, in any pieces, into text. Holds at most one record.
#[derive(Debug)]
pub struct Renderer {
    view: View,
    rest: Vec<u8>,
    /// Whether the output ends with a line feed.
    at_line_start: bool,
}

/// Longer than any record that an agentlet writes: whoever sends more gets it cut, not buffered.
const MAX_RECORD: usize = 64 * 1024;

impl Renderer {
    /// A renderer of what `view` wants.
    #[must_use]
    pub const fn new(view: View) -> Self {
        Self {
            view,
            rest: Vec::new(),
            at_line_start: true,
        }
    }

    /// Appends to `out` what `bytes` complete.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while let Some(end) = bytes.iter().position(|&b| b == b'\n') {
            let (line, tail) = bytes.split_at(end + 1);
            bytes = tail;
            if self.rest.is_empty() {
                self.record(line, out);
            } else {
                self.rest.extend_from_slice(line);
                let whole = std::mem::take(&mut self.rest);
                self.record(&whole, out);
            }
        }
        if self.rest.len() + bytes.len() > MAX_RECORD {
            self.rest.clear();
        } else {
            self.rest.extend_from_slice(bytes);
        }
    }

    /// Says that `missing` bytes are not there.
    pub fn gap(&mut self, missing: u64, out: &mut Vec<u8>) {
        self.rest.clear();
        self.fresh_line(out);
        out.extend_from_slice(format!("[{missing} bytes of the log were not kept]\n").as_bytes());
    }

    fn fresh_line(&mut self, out: &mut Vec<u8>) {
        if !self.at_line_start {
            out.push(b'\n');
            self.at_line_start = true;
        }
    }

    /// Appends one record, given as its line; what is no record is left out.
    pub fn record(&mut self, line: &[u8], out: &mut Vec<u8>) {
        let Some(record) = parse(line) else {
            return;
        };
        if self.view.since.is_some_and(|since| record.time < since)
            || self.view.origin.is_some_and(|origin| record.origin != origin)
        {
            return;
        }
        if record.origin == Origin::System {
            self.fresh_line(out);
        }
        if self.at_line_start {
            if self.view.timestamps {
                out.extend_from_slice(
                    record
                        .time
                        .strftime("%Y-%m-%dT%H:%M:%S.%6fZ ")
                        .to_string()
                        .as_bytes(),
                );
            }
            if record.origin == Origin::System {
                out.extend_from_slice(b"panda: ");
            }
        }
        out.extend_from_slice(record.bytes);
        if record.partial {
            self.at_line_start &= record.bytes.is_empty();
        } else {
            out.push(b'\n');
            self.at_line_start = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::encode;
    use super::*;

    fn framed(records: &[(Origin, bool, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (i, (origin, partial, bytes)) in records.iter().enumerate() {
            let time = Timestamp::from_second(i64::try_from(i).unwrap()).unwrap();
            encode(&mut out, time, *origin, *partial, bytes);
        }
        out
    }

    fn render(view: View, bytes: &[u8], piece: usize) -> Vec<u8> {
        let (mut renderer, mut out) = (Renderer::new(view), Vec::new());
        for chunk in bytes.chunks(piece.max(1)) {
            renderer.push(chunk, &mut out);
        }
        out
    }

    #[test]
    fn lines_pieces_and_odd_bytes_come_out_as_they_went_in() {
        let bytes = framed(&[
            (Origin::Stdout, true, b"half "),
            (Origin::Stdout, false, b"line"),
            (Origin::Stderr, false, b"\xff\xfe\x97"),
            (Origin::System, false, b"started"),
        ]);
        for piece in [1, 3, 1000] {
            assert_eq!(
                render(View::default(), &bytes, piece),
                b"half line\n\xff\xfe\x97\npanda: started\n"
            );
        }
    }

    #[test]
    fn since_origin_and_timestamps_choose() {
        let bytes = framed(&[
            (Origin::Stdout, false, b"a"),
            (Origin::Stderr, false, b"b"),
            (Origin::Stdout, false, b"c"),
        ]);
        let since = Some(Timestamp::from_second(1).unwrap());
        assert_eq!(
            render(
                View {
                    since,
                    ..View::default()
                },
                &bytes,
                7
            ),
            b"b\nc\n"
        );
        let origin = Some(Origin::Stdout);
        assert_eq!(
            render(
                View {
                    origin,
                    ..View::default()
                },
                &bytes,
                7
            ),
            b"a\nc\n"
        );
        let view = View {
            timestamps: true,
            since,
            origin,
        };
        assert_eq!(render(view, &bytes, 7), b"1970-01-01T00:00:02.000000Z c\n");
    }

    #[test]
    fn a_gap_is_said_on_its_own_line() {
        let (mut renderer, mut out) = (Renderer::new(View::default()), Vec::new());
        renderer.push(&framed(&[(Origin::Stdout, true, b"half")]), &mut out);
        renderer.gap(12, &mut out);
        assert_eq!(out, b"half\n[12 bytes of the log were not kept]\n");
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_are_bounded_and_never_panic(bytes: Vec<u8>, piece in 1_usize..64) {
            let out = render(View::default(), &bytes, piece);
            prop_assert!(out.len() <= bytes.len() + 16);
        }
    }
}
