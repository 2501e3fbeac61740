//! Label and field selectors as they stand in a query: `tier=web,env notin (dev,test),!old`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use super::{LabelSelector, SelectorOperator};
use crate::validation::{is_label_value, is_qualified_name};

const MAX_LEN: usize = 16 * 1024;
const MAX_REQUIREMENTS: usize = 128;

/// Why a selector cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is too long.
    #[error("selector is too long: at most {MAX_LEN} bytes and {MAX_REQUIREMENTS} requirements")]
    TooLong,
    /// A requirement does not have the form of one.
    #[error(
        "invalid requirement {0:?}: want for example \"key=value\", \"key!=value\", \"key in (a,b)\", \"key\" or \"!key\""
    )]
    Form(String),
    /// A key is no label key.
    #[error("invalid label key {0:?}")]
    Key(String),
    /// A value is no label value.
    #[error("invalid label value {0:?}")]
    Value(String),
    /// The kind does not offer the field.
    #[error("field label not supported: {path} (supported: {known})")]
    Field {
        /// The field asked for.
        path: String,
        /// Those that the kind offers.
        known: String,
    },
}

/// What one requirement asks of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operator {
    /// It is there, with one of these values.
    In(BTreeSet<String>),
    /// It is absent, or has none of these values.
    NotIn(BTreeSet<String>),
    /// It is there.
    Exists,
    /// It is absent.
    DoesNotExist,
}

/// A label selector: requirements that must all hold. Empty selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    requirements: Vec<(String, Operator)>,
}

impl Labels {
    /// Whether it selects everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The requirements.
    #[must_use]
    pub fn requirements(&self) -> &[(String, Operator)] {
        &self.requirements
    }

    /// Whether labels that `get` looks up satisfy every requirement.
    pub fn matches_with<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements.iter().all(|(key, operator)| {
            let value = get(key);
            match operator {
                Operator::In(values) => value.is_some_and(|v| values.contains(v)),
                Operator::NotIn(values) => value.is_none_or(|v| !values.contains(v)),
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
            }
        })
    }

    /// Whether `labels` satisfy every requirement.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches_with(|key| labels.get(key).map(String::as_str))
    }

    /// Whether the labels of an object satisfy every requirement.
    #[must_use]
    pub fn matches_object(&self, object: &serde_json::Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.matches_with(|key| labels.get(key)?.as_str())
    }
}

impl From<&LabelSelector> for Labels {
    fn from(selector: &LabelSelector) -> Self {
        let exact = selector
            .match_labels
            .iter()
            .map(|(k, v)| (k.clone(), Operator::In(BTreeSet::from([v.clone()]))));
        let set = selector.match_expressions.iter().map(|r| {
            let values = || r.values.iter().cloned().collect();
            let operator = match r.operator {
                SelectorOperator::In => Operator::In(values()),
                SelectorOperator::NotIn => Operator::NotIn(values()),
                SelectorOperator::Exists => Operator::Exists,
                SelectorOperator::DoesNotExist => Operator::DoesNotExist,
            };
            (r.key.clone(), operator)
        });
        Self {
            requirements: exact.chain(set).collect(),
        }
    }
}

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, operator)) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            let list = |values: &BTreeSet<String>| values.iter().cloned().collect::<Vec<_>>().join(",");
            match operator {
                Operator::In(values) => write!(f, "{key} in ({})", list(values))?,
                Operator::NotIn(values) => write!(f, "{key} notin ({})", list(values))?,
                Operator::Exists => f.write_str(key)?,
                Operator::DoesNotExist => write!(f, "!{key}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for Labels {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.len() > MAX_LEN {
            return Err(Error::TooLong);
        }
        let mut requirements = Vec::new();
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        for part in split_outside_parentheses(text) {
            if requirements.len() >= MAX_REQUIREMENTS {
                return Err(Error::TooLong);
            }
            requirements.push(requirement(part.trim())?);
        }
        Ok(Self { requirements })
    }
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '(' => inside = true,
            ')' => inside = false,
            ',' if !inside => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn requirement(part: &str) -> Result<(String, Operator), Error> {
    let fail = || Error::Form(part.chars().take(128).collect());
    if let Some(key) = part.strip_prefix('!') {
        return Ok((label_key(key.trim())?, Operator::DoesNotExist));
    }
    if let Some((head, values)) = part.split_once('(') {
        let values = values.strip_suffix(')').ok_or_else(fail)?;
        if values.contains(['(', ')']) {
            return Err(fail());
        }
        let mut head = head.split_whitespace();
        let (Some(key), Some(word), None) = (head.next(), head.next(), head.next()) else {
            return Err(fail());
        };
        let values = values
            .split(',')
            .map(|v| label_value(v.trim()))
            .collect::<Result<BTreeSet<_>, _>>()?;
        let operator = match word {
            "in" => Operator::In(values),
            "notin" => Operator::NotIn(values),
            _ => return Err(fail()),
        };
        return Ok((label_key(key)?, operator));
    }
    if let Some((key, value)) = part.split_once("!=") {
        let values = BTreeSet::from([label_value(value.trim())?]);
        return Ok((label_key(key.trim())?, Operator::NotIn(values)));
    }
    if let Some((key, value)) = part.split_once('=') {
        let value = value.strip_prefix('=').unwrap_or(value);
        let values = BTreeSet::from([label_value(value.trim())?]);
        return Ok((label_key(key.trim())?, Operator::In(values)));
    }
    if part.is_empty() || part.contains(char::is_whitespace) {
        return Err(fail());
    }
    Ok((label_key(part)?, Operator::Exists))
}

fn label_key(key: &str) -> Result<String, Error> {
    if is_qualified_name(key) {
        Ok(key.to_owned())
    } else {
        Err(Error::Key(key.chars().take(128).collect()))
    }
}

