//! What a request is about, its id, its span, its numbers.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::propagation::Extractor;
use opentelemetry::trace::TraceContextExt;
use panda_api::meta::{IdSource, is_traceparent};
use tracing::Instrument;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::metrics::Metrics;
use crate::request::RequestInfo;

const REQUEST_ID: HeaderName = HeaderName::from_static("audit-id");
const TRACEPARENT: &str = "traceparent";
/// Longest id or trace header that is taken from a client.
const MAX_HEADER: usize = 128;

/// The trace that what the request makes belongs to: as child of its span, or of the client's.
#[derive(Clone, Debug)]
pub(crate) struct Traceparent(pub(crate) String);

/// The id of a request, in its answer and its record.
#[derive(Clone, Debug)]
pub(super) struct RequestId(pub(super) String);

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
    request.extensions_mut().insert(RequestId(id.clone()));
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
    let parent = header(request.headers(), TRACEPARENT).filter(|text| is_traceparent(text));
    if parent.is_some() {
        let context = opentelemetry::global::get_text_map_propagator(|propagator| {
            propagator.extract(&Headers(request.headers()))
        });
        // Without an exporter there is no layer that could take it; the annotation still travels.
        let _ = span.set_parent(context);
    }
    if let Some(trace) = continued(&span).or(parent) {
        request.extensions_mut().insert(Traceparent(trace));
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

/// The span as the parent of what follows from the request. None while no traces are exported.
fn continued(span: &tracing::Span) -> Option<String> {
    let context = span.context();
    let context = context.span().span_context().clone();
    context.is_valid().then(|| {
        format!(
            "00-{}-{}-{:02x}",
            context.trace_id(),
            context.span_id(),
            context.trace_flags()
        )
    })
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
