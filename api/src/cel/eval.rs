//! A tree and values into a value, step by step.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::parser::{Expr, Kind};
use super::{Budget, EvalError};

type Found<'a> = Result<Cow<'a, Value>, EvalError>;

/// Bytes of a text that count as one step.
const BYTES: u64 = 16;
/// Steps that a regular expression costs beside its length.
const PATTERN: u64 = 200;

struct Eval<'a, 'b> {
    variables: &'a BTreeMap<String, Value>,
    /// Variables of comprehensions, innermost last.
    bound: Vec<(&'a str, Cow<'a, Value>)>,
    budget: &'b mut Budget,
}

pub(super) fn eval(
    expr: &Expr,
    variables: &BTreeMap<String, Value>,
    budget: &mut Budget,
) -> Result<Value, EvalError> {
    let mut eval = Eval {
        variables,
        bound: Vec::new(),
        budget,
    };
    eval.expr(expr).map(Cow::into_owned)
}

fn failed<T>(what: impl Into<String>) -> Result<T, EvalError> {
    Err(EvalError::Failed(what.into()))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "double",
        Value::Number(_) => "int",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "map",
    }
}

impl<'a> Eval<'a, '_> {
    fn expr(&mut self, expr: &'a Expr) -> Found<'a> {
        self.budget.spend(1)?;
        match expr {
            Expr::Literal(value) => Ok(Cow::Borrowed(value)),
            Expr::Variable(name) => self.variable(name),
            Expr::Select(of, field) => {
                let of = self.expr(of)?;
                self.field(of, field)
            }
            Expr::Has(of, field) => match &*self.expr(of)? {
                Value::Object(map) => Ok(Cow::Owned(map.contains_key(field).into())),
                other => failed(format!("a {} has no fields", kind(other))),
            },
            Expr::Index(of, index) => {
                let of = self.expr(of)?;
                let index = self.expr(index)?;
                self.index(of, &index)
            }
            Expr::List(items) => {
                let items: Result<Vec<Value>, _> = items
                    .iter()
                    .map(|item| self.expr(item).and_then(|value| self.own(value)))
                    .collect();
                Ok(Cow::Owned(Value::Array(items?)))
            }
            Expr::Map(entries) => {
                let mut map = Map::new();
                for (key, value) in entries {
                    let key = match &*self.expr(key)? {
                        Value::String(key) => key.clone(),
                        other => return failed(format!("a {} is no key of a map", kind(other))),
                    };
                    let value = self.expr(value)?;
                    map.insert(key, self.own(value)?);
                }
                Ok(Cow::Owned(Value::Object(map)))
            }
            Expr::Not(inner) => Ok(Cow::Owned((!self.truth(inner)?).into())),
            Expr::Negate(inner) => match &*self.expr(inner)? {
                Value::Number(n) => negate(n),
                other => failed(format!("a {} cannot be negated", kind(other))),
            },
            Expr::Binary("&&", left, right) => self.logic(left, right, false),
            Expr::Binary("||", left, right) => self.logic(left, right, true),
            Expr::Binary(sign, left, right) => {
                let (left, right) = (self.expr(left)?, self.expr(right)?);
                self.binary(sign, &left, &right).map(Cow::Owned)
            }
            Expr::Choice(condition, yes, no) => {
                if self.truth(condition)? {
                    self.expr(yes)
                } else {
                    self.expr(no)
                }
            }
            Expr::Call(name, arguments) => {
                let values: Result<Vec<_>, _> =
                    arguments.iter().map(|argument| self.expr(argument)).collect();
                self.call(name, &values?).map(Cow::Owned)
            }
            Expr::Loop {
                over,
                variable,
                when,
                body,
                kind,
            } => self.comprehension(over, variable, when.as_deref(), body, *kind),
        }
    }

    /// What is copied costs what it is large.
    fn own(&mut self, value: Cow<'a, Value>) -> Result<Value, EvalError> {
        if let Cow::Borrowed(value) = &value {
            self.weigh(value)?;
        }
        Ok(value.into_owned())
    }

    fn weigh(&mut self, value: &Value) -> Result<(), EvalError> {
        match value {
            Value::String(text) => self.budget.spend(1 + text.len() as u64 / BYTES),
            Value::Array(items) => items.iter().try_for_each(|item| self.weigh(item)),
            Value::Object(map) => map.values().try_for_each(|value| self.weigh(value)),
            _ => self.budget.spend(1),
        }
    }

    fn variable(&mut self, name: &str) -> Found<'a> {
        if let Some((_, value)) = self.bound.iter().rev().find(|(bound, _)| *bound == name) {
            let value = value.clone();
            if let Cow::Owned(value) = &value {
                self.weigh(value)?;
            }
            return Ok(value);
        }
        match self.variables.get(name) {
            Some(value) => Ok(Cow::Borrowed(value)),
            None => failed(format!("{name} has no value here")),
        }
    }

    fn field(&mut self, of: Cow<'a, Value>, field: &str) -> Found<'a> {
        let missing = || EvalError::Failed(format!("no such key: {field}"));
        match of {
            Cow::Borrowed(Value::Object(map)) => map.get(field).map(Cow::Borrowed).ok_or_else(missing),
            Cow::Owned(Value::Object(mut map)) => map.remove(field).map(Cow::Owned).ok_or_else(missing),
            other => failed(format!("a {} has no field {field}", kind(&other))),
        }
    }

    fn index(&mut self, of: Cow<'a, Value>, index: &Value) -> Found<'a> {
        match (&*of, index) {
            (Value::Object(_), Value::String(key)) => {
                let key = key.clone();
                self.field(of, &key)
            }
            (Value::Array(items), Value::Number(n)) => {
                let at = n
                    .as_u64()
                    .and_then(|n| usize::try_from(n).ok())
                    .filter(|at| *at < items.len());
                let Some(at) = at else {
                    return failed(format!("index {n} is out of a list of {}", items.len()));
                };
                match of {
                    Cow::Borrowed(Value::Array(items)) => Ok(Cow::Borrowed(&items[at])),
                    Cow::Owned(Value::Array(mut items)) => Ok(Cow::Owned(items.swap_remove(at))),
                    _ => failed("no list"),
                }
            }
            (of, index) => failed(format!("a {} has no index of type {}", kind(of), kind(index))),
        }
    }

    fn truth(&mut self, expr: &'a Expr) -> Result<bool, EvalError> {
        match &*self.expr(expr)? {
            Value::Bool(truth) => Ok(*truth),
            other => failed(format!("want a bool, found a {}", kind(other))),
        }
    }

    /// `||` (`decides` is true) and `&&`: a side that decides wins over an error of the other.
    fn logic(&mut self, left: &'a Expr, right: &'a Expr, decides: bool) -> Found<'a> {
        let left = self.truth(left);
        if matches!(left, Ok(truth) if truth == decides) || matches!(left, Err(EvalError::TooExpensive)) {
            return left.map(|truth| Cow::Owned(truth.into()));
        }
        let right = self.truth(right)?;
        if right == decides {
            return Ok(Cow::Owned(decides.into()));
        }
        left.map(|_| Cow::Owned((!decides).into()))
    }

    fn binary(&mut self, sign: &str, left: &Value, right: &Value) -> Result<Value, EvalError> {
        match sign {
            "==" => self.equal(left, right).map(Value::Bool),
            "!=" => self.equal(left, right).map(|equal| Value::Bool(!equal)),
            "in" => match right {
                Value::Array(items) => {
                    for item in items {
                        if self.equal(left, item)? {
                            return Ok(true.into());
                        }
                    }
                    Ok(false.into())
                }
                Value::Object(map) => Ok(left.as_str().is_some_and(|key| map.contains_key(key)).into()),
                other => failed(format!("nothing is in a {}", kind(other))),
            },
            "<" | "<=" | ">" | ">=" => {
                let order = self.order(left, right)?;
                Ok(match sign {
                    "<" => order == Ordering::Less,
                    "<=" => order != Ordering::Greater,
                    ">" => order == Ordering::Greater,
                    _ => order != Ordering::Less,
                }
                .into())
            }
            _ => self.arithmetic(sign, left, right),
        }
    }

    fn equal(&mut self, left: &Value, right: &Value) -> Result<bool, EvalError> {
        self.budget.spend(1)?;
        Ok(match (left, right) {
            (Value::Number(a), Value::Number(b)) => compare(a, b) == Some(Ordering::Equal),
            (Value::String(a), Value::String(b)) => {
                self.budget.spend(a.len().min(b.len()) as u64 / BYTES)?;
                a == b
            }
            (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
                for (a, b) in a.iter().zip(b) {
                    if !self.equal(a, b)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Value::Object(a), Value::Object(b)) if a.len() == b.len() => {
                for (key, a) in a {
                    match b.get(key) {
                        Some(b) if self.equal(a, b)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => false,
            (a, b) => a == b,
        })
    }

    fn order(&mut self, left: &Value, right: &Value) -> Result<Ordering, EvalError> {
        let order = match (left, right) {
            (Value::Number(a), Value::Number(b)) => compare(a, b),
            (Value::String(a), Value::String(b)) => {
                self.budget.spend(a.len().min(b.len()) as u64 / BYTES)?;
                Some(a.cmp(b))
            }
            (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
            _ => None,
        };
        order.map_or_else(
            || {
                failed(format!(
                    "a {} cannot be compared with a {}",
                    kind(left),
                    kind(right)
                ))
            },
            Ok,
        )
    }

    fn arithmetic(&mut self, sign: &str, left: &Value, right: &Value) -> Result<Value, EvalError> {
        match (left, right) {
            (Value::String(a), Value::String(b)) if sign == "+" => {
                self.budget.spend((a.len() + b.len()) as u64 / BYTES)?;
                Ok(format!("{a}{b}").into())
            }
            (Value::Array(a), Value::Array(b)) if sign == "+" => {
                self.weigh(left)?;
                self.weigh(right)?;
                Ok(a.iter().chain(b).cloned().collect())
            }
            (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
                (Some(a), Some(b)) => {
                    let result = match sign {
                        "+" => a.checked_add(b),
                        "-" => a.checked_sub(b),
                        "*" => a.checked_mul(b),
                        "/" => a.checked_div(b),
                        _ => a.checked_rem(b),
                    };
                    result.map_or_else(
                        || failed(format!("{a} {sign} {b} is no 64-bit integer")),
                        |n| Ok(n.into()),
                    )
                }
                _ => {
                    let (a, b) = (a.as_f64().unwrap_or(f64::NAN), b.as_f64().unwrap_or(f64::NAN));
                    let result = match sign {
                        "+" => a + b,
                        "-" => a - b,
                        "*" => a * b,
                        "/" => a / b,
                        _ => return failed("a double has no remainder"),
                    };
                    number(result)
                }
            },
            _ => failed(format!("{} {sign} {} means nothing", kind(left), kind(right))),
        }
    }

    fn call(&mut self, name: &str, arguments: &[Cow<'a, Value>]) -> Result<Value, EvalError> {
        let all: u64 = arguments
            .iter()
            .filter_map(|value| value.as_str())
            .map(|text| text.len() as u64)
            .sum();
        self.budget.spend(1 + all / BYTES)?;
        let text = |at: usize| -> Result<&str, EvalError> {
            let value = arguments.get(at).map_or(&Value::Null, |value| &**value);
            value.as_str().map_or_else(
                || failed(format!("{name} wants a string, found a {}", kind(value))),
                Ok,
            )
        };
        let whole = |at: usize| -> Result<usize, EvalError> {
            let value = arguments.get(at).map_or(&Value::Null, |value| &**value);
            let number = value.as_u64().and_then(|n| usize::try_from(n).ok());
            number.map_or_else(
                || failed(format!("{name} wants a number that is not negative")),
                Ok,
            )
        };
        let first = arguments.first().map_or(&Value::Null, |value| &**value);
        Ok(match name {
            "size" => match first {
                Value::String(text) => text.chars().count().into(),
                Value::Array(items) => items.len().into(),
                Value::Object(map) => map.len().into(),
                other => return failed(format!("a {} has no size", kind(other))),
            },
            "string" => match first {
                Value::String(text) => text.clone().into(),
                Value::Number(_) | Value::Bool(_) => first.to_string().into(),
                other => return failed(format!("a {} is no string", kind(other))),
            },
            "int" => {
                let number = match first {
                    Value::Number(n) => n.as_i64().or_else(|| n.as_f64().and_then(truncate)),
                    Value::String(text) => text.parse().ok(),
                    _ => None,
                };
                number.map_or_else(|| failed(format!("{first} is no int")), |n| Ok(n.into()))?
            }
            "double" => {
                let value = match first {
                    Value::Number(n) => n.as_f64(),
                    Value::String(text) => text.parse().ok(),
                    _ => None,
                };
                number(value.unwrap_or(f64::NAN))?
            }
            "contains" => text(0)?.contains(text(1)?).into(),
            "startsWith" => text(0)?.starts_with(text(1)?).into(),
            "endsWith" => text(0)?.ends_with(text(1)?).into(),
            "matches" => {
                let (text, pattern) = (text(0)?, text(1)?);
                self.budget.spend(PATTERN + 8 * pattern.len() as u64)?;
                matches(text, pattern)?.into()
            }
            "lowerAscii" => text(0)?.to_ascii_lowercase().into(),
            "upperAscii" => text(0)?.to_ascii_uppercase().into(),
            "trim" => text(0)?.trim().into(),
            "split" => {
                let (text, by) = (text(0)?, text(1)?);
                self.budget.spend(text.len() as u64)?;
                if by.is_empty() {
                    text.chars().map(String::from).collect()
                } else {
                    text.split(by).collect()
                }
            }
            "replace" => {
                let (text, from, to) = (text(0)?, text(1)?, text(2)?);
                let times = text.matches(from).count() as u64;
                self.budget.spend(times * (1 + to.len() as u64) / BYTES)?;
                text.replace(from, to).into()
            }
            "indexOf" => {
                let (text, what) = (text(0)?, text(1)?);
                let at = text.find(what).map(|at| text[..at].chars().count());
                at.map_or(Value::from(-1), Value::from)
            }
            "substring" => {
                let all = text(0)?;
                let length = all.chars().count();
                let end = if arguments.len() > 2 { whole(2)? } else { length };
                let start = whole(1)?;
                if start > end || end > length {
                    return failed(format!("{start} to {end} is not inside of a string of {length}"));
                }
                all.chars()
                    .skip(start)
                    .take(end - start)
                    .collect::<String>()
                    .into()
            }
            "join" => {
                let Value::Array(items) = first else {
                    return failed(format!("join wants a list, found a {}", kind(first)));
                };
                let by = if arguments.len() > 1 { text(1)? } else { "" };
                let words: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
                let Some(words) = words else {
                    return failed("join wants a list of strings");
                };
                let length: usize = words.iter().map(|word| word.len() + by.len()).sum();
                self.budget.spend(length as u64 / BYTES + words.len() as u64)?;
                words.join(by).into()
            }
            other => return failed(format!("{other} is not known")),
        })
    }

    fn comprehension(
        &mut self,
        over: &'a Expr,
        variable: &'a str,
        when: Option<&'a Expr>,
        body: &'a Expr,
        what: Kind,
    ) -> Found<'a> {
        let items: Vec<Cow<'a, Value>> = match self.expr(over)? {
            Cow::Borrowed(Value::Array(items)) => items.iter().map(Cow::Borrowed).collect(),
            Cow::Owned(Value::Array(items)) => items.into_iter().map(Cow::Owned).collect(),
            // Of a map, its keys.
            map if map.is_object() => {
                let keys = map.as_object().into_iter().flat_map(Map::keys);
                keys.map(|key| Cow::Owned(Value::from(key.as_str()))).collect()
            }
            other => return failed(format!("a {} cannot be gone through", kind(&other))),
        };
        self.budget.spend(items.len() as u64)?;
        let mut out = Vec::new();
        let mut count = 0;
        let mut error = None;
        for item in items {
            self.bound.push((variable, item.clone()));
            let outcome = self.step(when, body, what, item);
            self.bound.pop();
            match (what, outcome) {
                (_, Err(EvalError::TooExpensive)) => return Err(EvalError::TooExpensive),
                // One that decides wins over errors of others.
                (Kind::All | Kind::Exists, Err(failed)) => error = Some(failed),
                (_, Err(failed)) => return Err(failed),
                (Kind::All, Ok(None)) => return Ok(Cow::Owned(false.into())),
                (Kind::Exists, Ok(Some(_))) => return Ok(Cow::Owned(true.into())),
                (Kind::Filter | Kind::Map, Ok(Some(value))) => out.push(value),
                (_, Ok(found)) => count += usize::from(found.is_some()),
            }
        }
        if let Some(error) = error {
            return Err(error);
        }
        Ok(Cow::Owned(match what {
            Kind::All => true.into(),
            Kind::Exists => false.into(),
            Kind::ExistsOne => (count == 1).into(),
            Kind::Filter | Kind::Map => Value::Array(out),
        }))
    }

    /// What one item comes to: nothing when its condition is false.
    fn step(
        &mut self,
        when: Option<&'a Expr>,
        body: &'a Expr,
        what: Kind,
        item: Cow<'a, Value>,
    ) -> Result<Option<Value>, EvalError> {
        if let Some(when) = when
            && !self.truth(when)?
        {
            return Ok(None);
        }
        match what {
            Kind::Map => {
                let value = self.expr(body)?;
                self.own(value).map(Some)
            }
            Kind::Filter if self.truth(body)? => self.own(item).map(Some),
            Kind::Filter => Ok(None),
            Kind::All | Kind::Exists | Kind::ExistsOne => Ok(self.truth(body)?.then_some(Value::Null)),
        }
    }
}

fn compare(a: &serde_json::Number, b: &serde_json::Number) -> Option<Ordering> {
    match (a.as_i64(), b.as_i64()) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => a.as_f64()?.partial_cmp(&b.as_f64()?),
    }
}

fn number(value: f64) -> Result<Value, EvalError> {
    serde_json::Number::from_f64(value).map_or_else(|| failed("the result is no number"), |n| Ok(n.into()))
}

fn negate<'a>(n: &serde_json::Number) -> Found<'a> {
    let value = match n.as_i64() {
        Some(n) => n
            .checked_neg()
            .map_or_else(|| failed("the result is no 64-bit integer"), |n| Ok(n.into())),
        None => number(-n.as_f64().unwrap_or(f64::NAN)),
    };
    value.map(Cow::Owned)
}

#[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
fn truncate(value: f64) -> Option<i64> {
    // Both bounds are exact as doubles.
    (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0)
        .contains(&value)
        .then_some(value as i64)
}

/// The engine takes time in proportion to the text, whatever the pattern.
fn matches(text: &str, pattern: &str) -> Result<bool, EvalError> {
    let regex = regex::RegexBuilder::new(pattern).size_limit(1 << 18).build();
    match regex {
        Ok(regex) => Ok(regex.is_match(text)),
        Err(_) => failed(format!("{pattern:?} is no regular expression, or too large")),
    }
}
