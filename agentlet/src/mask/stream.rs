//! Masking across the borders of chunks.

use std::sync::Arc;

use super::automaton::Automaton;
use super::{MARK, is_break};

/// Masks one stream of bytes.
pub(crate) struct MaskStream {
    automaton: Option<Arc<Automaton>>,
    state: u32,
    /// Bytes that are held back, and whether they belong to a value.
    held: Vec<u8>,
    marked: Vec<bool>,
    /// Places in `held` of the bytes that count: all but line breaks.
    counted: Vec<usize>,
    /// Whether the last byte that was let out belonged to a value.
    masking: bool,
}

impl std::fmt::Debug for MaskStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MaskStream").finish_non_exhaustive()
    }
}

impl MaskStream {
    pub(super) fn new(automaton: Option<Arc<Automaton>>) -> Self {
        Self {
            automaton,
            state: Automaton::START,
            held: Vec::new(),
            marked: Vec::new(),
            counted: Vec::new(),
            masking: false,
        }
    }

    /// Takes bytes; adds to `out` what can be told by now.
    pub(crate) fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let Some(automaton) = self.automaton.clone() else {
            out.extend_from_slice(bytes);
            return;
        };
        for byte in bytes {
            let at = self.held.len();
            self.held.push(*byte);
            self.marked.push(false);
            if is_break(*byte) {
                continue;
            }
            self.state = automaton.step(self.state, *byte);
            if self.state == Automaton::START {
                self.counted.clear();
                continue;
            }
            self.counted.push(at);
            let found = automaton.found(self.state);
            if found > 0 {
                // All bytes of a beginning are held, so its first one is.
                let first = self.counted[self.counted.len() - found];
                self.marked[first..=at].fill(true);
            }
        }
        let pending = automaton.pending(self.state);
        let keep_from = match self.counted.len().checked_sub(pending) {
            Some(first) if pending > 0 => self.counted[first],
            _ => self.held.len(),
        };
        self.let_out(keep_from, out);
        if pending == 0 {
            self.state = Automaton::START;
            self.counted.clear();
        } else {
            let first = self.counted.len() - pending;
            self.counted.drain(..first);
            self.counted.iter_mut().for_each(|at| *at -= keep_from);
        }
    }

    /// The stream has ended: adds what was held back.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) {
        self.let_out(self.held.len(), out);
        self.state = Automaton::START;
        self.counted.clear();
    }

    /// Bytes that are held back.
    #[cfg(test)]
    pub(crate) fn holds(&self) -> usize {
        self.held.len()
    }

    fn let_out(&mut self, count: usize, out: &mut Vec<u8>) {
        for (byte, marked) in self.held.drain(..count).zip(self.marked.drain(..count)) {
            if !marked {
                out.push(byte);
            } else if !self.masking {
                out.extend_from_slice(MARK.as_bytes());
            }
            self.masking = marked;
        }
    }
}

/// Masks one stream of text.
#[derive(Debug)]
pub(crate) struct TextStream {
    bytes: MaskStream,
    /// A character that was cut.
    rest: Vec<u8>,
}

impl TextStream {
    pub(super) const fn new(bytes: MaskStream) -> Self {
        Self {
            bytes,
            rest: Vec::new(),
        }
    }

    /// Takes text; says what can be told by now.
    pub(crate) fn push(&mut self, text: &str) -> String {
        self.bytes.push(text.as_bytes(), &mut self.rest);
        let whole = match std::str::from_utf8(&self.rest) {
            Ok(_) => self.rest.len(),
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => self.rest.len(),
        };
        let bytes: Vec<u8> = self.rest.drain(..whole).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The text has ended: what was held back.
    pub(crate) fn finish(&mut self) -> String {
        let mut bytes = std::mem::take(&mut self.rest);
        self.bytes.finish(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
