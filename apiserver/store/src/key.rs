//! Keys, scopes and revisions.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::Arc;

use crate::Error;

/// Longest resource, namespace or name that a store accepts, in bytes.
const MAX_PART: usize = 512;

/// A point in the store's history. Objects show it as the opaque text `resourceVersion`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// Before the first change.
    pub const ZERO: Self = Self(0);

    /// The revision after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Revision {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// Where an object lives. Ordered by resource, then namespace, then name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// `group/plural`, for example `panda.dev/tasks`; core kinds have an empty group: `/namespaces`.
    pub resource: Arc<str>,
    /// Empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// The object's name.
    pub name: Arc<str>,
}

impl Key {
    /// A key from its three parts.
    pub fn new(
        resource: impl Into<Arc<str>>,
        namespace: impl Into<Arc<str>>,
        name: impl Into<Arc<str>>,
    ) -> Self {
        Self {
            resource: resource.into(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    pub(crate) fn validate(&self) -> Result<(), Error> {
        let sized = |what: &str, part: &str, may_be_empty: bool| {
            if part.is_empty() && !may_be_empty {
                return Err(Error::invalid(format!("the key's {what} is empty")));
            }
            if part.len() > MAX_PART {
                return Err(Error::invalid(format!(
                    "the key's {what} is longer than {MAX_PART} bytes"
                )));
            }
            Ok(())
        };
        sized("resource", &self.resource, false)?;
        sized("namespace", &self.namespace, true)?;
        sized("name", &self.name, false)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{} {}", self.resource, self.name)
        } else {
            write!(f, "{} {}/{}", self.resource, self.namespace, self.name)
        }
    }
}

/// Which objects a list or a watch covers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scope {
    /// One resource, or every resource of the store.
    pub resource: Option<Arc<str>>,
    /// One namespace of that resource, or all of them. Ignored without a resource.
    pub namespace: Option<Arc<str>>,
}

impl Scope {
    /// Every object in the store.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// Every object of a resource.
    pub fn resource(resource: impl Into<Arc<str>>) -> Self {
        Self {
            resource: Some(resource.into()),
            namespace: None,
        }
    }

    /// The objects of a resource in one namespace.
    pub fn namespace(resource: impl Into<Arc<str>>, namespace: impl Into<Arc<str>>) -> Self {
        Self {
            resource: Some(resource.into()),
            namespace: Some(namespace.into()),
        }
    }

    /// Whether a key lies inside.
    #[must_use]
    pub fn contains(&self, key: &Key) -> bool {
        match (&self.resource, &self.namespace) {
            (None, _) => true,
            (Some(resource), None) => *resource == key.resource,
            (Some(resource), Some(namespace)) => *resource == key.resource && *namespace == key.namespace,
        }
    }
}
