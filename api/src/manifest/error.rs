//! Errors with a file, a line and a remedy.

use std::fmt;
use std::sync::Arc;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

use super::Source;
use crate::json::Mark;
use crate::meta::field_path::FieldPath;

/// Most errors that are kept of one file.
pub(super) const MAX_ERRORS: usize = 100;
/// Longest line that is shown, in bytes.
const MAX_SHOWN_LINE: usize = 400;
/// Most lines between two places that are shown together.
const MAX_SHOWN_LINES: usize = 200;

/// What is wrong with a file, and where.
#[derive(Clone, Debug)]
pub struct Error {
    source: Arc<Source>,
    document: usize,
    at: Mark,
    what: String,
    field: Option<FieldPath>,
    first: Option<Mark>,
    remedy: Option<String>,
}

impl Error {
    pub(crate) fn new(source: &Arc<Source>, document: usize, at: Mark, what: impl Into<String>) -> Self {
        Self {
            source: Arc::clone(source),
            document,
            at,
            what: what.into(),
            field: None,
            first: None,
            remedy: None,
        }
    }

    pub(crate) fn field(mut self, field: FieldPath) -> Self {
        self.field = (!field.is_root()).then_some(field);
        self
    }

    /// Another place that has to do with it: where a doubled key stands first.
    pub(crate) fn first(mut self, first: Mark) -> Self {
        self.first = Some(first);
        self
    }

    /// Says what to do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.source.name
    }

    /// Number of the document in the file, from 1; empty documents do not count.
    #[must_use]
    pub const fn document(&self) -> usize {
        self.document
    }

    /// Where it is.
    #[must_use]
    pub const fn at(&self) -> Mark {
        self.at
    }

    /// What is wrong, without place and remedy.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    /// The field, when it is about one.
    #[must_use]
    pub const fn field_path(&self) -> Option<&FieldPath> {
        self.field.as_ref()
    }

    /// Whether reading the same bytes again could succeed: never.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        false
    }

    /// The error with the lines that it is about, for a terminal.
    #[must_use]
    pub fn render(&self, color: bool) -> String {
        // Places far apart do not fit one picture; the sentence names both lines.
        let first = self
            .first
            .filter(|f| f.line.abs_diff(self.at.line) <= MAX_SHOWN_LINES);
        let from = first.map_or(self.at.line, |f| f.line.min(self.at.line));
        let window_start = from.saturating_sub(2).max(1);
        let window_end = self.at.line.max(first.map_or(0, |f| f.line)) + 1;
        let window = self.window(window_start, window_end);
        let title = match &self.field {
            Some(field) => format!("{field}: {}", self.what),
            None => self.what.clone(),
        };
        let mut snippet = Snippet::source(window.as_str())
            .line_start(window_start)
            .path(self.source.name.as_str());
        if let Some(first) = first
            && let Some(span) = span_in(&window, window_start, first)
        {
            snippet = snippet.annotation(AnnotationKind::Context.span(span).label("first here"));
        }
        if let Some(span) = span_in(&window, window_start, self.at) {
            snippet = snippet.annotation(
                AnnotationKind::Primary
                    .span(span)
                    .label(format!("document {}", self.document)),
            );
        }
        let mut group = Level::ERROR.primary_title(title).element(snippet);
        if let Some(remedy) = &self.remedy {
            group = group.element(Level::HELP.message(remedy.as_str()));
        }
        let renderer = if color {
            Renderer::styled()
        } else {
            Renderer::plain()
        };
        renderer.render(&[group])
    }

    /// Lines `from..=to`, each cut to a length that fits a screen.
    fn window(&self, from: usize, to: usize) -> String {
        let lines = self.source.text.split('\n').skip(from - 1).take(to + 1 - from);
        let mut out = String::new();
        for line in lines {
            let mut end = line.len().min(MAX_SHOWN_LINE);
            while !line.is_char_boundary(end) {
                end -= 1;
            }
            if self.source.has_secrets {
                out.push_str(&veil(&line[..end]));
            } else {
                out.push_str(&line[..end]);
            }
            out.push('\n');
        }
        out
    }
}

/// A line of a file with a Secret in it: only the key before the first colon is shown, since anything else may be a value.
fn veil(line: &str) -> String {
    let key = line
        .find(": ")
        .or_else(|| line.ends_with(':').then(|| line.len() - 1));
    let is_key = |text: &str| {
        let text = text.trim_start_matches([' ', '-', '{']).trim_matches('"');
        !text.is_empty()
            && text.len() <= 63
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b))
    };
    let shown = key.filter(|at| is_key(&line[..*at])).map_or(0, |at| at + 1);
    let hidden = line[shown..]
        .chars()
        .map(|c| if c.is_whitespace() { c } else { '*' });
    line[..shown].chars().chain(hidden).collect()
}

/// Bytes of the word at `mark`, in a window that starts at line `from`.
fn span_in(window: &str, from: usize, mark: Mark) -> Option<std::ops::Range<usize>> {
    let mut start = 0;
    for (index, line) in window.split_inclusive('\n').enumerate() {
        if from + index == mark.line {
            let body = line.trim_end_matches('\n');
            let column = body
                .char_indices()
                .nth(mark.column.saturating_sub(1))
                .map_or(body.len(), |(at, _)| at);
            let rest = &body[column..];
            let word = rest
                .find(|c: char| c.is_whitespace() || matches!(c, ',' | ':' | '}' | ']'))
                .unwrap_or(rest.len());
            let word = word.max(rest.chars().next().map_or(0, char::len_utf8));
            return Some(start + column..start + column + word);
        }
        start += line.len();
    }
    None
}

/// One line: `file:line:column: document 2: spec.env: what (remedy)`.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}:{}: document {}: ",
            self.source.name, self.at.line, self.at.column, self.document
        )?;
        if let Some(field) = &self.field {
            write!(f, "{field}: ")?;
        }
        f.write_str(&self.what)?;
        if let Some(remedy) = &self.remedy {
            write!(f, "; {remedy}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// Everything that is wrong with a file, in order.
#[derive(Clone, Debug, Default)]
pub struct Errors(Vec<Error>);

impl Errors {
    pub(super) fn push(&mut self, error: Error) {
        if self.0.len() <= MAX_ERRORS {
            self.0.push(error);
        }
    }

    pub(super) fn extend(&mut self, errors: Vec<Error>) {
        for error in errors {
            self.push(error);
        }
    }

    /// Whether nothing is wrong.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many errors there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// The errors, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Error> {
        self.0.iter()
    }
}

impl From<Error> for Errors {
    fn from(error: Error) -> Self {
        Self(vec![error])
    }
}

impl<'a> IntoIterator for &'a Errors {
    type Item = &'a Error;
    type IntoIter = std::slice::Iter<'a, Error>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}
