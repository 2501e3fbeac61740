//! What becomes of a request, by who asks.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use panda_api::certificates::{
    APPROVED, CertificateSigningRequestSpec, DENIED, DEVICE_SIGNER, DEVICE_USAGES,
};
use panda_api::meta::{ObjectMeta, Reason};
use panda_api::{CertificateSigningRequest, Device};

use super::renewal::EXPIRED;
use super::token::{TokenRecord, key};
use super::{Certificates, csr, failed, holds};
use crate::agentlet::objects::{self, Stored};
use crate::authn::{self, Principal, User};
use crate::respond::Failure;

/// How often a lost race is run again.
const ATTEMPTS: usize = 8;
/// How to make room for another key under a name.
const REMOVE: &str = "run `pandactl device remove` for it first, or join under another name (--name)";

/// What one try came to.
enum Step {
    Done(Box<CertificateSigningRequest>),
    /// Somebody else was faster.
    Again,
}

fn forbidden(text: impl Into<String>) -> Failure {
    Failure::new(Reason::Forbidden, text)
}

fn done(request: CertificateSigningRequest) -> Step {
    Step::Done(Box::new(request))
}

/// Reads the request inside of the object.
fn parse(asked: &CertificateSigningRequest) -> Result<csr::Parsed, Failure> {
    let invalid = |text: String| Failure::new(Reason::Invalid, text);
    if asked.spec.signer_name != DEVICE_SIGNER {
        return Err(invalid(format!(
            "spec.signerName: the only signer is {DEVICE_SIGNER}"
        )));
    }
    if asked.spec.request.len() > csr::MAX_DER * 2 {
        return Err(invalid("spec.request: too long for a certificate request".into()));
    }
    let pem = STANDARD
        .decode(&asked.spec.request)
        .map_err(|_| invalid("spec.request: want base64 of PEM".into()))?;
    csr::parse_pem(&pem).map_err(|error| invalid(format!("spec.request: {error}")))
}

