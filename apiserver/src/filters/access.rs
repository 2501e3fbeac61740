//! Authentication and authorisation.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use panda_api::meta::{Clock, Reason, StatusDetails};

use crate::authn::{Peer, Unknown, User};
use crate::authz::{Authorizer, refusal};
use crate::request::RequestInfo;
use crate::respond::Failure;

pub(super) struct Access {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) authorizer: Arc<dyn Authorizer>,
}

/// Whether everybody may ask this, known or not.
pub(crate) fn health_path(path: &str) -> bool {
    let probe = ["/healthz", "/livez", "/readyz"].iter().any(|probe| {
        path.strip_prefix(probe)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    probe || path == "/version" || path == "/version/"
}

pub(super) async fn authenticate(
    State(access): State<Arc<Access>>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request
        .extensions()
        .get::<Peer>()
        .cloned()
        .unwrap_or(Peer::anonymous());
    match peer.user(access.clock.as_ref()) {
        Ok(user) => {
            tracing::Span::current().record("user", user.name.as_str());
            request.extensions_mut().insert::<User>((*user).clone());
            next.run(request).await
        }
        Err(Unknown::Anonymous) if health_path(request.uri().path()) => next.run(request).await,
        Err(reason) => {
            tracing::debug!(?reason, "request without a user");
            Failure::new(Reason::Unauthorized, "Unauthorized").into_response()
        }
    }
}

pub(super) async fn authorize(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let info = request.extensions().get::<Arc<RequestInfo>>();
    let user = request.extensions().get::<User>();
    let refused = match (user, info) {
        _ if health_path(request.uri().path()) => None,
        (Some(user), Some(info)) if access.authorizer.allows(user, info) => None,
        (Some(user), Some(info)) => Some(forbidden(user, info)),
        _ => Some(Failure::new(Reason::Unauthorized, "Unauthorized")),
    };
    match refused {
        None => next.run(request).await,
        Some(failure) => {
            tracing::info!(message = %failure.status().message, "request refused");
            failure.into_response()
        }
    }
}

fn forbidden(user: &User, info: &RequestInfo) -> Failure {
    let failure = Failure::new(Reason::Forbidden, refusal(user, info));
    let mut status = failure.status().clone();
    status.details = info.target.as_ref().map(|target| StatusDetails {
        name: target.name.clone().unwrap_or_default(),
        group: target.group.clone(),
        kind: target.resource.clone(),
        ..StatusDetails::default()
    });
    status.into()
}
