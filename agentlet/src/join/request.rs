//! Asking for a certificate.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::Uri;
use panda_api::CertificateSigningRequest;
use panda_api::certificates::{
    CertificateSigningRequestSpec, DENIED, DEVICE_PREFIX, DEVICE_SIGNER, DEVICE_USAGES, RENEWAL_BEARER,
};
use panda_client::config::Identity;
use panda_client::connector::Connector;
use panda_client::params::WriteParams;
use panda_client::{Api, Client, Config, Error, Options};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

/// A request (PKCS #10) of a device, signed with its key.
pub(crate) fn signing_request(
    key: &KeyPair,
    name: &str,
) -> Result<rcgen::CertificateSigningRequest, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, format!("{DEVICE_PREFIX}{name}"));
    params.serialize_request(key)
}

/// The bearer token of a device whose certificate has expired: its request, which its key has signed.
pub(crate) fn bearer(request: &rcgen::CertificateSigningRequest) -> String {
    format!("{RENEWAL_BEARER}{}", URL_SAFE_NO_PAD.encode(request.der()))
}

/// What the control plane says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A certificate, PEM.
    Issued(String),
    /// A person must approve the request of this name.
    Waits {
        /// Name of the request.
        name: String,
    },
    /// A person has denied the request of this name.
    Denied {
        /// Name of the request.
        name: String,
    },
}

/// One way of asking.
pub(crate) struct Ask(Api<CertificateSigningRequest>);

impl Ask {
    /// Over `connector`, as `identity` says beside what the connection itself shows.
    pub(crate) fn new(
        servers: &[Uri],
        connector: Arc<dyn Connector>,
        identity: Identity,
    ) -> Result<Self, Error> {
        let config = Config {
            server: servers.first().cloned().unwrap_or_default(),
            ca: Vec::new(),
            tls_server_name: None,
            identity,
            namespace: String::new(),
        };
        Ok(Self(Api::cluster(Client::over(
            &config,
            connector,
            Options::default(),
        )?)))
    }

    /// Asks once; the same request again gets the same answer.
    pub(crate) async fn once(&self, request: &rcgen::CertificateSigningRequest) -> Result<Answer, Error> {
        let pem = request.pem().map_err(|error| Error::Request(error.to_string()))?;
        let mut object = CertificateSigningRequest {
            spec: CertificateSigningRequestSpec {
                request: STANDARD.encode(pem),
                signer_name: DEVICE_SIGNER.to_owned(),
                usages: DEVICE_USAGES.map(str::to_owned).to_vec(),
                ..CertificateSigningRequestSpec::default()
            },
            ..CertificateSigningRequest::default()
        };
        object.metadata.generate_name = "device-".to_owned();
        let made = self.0.create(&object, &WriteParams::default()).await?;
        let name = made.metadata.name;
        if made.status.condition(DENIED).is_some() {
            return Ok(Answer::Denied { name });
        }
        let certificate = STANDARD.decode(&made.status.certificate).ok();
        let certificate = certificate
            .and_then(|pem| String::from_utf8(pem).ok())
            .filter(|pem| !pem.is_empty());
        Ok(certificate.map_or(Answer::Waits { name }, Answer::Issued))
    }
}
