//! The certificate authority of a control plane: its own key, the server's certificate, client certificates.
//!
//! Everything lives in one folder. A key and its certificate share one file (`server.pem`), so that a crash can
//! never leave one without the other; `ca.crt` is the public half of the authority, for people to copy.

mod device;
mod kubeconfig;
mod subject;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use panda_api::meta::{Clock, IdSource};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber,
};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509Certificate};

use crate::files;

pub use kubeconfig::kubeconfig;
pub use subject::{DEVICE_PREFIX, Subject, key_fingerprint, peer};

/// `sha256:` and the digest of a public key (SubjectPublicKeyInfo, DER).
pub(crate) fn fingerprint(public_key: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(public_key)))
}

const DAY: Duration = Duration::from_secs(24 * 3600);
const CA_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
const LEAF_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
/// A certificate with less than this left is made anew.
const RENEW_BEFORE: Duration = Duration::from_secs(30 * 24 * 3600);
const KEY_MARK: &str = "-----BEGIN PRIVATE KEY-----";

/// Why the authority could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be used.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// A file does not hold what it should.
    #[error("{} is damaged: {detail}; restore it, or remove it to have it made anew", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// A certificate could not be made.
    #[error("cannot make a certificate for {subject}")]
    Issue {
        /// For whom.
        subject: String,
        /// What the generator said.
        #[source]
        source: rcgen::Error,
    },
    /// The generator of certificates writes one group only.
    #[error("a certificate for {user} cannot carry {count} groups, one at most")]
    Groups {
        /// For whom.
        user: String,
        /// How many were asked for.
        count: usize,
    },
    /// A host name cannot stand in a certificate.
    #[error("{0:?} is neither a host name nor an address")]
    Name(String),
}

impl Error {
    /// Whether trying again may help: never, a person has to act.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        false
    }
}

/// A certificate and its private key, as PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificate.
    pub certificate_pem: String,
    /// The private key (PKCS #8).
    pub key_pem: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

impl Identity {
    fn parse(path: &Path, bytes: Vec<u8>) -> Result<Self, Error> {
        let damaged = |detail: &str| Error::Damaged {
            path: path.to_owned(),
            detail: detail.to_owned(),
        };
        let text = String::from_utf8(bytes).map_err(|_| damaged("not text"))?;
        let at = text
            .find(KEY_MARK)
            .ok_or_else(|| damaged("no private key in it"))?;
        let (certificate, key) = text.split_at(at);
        let identity = Self {
            certificate_pem: certificate.to_owned(),
            key_pem: key.to_owned(),
        };
        let key =
            KeyPair::from_pem(&identity.key_pem).map_err(|_| damaged("its private key cannot be read"))?;
        let spki = identity
            .inspect(|cert| cert.public_key().raw.to_vec())
            .map_err(|e| damaged(&e))?;
        if spki != key.subject_public_key_info() {
            return Err(damaged("the key is not the certificate's"));
        }
        Ok(identity)
    }

    fn inspect<T>(&self, look: impl FnOnce(&X509Certificate<'_>) -> T) -> Result<T, String> {
        let (_, pem) = x509_parser::pem::parse_x509_pem(self.certificate_pem.as_bytes())
            .map_err(|_| "its certificate cannot be read".to_owned())?;
        let (_, cert) = X509Certificate::from_der(&pem.contents)
            .map_err(|_| "its certificate cannot be read".to_owned())?;
        Ok(look(&cert))
    }
}

/// The authority of one data folder.
pub struct Pki {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    ca: Identity,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
}

impl std::fmt::Debug for Pki {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pki")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

impl Pki {
    /// Opens the authority in `dir`, making it if it is not there.
    ///
    /// # Errors
    /// When a file cannot be read or written, is damaged, or is readable by others.
    pub fn open(dir: &Path, clock: Arc<dyn Clock>, ids: Arc<dyn IdSource>) -> Result<Self, Error> {
        files::private_dir(dir)?;
        let path = dir.join("ca.pem");
        let ca = match files::read_private(&path)? {
            Some(bytes) => Identity::parse(&path, bytes)?,
            None => {
                let ca = make_ca(clock.as_ref(), ids.as_ref())?;
                write_identity(&path, &ca)?;
                ca
            }
        };
        let damaged = |source: rcgen::Error| Error::Damaged {
            path: path.clone(),
            detail: source.to_string(),
        };
        let key = KeyPair::from_pem(&ca.key_pem).map_err(damaged)?;
        let issuer = Issuer::from_ca_cert_pem(&ca.certificate_pem, key).map_err(damaged)?;
        files::write_atomic(&dir.join("ca.crt"), ca.certificate_pem.as_bytes(), 0o644)?;
        Ok(Self {
            dir: dir.to_owned(),
            issuer,
            ca,
            clock,
            ids,
        })
    }