impl Certificates {
    /// Takes a request for a certificate.
    pub(crate) async fn request(
        &self,
        user: &User,
        asked: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, Failure> {
        let parsed = parse(asked)?;
        for _ in 0..ATTEMPTS {
            let step = match &user.principal {
                Principal::Join { token, .. } => match token.strip_prefix(EXPIRED) {
                    Some(uid) => self.expired(user, uid, asked, &parsed).await?,
                    None => self.join(user, token, asked, &parsed).await?,
                },
                Principal::Device(device) => self.renew(user, device, asked, &parsed).await?,
                _ => {
                    return Err(forbidden(
                        "only a device asks for its certificate: with a join token, or with the key it joined with",
                    ));
                }
            };
            if let Step::Done(request) = step {
                return Ok(*request);
            }
        }
        Err(Failure::new(
            Reason::ServiceUnavailable,
            "too many changes at a time; try again",
        ))
    }

    async fn commit(
        &self,
        ops: Vec<panda_store::Op>,
        request: CertificateSigningRequest,
    ) -> Result<Step, Failure> {
        match self.objects.commit(ops).await {
            Ok(_) => Ok(done(request)),
            Err(error) if error.is_conflict() => Ok(Step::Again),
            Err(error) => Err(failed(error)),
        }
    }

    async fn join(
        &self,
        user: &User,
        token: &str,
        asked: &CertificateSigningRequest,
        parsed: &csr::Parsed,
    ) -> Result<Step, Failure> {
        let stored = self
            .objects
            .internal::<TokenRecord>(key(token))
            .await
            .map_err(failed)?;
        let mut stored = stored.ok_or_else(|| {
            forbidden(
                "the join token was revoked or is long over; get another with `pandactl device join-token`",
            )
        })?;
        let record = &mut stored.object;
        if !record.used_by.is_empty() {
            let earlier = self
                .objects
                .get::<CertificateSigningRequest>("", &record.used_by)
                .await;
            return match earlier.map_err(failed)? {
                // The answer was lost on its way.
                Some(earlier) if record.key == parsed.fingerprint() => Ok(done(earlier.object)),
                _ => Err(forbidden(
                    "the join token was used already; get another with `pandactl device join-token`",
                )),
            };
        }
        if record.expires <= self.now() {
            return Err(forbidden(format!(
                "the join token ended at {}; get another with `pandactl device join-token`",
                record.expires.0
            )));
        }
        if !record.device.is_empty() && record.device != parsed.name {
            return Err(forbidden(format!(
                "the join token is for device {:?} only, not for {:?}: join with --name {}",
                record.device, parsed.name, record.device
            )));
        }
        let mut device = match self.device(&parsed.name).await.map_err(failed)? {
            Some(device) if holds(&device.object, parsed) => device,
            Some(_) => {
                let text = format!("device {:?} exists with another key: {REMOVE}", parsed.name);
                return Err(Failure::new(Reason::Conflict, text));
            }
            None => objects::new(self.new_device(&parsed.name)),
        };
        let mut request = self.new_request(format!("join-{token}"), user, &device.object, asked);
        record.used_by.clone_from(&request.metadata.name);
        record.key = parsed.fingerprint();
        record.joined.clone_from(&parsed.name);
        let message = format!("join token {token}");
        self.sign(&mut request, parsed, &mut device.object, "JoinToken", message)?;
        let ops = vec![
            stored.write(),
            objects::new(request.clone()).write(),
            device.write(),
        ];
        self.commit(ops, request).await
    }

    async fn renew(
        &self,
        user: &User,
        caller: &authn::Device,
        asked: &CertificateSigningRequest,
        parsed: &csr::Parsed,
    ) -> Result<Step, Failure> {
        if caller.name != parsed.name {
            return Err(forbidden("a device asks for a certificate of its own name only"));
        }
        let mut device = self.same_device(&caller.name, &caller.uid, parsed).await?;
        let name = format!("renew-{}-{}", caller.name, self.ids.suffix(5));
        let mut request = self.new_request(name, user, &device.object, asked);
        let message = "renewed with the same key".to_owned();
        self.sign(&mut request, parsed, &mut device.object, "Renewal", message)?;
        let ops = vec![objects::new(request.clone()).write(), device.write()];
        self.commit(ops, request).await
    }

    /// The device of this name and uid, if the request is by its recorded key.
    async fn same_device(
        &self,
        name: &str,
        uid: &str,
        parsed: &csr::Parsed,
    ) -> Result<Stored<Device>, Failure> {
        let device = self.device(name).await.map_err(failed)?;
        let device = device.filter(|device| device.object.metadata.uid == uid);
        let device = device.ok_or_else(|| forbidden("this device was removed; join it again"))?;
        if holds(&device.object, parsed) {
            Ok(device)
        } else {
            Err(forbidden(format!(
                "the request is not by the key that the device joined with: {REMOVE}"
            )))
        }
    }

    async fn expired(
        &self,
        user: &User,
        uid: &str,
        asked: &CertificateSigningRequest,
        parsed: &csr::Parsed,
    ) -> Result<Step, Failure> {
        let mut device = self.same_device(&parsed.name, uid, parsed).await?;
        // One a device at most, however often it asks.
        let name = format!("expired-{}", parsed.name);
        let mut stored = match self
            .objects
            .get::<CertificateSigningRequest>("", &name)
            .await
            .map_err(failed)?
        {
            Some(earlier) if self.still_counts(&earlier.object, &device.object) => {
                return Ok(done(earlier.object));
            }
            Some(earlier) => earlier,
            None => objects::new(CertificateSigningRequest::default()),
        };
        let again = !stored.object.metadata.uid.is_empty();
        stored.object = self.new_request(name.clone(), user, &device.object, asked);
        if !again {
            stored = objects::new(stored.object);
        }
        let text = format!(
            "the certificate has expired: run `pandactl certificate approve {name}` to let the device back in"
        );
        self.expiring(&mut device.object, true, "WaitsForApproval", text);
        tracing::warn!(device = %parsed.name, request = %name, "a device whose certificate has expired asks for another");
        let request = stored.object.clone();
        self.commit(vec![stored.write(), device.write()], request).await
    }

    /// Whether an earlier request of a device whose certificate has expired still is the answer: it waits, was denied, or
    /// its certificate is good.
    fn still_counts(&self, earlier: &CertificateSigningRequest, device: &Device) -> bool {
        let same = earlier.spec.uid == device.metadata.uid;
        let issued = earlier.status.condition(APPROVED).is_some();
        same && (!issued
            || device
                .status
                .certificate_expires
                .is_some_and(|end| end > self.now()))
    }

    /// Decides about a request that waits for a person.
    pub(crate) async fn decide(
        &self,
        name: &str,
        wanted: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, Failure> {
        let chosen = (wanted.status.condition(APPROVED), wanted.status.condition(DENIED));
        let invalid = |text: &str| Failure::new(Reason::Invalid, text);
        let (type_, said) = match chosen {
            (Some(said), None) => (APPROVED, said),
            (None, Some(said)) => (DENIED, said),
            (None, None) => {
                return Err(invalid(
                    "status.conditions: want Approved or Denied, with status True",
                ));
            }
            (Some(_), Some(_)) => {
                return Err(invalid(
                    "status.conditions: it cannot be both approved and denied",
                ));
            }
        };
        for _ in 0..ATTEMPTS {
            let stored = self
                .objects
                .get::<CertificateSigningRequest>("", name)
                .await
                .map_err(failed)?;
            let Some(mut stored) = stored else {
                let text = format!("certificatesigningrequests.certificates.k8s.io \"{name}\" not found");
                return Err(Failure::new(Reason::NotFound, text));
            };
            let conflict = |why: &str| {
                let text = format!(
                    "Operation cannot be fulfilled on certificatesigningrequests.certificates.k8s.io \"{name}\": {why}"
                );
                Failure::new(Reason::Conflict, text)
            };
            let version = &wanted.metadata.resource_version;
            if !version.is_empty() && *version != stored.object.metadata.resource_version {
                return Err(conflict("the object has been modified; get it again"));
            }
            if stored.object.status.condition(type_).is_some() {
                return Ok(stored.object);
            }
            if stored.object.status.condition(APPROVED).is_some()
                || stored.object.status.condition(DENIED).is_some()
            {
                return Err(conflict("it was decided already"));
            }
            let message: String = said.message.chars().take(1024).collect();
            let reason: String = said.reason.chars().take(128).collect();
            let mut ops = Vec::new();
            if type_ == APPROVED {
                let parsed = parse(&stored.object)?;
                let mut device = self
                    .same_device(&parsed.name, &stored.object.spec.uid, &parsed)
                    .await?;
                self.sign(&mut stored.object, &parsed, &mut device.object, &reason, message)?;
                ops.push(device.write());
            } else {
                self.set(&mut stored.object, DENIED, &reason, message);
            }
            let request = stored.object.clone();
            ops.push(stored.write());
            if let Step::Done(request) = self.commit(ops, request).await? {
                return Ok(*request);
            }
        }
        Err(Failure::new(
            Reason::ServiceUnavailable,
            "too many changes at a time; try again",
        ))
    }

    fn new_device(&self, name: &str) -> Device {
        Device {
            metadata: ObjectMeta {
                uid: self.ids.uuid().to_string(),
                creation_timestamp: Some(self.now()),
                generation: 1,
                ..ObjectMeta::named(name)
            },
            ..Device::default()
        }
    }

    /// The object of a request. Who asks is what the server knows, never what the request says.
    fn new_request(
        &self,
        name: String,
        user: &User,
        device: &Device,
        asked: &CertificateSigningRequest,
    ) -> CertificateSigningRequest {
        CertificateSigningRequest {
            metadata: ObjectMeta {
                uid: self.ids.uuid().to_string(),
                creation_timestamp: Some(self.now()),
                ..ObjectMeta::named(name)
            },
            spec: CertificateSigningRequestSpec {
                request: asked.spec.request.clone(),
                signer_name: DEVICE_SIGNER.to_owned(),
                usages: DEVICE_USAGES.map(str::to_owned).to_vec(),
                username: user.name.clone(),
                uid: device.metadata.uid.clone(),
                groups: user.groups.clone(),
                ..CertificateSigningRequestSpec::default()
            },
            ..CertificateSigningRequest::default()
        }
    }
}
