//! From a template and an object to text.

use std::cmp::Ordering;

use serde_json::Value;

use super::{Compare, Error, Node, Operand, Step};

pub(super) fn nodes(
    nodes: &[Node],
    root: &Value,
    current: &Value,
    out: &mut String,
    left: &mut usize,
) -> Result<(), Error> {
    for node in nodes {
        match node {
            Node::Text(text) => out.push_str(text),
            Node::Path(steps) => {
                for (number, value) in path(steps, root, current, left)?.into_iter().enumerate() {
                    if number > 0 {
                        out.push(' ');
                    }
                    match value {
                        Value::String(text) => out.push_str(text),
                        Value::Null => {}
                        other => out.push_str(&other.to_string()),
                    }
                }
            }
            Node::Range(steps, inner) => {
                for value in path(steps, root, current, left)? {
                    self::nodes(inner, root, value, out, left)?;
                }
            }
        }
    }
    Ok(())
}

pub(super) fn path<'a>(
    steps: &[Step],
    root: &'a Value,
    current: &'a Value,
    left: &mut usize,
) -> Result<Vec<&'a Value>, Error> {
    let mut found = vec![current];
    for step in steps {
        let mut next = Vec::new();
        for value in found {
            apply(step, root, current, value, &mut next, left)?;
            *left = left.checked_sub(1).ok_or(Error::TooMany)?;
        }
        *left = left.checked_sub(next.len()).ok_or(Error::TooMany)?;
        found = next;
    }
    Ok(found)
}

fn apply<'a>(
    step: &Step,
    root: &'a Value,
    current: &'a Value,
    value: &'a Value,
    out: &mut Vec<&'a Value>,
    left: &mut usize,
) -> Result<(), Error> {
    match step {
        Step::Root => out.push(root),
        Step::Current => out.push(current),
        Step::Fields(names) => out.extend(names.iter().filter_map(|name| value.as_object()?.get(name))),
        Step::Indices(indices) => {
            let items = value.as_array().map_or(&[][..], Vec::as_slice);
            out.extend(
                indices
                    .iter()
                    .filter_map(|&index| items.get(place(index, items.len())?)),
            );
        }
        Step::Slice(start, end, by) => {
            let items = value.as_array().map_or(&[][..], Vec::as_slice);
            let bound = |at: i64| {
                usize::try_from(if at < 0 { at + length(items) } else { at })
                    .unwrap_or(0)
                    .min(items.len())
            };
            let (start, end) = (start.map_or(0, bound), end.map_or(items.len(), bound));
            let by = usize::try_from(*by).unwrap_or(1).max(1);
            out.extend(items.get(start..end.max(start)).unwrap_or(&[]).iter().step_by(by));
        }
        Step::All => match value {
            Value::Array(items) => out.extend(items),
            Value::Object(fields) => out.extend(fields.values()),
            _ => {}
        },
        Step::Descend => descend(value, out, left)?,
        Step::Filter(wanted, test) => {
            if let Value::Array(items) = value {
                for item in items {
                    if passes(wanted, test.as_ref(), root, item, left)? {
                        out.push(item);
                    }
                }
            }
        }
    }
    Ok(())
}

fn length(items: &[Value]) -> i64 {
    i64::try_from(items.len()).unwrap_or(i64::MAX)
}

fn place(index: i64, len: usize) -> Option<usize> {
    if index >= 0 {
        usize::try_from(index).ok()
    } else {
        len.checked_sub(usize::try_from(index.unsigned_abs()).ok()?)
    }
}

/// A value and everything in it. Objects from the server are no deeper than its own limit, so that recursion is safe.
fn descend<'a>(value: &'a Value, out: &mut Vec<&'a Value>, left: &mut usize) -> Result<(), Error> {
    *left = left.checked_sub(1).ok_or(Error::TooMany)?;
    out.push(value);
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| descend(item, out, left)),
        Value::Object(fields) => fields.values().try_for_each(|item| descend(item, out, left)),
        _ => Ok(()),
    }
}

fn passes(
    wanted: &Operand,
    test: Option<&(Compare, Box<Operand>)>,
    root: &Value,
    item: &Value,
    left: &mut usize,
) -> Result<bool, Error> {
    let found = operand(wanted, root, item, left)?;
    let Some((compare, other)) = test else {
        return Ok(found.is_some());
    };
    let other = operand(other, root, item, left)?;
    let (Some(a), Some(b)) = (found, other) else {
        return Ok(false);
    };
    let order = match (&a, &b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (a, b) => (a == b).then_some(Ordering::Equal),
    };
    Ok(match compare {
        Compare::Equal => order == Some(Ordering::Equal),
        Compare::NotEqual => order != Some(Ordering::Equal),
        Compare::Less => order == Some(Ordering::Less),
        Compare::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        Compare::Greater => order == Some(Ordering::Greater),
        Compare::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
    })
}

fn operand(operand: &Operand, root: &Value, item: &Value, left: &mut usize) -> Result<Option<Value>, Error> {
    match operand {
        Operand::Literal(value) => Ok(Some(value.clone())),
        Operand::Path(steps) => Ok(path(steps, root, item, left)?
            .first()
            .map(|value| (*value).clone())),
    }
}
