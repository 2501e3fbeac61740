//! Who the device is: its key, its certificate, and the authority that it trusts.
//!
//! Key and certificate share one file (`identity.pem`), which is replaced whole: neither a crash nor a full disk leaves
//! one without the other. `ca.crt` beside it is the authority that was pinned when the device joined.

use std::path::{Path, PathBuf};

use panda_api::certificates::{DEVICE_PREFIX, DEVICE_URN};
use panda_client::config::Identity;
use rcgen::{KeyPair, PublicKeyData};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::places;

/// Key and certificate.
pub const IDENTITY_FILE: &str = "identity.pem";
/// The authority.
pub const CA_FILE: &str = "ca.crt";
const KEY_MARK: &str = "-----BEGIN PRIVATE KEY-----";

/// Why there are no credentials to use.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be used.
    #[error("cannot use {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// A file does not hold what it should.
    #[error("{} is no identity of a device: {problem}", path.display())]
    Damaged {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
}

impl Error {
    /// Whether trying again may help: a disk may have room again.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::File { .. })
    }
}

/// A device's own key and certificate.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Name of the Device.
    pub name: String,
    /// Its uid: the fence.
    pub uid: String,
    /// The certificate, PEM.
    pub certificate_pem: String,
    /// The private key, PEM (PKCS #8).
    pub key_pem: String,
    /// The authority to trust, PEM.
    pub ca_pem: String,
    /// When the certificate begins, in seconds since 1970.
    pub not_before: i64,
    /// When it ends, in seconds since 1970.
    pub not_after: i64,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("name", &self.name)
            .field("uid", &self.uid)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

impl Credentials {
    /// Credentials out of their parts.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn new(certificate_pem: String, key_pem: String, ca_pem: String) -> Result<Self, &'static str> {
        let (_, pem) = x509_parser::pem::parse_x509_pem(certificate_pem.as_bytes())
            .map_err(|_| "its certificate cannot be read")?;
        let (_, cert) =
            X509Certificate::from_der(&pem.contents).map_err(|_| "its certificate cannot be read")?;
        let key = KeyPair::from_pem(&key_pem).map_err(|_| "its private key cannot be read")?;
        if cert.public_key().raw != key.subject_public_key_info() {
            return Err("the key is not the certificate's");
        }
        let common_name = cert.subject().iter_common_name().next();
        let name = common_name
            .and_then(|name| name.as_str().ok()?.strip_prefix(DEVICE_PREFIX))
            .ok_or("the certificate names no device")?
            .to_owned();
        let names = cert.subject_alternative_name().ok().flatten();
        let names = names.ok_or("the certificate has no device uid")?;
        let uid = names.value.general_names.iter().find_map(|name| match name {
            GeneralName::URI(uri) => uri.strip_prefix(DEVICE_URN).map(str::to_owned),
            _ => None,
        });
        let uid = uid.ok_or("the certificate has no device uid")?;
        let (not_before, not_after) = (
            cert.validity().not_before.timestamp(),
            cert.validity().not_after.timestamp(),
        );
        Ok(Self {
            name,
            uid,
            certificate_pem,
            key_pem,
            ca_pem,
            not_before,
            not_after,
        })
    }

    /// The credentials in a data folder; none when the device has not joined.
    ///
    /// # Errors
    /// When a file cannot be read, is damaged, or others may read it.
    pub fn load(dir: &Path) -> Result<Option<Self>, Error> {
        let path = dir.join(IDENTITY_FILE);
        let file = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::File { path, source }
        };
        let Some(bytes) = places::read_private(&path).map_err(file(&path))? else {
            return Ok(None);
        };
        let damaged = |problem| Error::Damaged {
            path: path.clone(),
            problem,
        };
        let text = String::from_utf8(bytes).map_err(|_| damaged("it is no text"))?;
        let at = text
            .find(KEY_MARK)
            .ok_or_else(|| damaged("there is no private key in it"))?;
        let (certificate, key) = text.split_at(at);
        let ca = dir.join(CA_FILE);
        let ca_pem = std::fs::read_to_string(&ca).map_err(file(&ca))?;
        Self::new(certificate.to_owned(), key.to_owned(), ca_pem)
            .map(Some)
            .map_err(damaged)
    }

    /// Keeps the credentials in a data folder. When that fails, what was there before is still good.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), Error> {
        // The identity last: it is what makes the device one that has joined.
        let identity = format!("{}{}", self.certificate_pem, self.key_pem);
        for (name, text) in [(CA_FILE, &self.ca_pem), (IDENTITY_FILE, &identity)] {
            let path = dir.join(name);
            places::write_private(&path, text.as_bytes()).map_err(|source| Error::File { path, source })?;
        }
        Ok(())
    }

    /// When the certificate should be renewed: at two thirds of its life.
    #[must_use]
    pub fn renew_at(&self) -> i64 {
        self.not_before + (self.not_after - self.not_before) / 3 * 2
    }

    /// The identity for TLS.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity::ClientCert {
            cert: self.certificate_pem.clone().into_bytes(),
            key: self.key_pem.clone().into_bytes(),
        }
    }
}

/// `sha256:` and the digest of a certificate's public key (DER), as in `--ca-cert-hash`; none when it is no certificate.
#[must_use]
pub fn public_key_hash(certificate: &[u8]) -> Option<String> {
    let (_, cert) = X509Certificate::from_der(certificate).ok()?;
    Some(format!(
        "sha256:{}",
        hex::encode(Sha256::digest(cert.public_key().raw))
    ))
}
