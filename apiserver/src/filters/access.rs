//! Authentication and authorisation.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use panda_api::meta::{Clock, Reason, StatusDetails};
use panda_api::{Device, scheme};

use super::audit::AskingCell;
use super::impersonate;
use crate::audit::event::Asking;
use crate::authn::{Bearers, Peer, Principal, Unknown, User};
use crate::authz::{Attributes, Authorizer, Decision, refusal};
use crate::listener::Vouch;
use crate::registry::{Error, Registry, meta};
use crate::request::RequestInfo;
use crate::respond::Failure;

pub(super) struct Access {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) authorizer: Arc<dyn Authorizer>,
    pub(super) bearers: Bearers,
    pub(super) registry: Registry,
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
    let mut found = peer.user(access.clock.as_ref());
    if found == Err(Unknown::Anonymous) {
        found = match access.bearers.user(request.headers()).await {
            Ok(found) => found,
            Err(error) => return Failure::from(error).into_response(),
        };
        vouch(&request, &found);
    }
    let user = match found {
        Ok(user) => user,
        Err(Unknown::Anonymous) if health_path(request.uri().path()) => return next.run(request).await,
        Err(reason) => {
            tracing::debug!(?reason, "request without a user");
            let failure = Failure::new(Reason::Unauthorized, "Unauthorized");
            if is_grpc(&request) {
                return refuse_grpc(failure.status());
            }
            return failure.into_response();
        }
    };
    let acting = impersonate::acting(&user, request.headers(), access.authorizer.as_ref());
    if let Some(cell) = request.extensions().get::<AskingCell>() {
        let asking = Asking {
            user: Some((*user).clone()),
            acting: acting.as_ref().ok().cloned().flatten(),
        };
        // Nobody else sets it.
        let _: Result<(), _> = cell.0.set(asking);
    }
    let user = match acting {
        Ok(None) => (*user).clone(),
        Ok(Some(other)) => {
            tracing::info!(user = %user.name, as_user = %other.name, "request for another user");
            other
        }
        Err(failure) => return failure.into_response(),
    };
    tracing::Span::current().record("user", user.name.as_str());
    request.extensions_mut().insert::<User>(user);
    next.run(request).await
}

/// The connection of an account has the place of a known client from its first request on. Runs and holders of join tokens
/// are known, too, but are not trusted with places that others need.
fn vouch(request: &Request, found: &Result<Arc<User>, Unknown>) {
    let account = matches!(found, Ok(user) if matches!(user.principal, Principal::ServiceAccount { .. }));
    if let (true, Some(vouch)) = (account, request.extensions().get::<Vouch>()) {
        vouch.is_known();
    }
}

pub(super) async fn authorize(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let info = request.extensions().get::<Arc<RequestInfo>>();
    let user = request.extensions().get::<User>();
    let refused = match (user, info) {
        _ if health_path(request.uri().path()) => None,
        (Some(user), Some(info)) => decide(&access, user, info).await.err(),
        _ => Some(Failure::new(Reason::Unauthorized, "Unauthorized")),
    };
    match refused {
        None => next.run(request).await,
        Some(failure) => {
            tracing::info!(message = %failure.status().message, "request refused");
            if is_grpc(&request) {
                return refuse_grpc(failure.status());
            }
            failure.into_response()
        }
    }
}

fn is_grpc(request: &Request) -> bool {
    let kind = request.headers().get(http::header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// A refusal as a device understands it: with an answer of plain HTTP its stream only breaks.
fn refuse_grpc(status: &panda_api::meta::Status) -> Response {
    let code = match status.code {
        401 => tonic::Code::Unauthenticated,
        403 => tonic::Code::PermissionDenied,
        _ => tonic::Code::Unavailable,
    };
    tonic::Status::new(code, status.message.clone()).into_http()
}

async fn decide(access: &Access, user: &User, info: &RequestInfo) -> Result<(), Failure> {
    if !still_registered(&access.registry, user).await? {
        return Err(Failure::new(
            Reason::Forbidden,
            "this device was removed; join it again",
        ));
    }
    let attributes = Attributes::from(info);
    match access.authorizer.decide(user, &attributes) {
        Decision::Allow => Ok(()),
        Decision::NoOpinion => Err(forbidden(user, &attributes, "")),
        Decision::Deny(why) => Err(forbidden(user, &attributes, why)),
    }
}

/// Whether a device is still the one that its certificate was made for; of others nothing is asked.
async fn still_registered(registry: &Registry, user: &User) -> Result<bool, Error> {
    let Some(device) = user.device() else {
        return Ok(true);
    };
    match registry.get(scheme::of::<Device>(), "", &device.name).await {
        Ok(object) => Ok(meta::text(&object.value()?, "uid") == device.uid),
        Err(Error::NotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn forbidden(user: &User, attributes: &Attributes<'_>, why: &str) -> Failure {
    let failure = Failure::new(Reason::Forbidden, refusal(user, attributes, why));
    let mut status = failure.status().clone();
    status.details = (!attributes.resource.is_empty()).then(|| StatusDetails {
        name: attributes.name.to_owned(),
        group: attributes.group.to_owned(),
        kind: attributes.resource.to_owned(),
        ..StatusDetails::default()
    });
    status.into()
}
