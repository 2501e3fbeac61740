//! POST `serviceaccounts/NAME/token`: a token of an account.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use panda_api::access::{TokenRequest, TokenRequestStatus};
use panda_api::meta::Time;
use panda_api::{Resource, ServiceAccount};

use crate::authn::AUDIENCE;
use crate::endpoints::{Api, Call, reviews};
use crate::query::invalid;
use crate::registry::Error;
use crate::respond::{Failure, json};

/// Shortest life of a token, as upstream.
const SHORTEST: i64 = 600;
/// Longest life that may be asked for, as upstream.
const LONGEST: i64 = 1 << 32;
/// Longest life that is given; the answer says so.
const GIVEN: i64 = 365 * 24 * 3600;
const DEFAULT: i64 = 3600;
const MAX_AUDIENCES: usize = 16;

pub(crate) fn is_token(call: &Call) -> bool {
    call.kind.kind == ServiceAccount::KIND
        && call.kind.group.is_empty()
        && call.target.subresource.as_deref() == Some("token")
}

fn fault(field: &str, reason: &str, text: &str) -> Failure {
    invalid("TokenRequest", field, reason, text)
}

pub(crate) async fn create(api: &Arc<Api>, call: &Call, body: Body) -> Result<Response, Failure> {
    let mut request: TokenRequest = reviews::decode(call, body).await?;
    let seconds = request.spec.expiration_seconds.unwrap_or(DEFAULT);
    if seconds < SHORTEST {
        return Err(fault(
            "spec.expirationSeconds",
            "FieldValueInvalid",
            "Invalid value: may not specify a duration less than 10 minutes",
        ));
    }
    if seconds > LONGEST {
        return Err(fault(
            "spec.expirationSeconds",
            "FieldValueInvalid",
            "Invalid value: may not specify a duration larger than 2^32 seconds",
        ));
    }
    if request.spec.bound_object_ref.is_some() {
        return Err(fault(
            "spec.boundObjectRef",
            "FieldValueForbidden",
            "Forbidden: not implemented yet; a token ends with its account",
        ));
    }
    let audiences = &request.spec.audiences;
    if audiences.len() > MAX_AUDIENCES || audiences.iter().any(|a| a.is_empty() || a.len() > 253) {
        return Err(fault(
            "spec.audiences",
            "FieldValueInvalid",
            "Invalid value: want at most 16 audiences of 1 to 253 bytes",
        ));
    }
    let account = api
        .registry
        .get_as::<ServiceAccount>(call.namespace(), call.name())
        .await?
        .ok_or_else(|| Error::not_found(call.kind, call.name()))?;
    let seconds = seconds.min(GIVEN);
    let lifetime = Duration::from_secs(seconds.unsigned_abs());
    if request.spec.audiences.is_empty() {
        request.spec.audiences = vec![AUDIENCE.to_owned()];
    }
    if !call.params.dry_run()? {
        let (token, ends) = api
            .accounts
            .mint(&account, lifetime, request.spec.audiences.clone());
        request.status = TokenRequestStatus {
            token,
            expiration_timestamp: Some(Time(ends)),
        };
    }
    request.spec.expiration_seconds = Some(seconds);
    request.metadata.name.clone_from(&account.metadata.name);
    request.metadata.namespace.clone_from(&account.metadata.namespace);
    Ok(json(StatusCode::CREATED, &request))
}
