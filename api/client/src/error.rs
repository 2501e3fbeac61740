//! What can go wrong with a request.

use std::time::Duration;

use panda_api::meta::{Reason, Status};

use crate::transport;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server refused; its words are passed on.
    #[error("{}", .0.message)]
    Api(Box<Status>),
    /// The server could not be reached, or the connection broke.
    #[error("cannot talk to the server")]
    Transport(#[source] transport::Error),
    /// No answer in time; a write may have been done all the same.
    #[error("no answer from the server within {after:?} ({method} {path})")]
    Timeout {
        /// Method of the request.
        method: http::Method,
        /// Path of the request.
        path: String,
        /// How long was waited.
        after: Duration,
    },
    /// The answer is not what was asked for.
    #[error("cannot read the server's answer to {what}")]
    Decode {
        /// The request.
        what: String,
        /// What the decoder says.
        #[source]
        source: serde_json::Error,
    },
    /// The answer, or one line of it, is larger than this client accepts.
    #[error("the server's answer to {what} is larger than {limit} bytes")]
    TooLarge {
        /// The request.
        what: String,
        /// The bound.
        limit: usize,
    },
    /// The object cannot be written as JSON.
    #[error("cannot write the request body as JSON")]
    Encode(#[source] serde_json::Error),
    /// The request itself is wrong; nothing was sent.
    #[error("invalid request: {0}")]
    Request(String),
    /// The client cannot be built from its configuration.
    #[error("cannot use this configuration")]
    Connector(#[source] crate::connector::Error),
}

impl Error {
    /// The server's status, when it answered.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Api(status) => Some(status),
            _ => None,
        }
    }

    fn is(&self, reason: Reason) -> bool {
        self.status().is_some_and(|s| s.is(reason))
    }

    /// The object, or the kind, does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.is(Reason::NotFound)
    }

    /// The object changed since it was read, or a precondition does not hold.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.is(Reason::Conflict)
    }

    /// An object of that name exists.
    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        self.is(Reason::AlreadyExists)
    }

    /// The resource version or continue token is older than the server's memory: list again.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.status().is_some_and(is_gone)
    }

    /// Whether the same request may succeed later. A write that timed out or broke may already have been done:
    /// repeat it only if repeating does no harm.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Api(status) => matches!(status.code, 429 | 500 | 502 | 503 | 504),
            Self::Transport(error) => error.is_retryable(),
            Self::Timeout { .. } => true,
            Self::Decode { .. }
            | Self::TooLarge { .. }
            | Self::Encode(_)
            | Self::Request(_)
            | Self::Connector(_) => false,
        }
    }

    /// Whether a write may have been done although it failed here.
    #[must_use]
    pub fn may_have_happened(&self) -> bool {
        match self {
            Self::Transport(error) => error.may_have_been_sent(),
            Self::Timeout { .. } | Self::Decode { .. } | Self::TooLarge { .. } => true,
            Self::Api(status) => matches!(status.code, 500 | 502 | 504),
            Self::Encode(_) | Self::Request(_) | Self::Connector(_) => false,
        }
    }
}

/// Whether a status says that a version is older than the server's memory. Older servers say `Gone`.
pub(crate) fn is_gone(status: &Status) -> bool {
    status.is(Reason::Expired) || status.reason == "Gone" || status.code == 410
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(reason: Reason) -> Error {
        Error::Api(Box::new(Status::failure(reason, "tasks.panda.dev \"x\": no")))
    }

    #[test]
    fn each_reason_answers_its_own_question_only() {
        assert!(api(Reason::NotFound).is_not_found());
        assert!(api(Reason::Conflict).is_conflict() && !api(Reason::Conflict).is_already_exists());
        assert!(api(Reason::AlreadyExists).is_already_exists() && !api(Reason::AlreadyExists).is_conflict());
        assert!(api(Reason::Expired).is_gone());
        assert!(!api(Reason::Invalid).is_retryable() && api(Reason::TooManyRequests).is_retryable());
    }

    #[test]
    fn the_servers_words_are_the_message() {
        assert_eq!(api(Reason::NotFound).to_string(), "tasks.panda.dev \"x\": no");
    }

    #[test]
    fn a_timed_out_write_may_have_happened() {
        let error = Error::Timeout {
            method: http::Method::POST,
            path: "/x".into(),
            after: Duration::from_secs(1),
        };
        assert!(error.is_retryable() && error.may_have_happened());
    }
}
