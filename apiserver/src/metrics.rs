//! What the server counts.

use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// The registry of a process: components add to it when they are built, `/metrics` prints it.
pub type SharedRegistry = Arc<Mutex<Registry>>;

/// Upper bounds of the duration buckets, in seconds.
const BUCKETS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    verb: &'static str,
    resource: String,
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Timed {
    verb: &'static str,
    resource: String,
}

/// The server's own metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    requests: Family<Request, Counter>,
    durations: Family<Timed, Histogram, fn() -> Histogram>,
    in_flight: Gauge,
    watchers: Gauge,
    connections: Gauge,
    refused: Counter,
    dropped: Counter,
}

fn buckets() -> Histogram {
    Histogram::new(BUCKETS)
}

impl Metrics {
    /// Adds the metrics to the process's registry.
    pub(crate) fn new(registry: &SharedRegistry) -> Arc<Self> {
        let metrics = Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(buckets as fn() -> Histogram),
            in_flight: Gauge::<i64, AtomicI64>::default(),
            watchers: Gauge::<i64, AtomicI64>::default(),
            connections: Gauge::<i64, AtomicI64>::default(),
            refused: Counter::default(),
            dropped: Counter::default(),
        };
        let mut registry = registry.lock().unwrap_or_else(PoisonError::into_inner);
        let registry = registry.sub_registry_with_prefix("panda_apiserver");
        registry.register("requests", "Requests answered", metrics.requests.clone());
        registry.register(
            "request_duration_seconds",
            "Time until the answer began, watches left out",
            metrics.durations.clone(),
        );
        registry.register(
            "requests_in_flight",
            "Requests being answered",
            metrics.in_flight.clone(),
        );
        registry.register("watchers", "Open watches", metrics.watchers.clone());
        registry.register("connections", "Open connections", metrics.connections.clone());
        registry.register(
            "connections_refused",
            "Connections over a bound",
            metrics.refused.clone(),
        );
        registry.register(
            "requests_dropped",
            "Requests answered with 429",
            metrics.dropped.clone(),
        );
        Arc::new(metrics)
    }

    pub(crate) fn answered(&self, verb: &'static str, resource: &str, code: u16) {
        self.requests
            .get_or_create(&Request {
                verb,
                resource: resource.to_owned(),
                code,
            })
            .inc();
    }

    pub(crate) fn took(&self, verb: &'static str, resource: &str, seconds: f64) {
        self.durations
            .get_or_create(&Timed {
                verb,
                resource: resource.to_owned(),
            })
            .observe(seconds);
    }

    pub(crate) fn refused_connection(&self) {
        self.refused.inc();
    }

    pub(crate) fn dropped_request(&self) {
        self.dropped.inc();
    }

    pub(crate) fn connection(&self) -> Held {
        Held::new(&self.connections)
    }

    pub(crate) fn request(&self) -> Held {
        Held::new(&self.in_flight)
    }

    pub(crate) fn watcher(&self) -> Held {
        Held::new(&self.watchers)
    }
}

/// One more in a gauge, until it is dropped.
#[derive(Debug)]
pub(crate) struct Held(Gauge);

impl Held {
    fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The text that `/metrics` answers.
pub(crate) fn text(registry: &SharedRegistry) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    let registry = registry.lock().unwrap_or_else(PoisonError::into_inner);
    prometheus_client::encoding::text::encode(&mut out, &registry)?;
    Ok(out)
}
