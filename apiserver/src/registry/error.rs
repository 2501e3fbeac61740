//! Why the registry refused, and how that is said on the wire.

use panda_api::meta::{Reason, Status, StatusCause, StatusDetails};
use panda_store as store;

use super::{Kind, kinds};

/// The text that every client knows for a lost race.
pub(crate) const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// Why a request to the registry failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such object.
    #[error("{resource} \"{name}\" not found")]
    NotFound {
        /// `plural.group`.
        resource: Resource,
        /// Its name.
        name: String,
    },
    /// There is one already.
    #[error("{resource} \"{name}\" already exists")]
    AlreadyExists {
        /// `plural.group`.
        resource: Resource,
        /// Its name.
        name: String,
    },
    /// A precondition does not hold.
    #[error("Operation cannot be fulfilled on {resource} \"{name}\": {detail}")]
    Conflict {
        /// `plural.group`.
        resource: Resource,
        /// Its name.
        name: String,
        /// Which one.
        detail: String,
    },
    /// The object breaks its kind's rules.
    #[error("{kind} \"{name}\" is invalid: {}", summary(causes))]
    Invalid {
        /// `Kind.group`.
        kind: Resource,
        /// Its name.
        name: String,
        /// One entry a fault.
        causes: Vec<StatusCause>,
    },
    /// The request makes no sense.
    #[error("{0}")]
    BadRequest(String),
    /// A patch does not fit the object.
    #[error("the server rejected our request due to an error in our request: {0}")]
    Unprocessable(String),
    /// The request is understood and refused.
    #[error("{resource} \"{name}\" is forbidden: {detail}")]
    Forbidden {
        /// `plural.group`.
        resource: Resource,
        /// Its name.
        name: String,
        /// Why.
        detail: String,
        /// Stable words for programs.
        causes: Vec<StatusCause>,
    },
    /// A policy refuses it.
    #[error("{resource} \"{name}\" is forbidden: {detail}")]
    Denied {
        /// `plural.group`.
        resource: Resource,
        /// Its name.
        name: String,
        /// Which policy, and why.
        detail: String,
        /// What the policy says that it is.
        reason: Reason,
    },
    /// A version or a continue token is too old.
    #[error("{message}")]
    Expired {
        /// What to do.
        message: String,
        /// A token that goes on with the list, inconsistently.
        continue_: Option<String>,
    },
    /// A version from the future.
    #[error("Too large resource version: {requested}, current: {current}")]
    FutureVersion {
        /// What was asked for.
        requested: u64,
        /// What there is.
        current: u64,
    },
    /// The stored bytes are not what was written.
    #[error("the stored object {key} cannot be read: {detail}")]
    Damaged {
        /// Its key.
        key: String,
        /// What is wrong.
        detail: String,
    },
    /// The store failed.
    #[error("the store failed")]
    Store(#[source] store::Error),
}

/// How a resource is named in messages: `tasks.panda.dev`, or `secrets` for the core group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: String,
    /// Plural, or the Kind.
    pub name: String,
}

impl std::fmt::Display for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.group.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}.{}", self.name, self.group)
        }
    }
}

fn summary(causes: &[StatusCause]) -> String {
    let each: Vec<String> = causes
        .iter()
        .map(|c| {
            if c.field.is_empty() {
                c.message.clone()
            } else {
                format!("{}: {}", c.field, c.message)
            }
        })
        .collect();
    if each.len() == 1 {
        each.concat()
    } else {
        format!("[{}]", each.join(", "))
    }
}

/// One fault of a field.
pub(crate) fn cause(reason: &str, field: &str, message: impl Into<String>) -> StatusCause {
    StatusCause {
        reason: reason.to_owned(),
        message: message.into(),
        field: field.to_owned(),
    }
}

impl Error {
    pub(crate) fn not_found(kind: Kind, name: &str) -> Self {
        Self::NotFound {
            resource: kinds::resource(kind),
            name: name.to_owned(),
        }
    }

    pub(crate) fn conflict(kind: Kind, name: &str, detail: impl Into<String>) -> Self {
        Self::Conflict {
            resource: kinds::resource(kind),
            name: name.to_owned(),
            detail: detail.into(),
        }
    }

    pub(crate) fn invalid(kind: Kind, name: &str, causes: Vec<StatusCause>) -> Self {
        let resource = Resource {
            group: kind.group.to_owned(),
            name: kind.kind.to_owned(),
        };
        Self::Invalid {
            kind: resource,
            name: name.to_owned(),
            causes,
        }
    }

    /// Whether the same request may succeed later without being changed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::FutureVersion { .. } => true,
            Self::Store(source) => source.is_retryable(),
            _ => false,
        }
    }

    /// The answer on the wire.
    #[must_use]
    pub fn status(&self) -> Status {
        let details = |resource: &Resource, name: &str, causes: &[StatusCause]| StatusDetails {
            name: name.to_owned(),
            group: resource.group.clone(),
            kind: resource.name.clone(),
            causes: causes.to_vec(),
            ..StatusDetails::default()
        };
        let (reason, details) = match self {
            Self::NotFound { resource, name } => (Reason::NotFound, Some(details(resource, name, &[]))),
            Self::AlreadyExists { resource, name } => {
                (Reason::AlreadyExists, Some(details(resource, name, &[])))
            }
            Self::Conflict { resource, name, .. } => (Reason::Conflict, Some(details(resource, name, &[]))),
            Self::Invalid { kind, name, causes } => (Reason::Invalid, Some(details(kind, name, causes))),
            Self::BadRequest(_) => (Reason::BadRequest, None),
            Self::Unprocessable(_) => (Reason::Invalid, None),
            Self::Forbidden {
                resource,
                name,
                causes,
                ..
            } => (Reason::Forbidden, Some(details(resource, name, causes))),
            Self::Denied {
                resource,
                name,
                detail,
                reason,
            } => (
                *reason,
                Some(details(resource, name, &[cause("", "", detail.as_str())])),
            ),
            Self::Expired { .. } => (Reason::Expired, None),
            Self::FutureVersion { .. } => {
                let causes = vec![cause("ResourceVersionTooLarge", "", "Too large resource version")];
                let details = StatusDetails {
                    causes,
                    retry_after_seconds: 1,
                    ..StatusDetails::default()
                };
                (Reason::Timeout, Some(details))
            }
            Self::Store(store::Error::TooLarge { .. }) => (Reason::RequestEntityTooLarge, None),
            Self::Store(source) if source.is_retryable() => (Reason::ServiceUnavailable, None),
            Self::Damaged { .. } | Self::Store(_) => (Reason::InternalError, None),
        };
        let message = match self {
            Self::Store(source) => format!("the store failed: {source}"),
            other => other.to_string(),
        };
        let mut status = Status::failure(reason, message);
        status.details = details;
        if let Self::Expired {
            continue_: Some(token),
            ..
        } = self
        {
            status
                .metadata
                .insert("continue".to_owned(), token.clone().into());
        }
        status
    }
}

impl From<store::Error> for Error {
    fn from(source: store::Error) -> Self {
        match source {
            store::Error::Compacted { oldest } => Self::Expired {
                message: format!(
                    "The requested version is too old, the oldest available is {oldest}: list again, and watch \
                     from the list's resourceVersion"
                ),
                continue_: None,
            },
            store::Error::FutureRevision { requested, current } => Self::FutureVersion {
                requested: requested.0,
                current: current.0,
            },
            source => Self::Store(source),
        }
    }
}