    /// The authority's certificate, for clients.
    #[must_use]
    pub fn ca_certificate_pem(&self) -> &str {
        &self.ca.certificate_pem
    }

    /// `sha256:` and the digest of the authority's public key, for clients to pin (`--ca-cert-hash`).
    #[must_use]
    pub fn ca_hash(&self) -> String {
        fingerprint(&self.issuer.key().subject_public_key_info())
    }

    /// The server's certificate for `names` (hosts and addresses; loopback is always added), made or renewed
    /// when needed.
    ///
    /// # Errors
    /// When a name is none, or a file cannot be used.
    pub fn server(&self, names: &[String]) -> Result<Identity, Error> {
        let mut sans = Vec::new();
        for name in names
            .iter()
            .map(String::as_str)
            .chain(["localhost", "127.0.0.1", "::1"])
        {
            let san = match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(
                    name.to_owned()
                        .try_into()
                        .map_err(|_| Error::Name(name.to_owned()))?,
                ),
            };
            if !sans.contains(&san) {
                sans.push(san);
            }
        }
        let wanted = sans.clone();
        self.load_or_make(
            "server",
            |cert| has_names(cert, &wanted),
            || {
                let mut params = self.leaf(ExtendedKeyUsagePurpose::ServerAuth);
                params
                    .distinguished_name
                    .push(DnType::CommonName, "panda-apiserver");
                params.subject_alt_names = sans;
                params
            },
        )
    }

    /// A client's certificate, kept in `FILE.pem`, made or renewed when needed.
    ///
    /// # Errors
    /// When a file cannot be used or the subject cannot stand in a certificate.
    pub fn client(&self, file: &str, subject: &Subject) -> Result<Identity, Error> {
        let params = self.client_params(subject)?;
        let fits =
            |cert: &X509Certificate<'_>| subject::read(cert).is_some_and(|found| found.subject == *subject);
        self.load_or_make(file, fits, || params)
    }

    /// A client's certificate that is kept nowhere.
    ///
    /// # Errors
    /// When the subject cannot stand in a certificate.
    pub fn issue(&self, subject: &Subject) -> Result<Identity, Error> {
        let params = self.client_params(subject)?;
        self.sign(&subject.user, params)
    }

    fn client_params(&self, subject: &Subject) -> Result<CertificateParams, Error> {
        if subject.groups.len() > 1 {
            return Err(Error::Groups {
                user: subject.user.clone(),
                count: subject.groups.len(),
            });
        }
        let mut params = self.leaf(ExtendedKeyUsagePurpose::ClientAuth);
        params
            .distinguished_name
            .push(DnType::CommonName, subject.user.as_str());
        for group in &subject.groups {
            params
                .distinguished_name
                .push(DnType::OrganizationName, group.as_str());
        }
        if let Some(uid) = &subject.device_uid {
            let urn = format!("{}{uid}", subject::DEVICE_URN);
            let urn = urn.clone().try_into().map_err(|_| Error::Name(urn))?;
            params.subject_alt_names.push(SanType::URI(urn));
        }
        Ok(params)
    }

    fn leaf(&self, usage: ExtendedKeyUsagePurpose) -> CertificateParams {
        let mut params = CertificateParams::default();
        set_life(&mut params, self.clock.as_ref(), self.ids.as_ref(), LEAF_LIFE);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        params
    }

