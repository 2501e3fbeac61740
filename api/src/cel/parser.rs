//! Tokens into a tree.

use serde_json::Value;

use super::lexer::{Token, tokens};
use super::{MAX_LENGTH, SyntaxError};

/// Deepest nesting.
const MAX_DEPTH: usize = 48;
/// Highest tree; evaluating takes as much of the stack.
const MAX_HEIGHT: usize = 256;
/// Most nested comprehensions.
const MAX_LOOPS: usize = 2;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    Literal(Value),
    Variable(String),
    Select(Box<Self>, String),
    Has(Box<Self>, String),
    Index(Box<Self>, Box<Self>),
    List(Vec<Self>),
    Map(Vec<(Self, Self)>),
    Not(Box<Self>),
    Negate(Box<Self>),
    Binary(&'static str, Box<Self>, Box<Self>),
    Choice(Box<Self>, Box<Self>, Box<Self>),
    /// A function, with the value that it was called on as its first argument.
    Call(&'static str, Vec<Self>),
    Loop {
        over: Box<Self>,
        variable: String,
        /// For `map` with a filter.
        when: Option<Box<Self>>,
        body: Box<Self>,
        kind: Kind,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    All,
    Exists,
    ExistsOne,
    Filter,
    Map,
}

/// Functions, whether they are called on a value, and the number of their further arguments.
const FUNCTIONS: [(&str, bool, std::ops::RangeInclusive<usize>); 17] = [
    ("size", false, 1..=1),
    ("string", false, 1..=1),
    ("int", false, 1..=1),
    ("double", false, 1..=1),
    ("size", true, 0..=0),
    ("contains", true, 1..=1),
    ("startsWith", true, 1..=1),
    ("endsWith", true, 1..=1),
    ("matches", true, 1..=1),
    ("lowerAscii", true, 0..=0),
    ("upperAscii", true, 0..=0),
    ("trim", true, 0..=0),
    ("split", true, 1..=1),
    ("replace", true, 2..=2),
    ("indexOf", true, 1..=1),
    ("substring", true, 1..=2),
    ("join", true, 0..=1),
];

/// Binary operators by how tightly they bind, loosest first.
const LEVELS: [&[&str]; 5] = [
    &["||"],
    &["&&"],
    &["==", "!=", "<", "<=", ">", ">=", "in"],
    &["+", "-"],
    &["*", "/", "%"],
];

fn height(expr: &Expr) -> usize {
    let most = |inner: &mut dyn Iterator<Item = &Expr>| inner.map(height).max().unwrap_or(0);
    1 + match expr {
        Expr::Literal(_) | Expr::Variable(_) => 0,
        Expr::Select(of, _) | Expr::Has(of, _) | Expr::Not(of) | Expr::Negate(of) => height(of),
        Expr::Index(a, b) | Expr::Binary(_, a, b) => height(a).max(height(b)),
        Expr::List(items) | Expr::Call(_, items) => most(&mut items.iter()),
        Expr::Map(entries) => most(&mut entries.iter().flat_map(|(key, value)| [key, value])),
        Expr::Choice(a, b, c) => height(a).max(height(b)).max(height(c)),
        Expr::Loop { over, when, body, .. } => {
            let inner = height(over).max(height(body));
            when.as_deref().map_or(inner, |when| inner.max(height(when)))
        }
    }
}

struct Parser<'a> {
    tokens: Vec<(usize, Token)>,
    next: usize,
    depth: usize,
    known: Vec<&'a str>,
    bound: Vec<String>,
}

pub(super) fn parse(text: &str, variables: &[&str]) -> Result<Expr, SyntaxError> {
    if text.len() > MAX_LENGTH {
        return Err(SyntaxError {
            at: MAX_LENGTH,
            what: format!("the expression is longer than {MAX_LENGTH} bytes"),
        });
    }
    let mut parser = Parser {
        tokens: tokens(text)?,
        next: 0,
        depth: 0,
        known: variables.to_vec(),
        bound: Vec::new(),
    };
    let expr = parser.expression()?;
    match parser.peek() {
        Token::End if height(&expr) <= MAX_HEIGHT => Ok(expr),
        Token::End => parser.fail("the expression is nested too deep"),
        _ => parser.fail("the expression should end here"),
    }
}

impl Parser<'_> {
    fn peek(&self) -> &Token {
        &self.tokens[self.next].1
    }

    fn at(&self) -> usize {
        self.tokens[self.next].0
    }

    fn advance(&mut self) -> Token {
        let token = self.peek().clone();
        self.next = (self.next + 1).min(self.tokens.len() - 1);
        token
    }

    fn fail<T>(&self, what: impl Into<String>) -> Result<T, SyntaxError> {
        Err(SyntaxError {
            at: self.at(),
            what: what.into(),
        })
    }

    fn is(&self, sign: &str) -> bool {
        match self.peek() {
            Token::Sign(found) => *found == sign,
            // The only operator that is a word.
            Token::Name(name) => sign == "in" && name == "in",
            _ => false,
        }
    }

    fn take(&mut self, sign: &str) -> bool {
        let is = self.is(sign);
        if is {
            self.advance();
        }
        is
    }

    fn expect(&mut self, sign: &str) -> Result<(), SyntaxError> {
        if self.take(sign) {
            Ok(())
        } else {
            self.fail(format!("want {sign:?} here"))
        }
    }

    fn deeper<T>(
        &mut self,
        inner: impl FnOnce(&mut Self) -> Result<T, SyntaxError>,
    ) -> Result<T, SyntaxError> {
        if self.depth >= MAX_DEPTH {
            return self.fail(format!("the expression is nested more than {MAX_DEPTH} deep"));
        }
        self.depth += 1;
        let out = inner(self);
        self.depth -= 1;
        out
    }

    fn expression(&mut self) -> Result<Expr, SyntaxError> {
        self.deeper(|parser| {
            let condition = parser.binary(0)?;
            if !parser.take("?") {
                return Ok(condition);
            }
            let yes = parser.binary(0)?;
            parser.expect(":")?;
            let no = parser.expression()?;
            Ok(Expr::Choice(condition.into(), yes.into(), no.into()))
        })
    }

    fn binary(&mut self, level: usize) -> Result<Expr, SyntaxError> {
        let Some(signs) = LEVELS.get(level) else {
            return self.unary();
        };
        let mut left = self.binary(level + 1)?;
        let mut length = 0;
        while let Some(sign) = signs.iter().find(|sign| self.is(sign)) {
            // A chain is as high as it is long.
            length += 1;
            if length > MAX_HEIGHT {
                return self.fail("too many operators in a row");
            }
            self.advance();
            let right = self.binary(level + 1)?;
            left = Expr::Binary(sign, left.into(), right.into());
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expr, SyntaxError> {
        self.deeper(|parser| {
            if parser.take("!") {
                return Ok(Expr::Not(parser.unary()?.into()));
            }
            if parser.take("-") {
                return Ok(Expr::Negate(parser.unary()?.into()));
            }
            parser.member()
        })
    }

    fn member(&mut self) -> Result<Expr, SyntaxError> {
        let mut expr = self.primary()?;
        let mut length = 0;
        loop {
            length += 1;
            if length > MAX_DEPTH {
                return self.fail("too many parts in a row");
            }
            if self.take("[") {
                let index = self.expression()?;
                self.expect("]")?;
                expr = Expr::Index(expr.into(), index.into());
            } else if self.take(".") {
                let Token::Name(name) = self.peek().clone() else {
                    return self.fail("want a name after the dot");
                };
                let at = self.at();
                self.advance();
                expr = if self.is("(") {
                    self.call(Some(expr), &name, at)?
                } else {
                    Expr::Select(expr.into(), name)
                };
            } else {
                return Ok(expr);
            }
        }
    }

    fn primary(&mut self) -> Result<Expr, SyntaxError> {
        let at = self.at();
        let literal = match self.peek().clone() {
            Token::Int(n) => Value::from(n),
            Token::Double(n) => Value::from(n),
            Token::Text(text) => Value::from(text),
            Token::Name(name) => {
                self.advance();
                return match name.as_str() {
                    "true" => Ok(Expr::Literal(true.into())),
                    "false" => Ok(Expr::Literal(false.into())),
                    "null" => Ok(Expr::Literal(Value::Null)),
                    _ if self.is("(") => self.call(None, &name, at),
                    _ if self.bound.contains(&name) || self.known.contains(&name.as_str()) => {
                        Ok(Expr::Variable(name))
                    }
                    _ => Err(SyntaxError {
                        at,
                        what: format!("{name} is not known; there are {}", self.known.join(", ")),
                    }),
                };
            }
            Token::Sign("(") => {
                self.advance();
                let inner = self.expression()?;
                self.expect(")")?;
                return Ok(inner);
            }
            Token::Sign("[") => {
                self.advance();
                return Ok(Expr::List(self.items("]")?));
            }
            Token::Sign("{") => {
                self.advance();
                return self.map();
            }
            Token::End => return self.fail("the expression ends too early"),
            Token::Sign(sign) => return self.fail(format!("{sign:?} means nothing here")),
        };
        self.advance();
        Ok(Expr::Literal(literal))
    }

    /// Expressions up to a closing bracket.
    fn items(&mut self, end: &str) -> Result<Vec<Expr>, SyntaxError> {
        let mut items = Vec::new();
        while !self.take(end) {
            items.push(self.expression()?);
            if !self.take(",") {
                self.expect(end)?;
                break;
            }
        }
        Ok(items)
    }

    fn map(&mut self) -> Result<Expr, SyntaxError> {
        let mut entries = Vec::new();
        while !self.take("}") {
            let key = self.expression()?;
            self.expect(":")?;
            entries.push((key, self.expression()?));
            if !self.take(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(Expr::Map(entries))
    }

    /// A function or macro, behind its name.
    fn call(&mut self, on: Option<Expr>, name: &str, at: usize) -> Result<Expr, SyntaxError> {
        self.expect("(")?;
        let fail = |what: String| Err(SyntaxError { at, what });
        let kind = match name {
            "all" => Some(Kind::All),
            "exists" => Some(Kind::Exists),
            "exists_one" => Some(Kind::ExistsOne),
            "filter" => Some(Kind::Filter),
            "map" => Some(Kind::Map),
            _ => None,
        };
        match (on, kind) {
            (Some(over), Some(kind)) => self.comprehension(over, kind, at),
            (None, None) if name == "has" => {
                let inner = self.expression()?;
                self.expect(")")?;
                match inner {
                    Expr::Select(of, field) => Ok(Expr::Has(of, field)),
                    _ => fail("has() wants a field, for example has(object.spec.paused)".to_owned()),
                }
            }
            (on, _) => {
                let arguments = self.items(")")?;
                let method = on.is_some();
                let known = FUNCTIONS.iter().find(|(known, on_value, counts)| {
                    *known == name && *on_value == method && counts.contains(&arguments.len())
                });
                let Some((name, ..)) = known else {
                    return fail(format!("{name} with {} arguments is not known", arguments.len()));
                };
                Ok(Expr::Call(name, on.into_iter().chain(arguments).collect()))
            }
        }
    }

    fn comprehension(&mut self, over: Expr, kind: Kind, at: usize) -> Result<Expr, SyntaxError> {
        let Token::Name(variable) = self.advance() else {
            return Err(SyntaxError {
                at,
                what: "want the name of a variable first".to_owned(),
            });
        };
        if self.bound.len() >= MAX_LOOPS {
            return Err(SyntaxError {
                at,
                what: format!("more than {MAX_LOOPS} comprehensions in each other"),
            });
        }
        self.expect(",")?;
        self.bound.push(variable.clone());
        let first = self.expression();
        let second = match &first {
            Ok(_) if kind == Kind::Map && self.take(",") => Some(self.expression()),
            _ => None,
        };
        self.bound.pop();
        let (first, second) = (first?, second.transpose()?);
        self.expect(")")?;
        let (when, body) = match second {
            Some(body) => (Some(Box::new(first)), body),
            None => (None, first),
        };
        Ok(Expr::Loop {
            over: over.into(),
            variable,
            when,
            body: body.into(),
            kind,
        })
    }
}
