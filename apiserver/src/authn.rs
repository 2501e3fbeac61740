//! Who asks: the subject of a verified client certificate.

use std::sync::Arc;

use panda_api::meta::Clock;

use crate::pki::{self, DEVICE_PREFIX, Subject};

/// An authenticated user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: String,
    /// Groups.
    pub groups: Vec<String>,
    /// The device, for devices.
    pub device: Option<Device>,
}

/// The device that a certificate was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Name.
    pub name: String,
    /// Uid: the fence; a device of the same name made later has another.
    pub uid: String,
}

impl User {
    /// Whether the user is in a group.
    #[must_use]
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|name| name == group)
    }
}

/// What a connection's handshake proved; the same for all its requests.
#[derive(Clone, Debug)]
pub struct Peer {
    user: Option<Arc<User>>,
    /// Seconds since 1970 at which the certificate ends.
    not_after: i64,
}

/// Why a request has no user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// No certificate was shown.
    Anonymous,
    /// A certificate was shown that is no longer good, or says nothing.
    Rejected,
}

impl Peer {
    /// A connection without a certificate.
    #[must_use]
    pub const fn anonymous() -> Self {
        Self {
            user: None,
            not_after: i64::MAX,
        }
    }

    /// A connection whose verified certificate is `der`.
    #[must_use]
    pub fn from_certificate(der: &[u8]) -> Self {
        match pki::peer(der) {
            Some((subject, not_after)) => Self {
                user: user(subject).map(Arc::new),
                not_after,
            },
            None => Self {
                user: None,
                not_after: 0,
            },
        }
    }

    /// The user, at this moment: a connection may outlive its certificate.
    pub(crate) fn user(&self, clock: &dyn Clock) -> Result<Arc<User>, Unknown> {
        match &self.user {
            Some(user) if clock.now().as_second() <= self.not_after => Ok(Arc::clone(user)),
            None if self.not_after == i64::MAX => Err(Unknown::Anonymous),
            _ => Err(Unknown::Rejected),
        }
    }
}

fn user(subject: Subject) -> Option<User> {
    let device = match (subject.user.strip_prefix(DEVICE_PREFIX), subject.device_uid) {
        (Some(name), Some(uid)) if !name.is_empty() && !uid.is_empty() => Some(Device {
            name: name.to_owned(),
            uid,
        }),
        (None, None) => None,
        // A device's name without its uid, or the reverse, was not made by our signer.
        _ => return None,
    };
    Some(User {
        name: subject.user,
        groups: subject.groups,
        device,
    })
}
