//! What a request is about, its id, its span, its numbers.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::propagation::Extractor;
use panda_api::meta::IdSource;
use tracing::Instrument;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::metrics::Metrics;
use crate::request::RequestInfo;

const REQUEST_ID: HeaderName = HeaderName::from_static("audit-id");
const TRACEPARENT: &str = "traceparent";
/// Longest id or trace header that is taken from a client.
const MAX_HEADER: usize = 128;

/// The trace that the client wants continued.
#[derive(Clone, Debug)]
pub(crate) struct Traceparent(pub(crate) String);

pub(super) struct Trace {
    pub(super) ids: Arc<dyn IdSource>,
    pub(super) metrics: Arc<Metrics>,
}

pub(super) async fn describe(mut request: Request, next: Next) -> Response {
    let kind = request.headers().get(http::header::CONTENT_TYPE);
    let grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    let mut info = RequestInfo::new(request.method(), request.uri(), grpc);
    info.metadata_only = metadata_only(request.headers());
    request.extensions_mut().insert(Arc::new(info));
    next.run(request).await
}

/// Whether every form that the client accepts holds metadata only.
fn metadata_only(headers: &HeaderMap) -> bool {
    let mut forms = headers
        .get_all(http::header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .peekable();
    forms.peek().is_some() && forms.all(|form| form.contains("as=PartialObjectMetadata"))
}

pub(super) async fn observe(State(trace): State<Arc<Trace>>, mut request: Request, next: Next) -> Response {
    let Some(info) = request.extensions().get::<Arc<RequestInfo>>().cloned() else {
        return next.run(request).await;
    };
    let id = header(request.headers(), REQUEST_ID.as_str())
        .filter(|id| {
            id.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        })
        .unwrap_or_else(|| trace.ids.uuid().to_string());
    let (resource, namespace, name) = match &info.target {
        Some(target) => (
            target.resource.as_str(),
            target.namespace.as_str(),
            target.name.as_deref().unwrap_or_default(),
        ),
        None => ("", "", ""),
    };
    let span = tracing::info_span!(
        "request",
        verb = info.verb.as_str(),
        resource,
        namespace,
        name,
        path = info.path,
        request_id = id,
        user = tracing::field::Empty,
        code = tracing::field::Empty,
    );
    if let Some(parent) = header(request.headers(), TRACEPARENT).filter(|text| is_traceparent(text)) {
        let context = opentelemetry::global::get_text_map_propagator(|propagator| {
            propagator.extract(&Headers(request.headers()))
        });
        // Without an exporter there is no layer that could take it; the annotation still travels.
        let _ = span.set_parent(context);
        request.extensions_mut().insert(Traceparent(parent));
    }
    let began = Instant::now();
    let mut response = next.run(request).instrument(span.clone()).await;
    let code = response.status().as_u16();
    span.record("code", code);
    let label = metric_label(&info);
    trace.metrics.answered(info.verb.as_str(), label, code);
    if !info.long {
        trace
            .metrics
            .took(info.verb.as_str(), label, began.elapsed().as_secs_f64());
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// Only resources that exist make a label: a client must not be able to make new ones without end.
fn metric_label(info: &RequestInfo) -> &str {
    match &info.target {
        Some(target) if crate::registry::find(&target.group, &target.version, &target.resource).is_some() => {
            &target.resource
        }
        _ => "",
    }
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    let text = headers.get(name)?.to_str().ok()?;
    (!text.is_empty() && text.len() <= MAX_HEADER).then(|| text.to_owned())
}

/// `version-trace-parent-flags` in hexadecimal, as W3C Trace Context writes it.
fn is_traceparent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let lengths = [2, 32, 16, 2];
    parts.len() == lengths.len()
        && parts.iter().zip(lengths).all(|(part, length)| {
            part.len() == length
                && part
                    .bytes()
                    .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        })
        && parts[1].bytes().any(|byte| byte != b'0')
        && parts[2].bytes().any(|byte| byte != b'0')
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(|value| value.to_str().ok())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_well_formed_trace_headers_are_continued() {
        assert!(is_traceparent(
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        ));
        for bad in [
            "",
            "00-0-0-0",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4BF9-x-01",
        ] {
            assert!(!is_traceparent(bad), "{bad}");
        }
    }
}
