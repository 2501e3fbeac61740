//! Who asks: the subject of a verified client certificate, or the bearer of a token.
//!
//! 1. A certificate speaks first; a token beside it is not looked at.
//! 2. Without one, the token of `Authorization: Bearer` is shown to each [`TokenAuthenticator`] in turn. A token that
//!    none of them takes is refused: its bearer is never taken for nobody.
//! 3. Tokens are checked live at each request, against the objects that they speak of.

mod account;
mod bearer;
mod key;
mod run;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use panda_api::meta::Clock;

pub use account::{AUDIENCE, AccountTokens};
pub use bearer::{BoxFuture, TokenAuthenticator};
pub use key::{KeyError, TokenKey};
pub use run::{RUNS, RunTokens};

pub(crate) use bearer::Bearers;

use crate::pki::{self, DEVICE_PREFIX, Subject};

/// The group of everybody who is known.
pub const AUTHENTICATED: &str = "system:authenticated";
/// Among what else is known of a device: the digest of its certificate's public key.
pub(crate) const KEY_FINGERPRINT: &str = "panda.dev/key-fingerprint";

/// An authenticated user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: String,
    /// Uid, where the user is an object; empty otherwise.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// What else is known, by key.
    pub extra: BTreeMap<String, Vec<String>>,
    /// What it is.
    pub principal: Principal,
}

/// What a [`User`] is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Principal {
    /// A person, or a program with a certificate of its own.
    #[default]
    Person,
    /// A device, by its certificate.
    Device(Device),
    /// A Run, by the token that its Task's `apiAccess` gave it.
    Run(RunIdentity),
    /// A ServiceAccount, by one of its tokens.
    ServiceAccount {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
        /// Uid: an account of the same name made later is another.
        uid: String,
    },
    /// The holder of a join token: may ask for one device certificate and nothing else.
    Join {
        /// The token's public half.
        token: String,
        /// The only device name that it may ask for; none: any.
        device: Option<String>,
    },
}

/// The device that a certificate was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Name.
    pub name: String,
    /// Uid: the fence; a device of the same name made later has another.
    pub uid: String,
}

/// The Run that a token was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunIdentity {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// The fencing epoch under which it was bound.
    pub epoch: i32,
    /// Name of its Task.
    pub task: String,
}

impl User {
    /// Whether the user is in a group.
    #[must_use]
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|name| name == group)
    }

    /// The device, for devices.
    #[must_use]
    pub const fn device(&self) -> Option<&Device> {
        match &self.principal {
            Principal::Device(device) => Some(device),
            _ => None,
        }
    }

    /// The digest of the public key that a device showed; empty for all others.
    pub(crate) fn key_fingerprint(&self) -> &str {
        let keys = self.extra.get(KEY_FINGERPRINT);
        keys.and_then(|keys| keys.first()).map_or("", String::as_str)
    }

    /// The Run, for runs.
    #[must_use]
    pub const fn run(&self) -> Option<&RunIdentity> {
        match &self.principal {
            Principal::Run(run) => Some(run),
            _ => None,
        }
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
                user: user(subject).map(|user| Arc::new(with_key(user, der))),
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

/// A device is told apart by its key, too.
fn with_key(mut user: User, der: &[u8]) -> User {
    if user.device().is_some() {
        let keys = pki::key_fingerprint(der).into_iter().collect();
        user.extra.insert(KEY_FINGERPRINT.to_owned(), keys);
    }
    user
}

fn user(subject: Subject) -> Option<User> {
    let principal = match (subject.user.strip_prefix(DEVICE_PREFIX), subject.device_uid) {
        (Some(name), Some(uid)) if !name.is_empty() && !uid.is_empty() => Principal::Device(Device {
            name: name.to_owned(),
            uid,
        }),
        // Names that only tokens carry: our signer makes no certificate for them.
        (None, None) if run::is_run(&subject.user) => return None,
        (None, None) => Principal::Person,
        // A device's name without its uid, or the reverse, was not made by our signer.
        _ => return None,
    };
    let mut groups = subject.groups;
    if !groups.iter().any(|group| group == AUTHENTICATED) {
        groups.push(AUTHENTICATED.to_owned());
    }
    Some(User {
        name: subject.user,
        uid: String::new(),
        groups,
        extra: BTreeMap::new(),
        principal,
    })
}
