//! Requests for certificates, their approval, and join tokens.

use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::{StatusCode, Uri};
use panda_api::CertificateSigningRequest;
use serde::de::DeserializeOwned;

use crate::authn::User;
use crate::body;
use crate::endpoints::read::printer;
use crate::endpoints::{Api, Call};
use crate::negotiate::encoding;
use crate::query::Params;
use crate::registry::Kind;
use crate::respond::Failure;

/// Where join tokens are made and listed. They are no objects, so they have routes of their own.
pub(crate) const JOIN_TOKENS: &str = "/apis/panda.dev/v1alpha1/jointokens";
/// One of them.
pub(crate) const JOIN_TOKEN: &str = "/apis/panda.dev/v1alpha1/jointokens/{id}";

/// Whether a kind is that of requests for certificates.
pub(crate) fn is_request(kind: Kind) -> bool {
    kind.group == "certificates.k8s.io" && kind.kind == "CertificateSigningRequest"
}

/// What is made here is known to its maker alone, so there is nothing to show of a trial.
fn for_real(params: &Params) -> Result<(), Failure> {
    if params.dry_run()? {
        return Err(Failure::bad_request(
            "a request for a certificate or a token cannot be tried out: dryRun is not served here",
        ));
    }
    Ok(())
}

async fn read<T: DeserializeOwned>(call: &Call, body: Body) -> Result<T, Failure> {
    for_real(&call.params)?;
    let encoding = encoding(&call.parts.headers)?;
    let bytes = body::read(body, call.body_limit()).await?;
    let decoded = body::decode(&bytes, encoding, call.params.field_validation()?)?;
    serde_json::from_value(decoded.value)
        .map_err(|error| Failure::bad_request(format!("the body is no CertificateSigningRequest: {error}")))
}

fn answer(
    api: &Api,
    call: &Call,
    code: StatusCode,
    request: &CertificateSigningRequest,
) -> Result<Response, Failure> {
    let json = serde_json::to_vec(request).expect("our types serialise");
    printer(api, call)?.answer(code, &Bytes::from(json))
}

pub(crate) async fn create(api: &Arc<Api>, call: &Call, body: Body) -> Result<Response, Failure> {
    let asked: CertificateSigningRequest = read(call, body).await?;
    let user = call.parts.extensions.get::<User>().cloned().unwrap_or_default();
    let made = api.certificates.request(&user, &asked).await?;
    answer(api, call, StatusCode::CREATED, &made)
}

/// PUT `certificatesigningrequests/NAME/approval`, as `kubectl certificate approve` does.
pub(crate) async fn approval(api: &Arc<Api>, call: &Call, body: Body) -> Result<Response, Failure> {
    let wanted: CertificateSigningRequest = read(call, body).await?;
    let decided = api.certificates.decide(call.name(), &wanted).await?;
    answer(api, call, StatusCode::OK, &decided)
}

/// POST [`JOIN_TOKENS`].
pub(crate) async fn make_token(
    State(api): State<Arc<Api>>,
    uri: Uri,
    body: Bytes,
) -> Result<Response, Failure> {
    for_real(&Params::of(&uri)?)?;
    let wanted = if body.is_empty() {
        crate::certificates::TokenRequest::default()
    } else {
        serde_json::from_slice(&body).map_err(|error| {
            Failure::bad_request(format!(
                "want {{\"deviceName\": \"...\", \"ttlSeconds\": 3600}}: {error}"
            ))
        })?
    };
    let made = api.certificates.make_token(wanted).await?;
    Ok((StatusCode::CREATED, Json(made)).into_response())
}

/// GET [`JOIN_TOKENS`].
pub(crate) async fn list_tokens(State(api): State<Arc<Api>>) -> Result<Response, Failure> {
    Ok(Json(api.certificates.tokens().await?).into_response())
}

/// DELETE [`JOIN_TOKEN`].
pub(crate) async fn revoke_token(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, Failure> {
    for_real(&Params::of(&uri)?)?;
    Ok(Json(api.certificates.revoke(&id).await?).into_response())
}
