//! Certificates of devices: join tokens, requests, and the signer.
//!
//! 1. A request and all that it changes commit in one transaction: the token is used up, the Device made, the certificate
//!    signed. There is no moment in which a token is gone and nothing has come of it.
//! 2. Of a request nothing is taken but its public key and the name that it is for; the signature by its own key is the
//!    proof that its sender holds the private one.
//! 3. The same request again, by the same right, gets the same answer: a lost reply costs nothing.
//! 4. A name belongs to the key that joined under it until the Device is removed.
//!
//! | who asks | by what right | answer |
//! |---|---|---|
//! | a joiner | a join token, once | a new Device and its certificate |
//! | a device | its certificate | another one for the same key |
//! | a device whose certificate has expired | its recorded key | waits for a person |

mod csr;
mod renewal;
mod requests;
mod token;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use panda_api::certificates::{APPROVED, DENIED, RequestCondition};
use panda_api::meta::{Clock, Condition, IdSource, Reason, Time, set_condition};
use panda_api::validation::is_dns_label;
use panda_api::{CertificateSigningRequest, Device};
use panda_store::{ListRequest, Op, Scope, Store};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::agentlet::objects::{self, Objects, Stored};
use crate::pki::Pki;
use crate::registry;
use crate::respond::Failure;

pub(crate) use renewal::Renewals;
pub(crate) use token::JoinTokens;

/// How long a join token is good when nothing is said.
const TOKEN_TTL: u64 = 3600;
/// Longest life of a join token.
const MAX_TOKEN_TTL: u64 = 7 * 24 * 3600;
/// How often what is over is looked for.
const PERIOD: Duration = Duration::from_secs(300);
/// How long a request is kept for people to see after it was made; one that waits for a person is kept longer.
const KEPT: i64 = 24 * 3600;
/// How long a request may wait for a person: the device asks again.
const WAITS: i64 = 30 * 24 * 3600;
/// The Device's condition about its certificate.
pub(crate) const EXPIRING: &str = "CertificateExpiring";

/// Makes join tokens, takes requests, signs.
pub(crate) struct Certificates {
    objects: Objects,
    pki: Arc<Pki>,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
    /// How long a device's certificate is good.
    life: Duration,
}

/// Body of a POST to `jointokens`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct TokenRequest {
    /// The only device name that it is to be good for.
    device_name: Option<String>,
    /// How long it is to be good.
    ttl_seconds: Option<u64>,
}

/// Answer to a POST to `jointokens`: the only time that the token is shown.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TokenAnswer {
    kind: &'static str,
    api_version: &'static str,
    /// The token.
    pub(crate) token: String,
    /// When it ends.
    expires: Time,
    /// For `--ca-cert-hash`.
    ca_cert_hash: String,
}

fn unavailable(error: objects::Error) -> registry::Error {
    match error {
        objects::Error::Store(error) => error.into(),
        objects::Error::Decode { key, source } => registry::Error::Damaged {
            key: key.to_string(),
            detail: source.to_string(),
        },
    }
}

fn failed(error: objects::Error) -> Failure {
    unavailable(error).into()
}

/// Whether a request is by the key that the device joined with.
fn holds(device: &Device, request: &csr::Parsed) -> bool {
    !device.status.key_fingerprint.is_empty()
        && device.status.key_fingerprint == request.fingerprint()
        && device.metadata.deletion_timestamp.is_none()
}

