//! What a model server does wrong.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::RETRY_AFTER;

use super::{Answer, Api, Request, event_stream};

/// A way to go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Takes the request and never answers.
    Stall,
    /// 401: the key is wrong.
    Unauthorized,
    /// 429, with the seconds to wait.
    RateLimited(u32),
    /// 500.
    ServerError,
    /// 400: the conversation is too long for the model.
    ContextLimit,
    /// The answer begins, and the connection ends in the middle of it.
    Cut,
    /// 200, with nothing in it.
    Empty,
}

/// An error answer, in the words of each API.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failed {
    pub(super) status: StatusCode,
    pub(super) message: &'static str,
    /// Anthropic's word for it, also used by others.
    pub(super) kind: &'static str,
    /// OpenAI's.
    pub(super) code: &'static str,
    /// Gemini's.
    pub(super) grpc: &'static str,
    pub(super) retry_after: Option<u32>,
}

impl Fault {
    /// The answer, or what is to be answered as if nothing were wrong.
    pub(super) async fn answer(self, api: &dyn Api, request: &Request) -> Result<Response, Answer> {
        let failed = match self {
            Self::Stall => std::future::pending().await,
            Self::Empty => return Err(Answer::Nothing),
            Self::Cut => return Ok(cut(api, request)),
            Self::Unauthorized => Failed {
                status: StatusCode::UNAUTHORIZED,
                message: "invalid api key",
                kind: "authentication_error",
                code: "invalid_api_key",
                grpc: "UNAUTHENTICATED",
                retry_after: None,
            },
            Self::RateLimited(seconds) => Failed {
                status: StatusCode::TOO_MANY_REQUESTS,
                message: "Rate limit reached. Please try again later.",
                kind: "rate_limit_error",
                code: "rate_limit_exceeded",
                grpc: "RESOURCE_EXHAUSTED",
                retry_after: Some(seconds),
            },
            Self::ServerError => Failed {
                status: StatusCode::INTERNAL_SERVER_ERROR,
                message: "Internal server error",
                kind: "api_error",
                code: "server_error",
                grpc: "INTERNAL",
                retry_after: None,
            },
            Self::ContextLimit => Failed {
                status: StatusCode::BAD_REQUEST,
                message: "prompt is too long: 250000 tokens > 200000 maximum",
                kind: "invalid_request_error",
                code: "context_length_exceeded",
                grpc: "INVALID_ARGUMENT",
                retry_after: None,
            },
        };
        let mut response = (failed.status, axum::Json(api.error(&failed))).into_response();
        if let Some(seconds) = failed.retry_after {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        Ok(response)
    }
}

/// The first half of an answer; then the connection is gone.
fn cut(api: &dyn Api, request: &Request) -> Response {
    let events = api.events(&request.model, &Answer::Text("This will never be ".into()));
    let half: String = events[..events.len().div_ceil(2)].concat();
    let pieces = [Ok(half), Err(std::io::Error::other("cut"))];
    event_stream(Body::from_stream(tokio_stream::iter(pieces)))
}
