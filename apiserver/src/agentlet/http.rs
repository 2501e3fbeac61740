//! Answers of the handlers in this module.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use panda_api::meta::{Reason, Status, StatusDetails};
use panda_store::blob;

use super::objects;

/// A refusal, answered as a `Status`.
#[derive(Debug)]
pub(crate) struct Failure(Box<Status>);

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self(Box::new(status))
    }
}

impl From<crate::respond::Failure> for Failure {
    fn from(failure: crate::respond::Failure) -> Self {
        failure.status().clone().into()
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        json(self.0.code, &*self.0)
    }
}

impl From<objects::Error> for Failure {
    fn from(error: objects::Error) -> Self {
        tracing::error!(error = &error as &dyn std::error::Error, "store failed");
        Status::failure(
            Reason::ServiceUnavailable,
            "the store cannot answer now; try again",
        )
        .into()
    }
}

impl From<blob::Error> for Failure {
    fn from(error: blob::Error) -> Self {
        let reason = match &error {
            blob::Error::NotFound { .. } => Reason::NotFound,
            blob::Error::InvalidName { .. } | blob::Error::InvalidRange { .. } => Reason::BadRequest,
            _ => {
                tracing::error!(error = &error as &dyn std::error::Error, "blob store failed");
                Reason::ServiceUnavailable
            }
        };
        Status::failure(reason, error.to_string()).into()
    }
}

/// A JSON answer.
pub(crate) fn json<T: serde::Serialize>(code: u16, value: &T) -> Response {
    let body = serde_json::to_vec(value).unwrap_or_default();
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (code, [(CONTENT_TYPE, "application/json")], Body::from(body)).into_response()
}

/// 400.
pub(crate) fn bad_request(message: impl Into<String>) -> Failure {
    Status::failure(Reason::BadRequest, message).into()
}

/// 404 for an object of `panda.dev`.
pub(crate) fn not_found(plural: &str, name: &str) -> Failure {
    let mut status = Status::failure(
        Reason::NotFound,
        format!("{plural}.panda.dev \"{name}\" not found"),
    );
    status.details = Some(StatusDetails {
        name: name.into(),
        group: "panda.dev".into(),
        kind: plural.into(),
        ..StatusDetails::default()
    });
    status.into()
}