impl Certificates {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        pki: Arc<Pki>,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn IdSource>,
        life: Duration,
    ) -> Self {
        Self {
            objects: Objects::new(store),
            pki,
            clock,
            ids,
            life,
        }
    }

    fn now(&self) -> Time {
        self.clock.now().into()
    }

    async fn device(&self, name: &str) -> Result<Option<Stored<Device>>, objects::Error> {
        self.objects.get("", name).await
    }

    /// Makes a join token.
    pub(crate) async fn make_token(&self, wanted: TokenRequest) -> Result<TokenAnswer, Failure> {
        let ttl = wanted.ttl_seconds.unwrap_or(TOKEN_TTL);
        if !(1..=MAX_TOKEN_TTL).contains(&ttl) {
            let text = format!("ttlSeconds: want 1 to {MAX_TOKEN_TTL}, found {ttl}");
            return Err(Failure::new(Reason::Invalid, text));
        }
        let device = wanted.device_name.unwrap_or_default();
        if !device.is_empty() && !is_dns_label(&device) {
            let text =
                "deviceName: want at most 63 lower-case letters, digits and dashes, with no dash at its ends";
            return Err(Failure::new(Reason::Invalid, text));
        }
        let expires = Time(self.clock.now() + Duration::from_secs(ttl));
        let fresh = self.fresh_token(&device, expires);
        self.objects
            .commit(vec![fresh.stored.write()])
            .await
            .map_err(failed)?;
        Ok(TokenAnswer {
            kind: "JoinToken",
            api_version: token::API_VERSION,
            token: fresh.token,
            expires,
            ca_cert_hash: self.pki.ca_hash(),
        })
    }

    /// Signs `request` for a device: what changes on request and device, to be committed by the caller.
    fn sign(
        &self,
        request: &mut CertificateSigningRequest,
        parsed: &csr::Parsed,
        device: &mut Device,
        reason: &str,
        message: String,
    ) -> Result<(), Failure> {
        let (name, uid) = (&device.metadata.name, &device.metadata.uid);
        let issued = self.pki.device(name, uid, &parsed.public_key, self.life);
        let issued = issued.map_err(|error| {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "a certificate was not signed"
            );
            Failure::new(
                Reason::InternalError,
                "the certificate cannot be signed; the server's log says why",
            )
        })?;
        tracing::info!(device = %name, %uid, until = %issued.not_after.0, reason, "certificate signed");
        self.set(request, APPROVED, reason, message);
        request.status.certificate = STANDARD.encode(issued.certificate_pem);
        device.status.key_fingerprint = parsed.fingerprint();
        device.status.certificate_expires = Some(issued.not_after);
        let text = format!("the certificate is good until {}", issued.not_after.0);
        self.expiring(device, false, "Renewed", text);
        Ok(())
    }

    fn set(&self, request: &mut CertificateSigningRequest, type_: &str, reason: &str, message: String) {
        let now = Some(self.now());
        request
            .status
            .conditions
            .retain(|condition| condition.type_ != type_);
        request.status.conditions.push(RequestCondition {
            type_: type_.to_owned(),
            status: "True".to_owned(),
            reason: reason.to_owned(),
            message,
            last_update_time: now,
            last_transition_time: now,
        });
    }

    fn expiring(&self, device: &mut Device, is: bool, reason: &str, message: String) {
        let condition = Condition {
            type_: EXPIRING.to_owned(),
            status: if is { "True" } else { "False" }.to_owned(),
            observed_generation: Some(device.metadata.generation),
            last_transition_time: self.now(),
            reason: reason.to_owned(),
            message,
        };
        set_condition(&mut device.status.conditions, condition);
    }

    /// Removes what is over until `stop`.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        loop {
            if let Err(error) = self.sweep().await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "old tokens and certificate requests are not removed"
                );
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
    }

    async fn sweep(&self) -> Result<(), objects::Error> {
        let now = self.clock.now().as_second();
        let scopes = [
            token::TOKENS.to_owned(),
            objects::resource::<CertificateSigningRequest>(),
        ];
        for scope in scopes {
            let request = ListRequest {
                scope: Scope::resource(scope),
                ..ListRequest::default()
            };
            let page = self.objects.store().list(request).await?;
            for entry in page.items {
                // A used token is kept as long as its request: its holder may ask for the answer again.
                let over = if &*entry.key.resource == token::TOKENS {
                    serde_json::from_slice::<token::TokenRecord>(&entry.value)
                        .is_ok_and(|record| record.expires.0.as_second() + KEPT < now)
                } else {
                    objects::decode::<CertificateSigningRequest>(&entry).is_ok_and(|request| {
                        let made = request
                            .metadata
                            .creation_timestamp
                            .map_or(now, |time| time.0.as_second());
                        let decided = [APPROVED, DENIED]
                            .iter()
                            .any(|type_| request.status.condition(type_).is_some());
                        made + if decided { KEPT } else { WAITS } < now
                    })
                };
                if over {
                    let op = Op::delete(entry.key.clone(), entry.revision, None);
                    match self.objects.commit(vec![op]).await {
                        Ok(_) => {}
                        Err(error) if error.is_conflict() => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        Ok(())
    }
}
