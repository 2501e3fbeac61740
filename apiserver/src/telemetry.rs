//! Logs and traces of a process. Binaries call [`init`] once; libraries only use `tracing`.
//!
//! A span with a field `traceparent` continues the trace that the field names: so that libraries can go on with the
//! trace of an object, or of a request, without depending on OpenTelemetry.
//!
//! Traces are sent beside the work: spans wait in a queue with a bound, and those that find it full are dropped. A
//! collector that is slow or away costs spans and nothing else.

mod remote;

use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// How long the last spans may hold up the end of the process.
const LAST_SPANS: Duration = Duration::from_secs(2);
/// Spans of ours only: those of the libraries that send them would make further ones without end.
const OURS: &str = "panda";

/// How a process reports on itself.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Name of the service in traces.
    pub service: String,
    /// Filter directives, for example `info,panda_apiserver=debug`; empty for `info`.
    pub filter: String,
    /// Log lines as JSON instead of text.
    pub json: bool,
    /// Where traces go (OTLP over gRPC, for example `http://127.0.0.1:4317`); none: nowhere.
    pub otlp_endpoint: Option<String>,
}

/// Why telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter is no filter.
    #[error("invalid log filter {filter:?}")]
    Filter {
        /// The text.
        filter: String,
        /// What is wrong with it.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// The exporter could not be made.
    #[error("cannot send traces to {endpoint}")]
    Exporter {
        /// Where to.
        endpoint: String,
        /// Why not.
        #[source]
        source: opentelemetry_otlp::ExporterBuildError,
    },
    /// It was already set up.
    #[error("telemetry is already set up in this process")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// Sends what is left when it is dropped, for which the runtime must still be at work on another thread.
#[derive(Debug)]
pub struct Guard(Option<SdkTracerProvider>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(provider) = self.0.take()
            && let Err(error) = provider.shutdown_with_timeout(LAST_SPANS)
        {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the last traces were not sent"
            );
        }
    }
}

/// Sets up logs (to standard error) and, with an endpoint, traces. Call it inside a multi-threaded tokio runtime.
///
/// # Errors
/// When a setting is no good, or telemetry is already set up.
pub fn init(settings: &Settings) -> Result<Guard, Error> {
    opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
    let directives = if settings.filter.is_empty() {
        "info"
    } else {
        &settings.filter
    };
    let filter = EnvFilter::try_new(directives).map_err(|source| Error::Filter {
        filter: directives.to_owned(),
        source,
    })?;
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(terminal)
        .with_writer(std::io::stderr);
    let lines = if settings.json {
        lines.json().boxed()
    } else {
        lines.boxed()
    };
    let provider = settings
        .otlp_endpoint
        .as_deref()
        .map(|to| exporter(&settings.service, to))
        .transpose()?;
    let traces = provider.as_ref().map(|provider| {
        let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer(settings.service.clone()));
        // In this order: the parent of a span must be set before the span begins.
        remote::Remote
            .and_then(spans)
            .with_filter(Targets::new().with_target(OURS, LevelFilter::INFO))
    });
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(traces)
        .try_init()
        .map_err(Error::Twice)?;
    Ok(Guard(provider))
}

fn exporter(service: &str, endpoint: &str) -> Result<SdkTracerProvider, Error> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .build()
        .map_err(|source| Error::Exporter {
            endpoint: endpoint.to_owned(),
            source,
        })?;
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(Resource::builder().with_service_name(service.to_owned()).build())
        .build())
}
