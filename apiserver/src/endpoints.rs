//! The REST endpoints, generic over the kinds.
//!
//! One handler takes every request that no other route claims, looks up what it is about, and hands it to the
//! verb. Only `certificates` knows a single kind.

pub(crate) mod certificates;
pub(crate) mod delete;
pub(crate) mod discovery;
pub(crate) mod events;
pub(crate) mod forms;
pub(crate) mod health;
pub(crate) mod openapi;
pub(crate) mod read;
pub(crate) mod reviews;
pub(crate) mod token;
pub(crate) mod watch;
pub(crate) mod write;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use panda_api::meta::Reason;
use panda_api::scheme::KindInfo;
use tokio_util::sync::CancellationToken;

use crate::authn::{AccountTokens, Bearers, User};
use crate::authz::Authorizer;
use crate::certificates::Certificates;
use crate::filters::{BodyLimit, Traceparent, Warnings};
use crate::metrics::{Metrics, SharedRegistry};
use crate::query::Params;
use crate::registry::{self, Kind, Registry};
use crate::request::{RequestInfo, Target, Verb};
use crate::respond::Failure;

/// What the handlers share.
pub(crate) struct Api {
    pub(crate) registry: Registry,
    pub(crate) authorizer: Arc<dyn Authorizer>,
    pub(crate) bearers: Bearers,
    pub(crate) accounts: AccountTokens,
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) process_metrics: SharedRegistry,
    pub(crate) discovery: discovery::Documents,
    pub(crate) openapi: openapi::Documents,
    /// The server stops: watches end.
    pub(crate) stop: CancellationToken,
}

/// A request for an object or a collection, looked up and checked.
pub(crate) struct Call {
    pub(crate) kind: Kind,
    pub(crate) target: Target,
    pub(crate) params: Params,
    pub(crate) parts: Parts,
    pub(crate) warnings: Warnings,
}

impl Call {
    pub(crate) fn name(&self) -> &str {
        self.target.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.target.namespace
    }

    /// Who asks.
    pub(crate) fn user(&self) -> Result<Arc<User>, Failure> {
        let user = self.parts.extensions.get::<User>();
        user.map(|user| Arc::new(user.clone()))
            .ok_or_else(|| Failure::new(Reason::Unauthorized, "Unauthorized"))
    }

    pub(crate) fn body_limit(&self) -> BodyLimit {
        self.parts.extensions.get().copied().unwrap_or(BodyLimit(0))
    }

    pub(crate) fn traceparent(&self) -> Option<String> {
        self.parts
            .extensions
            .get::<Traceparent>()
            .map(|trace| trace.0.clone())
    }
}

/// Every request that no other route claims.
pub(crate) async fn dispatch(State(api): State<Arc<Api>>, request: Request) -> Response {
    match route(&api, request).await {
        Ok(response) => response,
        Err(failure) => failure.into_response(),
    }
}

async fn route(api: &Arc<Api>, request: Request) -> Result<Response, Failure> {
    let info = request
        .extensions()
        .get::<Arc<RequestInfo>>()
        .cloned()
        .ok_or_else(Failure::no_route)?;
    match &info.target {
        None => general(api, &info, &request),
        Some(target) if events::is_meant(target) => events::serve(api, &info, request).await,
        Some(_) => objects(api, &info, request).await,
    }
}

async fn objects(api: &Arc<Api>, info: &RequestInfo, request: Request) -> Result<Response, Failure> {
    let target = info.target.clone().ok_or_else(Failure::no_route)?;
    let (parts, body) = request.into_parts();
    let kind =
        registry::find(&target.group, &target.version, &target.resource).ok_or_else(Failure::no_route)?;
    if !kind.namespaced && !target.namespace.is_empty() {
        return Err(Failure::no_route());
    }
    let params = Params::of(&parts.uri)?;
    let warnings = parts.extensions.get::<Warnings>().cloned().unwrap_or_default();
    let call = Call {
        kind,
        target,
        params,
        parts,
        warnings,
    };
    if reviews::is_review(kind) {
        return match (info.verb, &call.target.name) {
            (Verb::Create, None) if in_its_scope(&call) => reviews::create(api, &call, body).await,
            _ => Err(Failure::no_method()),
        };
    }
    if call.target.name.is_none() {
        return match info.verb {
            Verb::List => read::list(api, &call).await,
            Verb::Watch => watch::watch(api, &call).await,
            Verb::Create if certificates::is_request(kind) => certificates::create(api, &call, body).await,
            // Namespaced objects are made in their namespace, not from above.
            Verb::Create if in_its_scope(&call) => write::create(api, &call, body).await,
            Verb::DeleteCollection if in_its_scope(&call) => delete::collection(api, &call, body).await,
            _ => Err(Failure::no_method()),
        };
    }
    if !in_its_scope(&call) {
        return Err(Failure::no_route());
    }
    let subresource = call.target.subresource.as_deref();
    if token::is_token(&call) {
        return match info.verb {
            Verb::Create => token::create(api, &call, body).await,
            _ => Err(Failure::no_method()),
        };
    }
    if certificates::is_request(kind) && subresource == Some("approval") {
        return match info.verb {
            Verb::Update => certificates::approval(api, &call, body).await,
            Verb::Get => read::get(api, &call).await,
            _ => Err(Failure::no_method()),
        };
    }
    let part = write::part(kind, subresource).ok_or_else(Failure::no_route)?;
    match (info.verb, subresource) {
        (Verb::Get, None | Some("status")) => read::get(api, &call).await,
        (Verb::Watch, None) => watch::watch(api, &call).await,
        (Verb::Update, _) => write::update(api, &call, part, body).await,
        (Verb::Patch, None | Some("status")) => write::patch(api, &call, part, body).await,
        (Verb::Delete, None) => delete::object(api, &call, body).await,
        _ => Err(Failure::no_method()),
    }
}

/// Whether the URL has a namespace exactly if the kind has one.
fn in_its_scope(call: &Call) -> bool {
    call.kind.namespaced != call.target.namespace.is_empty()
}

fn general(api: &Arc<Api>, info: &RequestInfo, request: &Request) -> Result<Response, Failure> {
    let documents = [
        discovery::serve(&api.discovery, request.uri().path(), request.headers()),
        openapi::serve(&api.openapi, request.uri(), request.headers()),
    ];
    match documents.into_iter().flatten().next() {
        Some(_) if info.verb != Verb::Get => Err(Failure::no_method()),
        Some(answer) => answer,
        None => Err(Failure::no_route()),
    }
}

/// The kind of a list of `kind`, with its `apiVersion`.
pub(crate) fn list_head(kind: &KindInfo, metadata: &str) -> String {
    format!(
        "{{\"kind\":\"{}\",\"apiVersion\":\"{}\",\"metadata\":{metadata},\"items\":[",
        kind.list_kind(),
        kind.api_version()
    )
}
