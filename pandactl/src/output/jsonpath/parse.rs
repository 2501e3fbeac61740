//! From text to a template.

use serde_json::Value;

use super::{Compare, Error, MAX_DEPTH, MAX_TEMPLATE, Node, Operand, Step};

pub(super) fn template(text: &str) -> Result<Vec<Node>, Error> {
    if text.len() > MAX_TEMPLATE {
        return Err(Error::Syntax {
            what: format!("longer than {MAX_TEMPLATE} bytes"),
            at: 1,
        });
    }
    let mut parser = Parser {
        chars: text.chars().collect(),
        at: 0,
    };
    parser.nodes(0)
}

struct Parser {
    chars: Vec<char>,
    at: usize,
}

impl Parser {
    fn fail<T>(&self, what: impl Into<String>) -> Result<T, Error> {
        Err(Error::Syntax {
            what: what.into(),
            at: self.at + 1,
        })
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn take(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, c: char) -> Result<(), Error> {
        if self.take(c) {
            Ok(())
        } else {
            self.fail(format!("want {c:?}"))
        }
    }

    fn spaces(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    fn word(&mut self, word: &str) -> bool {
        let end = self.at + word.chars().count();
        let matches = self
            .chars
            .get(self.at..end)
            .is_some_and(|part| part.iter().copied().eq(word.chars()));
        let whole = self.chars.get(end).is_none_or(|c| c.is_whitespace() || *c == '}');
        if matches && whole {
            self.at = end;
        }
        matches && whole
    }

    /// Up to the end, or to the `{end}` of a range.
    fn nodes(&mut self, depth: usize) -> Result<Vec<Node>, Error> {
        if depth > MAX_DEPTH {
            return self.fail("ranges are nested too deeply");
        }
        let mut nodes = Vec::new();
        let mut text = String::new();
        while let Some(c) = self.peek() {
            self.at += 1;
            if c != '{' {
                text.push(c);
                continue;
            }
            if !text.is_empty() {
                nodes.push(Node::Text(std::mem::take(&mut text)));
            }
            self.spaces();
            if self.word("end") {
                self.close()?;
                if depth == 0 {
                    return self.fail("{end} without {range}");
                }
                return Ok(nodes);
            }
            if self.word("range") {
                self.spaces();
                let steps = self.steps(depth)?;
                self.close()?;
                nodes.push(Node::Range(steps, self.nodes(depth + 1)?));
                continue;
            }
            // Several paths and texts may share one pair of braces.
            loop {
                self.spaces();
                match self.peek() {
                    Some('}') => break,
                    Some('"' | '\'') => nodes.push(Node::Text(self.quoted()?)),
                    Some(_) => nodes.push(Node::Path(self.steps(depth)?)),
                    None => return self.fail("an unclosed {"),
                }
            }
            self.close()?;
        }
        if depth > 0 {
            return self.fail("{range} without {end}");
        }
        if !text.is_empty() {
            nodes.push(Node::Text(text));
        }
        Ok(nodes)
    }

    fn close(&mut self) -> Result<(), Error> {
        self.spaces();
        if self.take('}') {
            Ok(())
        } else {
            self.fail("an unclosed {")
        }
    }

    fn steps(&mut self, depth: usize) -> Result<Vec<Step>, Error> {
        let start = self.at;
        let mut steps = Vec::new();
        if self.take('$') {
            steps.push(Step::Root);
        } else if self.take('@') {
            steps.push(Step::Current);
        }
        loop {
            match self.peek() {
                Some('.') => {
                    self.at += 1;
                    if self.take('.') {
                        steps.push(Step::Descend);
                        if self.peek() == Some('[') {
                            continue;
                        }
                    }
                    match self.peek() {
                        Some('*') => {
                            self.at += 1;
                            steps.push(Step::All);
                        }
                        // `.[0]`, and `.` alone for the object itself.
                        Some('[') => {}
                        _ => {
                            let name = self.name()?;
                            if !name.is_empty() {
                                steps.push(Step::Fields(vec![name]));
                            } else if steps.last() == Some(&Step::Descend) {
                                return self.fail("want a name after ..");
                            }
                        }
                    }
                }
                Some('[') => {
                    self.at += 1;
                    steps.push(self.bracket(depth)?);
                }
                _ => break,
            }
        }
        // `.` alone is the object itself; nothing at all is no path.
        if self.at == start {
            return self.fail("want a path such as .metadata.name");
        }
        Ok(steps)
    }

    /// A plain field name; a backslash takes the next character as it is (`.metadata.labels.app\.kubernetes\.io/name`).
    fn name(&mut self) -> Result<String, Error> {
        let mut name = String::new();
        while let Some(c) = self.peek() {
            match c {
                '\\' => {
                    self.at += 1;
                    match self.peek() {
                        Some(c) => name.push(c),
                        None => return self.fail("a backslash at the end"),
                    }
                }
                c if c.is_alphanumeric() || matches!(c, '_' | '-' | '/') => name.push(c),
                _ => break,
            }
            self.at += 1;
        }
        Ok(name)
    }

    fn bracket(&mut self, depth: usize) -> Result<Step, Error> {
        self.spaces();
        let step = match self.peek() {
            Some('*') => {
                self.at += 1;
                Step::All
            }
            Some('?') => {
                self.at += 1;
                self.filter(depth + 1)?
            }
            Some('"' | '\'') => {
                let mut fields = vec![self.quoted()?];
                self.spaces();
                while self.take(',') {
                    self.spaces();
                    fields.push(self.quoted()?);
                    self.spaces();
                }
                Step::Fields(fields)
            }
            _ => self.numbers()?,
        };
        self.spaces();
        self.expect(']')?;
        Ok(step)
    }

    fn numbers(&mut self) -> Result<Step, Error> {
        let first = self.number()?;
        self.spaces();
        if self.peek() == Some(':') {
            self.at += 1;
            let end = self.number()?;
            let step = if self.take(':') {
                self.number()?.unwrap_or(1)
            } else {
                1
            };
            if step < 1 {
                return self.fail("the step of a slice must be positive");
            }
            return Ok(Step::Slice(first, end, step));
        }
        let Some(first) = first else {
            return self.fail("want an index, a name in quotes, * or ?(…)");
        };
        let mut all = vec![first];
        while self.take(',') {
            self.spaces();
            match self.number()? {
                Some(number) => all.push(number),
                None => return self.fail("want an index"),
            }
            self.spaces();
        }
        Ok(Step::Indices(all))
    }

    fn number(&mut self) -> Result<Option<i64>, Error> {
        self.spaces();
        let start = self.at;
        self.at += usize::from(self.peek() == Some('-'));
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        if start == self.at {
            return Ok(None);
        }
        let text: String = self.chars[start..self.at].iter().collect();
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => self.fail("want a whole number"),
        }
    }

    fn quoted(&mut self) -> Result<String, Error> {
        let Some(quote) = self.peek().filter(|c| matches!(c, '"' | '\'')) else {
            return self.fail("want a text in quotes");
        };
        self.at += 1;
        let mut text = String::new();
        loop {
            let Some(c) = self.peek() else {
                return self.fail("a text without its closing quote");
            };
            self.at += 1;
            match c {
                c if c == quote => return Ok(text),
                '\\' => {
                    let Some(c) = self.peek() else {
                        return self.fail("a text without its closing quote");
                    };
                    self.at += 1;
                    text.push(match c {
                        'n' => '\n',
                        't' => '\t',
                        'r' => '\r',
                        other => other,
                    });
                }
                c => text.push(c),
            }
        }
    }

    fn filter(&mut self, depth: usize) -> Result<Step, Error> {
        if depth > MAX_DEPTH {
            return self.fail("filters are nested too deeply");
        }
        self.expect('(')?;
        let left = self.operand(depth)?;
        self.spaces();
        let compare = match (self.peek(), self.chars.get(self.at + 1)) {
            (Some('='), Some('=')) => Some((Compare::Equal, 2)),
            (Some('!'), Some('=')) => Some((Compare::NotEqual, 2)),
            (Some('<'), Some('=')) => Some((Compare::LessOrEqual, 2)),
            (Some('>'), Some('=')) => Some((Compare::GreaterOrEqual, 2)),
            (Some('<'), _) => Some((Compare::Less, 1)),
            (Some('>'), _) => Some((Compare::Greater, 1)),
            _ => None,
        };
        let test = match compare {
            Some((compare, length)) => {
                self.at += length;
                Some((compare, Box::new(self.operand(depth)?)))
            }
            None => None,
        };
        self.spaces();
        self.expect(')')?;
        Ok(Step::Filter(Box::new(left), test))
    }

    fn operand(&mut self, depth: usize) -> Result<Operand, Error> {
        self.spaces();
        match self.peek() {
            Some('"' | '\'') => Ok(Operand::Literal(Value::String(self.quoted()?))),
            Some('@' | '$' | '.' | '[') => Ok(Operand::Path(self.steps(depth)?)),
            _ => {
                let start = self.at;
                while self
                    .peek()
                    .is_some_and(|c| c.is_alphanumeric() || matches!(c, '-' | '+' | '.'))
                {
                    self.at += 1;
                }
                let word: String = self.chars[start..self.at].iter().collect();
                match serde_json::from_str::<Value>(&word) {
                    Ok(value) if !value.is_null() || word == "null" => Ok(Operand::Literal(value)),
                    _ => {
                        self.at = start;
                        self.fail("want @.field, a text in quotes, a number, true or false")
                    }
                }
            }
        }
    }
}
