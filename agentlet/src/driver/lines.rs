//! Lines out of a stream of bytes, within a bound.

/// Longest line of events that is read as a whole.
const MAX: usize = 1 << 20;

/// How much of a longer one is shown.
pub(super) const SHOWN: usize = 4 << 10;

/// One line, without its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// The whole line.
    Whole(Vec<u8>),
    /// The beginning of one that is too long; the rest is passed over.
    TooLong(Vec<u8>),
}

/// Cuts a stream into lines.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    max: usize,
    buffer: Vec<u8>,
    /// Passing over the rest of a line that was too long.
    skipping: bool,
}

impl Default for Lines {
    fn default() -> Self {
        Self::up_to(MAX)
    }
}

impl Lines {
    /// Reads lines of at most `max` bytes as a whole.
    pub(super) const fn up_to(max: usize) -> Self {
        Self {
            max,
            buffer: Vec::new(),
            skipping: false,
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<Line> {
        let mut out = Vec::new();
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            let (text, ended) = match piece.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (piece, false),
            };
            if !self.skipping {
                if self.buffer.len() + text.len() > self.max {
                    self.buffer.extend_from_slice(&text[..text.len().min(SHOWN)]);
                    self.buffer.truncate(SHOWN);
                    out.push(Line::TooLong(std::mem::take(&mut self.buffer)));
                    self.skipping = true;
                } else {
                    self.buffer.extend_from_slice(text);
                }
            }
            if ended {
                if !self.skipping {
                    out.push(Line::Whole(std::mem::take(&mut self.buffer)));
                }
                self.skipping = false;
            }
        }
        out
    }

    /// What is left when the stream ends without a line break.
    pub(super) fn finish(&mut self) -> Option<Line> {
        let rest = std::mem::take(&mut self.buffer);
        (!rest.is_empty()).then_some(Line::Whole(rest))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_without_end_is_cut_and_the_next_one_is_whole() {
        let mut lines = Lines::default();
        let mut got = Vec::new();
        for _ in 0..40 {
            got.extend(lines.push(&vec![b'x'; 64 << 10]));
        }
        got.extend(lines.push(b"tail\nnext\n"));
        assert_eq!(got.len(), 2);
        assert!(matches!(&got[0], Line::TooLong(shown) if shown.len() == SHOWN));
        assert_eq!(got[1], Line::Whole(b"next".to_vec()));
        assert_eq!(lines.finish(), None);
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_how_the_stream_is_cut(
            text in prop::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..300),
            cuts in prop::collection::vec(0_usize..300, 0..10),
        ) {
            let mut lines = Lines::default();
            let mut whole = lines.push(&text);
            whole.extend(lines.finish());
            let mut cuts: Vec<_> = cuts.into_iter().filter(|c| *c <= text.len()).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let mut lines = Lines::default();
            let mut got = Vec::new();
            for pair in cuts.windows(2) {
                got.extend(lines.push(&text[pair[0]..pair[1]]));
            }
            got.extend(lines.finish());
            prop_assert_eq!(got, whole);
        }
    }
}
