//! `{{name}}` in texts of a manifest.

use std::collections::BTreeMap;

use panda_api::FileFormat;

use super::Error;
use super::escape::escape;

/// What placeholders stand for.
#[derive(Clone, Debug)]
pub(super) struct Values(BTreeMap<&'static str, String>);

impl Values {
    pub(super) fn new(values: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        Self(values.into_iter().collect())
    }

    pub(super) fn with(&self, name: &'static str, value: &str) -> Self {
        let mut this = self.clone();
        this.0.insert(name, value.to_owned());
        this
    }

    /// Replaces every placeholder once; values are not looked at again. Braces that are no placeholder stay.
    pub(super) fn fill(&self, template: &str, field: &str, format: FileFormat) -> Result<String, Error> {
        let mut out = String::with_capacity(template.len());
        let mut rest = template;
        while let Some(start) = rest.find("{{") {
            let (before, from) = rest.split_at(start);
            out.push_str(before);
            let name = from[2..]
                .split_once("}}")
                .map(|(name, _)| name)
                .filter(|n| is_name(n));
            let Some(name) = name else {
                // `{{{home}}}`: the braces nearest to the name belong to it.
                out.push('{');
                rest = &from[1..];
                continue;
            };
            out.push_str(&escape(self.get(name, field)?, format));
            rest = &from[2 + name.len() + 2..];
        }
        out.push_str(rest);
        Ok(out)
    }

    fn get(&self, name: &str, field: &str) -> Result<&str, Error> {
        let Some(value) = self.0.get(name) else {
            return Err(Error::UnknownPlaceholder {
                field: field.into(),
                name: name.into(),
                known: self.0.keys().copied().collect::<Vec<_>>().join(", "),
            });
        };
        let remedy = match name {
            "model" => "name one in the Task's agents[].model or in models.default",
            "baseUrl" => "set models.endpoint.baseUrl",
            "session" => "use it in `resume` only",
            _ => return Ok(value),
        };
        if value.is_empty() {
            return Err(Error::NoValue {
                field: field.into(),
                name: name.into(),
                remedy,
            });
        }
        Ok(value)
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric())
}
