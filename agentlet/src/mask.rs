//! Values of Secrets, taken out of everything that leaves a run.
//!
//! A [`Mask`] knows the values of one run in every form in which programs are known to print them; a [`MaskStream`] takes
//! them out of a stream of bytes, however that is cut. Line breaks do not count: a value that `base64` wrapped, or that
//! was printed in two lines, is found as well. What could still become a value is held back until more comes or the
//! stream ends; that is never more than the longest form, less one byte, and the line breaks in it.
//!
//! Not masked: values that [`weakness`] names, since they stand in too many innocent texts; halves of a value that come
//! over different streams; and forms that nobody thought of, such as ciphers of the agent's own.
//!
//! | module | idea |
//! |---|---|
//! | `forms` | the forms of a value |
//! | `automaton` | all forms found in one pass |
//! | `stream` | masking across the borders of chunks |

mod automaton;
mod forms;
mod stream;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::{self, Read};
use std::sync::Arc;

use panda_api::secrets::weakness;
use serde_json::Value;

use self::automaton::Automaton;
pub(crate) use self::stream::{MaskStream, TextStream};

/// What stands in the place of a value.
pub(crate) const MARK: &str = "[masked]";
/// Most bytes of values in one run. Each takes some thirty times its size in memory while the run lasts.
pub(crate) const MAX_VALUES: usize = 32 << 10;

/// The values of one run. Without any, everything passes as it is.
#[derive(Clone, Default)]
pub(crate) struct Mask(Option<Arc<Automaton>>);

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mask").field("empty", &self.0.is_none()).finish()
    }
}

impl Mask {
    /// A mask of all values that are not weak.
    pub(crate) fn new<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut all = BTreeSet::new();
        for value in values {
            if weakness(value).is_none() {
                forms::of(value, &mut all);
            }
        }
        Self((!all.is_empty()).then(|| Arc::new(Automaton::new(&all))))
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// For bytes that come in pieces.
    pub(crate) fn stream(&self) -> MaskStream {
        MaskStream::new(self.0.clone())
    }

    /// For text that comes in pieces.
    pub(crate) fn text_stream(&self) -> TextStream {
        TextStream::new(self.stream())
    }

    /// A whole text.
    pub(crate) fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.is_empty() {
            return Cow::Borrowed(text);
        }
        let (mut stream, mut out) = (self.stream(), Vec::with_capacity(text.len()));
        stream.push(text.as_bytes(), &mut out);
        stream.finish(&mut out);
        if out == text.as_bytes() {
            return Cow::Borrowed(text);
        }
        Cow::Owned(match String::from_utf8(out) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }

    /// Every text in `value`, names of fields included.
    pub(crate) fn json(&self, value: &mut Value) {
        if self.is_empty() {
            return;
        }
        match value {
            Value::String(text) => {
                if let Cow::Owned(masked) = self.text(text) {
                    *text = masked;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.json(item)),
            Value::Object(fields) => {
                for (name, mut field) in std::mem::take(fields) {
                    self.json(&mut field);
                    fields.insert(self.text(&name).into_owned(), field);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Whether a value stands in what `from` gives.
    pub(crate) fn finds(&self, mut from: impl Read) -> io::Result<bool> {
        let Some(automaton) = &self.0 else {
            return Ok(false);
        };
        let mut state = Automaton::START;
        let mut buffer = vec![0; 64 << 10];
        loop {
            let n = match from.read(&mut buffer) {
                Ok(0) => return Ok(false),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            for byte in buffer[..n].iter().filter(|b| !is_break(**b)) {
                state = automaton.step(state, *byte);
                if automaton.found(state) > 0 {
                    return Ok(true);
                }
            }
        }
    }
}

/// Line breaks do not count.
const fn is_break(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}
