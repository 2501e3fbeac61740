//! The name of an object among those of its kind.

use std::fmt;
use std::sync::Arc;

use panda_api::meta::ObjectMeta;

/// Namespace and name of an object; the namespace is empty for kinds without. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    namespace: Arc<str>,
    name: Arc<str>,
}

impl ObjectRef {
    /// The key of that name.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The key of an object.
    #[must_use]
    pub fn of(meta: &ObjectMeta) -> Self {
        Self::new(&meta.namespace, &meta.name)
    }

    /// The namespace, or nothing.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}
