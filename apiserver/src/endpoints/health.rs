//! Health, version, metrics.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use panda_api::meta::Reason;
use serde_json::json;

use crate::endpoints::Api;
use crate::metrics;
use crate::respond::{self, Failure, bytes_response};

const TEXT: &str = "text/plain; charset=utf-8";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The Kubernetes API whose wire this is, for clients that look at the version.
const LIKE: (&str, &str) = ("1", "36");

/// The process answers.
pub(crate) async fn live() -> Response {
    bytes_response(StatusCode::OK, TEXT, "ok")
}

/// The store answers, through its cache.
pub(crate) async fn ready(State(api): State<Arc<Api>>) -> Response {
    let problem = if api.stop.is_cancelled() {
        Some("shutting down".to_owned())
    } else {
        api.registry
            .store()
            .current_revision()
            .await
            .err()
            .map(|error| error.to_string())
    };
    match problem {
        None => bytes_response(StatusCode::OK, TEXT, "ok"),
        Some(problem) => bytes_response(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("store: {problem}")),
    }
}

pub(crate) async fn version() -> Response {
    let (major, minor) = LIKE;
    let value = json!({
        "major": major,
        "minor": minor,
        "gitVersion": format!("v{major}.{minor}.0-panda.{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    });
    respond::json(StatusCode::OK, &value)
}

pub(crate) async fn metrics(State(api): State<Arc<Api>>) -> Response {
    match metrics::text(&api.process_metrics) {
        Ok(text) => bytes_response(StatusCode::OK, OPENMETRICS, text),
        Err(_) => Failure::new(Reason::InternalError, "the metrics cannot be written").into_response(),
    }
}
