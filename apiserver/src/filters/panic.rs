//! A panic ends its request only.

use std::panic::AssertUnwindSafe;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use panda_api::meta::Reason;

use crate::respond::Failure;

pub(super) async fn catch(request: Request, next: Next) -> Response {
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(panic) => {
            let text = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_default();
            tracing::error!(panic = text, "a request panicked");
            Failure::new(
                Reason::InternalError,
                "an error in the server; its log has the details",
            )
            .into_response()
        }
    }
}
