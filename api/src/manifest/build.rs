//! From the text of one document to values with places.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};
use serde_json::{Map, Value};

use super::scalar::{Scalar, resolve};
use super::split::Chunk;
use super::{Error, MAX_DEPTH, MAX_DOCUMENT_BYTES, MAX_NODES, Mark, Source};
use crate::json::{Inner, Spans, parse_all_located};
use crate::meta::field_path::Path;

/// Most errors that are collected in one document.
const MAX_ERRORS: usize = 50;
/// Most bytes of text that aliases may repeat.
const MAX_ALIAS_BYTES: usize = MAX_DOCUMENT_BYTES;

/// One document, read.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) value: Value,
    pub(super) spans: Spans,
    pub(super) number: usize,
}

pub(super) struct Reader<'a> {
    source: &'a Arc<Source>,
    chunk: Chunk<'a>,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(source: &'a Arc<Source>, chunk: Chunk<'a>) -> Self {
        Self { source, chunk }
    }

    /// The values of the document; `number` is the number of the last one before and grows with each.
    pub(super) fn read(&self, number: &mut usize) -> Vec<Result<Tree, Vec<Error>>> {
        let start = Mark {
            line: self.chunk.line,
            column: 1,
        };
        if self.chunk.text.len() > MAX_DOCUMENT_BYTES {
            *number += 1;
            let what = format!("document is larger than {} MiB", MAX_DOCUMENT_BYTES >> 20);
            return vec![Err(vec![Error::new(self.source, *number, start, what)])];
        }
        let looks = looks_like_json(self.chunk.text);
        if looks == Looks::Other {
            return self.yaml(number).into_iter().collect();
        }
        let (json, fault) = self.json(*number + 1);
        let Some(fault) = fault else {
            *number += json.len();
            return json;
        };
        if self.source.name.to_ascii_lowercase().ends_with(".json") {
            *number += json.len() + 1;
            return json.into_iter().chain([Err(vec![fault])]).collect();
        }
        // Flow style starts like JSON.
        let mut yaml_number = *number;
        match self.yaml(&mut yaml_number) {
            read if (looks == Looks::Json && !is_flow_style(&fault))
                || (!json.is_empty() && !matches!(read, Some(Ok(_)))) =>
            {
                *number += json.len() + 1;
                json.into_iter().chain([Err(vec![fault])]).collect()
            }
            read => {
                *number = yaml_number;
                read.into_iter().collect()
            }
        }
    }

    fn json(&self, first: usize) -> (Vec<Result<Tree, Vec<Error>>>, Option<Error>) {
        let text = self.chunk.text;
        let body = text.strip_prefix("---").unwrap_or(text);
        let (values, fault) = parse_all_located(body.as_bytes(), self.chunk.line);
        let numbers = first..first + values.len();
        let fault = fault.map(|f| {
            let at = Mark {
                line: f.line,
                column: f.column,
            };
            Error::new(self.source, numbers.end, at, f.what)
        });
        let trees = values.into_iter().zip(numbers).map(|(located, number)| {
            let errors: Vec<Error> = located
                .duplicates
                .iter()
                .map(|d| {
                    let at = Mark {
                        line: d.line,
                        column: d.column,
                    };
                    let first = Mark {
                        line: d.first_line,
                        column: d.first_column,
                    };
                    doubled(self.source, number, at, first).field(d.path.clone())
                })
                .collect();
            if errors.is_empty() {
                Ok(Tree {
                    value: located.value,
                    spans: located.spans,
                    number,
                })
            } else {
                Err(errors)
            }
        });
        (trees.collect(), fault)
    }

    fn yaml(&self, number: &mut usize) -> Option<Result<Tree, Vec<Error>>> {
        let mut builder = Builder {
            parser: Parser::new_from_str(self.chunk.text),
            source: self.source,
            lines: self.chunk.text.split('\n').collect(),
            base: self.chunk.line,
            number: *number + 1,
            nodes: 0,
            alias_bytes: 0,
            anchors: HashMap::new(),
            errors: Vec::new(),
        };
        let read = builder.document();
        let mut errors = builder.errors;
        match read {
            Ok(None) if errors.is_empty() => None,
            Ok(Some((value, spans))) if errors.is_empty() => {
                *number += 1;
                Some(Ok(Tree {
                    value,
                    spans,
                    number: *number,
                }))
            }
            Ok(_) => {
                *number += 1;
                Some(Err(errors))
            }
            Err(fatal) => {
                *number += 1;
                errors.push(*fatal);
                errors.sort_by_key(Error::at);
                Some(Err(errors))
            }
        }
    }
}

