//! Label and field selectors over stored bytes.

use std::borrow::Cow;
use std::collections::BTreeMap;

use panda_api::meta::selector::{Fields, Labels};
use panda_api::scheme;
use panda_store::Key;
use serde::Deserialize;
use serde_json::Value;

use super::{Error, Kind};

/// Which objects of a scope are meant.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    labels: Labels,
    fields: Fields,
    /// Only the object of this name.
    name: Option<String>,
}

/// The part of an object that label selectors look at; the rest is skipped.
#[derive(Deserialize)]
struct Partial<'a> {
    #[serde(borrow)]
    metadata: PartialMeta<'a>,
}

#[derive(Deserialize)]
struct PartialMeta<'a> {
    #[serde(borrow, default)]
    labels: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
}

impl Filter {
    /// Reads the selectors of a query; empty ones select everything.
    ///
    /// # Errors
    /// When one cannot be read, or names a field that the kind does not offer.
    pub fn parse(kind: Kind, labels: &str, fields: &str) -> Result<Self, Error> {
        let bad = |error: panda_api::meta::selector::Error| Error::BadRequest(error.to_string());
        let labels: Labels = labels.parse().map_err(bad)?;
        let fields: Fields = fields.parse().map_err(bad)?;
        fields.check(kind.selectable_fields).map_err(bad)?;
        Ok(Self {
            labels,
            fields,
            name: None,
        })
    }

    /// Only the object of this name as well.
    #[must_use]
    pub fn and_name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Whether everything is meant.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty() && self.name.is_none()
    }

    /// Whether this object is meant.
    ///
    /// # Errors
    /// When the stored bytes are damaged.
    pub fn matches(&self, kind: Kind, key: &Key, json: &[u8]) -> Result<bool, Error> {
        let damaged = |error: serde_json::Error| Error::Damaged {
            key: key.to_string(),
            detail: error.to_string(),
        };
        if self.name.as_deref().is_some_and(|name| *name != *key.name) {
            return Ok(false);
        }
        if !self.fields.is_empty() {
            let in_key = |path: &str| path == "metadata.name" || path == "metadata.namespace";
            let whole: Value = if self.fields.requirements().iter().all(|r| in_key(&r.path)) {
                Value::Null
            } else {
                serde_json::from_slice(json).map_err(damaged)?
            };
            let matches = self.fields.matches_with(|path| match path {
                "metadata.name" => Some(key.name.to_string()),
                "metadata.namespace" => Some(key.namespace.to_string()),
                path => scheme::selectable_field(kind, &whole, path),
            });
            if !matches {
                return Ok(false);
            }
        }
        if self.labels.is_empty() {
            return Ok(true);
        }
        let partial: Partial<'_> = serde_json::from_slice(json).map_err(damaged)?;
        Ok(self
            .labels
            .matches_with(|key| partial.metadata.labels.get(key).map(AsRef::as_ref)))
    }
}
