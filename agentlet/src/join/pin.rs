//! The authority of a server, taken only if its public key has the pinned digest.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;

use crate::credentials::public_key_hash;

/// TCP and TLS together.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no authority.
#[derive(Debug)]
pub(super) enum Error {
    /// The server shows others.
    Other {
        /// Their digests.
        found: String,
    },
    /// It was not reached, or its certificate is no good for another reason.
    Unreached(String),
}

/// Trusts the certificate with the pinned public key, if it is in the chain, as the only authority.
#[derive(Debug)]
struct Pinned {
    wanted: String,
    provider: Arc<CryptoProvider>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    authority: Option<CertificateDer<'static>>,
    others: Vec<String>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let hashes = intermediates.iter().chain([end_entity]);
        let hashes: Vec<_> = hashes
            .map(|cert| (cert, public_key_hash(cert).unwrap_or_default()))
            .collect();
        let Some((authority, _)) = hashes.iter().find(|(_, hash)| *hash == self.wanted) else {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.others = intermediates
                .iter()
                .filter_map(|cert| public_key_hash(cert))
                .take(4)
                .collect();
            return Err(rustls::CertificateError::UnknownIssuer.into());
        };
        let mut roots = RootCertStore::empty();
        roots.add((*authority).clone().into_owned())?;
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider))
                .build()
                .map_err(|error| rustls::Error::General(error.to_string()))?;
        let verified =
            verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.authority = Some((*authority).clone().into_owned());
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// The authority of `server`, PEM, if its digest is `wanted`.
pub(super) async fn authority(server: &Uri, wanted: &str) -> Result<String, Error> {
    let pinned = Arc::new(Pinned {
        wanted: wanted.to_owned(),
        provider: Arc::new(rustls::crypto::ring::default_provider()),
        seen: Mutex::default(),
    });
    let shaken = match tokio::time::timeout(TIMEOUT, handshake(server, Arc::clone(&pinned))).await {
        Ok(done) => done,
        Err(_) => Err(format!("no answer within {TIMEOUT:?}")),
    };
    let seen = std::mem::take(&mut *pinned.seen.lock().unwrap_or_else(PoisonError::into_inner));
    match (shaken, seen.authority) {
        (Ok(()), Some(authority)) => Ok(pem(&authority)),
        (Err(_), _) if !seen.others.is_empty() => Err(Error::Other {
            found: seen.others.join(", "),
        }),
        (Err(why), _) => Err(Error::Unreached(why)),
        (Ok(()), None) => Err(Error::Unreached("the server showed no certificate".into())),
    }
}

async fn handshake(server: &Uri, pinned: Arc<Pinned>) -> Result<(), String> {
    let host = server.host().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(bare).map_err(|error| error.to_string())?;
    let config = rustls::ClientConfig::builder_with_provider(Arc::clone(&pinned.provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(pinned)
        .with_no_client_auth();
    let target = format!("{host}:{}", server.port_u16().unwrap_or(443));
    let tcp = TcpStream::connect(target)
        .await
        .map_err(|error| error.to_string())?;
    let tls = tokio_rustls::TlsConnector::from(Arc::new(config));
    tls.connect(name, tcp).await.map_err(|error| error.to_string())?;
    Ok(())
}

fn pem(certificate: &CertificateDer<'_>) -> String {
    let text = STANDARD.encode(certificate);
    let mut out = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        out.extend(line.iter().map(|byte| char::from(*byte)));
        out.push('\n');
    }
    out.push_str("-----END CERTIFICATE-----\n");
    out
}