/// Whether JSON stumbled over what flow style allows: a key or a value without quotes. Anything else in a text that
/// starts like JSON is a mistake, which flow style would read as something else.
fn is_flow_style(fault: &Error) -> bool {
    fault.what().starts_with("expected a JSON value") || fault.what().starts_with("expected a key")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looks {
    /// A brace and a quote.
    Json,
    /// A brace or bracket.
    Flow,
    Other,
}

fn looks_like_json(text: &str) -> Looks {
    let body = text.strip_prefix("---").unwrap_or(text).trim_start();
    match body.strip_prefix(['{', '[']) {
        Some(rest) if rest.trim_start().starts_with(['"', '{', '[']) => Looks::Json,
        Some(_) => Looks::Flow,
        None => Looks::Other,
    }
}

fn doubled(source: &Arc<Source>, number: usize, at: Mark, first: Mark) -> Error {
    let what = format!(
        "the same key stands twice, on lines {} and {}",
        first.line, at.line
    );
    Error::new(source, number, at, what)
        .first(first)
        .remedy("remove one of them, or join their values")
}

/// A value that an alias can stand for, with what it weighs.
struct Anchored {
    value: Value,
    spans: Spans,
    nodes: usize,
    bytes: usize,
}

struct Builder<'a> {
    parser: Parser<'a, StrInput<'a>>,
    source: &'a Arc<Source>,
    lines: Vec<&'a str>,
    base: usize,
    number: usize,
    nodes: usize,
    alias_bytes: usize,
    anchors: HashMap<usize, Anchored>,
    errors: Vec<Error>,
}

type Fatal = Box<Error>;

impl<'a> Builder<'a> {
    fn document(&mut self) -> Result<Option<(Value, Spans)>, Fatal> {
        let mut found = None;
        loop {
            let Some((event, span)) = self.next()? else {
                return Ok(found);
            };
            match event {
                Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
                Event::StreamEnd => return Ok(found),
                event if found.is_none() => {
                    let (value, spans) = self.node(event, span, &Path::root(), 0)?;
                    // A document of nothing but `null` or a bare marker says nothing.
                    if !value.is_null() {
                        found = Some((value, spans));
                    }
                }
                _ => return Err(Box::new(self.error(span, "unexpected text after the document"))),
            }
        }
    }

    fn next(&mut self) -> Result<Option<(Event<'a>, Span)>, Fatal> {
        match self.parser.next_event() {
            None => Ok(None),
            Some(Ok(event)) => Ok(Some(event)),
            Some(Err(error)) => Err(Box::new(self.scan_error(&error))),
        }
    }

    /// The next event inside a collection.
    fn next_inside(&mut self) -> Result<(Event<'a>, Span), Fatal> {
        match self.next()? {
            Some((Event::StreamEnd | Event::DocumentEnd, span)) => {
                Err(Box::new(self.error(span, "unexpected end of document")))
            }
            Some(event) => Ok(event),
            None => Err(Box::new(
                self.error(Span::default(), "unexpected end of document"),
            )),
        }
    }

    fn mark(&self, span: Span) -> Mark {
        Mark {
            line: self.base + span.start.line().saturating_sub(1),
            column: span.start.col() + 1,
        }
    }

    fn error(&self, span: Span, what: impl Into<String>) -> Error {
        Error::new(self.source, self.number, self.mark(span), what)
    }

    fn soft(&mut self, error: Error) -> Result<(), Fatal> {
        if self.errors.len() >= MAX_ERRORS {
            return Err(Box::new(error));
        }
        self.errors.push(error);
        Ok(())
    }

    fn tab_at(&self, line: usize) -> Option<Mark> {
        let text = self.lines.get(line.checked_sub(1)?)?;
        let indent = text.len() - text.trim_start().len();
        let tab = text[..indent].find('\t')?;
        Some(Mark {
            line: self.base + line - 1,
            column: tab + 1,
        })
    }

    fn tab_error(&self, at: Mark) -> Error {
        Error::new(self.source, self.number, at, "tab in the indentation")
            .remedy("indent with spaces: YAML does not allow a tab here")
    }

