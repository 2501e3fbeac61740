//! TLS: the server's certificate, client certificates asked for but not required.

use std::sync::Arc;

use panda_api::meta::Clock;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::{RootCertStore, ServerConfig};

use crate::pki::Identity;

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A certificate or key cannot be read.
    #[error("cannot read the {0}")]
    Pem(&'static str, #[source] rustls::pki_types::pem::Error),
    /// The certificates do not fit together.
    #[error("cannot use the certificates")]
    Rustls(#[from] rustls::Error),
    /// The authority cannot verify clients.
    #[error("cannot verify client certificates")]
    Verifier(#[from] rustls::client::VerifierBuilderError),
}

/// The server's side of every handshake: ring, TLS 1.2 and 1.3, HTTP/2 or HTTP/1.1.
///
/// # Errors
/// When the certificates cannot be used.
pub fn server_config(
    identity: &Identity,
    ca_pem: &str,
    clock: Arc<dyn Clock>,
) -> Result<Arc<ServerConfig>, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let authority = CertificateDer::from_pem_slice(ca_pem.as_bytes())
        .map_err(|error| Error::Pem("authority's certificate", error))?;
    let certificate = CertificateDer::from_pem_slice(identity.certificate_pem.as_bytes())
        .map_err(|error| Error::Pem("server's certificate", error))?;
    let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes())
        .map_err(|error| Error::Pem("server's key", error))?;
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone())?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .allow_unauthenticated()
        .build()?;
    let mut config = ServerConfig::builder_with_details(provider, Arc::new(Now(clock)))
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        // The authority goes along, so that a client can pin its hash.
        .with_single_cert(vec![certificate, authority], key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // A resumed session would not look at the client's certificate again.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Certificates are judged by the injected clock.
#[derive(Debug)]
struct Now(Arc<dyn Clock>);

impl TimeProvider for Now {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.0.now().as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(
            seconds,
        )))
    }
}
