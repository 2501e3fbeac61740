//! Answers: `Status` for everything that failed, JSON for the rest.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use panda_api::meta::{Reason, Status};
use serde::Serialize;

use crate::registry;

/// What every JSON answer is.
pub(crate) const JSON: &str = "application/json";
/// The message for a URL that nobody serves.
const NO_ROUTE: &str = "the server could not find the requested resource";

/// A request that failed.
#[derive(Clone, Debug)]
pub struct Failure(Box<Status>);

impl Failure {
    /// A failure for a reason.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self(Box::new(Status::failure(reason, message)))
    }

    /// The request makes no sense.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    /// Nobody serves this URL.
    #[must_use]
    pub fn no_route() -> Self {
        Self::new(Reason::NotFound, NO_ROUTE)
    }

    /// The URL is served, but not for this method.
    #[must_use]
    pub fn no_method() -> Self {
        Self::new(
            Reason::MethodNotAllowed,
            "the server does not allow this method on the requested resource",
        )
    }

    /// Come again in some seconds.
    pub(crate) fn busy(seconds: u32) -> Self {
        let mut failure = Self::new(
            Reason::TooManyRequests,
            "the server has too many requests in flight; try again after Retry-After",
        );
        failure.0.details = Some(panda_api::meta::StatusDetails {
            retry_after_seconds: seconds,
            ..Default::default()
        });
        failure
    }

    /// The body of the answer.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.0
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self(Box::new(status))
    }
}

impl From<registry::Error> for Failure {
    fn from(error: registry::Error) -> Self {
        let status = error.status();
        if status.code >= 500 {
            tracing::error!(error = &error as &dyn std::error::Error, "request failed");
        }
        status.into()
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let code = StatusCode::from_u16(self.0.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = json(code, &*self.0);
        let wait = self
            .0
            .details
            .as_ref()
            .map_or(0, |details| details.retry_after_seconds);
        if wait > 0 {
            response
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from(wait));
        } else if code == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(1));
        }
        response
    }
}

/// A JSON answer.
pub(crate) fn json(code: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => bytes_response(code, JSON, bytes),
        Err(error) => {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "answer cannot be written as JSON"
            );
            let status = Status::failure(Reason::InternalError, "the answer cannot be written as JSON");
            bytes_response(
                StatusCode::INTERNAL_SERVER_ERROR,
                JSON,
                serde_json::to_vec(&status).unwrap_or_default(),
            )
        }
    }
}

/// An answer that is already serialised.
pub(crate) fn bytes_response(code: StatusCode, content_type: &str, bytes: impl Into<Body>) -> Response {
    let mut response = Response::new(bytes.into());
    *response.status_mut() = code;
    if let Ok(value) = HeaderValue::from_str(content_type) {
        response.headers_mut().insert(CONTENT_TYPE, value);
    }
    response
}