    fn sign(&self, subject: &str, params: CertificateParams) -> Result<Identity, Error> {
        let failed = |source| Error::Issue {
            subject: subject.to_owned(),
            source,
        };
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok(Identity {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        })
    }

    fn load_or_make(
        &self,
        file: &str,
        fits: impl FnOnce(&X509Certificate<'_>) -> bool,
        params: impl FnOnce() -> CertificateParams,
    ) -> Result<Identity, Error> {
        let path = self.dir.join(format!("{file}.pem"));
        if let Some(bytes) = files::read_private(&path)? {
            let identity = Identity::parse(&path, bytes)?;
            let renew_at = self.clock.now().as_second() + RENEW_BEFORE.as_secs() as i64;
            let ca_key = self.ca.inspect(key_id).ok().flatten();
            let good = identity
                .inspect(|cert| {
                    cert.validity().not_after.timestamp() > renew_at
                        && ca_key.is_some()
                        && authority_key_id(cert) == ca_key
                        && fits(cert)
                })
                .map_err(|detail| Error::Damaged {
                    path: path.clone(),
                    detail,
                })?;
            if good {
                return Ok(identity);
            }
        }
        let identity = self.sign(file, params())?;
        write_identity(&path, &identity)?;
        Ok(identity)
    }
}

fn make_ca(clock: &dyn Clock, ids: &dyn IdSource) -> Result<Identity, Error> {
    let failed = |source| Error::Issue {
        subject: "panda-ca".to_owned(),
        source,
    };
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
    let mut params = CertificateParams::default();
    set_life(&mut params, clock, ids, CA_LIFE);
    params.distinguished_name.push(DnType::CommonName, "panda-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    let certificate = params.self_signed(&key).map_err(failed)?;
    Ok(Identity {
        certificate_pem: certificate.pem(),
        key_pem: key.serialize_pem(),
    })
}

fn set_life(params: &mut CertificateParams, clock: &dyn Clock, ids: &dyn IdSource, lasts: Duration) {
    // A device whose clock is a little behind must be able to connect at once.
    life(params, clock, ids, DAY, lasts);
}

/// Sets subject, life and serial number; the end, in seconds since 1970.
fn life(
    params: &mut CertificateParams,
    clock: &dyn Clock,
    ids: &dyn IdSource,
    before: Duration,
    lasts: Duration,
) -> i64 {
    params.distinguished_name = rcgen::DistinguishedName::new();
    let now = Duration::from_secs(u64::try_from(clock.now().as_second()).unwrap_or(0));
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(Duration::from_secs(before.as_secs()));
    params.not_after = epoch + now + lasts;
    let mut serial = *ids.uuid().as_bytes();
    serial[0] &= 0x7f;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    i64::try_from((now + lasts).as_secs()).unwrap_or(i64::MAX)
}

fn write_identity(path: &Path, identity: &Identity) -> Result<(), Error> {
    let text = format!("{}{}", identity.certificate_pem, identity.key_pem);
    Ok(files::write_atomic(path, text.as_bytes(), 0o600)?)
}

fn has_names(cert: &X509Certificate<'_>, wanted: &[SanType]) -> bool {
    let Ok(Some(found)) = cert.subject_alternative_name() else {
        return false;
    };
    wanted.iter().all(|want| {
        found.value.general_names.iter().any(|name| match (want, name) {
            (SanType::DnsName(want), GeneralName::DNSName(name)) => want.as_str() == *name,
            (SanType::IpAddress(IpAddr::V4(want)), GeneralName::IPAddress(name)) => want.octets() == **name,
            (SanType::IpAddress(IpAddr::V6(want)), GeneralName::IPAddress(name)) => want.octets() == **name,
            _ => false,
        })
    })
}

fn key_id(cert: &X509Certificate<'_>) -> Option<Vec<u8>> {
    cert.extensions()
        .iter()
        .find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        })
}

fn authority_key_id(cert: &X509Certificate<'_>) -> Option<Vec<u8>> {
    cert.extensions()
        .iter()
        .find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|id| id.0.to_vec()),
            _ => None,
        })
}