    fn scan_error(&self, error: &ScanError) -> Error {
        let line = error.marker().line();
        // The scanner stumbles on the line with the tab or on the one after.
        if let Some(at) = [line, line.saturating_sub(1), line + 1]
            .into_iter()
            .find_map(|l| self.tab_at(l))
        {
            return self.tab_error(at);
        }
        let at = Mark {
            line: self.base + line.saturating_sub(1),
            column: error.marker().col() + 1,
        };
        let error = Error::new(
            self.source,
            self.number,
            at,
            format!("invalid YAML: {}", error.info()),
        );
        if error.what().contains("mapping values are not allowed") {
            return error
                .remedy("put text that contains a colon and a space in quotes, and check the indentation");
        }
        error
    }

    fn count(&mut self, span: Span) -> Result<(), Fatal> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(Box::new(
                self.error(span, format!("document has more than {MAX_NODES} values")),
            ));
        }
        Ok(())
    }

    fn node(
        &mut self,
        event: Event<'a>,
        span: Span,
        path: &Path<'_>,
        depth: usize,
    ) -> Result<(Value, Spans), Fatal> {
        self.count(span)?;
        let nodes = self.nodes;
        let (anchor, value, spans) = match event {
            Event::Alias(id) => return self.alias(id, span),
            Event::Scalar(text, style, anchor, tag) => {
                let (value, inner) = self.scalar(&text, style, tag.as_deref(), span, path)?;
                let at = self.mark(span);
                (anchor, value, Spans { at, key: at, inner })
            }
            Event::SequenceStart(anchor, tag) => {
                self.enter(depth, span, tag.as_deref(), "seq", path)?;
                let (value, spans) = self.sequence(span, path, depth)?;
                (anchor, value, spans)
            }
            Event::MappingStart(anchor, tag) => {
                self.enter(depth, span, tag.as_deref(), "map", path)?;
                let (value, spans) = self.mapping(span, path, depth)?;
                (anchor, value, spans)
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::MappingEnd => return Err(Box::new(self.error(span, "expected a value"))),
        };
        if anchor > 0 {
            let anchored = Anchored {
                value: value.clone(),
                spans: spans.clone(),
                nodes: self.nodes - nodes + 1,
                bytes: text_bytes(&value),
            };
            self.anchors.insert(anchor, anchored);
        }
        Ok((value, spans))
    }

    fn alias(&mut self, id: usize, span: Span) -> Result<(Value, Spans), Fatal> {
        let at = self.mark(span);
        let Some(anchored) = self.anchors.get(&id) else {
            return Err(Box::new(
                self.error(span, "alias stands inside the value that it names"),
            ));
        };
        self.nodes += anchored.nodes;
        self.alias_bytes += anchored.bytes;
        if self.nodes > MAX_NODES || self.alias_bytes > MAX_ALIAS_BYTES {
            let what = format!(
                "aliases expand to more than {MAX_NODES} values or {} MiB of text",
                MAX_ALIAS_BYTES >> 20
            );
            return Err(Box::new(self.error(span, what)));
        }
        let spans = Spans {
            at,
            key: at,
            inner: anchored.spans.inner.clone(),
        };
        Ok((anchored.value.clone(), spans))
    }

    fn enter(
        &mut self,
        depth: usize,
        span: Span,
        tag: Option<&Tag>,
        wanted: &str,
        path: &Path<'_>,
    ) -> Result<(), Fatal> {
        if depth >= MAX_DEPTH {
            return Err(Box::new(
                self.error(span, format!("nesting is deeper than {MAX_DEPTH}")),
            ));
        }
        match tag {
            Some(tag) if !(tag.is_yaml_core_schema() && tag.suffix == wanted) => {
                let error = self.bad_tag(tag, span, path);
                self.soft(error)
            }
            _ => Ok(()),
        }
    }

    fn bad_tag(&self, tag: &Tag, span: Span, path: &Path<'_>) -> Error {
        self.error(span, format!("tag {tag} is not supported here"))
            .field(path.to_field_path())
            .remedy("only the core tags of YAML 1.2 are read: !!str !!int !!float !!bool !!null !!seq !!map")
    }

    fn sequence(&mut self, span: Span, path: &Path<'_>, depth: usize) -> Result<(Value, Spans), Fatal> {
        let at = self.mark(span);
        let (mut items, mut spans) = (Vec::new(), Vec::new());
        loop {
            let (event, span) = self.next_inside()?;
            if event == Event::SequenceEnd {
                let inner = Inner::List(spans);
                return Ok((Value::Array(items), Spans { at, key: at, inner }));
            }
            let (value, inner) = self.node(event, span, &path.index(items.len()), depth + 1)?;
            items.push(value);
            spans.push(inner);
        }
    }

    fn mapping(&mut self, span: Span, path: &Path<'_>, depth: usize) -> Result<(Value, Spans), Fatal> {
        let at = self.mark(span);
        let mut entries = Map::new();
        let mut spans: BTreeMap<String, Spans> = BTreeMap::new();
        loop {
            let (event, key_span) = self.next_inside()?;
            if event == Event::MappingEnd {
                let inner = Inner::Map(spans);
                return Ok((Value::Object(entries), Spans { at, key: at, inner }));
            }
            let key = self.key(event, key_span, path)?;
            let (event, span) = self.next_inside()?;
            let (value, mut inner) = self.node(event, span, &path.key(&key), depth + 1)?;
            inner.key = self.mark(key_span);
            if let Some(first) = spans.get(&key) {
                let error = doubled(self.source, self.number, inner.key, first.key)
                    .field(path.key(&key).to_field_path());
                self.soft(error)?;
            } else {
                spans.insert(key.clone(), inner);
            }
            entries.insert(key, value);
        }
    }

    fn key(&mut self, event: Event<'a>, span: Span, path: &Path<'_>) -> Result<String, Fatal> {
        self.count(span)?;
        let (text, style) = match event {
            Event::Scalar(text, style, 0, None) => (text, style),
            _ => {
                return Err(Box::new(
                    self.error(
                        span,
                        "a key must be plain text: no list, mapping, alias, anchor or tag",
                    )
                    .field(path.to_field_path()),
                ));
            }
        };
        if style == ScalarStyle::Plain && text == "<<" {
            let error = self
                .error(span, "merge keys (<<) are not read")
                .field(path.to_field_path())
                .remedy("write the fields out, or put the key in quotes if it is meant literally");
            self.soft(error)?;
        }
        if style == ScalarStyle::Plain && (text == "~" || text.is_empty()) {
            let error = self
                .error(span, "a key must not be empty")
                .field(path.to_field_path())
                .remedy("put the key in quotes if it is meant literally");
            self.soft(error)?;
        }
        Ok(text.into_owned())
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&Tag>,
        span: Span,
        path: &Path<'_>,
    ) -> Result<(Value, Inner), Fatal> {
        let is_plain = style == ScalarStyle::Plain;
        if is_plain {
            let after = span.start.line() + 1..=span.end.line();
            if let Some(at) = after.into_iter().find_map(|line| self.tab_at(line)) {
                let error = self.tab_error(at).field(path.to_field_path());
                self.soft(error)?;
            }
        }
        let resolved = match tag {
            None if is_plain => resolve(text),
            None => Scalar::Text,
            Some(tag) if format!("{}{}", tag.handle, tag.suffix) == "!" => Scalar::Text,
            Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "str" => Scalar::Text,
            Some(tag) => {
                let resolved = resolve(text);
                let fits = tag.is_yaml_core_schema()
                    && matches!(
                        (tag.suffix.as_str(), &resolved),
                        ("null", Scalar::Other(Value::Null))
                            | ("bool", Scalar::Other(Value::Bool(_)))
                            | ("int" | "float", Scalar::Other(Value::Number(_)))
                    );
                if !fits {
                    let error = self.bad_tag(tag, span, path);
                    self.soft(error)?;
                }
                resolved
            }
        };
        match resolved {
            Scalar::Text => Ok((text.into(), Inner::Leaf)),
            Scalar::Other(value) => {
                let source = if span.is_empty() { "" } else { text };
                Ok((value, Inner::Plain(source.into())))
            }
            Scalar::TooLarge => {
                let error = self
                    .error(span, format!("number {text} does not fit"))
                    .field(path.to_field_path())
                    .remedy("put it in quotes if it is meant as text");
                self.soft(error)?;
                Ok((Value::Null, Inner::Leaf))
            }
        }
    }
}

fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(entries) => entries.iter().map(|(k, v)| k.len() + text_bytes(v)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}
