//! Spans that continue a trace which their field `traceparent` names.

use std::collections::HashMap;
use std::fmt;

use opentelemetry::Context as TraceContext;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::TraceContextExt;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

const TRACEPARENT: &str = "traceparent";

/// Gives such a span its parent when it is entered for the first time. It must come before the layer that makes
/// traces of spans, which begins the span at the same moment.
pub(super) struct Remote;

/// The parent of a span that has not been entered yet.
struct Parent(TraceContext);

impl<S> Layer<S> for Remote
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut found = Found(None);
        attributes.record(&mut found);
        let Some(parent) = found.0.and_then(parse) else {
            return;
        };
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(Parent(parent));
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        let parent = context
            .span(id)
            .and_then(|span| span.extensions_mut().remove::<Parent>());
        if let Some(Parent(parent)) = parent {
            // The registry has entered the span already: it is the current one. One that had children before it was
            // entered has begun, and keeps the parent that it has.
            let _ = Span::current().set_parent(parent);
        }
    }
}

fn parse(traceparent: String) -> Option<TraceContext> {
    let carrier = HashMap::from([(TRACEPARENT.to_owned(), traceparent)]);
    let context = TraceContextPropagator::new().extract_with_context(&TraceContext::new(), &carrier);
    let valid = context.span().span_context().is_valid();
    valid.then_some(context)
}

struct Found(Option<String>);

impl Visit for Found {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == TRACEPARENT {
            self.0 = Some(value.to_owned());
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use opentelemetry::trace::{SpanId, TracerProvider};
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Debug, Default)]
    struct Kept(Arc<Mutex<Vec<SpanData>>>);

    impl SpanExporter for Kept {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.lock().unwrap().extend(batch);
            Ok(())
        }
    }

    /// What becomes of the spans that `work` makes, by name.
    fn exported(work: impl FnOnce()) -> HashMap<String, SpanData> {
        let kept = Kept::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(kept.clone())
            .build();
        let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let subscriber = tracing_subscriber::registry().with(Some(Remote.and_then(spans)));
        tracing::subscriber::with_default(subscriber, work);
        let spans = kept.0.lock().unwrap();
        spans
            .iter()
            .map(|span| (span.name.clone().into_owned(), span.clone()))
            .collect()
    }

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn a_span_with_a_traceparent_continues_that_trace_and_its_children_do() {
        let traceparent = format!("00-{TRACE}-00f067aa0ba902b7-01");
        let spans = exported(|| {
            let _other = tracing::info_span!("other").entered();
            let run = tracing::info_span!("run", traceparent);
            run.in_scope(|| tracing::info_span!("verify").in_scope(|| {}));
            run.in_scope(|| tracing::info_span!("publish").in_scope(|| {}));
        });
        let run = &spans["run"];
        assert_eq!(run.span_context.trace_id().to_string(), TRACE);
        assert_eq!(run.parent_span_id.to_string(), "00f067aa0ba902b7");
        for child in ["verify", "publish"] {
            assert_eq!(spans[child].span_context.trace_id().to_string(), TRACE);
            assert_eq!(spans[child].parent_span_id, run.span_context.span_id());
        }
        assert_ne!(spans["other"].span_context.trace_id().to_string(), TRACE);
    }

    #[test]
    fn a_span_without_a_usable_traceparent_is_left_alone() {
        let spans = exported(|| {
            tracing::info_span!("none", traceparent = None::<&str>).in_scope(|| {});
            tracing::info_span!("bad", traceparent = "nonsense").in_scope(|| {});
        });
        for span in ["none", "bad"] {
            assert_eq!(spans[span].parent_span_id, SpanId::INVALID);
        }
    }
}
