//! GET `runs/NAME/artifacts/NAME`: what a run left, by name, with `Range`.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, RANGE};
use http::{HeaderMap, StatusCode};
use panda_api::{BlobRef, Run};
use panda_store::blob::{Digest, Range};

use super::Agentlets;
use super::http::{self as answers, Failure};

pub(crate) fn routes(agentlets: Arc<Agentlets>) -> Router {
    Router::new()
        .route(
            "/apis/panda.dev/v1alpha1/namespaces/{namespace}/runs/{name}/artifacts/{*artifact}",
            get(artifact),
        )
        .with_state(agentlets)
}

/// The blob that a run knows under a name: `patch`, `bundle`, a declared output, or `verify/CHECK` for a check's log.
fn named(run: &Run, name: &str) -> Option<BlobRef> {
    if let Some(check) = name.strip_prefix("verify/") {
        return run
            .status
            .verify
            .iter()
            .find(|result| result.name == check)?
            .log
            .clone();
    }
    let result = run.status.result.as_ref()?;
    let artifact = result.artifacts.iter().find(|artifact| artifact.name == name);
    match (artifact, name) {
        (Some(artifact), _) => Some(BlobRef {
            digest: artifact.digest.clone(),
            size: artifact.size,
        }),
        (None, "patch") => result.patch.clone(),
        (None, "bundle") => result.bundle.clone(),
        (None, _) => None,
    }
}

/// The first byte and the length of `bytes=A-B`, `bytes=A-` or `bytes=-N`; other forms are ignored, as HTTP allows.
fn range(headers: &HeaderMap, size: u64) -> Option<Result<(u64, u64), ()>> {
    let value = headers.get(RANGE)?.to_str().ok()?.strip_prefix("bytes=")?;
    let (first, last) = value.split_once('-')?;
    let bounds = match (first.trim(), last.trim()) {
        ("", suffix) => {
            let length = suffix.parse::<u64>().ok()?.min(size);
            (size - length, length)
        }
        (first, "") => (first.parse().ok()?, u64::MAX),
        (first, last) => {
            let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
            (first, last.checked_sub(first)?.saturating_add(1))
        }
    };
    let (offset, length) = bounds;
    if offset >= size || length == 0 {
        Some(Err(()))
    } else {
        Some(Ok((offset, length.min(size - offset))))
    }
}

async fn artifact(
    State(agentlets): State<Arc<Agentlets>>,
    Path((namespace, name, artifact)): Path<(String, String, String)>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let run = agentlets.run_named(&namespace, &name).await?;
    let blob = named(&run, &artifact).ok_or_else(|| answers::not_found("artifacts", &artifact))?;
    let digest: Digest = blob
        .digest
        .parse()
        .map_err(|_| answers::not_found("artifacts", &artifact))?;
    let wanted = range(&headers, blob.size);
    let (offset, length) = match wanted {
        None => (0, None),
        Some(Ok((offset, length))) => (offset, Some(length)),
        Some(Err(())) => {
            let unsatisfied = [(CONTENT_RANGE, format!("bytes */{}", blob.size))];
            return Ok((StatusCode::RANGE_NOT_SATISFIABLE, unsatisfied).into_response());
        }
    };
    let body = agentlets.blobs.get(digest, Range { offset, length }).await?;
    let mut response = Response::builder()
        .status(if length.is_some() {
            StatusCode::PARTIAL_CONTENT
        } else {
            StatusCode::OK
        })
        .header(CONTENT_TYPE, "application/octet-stream")
        .header(ACCEPT_RANGES, "bytes")
        .header(ETAG, format!("\"{}\"", blob.digest))
        .header(CONTENT_LENGTH, body.length);
    if length.is_some() {
        response = response.header(
            CONTENT_RANGE,
            format!(
                "bytes {offset}-{}/{}",
                offset + body.length.saturating_sub(1),
                body.size
            ),
        );
    }
    response
        .body(Body::from_stream(body.body))
        .map_err(|_| answers::bad_request("the artifact's name cannot stand in a header"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(value: &str, size: u64) -> Option<Result<(u64, u64), ()>> {
        let mut headers = HeaderMap::new();
        headers.insert(RANGE, value.parse().unwrap());
        range(&headers, size)
    }

    #[test]
    fn ranges_are_those_of_http() {
        assert_eq!(asked("bytes=0-9", 100), Some(Ok((0, 10))));
        assert_eq!(asked("bytes=90-", 100), Some(Ok((90, 10))));
        assert_eq!(asked("bytes=-30", 100), Some(Ok((70, 30))));
        assert_eq!(asked("bytes=50-500", 100), Some(Ok((50, 50))));
        assert_eq!(asked("bytes=100-", 100), Some(Err(())));
        assert_eq!(asked("bytes=-0", 100), Some(Err(())));
        assert_eq!(asked("bytes=9-1", 100), None);
        assert_eq!(asked("bytes=0-18446744073709551615", 100), Some(Ok((0, 100))));
        assert_eq!(asked("lines=1-2", 100), None);
    }
}
