//! The chain that every request goes through, outermost first.

mod access;
mod audit;
mod fair;
mod impersonate;
mod limits;
mod panic;
mod timeout;
mod trace;
mod warnings;

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use panda_api::meta::{Clock, IdSource};

use crate::audit::Audit;
use crate::authn::Bearers;
use crate::authz::Authorizer;
use crate::config::Limits;
use crate::metrics::Metrics;
use crate::pressure::{self, Pressure};
use crate::registry::Registry;

pub(crate) use access::health_path;
pub(crate) use limits::{BodyLimit, too_large};
pub(crate) use trace::Traceparent;
pub(crate) use warnings::Warnings;

/// What the filters need.
pub(crate) struct Filters {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: Arc<dyn IdSource>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) audit: Audit,
    pub(crate) authorizer: Arc<dyn Authorizer>,
    pub(crate) bearers: Bearers,
    pub(crate) registry: Registry,
    pub(crate) limits: Limits,
    pub(crate) pressure: Arc<Pressure>,
}

impl Filters {
    /// Puts the chain around the routes.
    pub(crate) fn around(self, routes: Router) -> Router {
        let flow = Arc::new(fair::Flow::new(&self.limits, Arc::clone(&self.metrics)));
        let slots = Arc::new(limits::Slots::new(&self.limits, Arc::clone(&self.metrics)));
        let auditing = Arc::new(audit::Auditing {
            audit: self.audit,
            clock: Arc::clone(&self.clock),
            strangers: std::sync::Mutex::default(),
        });
        let access = Arc::new(access::Access {
            clock: self.clock,
            authorizer: self.authorizer,
            bearers: self.bearers,
            registry: self.registry,
        });
        let trace = Arc::new(trace::Trace {
            ids: self.ids,
            metrics: self.metrics,
        });
        let body = BodyLimit(self.limits.body_bytes);
        let deadline = self.limits.request_timeout.get();
        // `layer` wraps what is there, so the list reads from the inside out: the last line sees a request first.
        routes
            // what handlers want to say beside their answer, as Warning headers
            .layer(axum::middleware::from_fn(warnings::collect))
            // room on the disk for what is new? else 503
            .layer(from_fn_with_state(self.pressure, pressure::refuse))
            // may this user do this? else 403
            .layer(from_fn_with_state(Arc::clone(&access), access::authorize))
            // a seat among its client's others, perhaps after a wait: 429 with Retry-After
            .layer(from_fn_with_state(flow, fair::seat))
            // who is it? else 401, but for health and version
            .layer(from_fn_with_state(access, access::authenticate))
            // a deadline, but for watches and logs: 504
            .layer(from_fn_with_state(deadline, limits::deadline))
            // its record: every write, every refused read; no write without one: 503
            .layer(from_fn_with_state(auditing, audit::record))
            // bounded requests in flight, long ones counted apart: 429 with Retry-After
            .layer(from_fn_with_state(slots, limits::in_flight))
            // bounded bodies: 413
            .layer(from_fn_with_state(body, limits::body))
            // a panic is one request's 500, not the process's end
            .layer(axum::middleware::from_fn(panic::catch))
            // the request's id, its span (child of `traceparent`), its line in the metrics
            .layer(from_fn_with_state(trace, trace::observe))
            // what the request is about, for all of the above
            .layer(axum::middleware::from_fn(trace::describe))
    }
}
