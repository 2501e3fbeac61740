//! Logs and traces of a process. Binaries call [`init`] once; libraries only use `tracing`.

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

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

/// Sends what is left when it is dropped.
#[derive(Debug)]
pub struct Guard(Option<SdkTracerProvider>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(provider) = self.0.take()
            && let Err(error) = provider.shutdown()
        {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the last traces were not sent"
            );
        }
    }
}

/// Sets up logs (to standard error) and, with an endpoint, traces. Call it inside a tokio runtime.
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
        tracing_opentelemetry::layer().with_tracer(provider.tracer(settings.service.clone()))
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