fn label_value(value: &str) -> Result<String, Error> {
    if is_label_value(value) {
        Ok(value.to_owned())
    } else {
        Err(Error::Value(value.chars().take(128).collect()))
    }
}

/// One requirement of a field selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldRequirement {
    /// Path of the field.
    pub path: String,
    /// True: the field must have the value; false: it must not.
    pub equal: bool,
    /// The value.
    pub value: String,
}

/// A field selector: requirements that must all hold. Empty selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    requirements: Vec<FieldRequirement>,
}

impl Fields {
    /// Whether it selects everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The requirements.
    #[must_use]
    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.requirements
    }

    /// The value that `path` must have, when the selector says so.
    #[must_use]
    pub fn exact(&self, path: &str) -> Option<&str> {
        self.requirements
            .iter()
            .find(|r| r.equal && r.path == path)
            .map(|r| r.value.as_str())
    }

    /// Refuses fields that the kind does not offer.
    ///
    /// # Errors
    ///
    /// [`Error::Field`] for the first that it does not offer.
    pub fn check(&self, offered: &[&str]) -> Result<(), Error> {
        match self
            .requirements
            .iter()
            .find(|r| !offered.contains(&r.path.as_str()))
        {
            None => Ok(()),
            Some(r) => Err(Error::Field {
                path: r.path.clone(),
                known: offered.join(", "),
            }),
        }
    }

    /// Whether fields that `get` looks up satisfy every requirement; an absent field counts as empty.
    pub fn matches_with(&self, get: impl Fn(&str) -> Option<String>) -> bool {
        self.requirements
            .iter()
            .all(|r| (get(&r.path).unwrap_or_default() == r.value) == r.equal)
    }
}

impl FromStr for Fields {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.len() > MAX_LEN {
            return Err(Error::TooLong);
        }
        let mut requirements = Vec::new();
        for part in split_unescaped(text) {
            if part.is_empty() {
                continue;
            }
            if requirements.len() >= MAX_REQUIREMENTS {
                return Err(Error::TooLong);
            }
            let fail = || Error::Form(part.chars().take(128).collect());
            let at = part.find(['=', '!']).ok_or_else(fail)?;
            let (path, rest) = part.split_at(at);
            let (equal, value) = if let Some(value) = rest.strip_prefix("!=") {
                (false, value)
            } else if let Some(value) = rest.strip_prefix("==") {
                (true, value)
            } else {
                (true, rest.strip_prefix('=').ok_or_else(fail)?)
            };
            if path.is_empty() {
                return Err(fail());
            }
            requirements.push(FieldRequirement {
                path: path.to_owned(),
                equal,
                value: unescape(value).ok_or_else(fail)?,
            });
        }
        Ok(Self { requirements })
    }
}

fn split_unescaped(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// `\\`, `\,` and `\=` stand for themselves; nothing else may be escaped, and a bare `=` must be.
fn unescape(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                _ => return None,
            },
            '=' => return None,
            c => out.push(c),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
    }

    #[test]
    fn label_requirements_mean_what_kubernetes_says() {
        let web = labels(&[("tier", "web"), ("env", "prod"), ("empty", "")]);
        for (selector, want) in [
            ("", true),
            ("tier=web", true),
            ("tier==web", true),
            ("tier = web , env = prod", true),
            ("tier!=web", false),
            ("absent!=x", true),
            ("env in (dev, prod)", true),
            ("env notin (dev,prod)", false),
            ("absent notin (x)", true),
            ("tier,!absent", true),
            ("! tier", false),
            ("absent", false),
            ("empty=", true),
            ("empty in ()", true),
            ("example.com/x!=y", true),
        ] {
            let parsed: Labels = selector.parse().unwrap();
            assert_eq!(parsed.matches(&web), want, "{selector}");
            assert_eq!(
                parsed.to_string().parse::<Labels>().unwrap(),
                parsed,
                "{selector}"
            );
        }
    }

    #[test]
    fn broken_label_selectors_are_refused() {
        for bad in [
            ",",
            "a,,b",
            "a in",
            "a in b",
            "a in (b",
            "a in (b))",
            "a x (b)",
            "a b",
            "=v",
            "a=b c",
            "a>1",
            "-a=b",
            "a=b=c",
            "!",
            "a in (b)(c)",
            "a/b/c",
        ] {
            assert!(bad.parse::<Labels>().is_err(), "{bad}");
        }
        assert_eq!("a".repeat(MAX_LEN + 1).parse::<Labels>(), Err(Error::TooLong));
    }

    #[test]
    fn field_selectors_compare_exactly() {
        let get = |path: &str| (path == "status.phase").then(|| "Running".to_owned());
        for (selector, want) in [
            ("", true),
            ("status.phase=Running", true),
            ("status.phase==Running", true),
            ("status.phase!=Running", false),
            ("other=", true),
            ("other!=x,status.phase=Running", true),
        ] {
            assert_eq!(
                selector.parse::<Fields>().unwrap().matches_with(get),
                want,
                "{selector}"
            );
        }
        let escaped: Fields = r"a=b\,c\=d\\".parse().unwrap();
        assert_eq!(escaped.exact("a"), Some(r"b,c=d\"));
        for bad in ["a", "=b", "a!b", r"a=\x", "a=b=c"] {
            assert!(bad.parse::<Fields>().is_err(), "{bad}");
        }
        let unknown: Fields = "spec.x=1".parse().unwrap();
        assert!(unknown.check(&["metadata.name"]).is_err());
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in any::<String>()) {
            drop(text.parse::<Labels>());
            drop(text.parse::<Fields>());
        }
    }
}
