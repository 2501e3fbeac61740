//! Who a certificate speaks for.

use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

pub use panda_api::certificates::DEVICE_PREFIX;
pub(crate) use panda_api::certificates::DEVICE_URN;

/// The name in a client certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The user (CN).
    pub user: String,
    /// The user's groups (each O).
    pub groups: Vec<String>,
    /// Uid of the device that the certificate was made for.
    pub device_uid: Option<String>,
}

impl Subject {
    /// A user with groups.
    pub fn user(user: impl Into<String>, groups: &[&str]) -> Self {
        Self {
            user: user.into(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            device_uid: None,
        }
    }

    /// Everything is allowed to this one.
    #[must_use]
    pub fn admin() -> Self {
        Self::user("panda:admin", &["system:masters"])
    }

    /// The controllers of the control plane.
    #[must_use]
    pub fn controllers() -> Self {
        Self::user("panda:controllers", &[])
    }

    /// A device.
    #[must_use]
    pub fn device(name: &str, uid: &str) -> Self {
        Self {
            user: format!("{DEVICE_PREFIX}{name}"),
            groups: vec!["panda:devices".to_owned()],
            device_uid: Some(uid.to_owned()),
        }
    }
}

/// A subject and how long its certificate is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) subject: Subject,
    /// Seconds since 1970.
    pub(crate) not_after: i64,
}

/// The subject of a client certificate (DER) that has been verified, and when it expires (seconds since 1970).
#[must_use]
pub fn peer(der: &[u8]) -> Option<(Subject, i64)> {
    let (_, cert) = X509Certificate::from_der(der).ok()?;
    read(&cert).map(|found| (found.subject, found.not_after))
}

/// `sha256:` and the digest of a certificate's (DER) public key.
#[must_use]
pub fn key_fingerprint(der: &[u8]) -> Option<String> {
    let (_, cert) = X509Certificate::from_der(der).ok()?;
    Some(super::fingerprint(cert.public_key().raw))
}

pub(crate) fn read(cert: &X509Certificate<'_>) -> Option<Found> {
    let subject = cert.subject();
    let user = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = subject
        .iter_organization()
        .map(|group| group.as_str().map(ToOwned::to_owned))
        .collect::<Result<Vec<_>, _>>()
        .ok()?;
    let device_uid = cert.subject_alternative_name().ok().flatten().and_then(|names| {
        names.value.general_names.iter().find_map(|name| match name {
            GeneralName::URI(uri) => uri.strip_prefix(DEVICE_URN).map(ToOwned::to_owned),
            _ => None,
        })
    });
    Some(Found {
        subject: Subject {
            user,
            groups,
            device_uid,
        },
        not_after: cert.validity().not_after.timestamp(),
    })
}
