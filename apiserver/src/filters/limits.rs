//! Bounds on requests: how many, how large, how long.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use panda_api::meta::Reason;
use tokio::sync::Semaphore;

use crate::config::Limits;
use crate::metrics::Metrics;
use crate::request::RequestInfo;
use crate::respond::Failure;

/// Seconds after which a refused client may come again.
pub(super) const RETRY_AFTER: u32 = 1;
/// How many requests there may be for each that is answered at a time: the others wait for a seat, or find out who asks.
const BESIDE: usize = 3;

/// Most bytes of a request body; handlers find it in the extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimit(pub(crate) usize);

/// Places for requests.
pub(super) struct Slots {
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

impl Slots {
    pub(super) fn new(limits: &Limits, metrics: Arc<Metrics>) -> Self {
        Self {
            short: Arc::new(Semaphore::new(
                limits
                    .requests_in_flight
                    .saturating_mul(BESIDE)
                    .min(Semaphore::MAX_PERMITS),
            )),
            long: Arc::new(Semaphore::new(limits.long_requests)),
            metrics,
        }
    }
}

fn is_long(request: &Request) -> bool {
    request
        .extensions()
        .get::<Arc<RequestInfo>>()
        .is_some_and(|info| info.long)
}

/// Holds a place until the whole answer is sent.
pub(super) async fn in_flight(State(slots): State<Arc<Slots>>, request: Request, next: Next) -> Response {
    // Whoever watches over the server must get through to it when it is busy.
    if super::health_path(request.uri().path()) {
        return next.run(request).await;
    }
    let places = if is_long(&request) {
        &slots.long
    } else {
        &slots.short
    };
    let Ok(place) = Arc::clone(places).try_acquire_owned() else {
        slots.metrics.dropped_request();
        return Failure::busy(RETRY_AFTER).into_response();
    };
    let held = (place, slots.metrics.request());
    next.run(request)
        .await
        .map(|body| Body::new(Holding { body, held }))
}

/// A body that keeps its request's place until it is sent or dropped.
pub(super) struct Holding<T> {
    pub(super) body: Body,
    #[expect(dead_code, reason = "held, not read")]
    pub(super) held: T,
}

impl<T: Unpin> HttpBody for Holding<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

pub(super) async fn body(State(limit): State<BodyLimit>, mut request: Request, next: Next) -> Response {
    let encoding = request.headers().get(http::header::CONTENT_ENCODING);
    if encoding.is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        // Nothing is unpacked here, so nothing small can become large.
        return Failure::new(
            Reason::UnsupportedMediaType,
            "request bodies must not be compressed; send them without Content-Encoding",
        )
        .into_response();
    }
    let length = request.headers().get(http::header::CONTENT_LENGTH);
    let length = length
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse::<u64>().ok());
    // Streams of the device service bound their own messages.
    if !is_long(&request) && length.is_some_and(|length| length > limit.0 as u64) {
        return too_large(limit).into_response();
    }
    request.extensions_mut().insert(limit);
    next.run(request).await
}

pub(crate) fn too_large(limit: BodyLimit) -> Failure {
    Failure::new(
        Reason::RequestEntityTooLarge,
        format!(
            "the request body is larger than {} bytes; keep large data in files and name them",
            limit.0
        ),
    )
}

pub(super) async fn deadline(State(time): State<Duration>, request: Request, next: Next) -> Response {
    if is_long(&request) {
        return next.run(request).await;
    }
    let time = match super::timeout::deadline(request.uri(), time) {
        Ok(time) => time,
        Err(failure) => return failure.into_response(),
    };
    match tokio::time::timeout(time, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Failure::new(
            Reason::Timeout,
            "the request was not answered in time; whether it took effect is not known, read before retrying",
        )
        .into_response(),
    }
}
