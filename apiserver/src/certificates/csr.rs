//! A request for a certificate, read: who it says it is for, its public key, and the proof that it holds the private one.

use panda_api::certificates::DEVICE_PREFIX;
use panda_api::validation::is_dns_label;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, ED25519, UnparsedPublicKey, VerificationAlgorithm,
};
use x509_parser::prelude::{FromDer, X509CertificationRequest};

/// Largest request, DER: a key and a name.
pub(crate) const MAX_DER: usize = 8 * 1024;

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// It is no request.
    #[error("it is no certificate request (PKCS #10)")]
    Malformed,
    /// The key is of a kind or size that is not taken.
    #[error("its key is not taken: want ECDSA P-256 or P-384, or Ed25519")]
    Key,
    /// It was not made by the holder of the key.
    #[error("its signature is not by its own key")]
    Proof,
    /// It names no device.
    #[error(
        "its subject names no device: want CN=panda:device:NAME, with a NAME of lower-case letters, digits and dashes"
    )]
    Subject,
}

/// What is taken from a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    /// Name of the device that it says it is for.
    pub(crate) name: String,
    /// Its public key (SubjectPublicKeyInfo, DER).
    pub(crate) public_key: Vec<u8>,
}

impl Parsed {
    /// `sha256:` and the digest of the public key.
    pub(crate) fn fingerprint(&self) -> String {
        crate::pki::fingerprint(&self.public_key)
    }
}

/// Reads a request in PEM.
pub(crate) fn parse_pem(pem: &[u8]) -> Result<Parsed, Error> {
    let (rest, pem) = x509_parser::pem::parse_x509_pem(pem).map_err(|_| Error::Malformed)?;
    let kind = matches!(
        pem.label.as_str(),
        "CERTIFICATE REQUEST" | "NEW CERTIFICATE REQUEST"
    );
    if !kind || !rest.iter().all(u8::is_ascii_whitespace) {
        return Err(Error::Malformed);
    }
    parse(&pem.contents)
}

/// Reads a request in DER, and checks its proof of possession.
pub(crate) fn parse(der: &[u8]) -> Result<Parsed, Error> {
    if der.len() > MAX_DER {
        return Err(Error::Malformed);
    }
    let (rest, request) = X509CertificationRequest::from_der(der).map_err(|_| Error::Malformed)?;
    if !rest.is_empty() {
        return Err(Error::Malformed);
    }
    let info = &request.certification_request_info;
    let key = info.subject_pki.subject_public_key.data.as_ref();
    // The kind of the key decides how its signature is checked; what the request says of itself must only agree.
    let (algorithm, signed_with): (&dyn VerificationAlgorithm, &str) = match (
        info.subject_pki.algorithm.algorithm.to_id_string().as_str(),
        key.len(),
    ) {
        ("1.2.840.10045.2.1", 65) => (&ECDSA_P256_SHA256_ASN1, "1.2.840.10045.4.3.2"),
        ("1.2.840.10045.2.1", 97) => (&ECDSA_P384_SHA384_ASN1, "1.2.840.10045.4.3.3"),
        ("1.3.101.112", 32) => (&ED25519, "1.3.101.112"),
        _ => return Err(Error::Key),
    };
    let says = &request.signature_algorithm;
    if says.algorithm.to_id_string() != signed_with || request.signature_value.unused_bits != 0 {
        return Err(Error::Proof);
    }
    UnparsedPublicKey::new(algorithm, key)
        .verify(info.raw, request.signature_value.data.as_ref())
        .map_err(|_| Error::Proof)?;
    // A key that the signer cannot write would be refused only after everything else was done.
    rcgen::SubjectPublicKeyInfo::from_der(info.subject_pki.raw).map_err(|_| Error::Key)?;
    let mut names = info.subject.iter_common_name();
    let name = names
        .next()
        .and_then(|name| name.as_str().ok()?.strip_prefix(DEVICE_PREFIX));
    match name {
        Some(name) if names.next().is_none() && is_dns_label(name) => Ok(Parsed {
            name: name.to_owned(),
            public_key: info.subject_pki.raw.to_vec(),
        }),
        _ => Err(Error::Subject),
    }
}
