//! How a device joins, once: with a token and the digest of the authority, it gets a certificate for its own key.
//!
//! 1. The authority is pinned before the token is sent anywhere.
//! 2. The key is on the disk before it is asked for: a reply that is lost, or a crash, is made good by asking again with the
//!    same key, which the server answers in the same way.
//! 3. What a person must decide ends the program; what may pass by itself is tried again.

mod pin;
mod request;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use panda_api::meta::IdSource;
use panda_client::config::Identity;
use rcgen::KeyPair;

use crate::credentials::{self, Credentials};
use crate::endpoints::{Endpoints, PlainConnector};
use crate::places;

pub(crate) use request::{Answer, Ask, bearer, signing_request};

/// The key of a device that is about to join.
const JOINING_FILE: &str = "joining.pem";
/// Pauses between failed tries double from the first to the last of these.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Why a device has not joined.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The digest is none.
    #[error("--ca-cert-hash: want sha256: and 64 hexadecimal digits, found {0:?}")]
    Hash(String),
    /// The server is of another authority.
    #[error("the server at {server} is not the one that was pinned: its authority is {found}, not {wanted}")]
    OtherAuthority {
        /// The address.
        server: String,
        /// What it showed.
        found: String,
        /// What was pinned.
        wanted: String,
    },
    /// The server refused, and will again.
    #[error("the control plane refused: {0}")]
    Refused(String),
    /// What came back is no identity.
    #[error("what the control plane sent is no identity: {0}")]
    Answer(&'static str),
    /// A key or request cannot be made.
    #[error("cannot make a key")]
    Key(#[source] rcgen::Error),
    /// A file cannot be used.
    #[error("cannot use {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The identity cannot be kept.
    #[error(transparent)]
    Credentials(#[from] credentials::Error),
    /// The connection cannot be set up.
    #[error("cannot set up a connection")]
    Client(#[source] Box<panda_client::Error>),
}

impl Error {
    /// What to do next, when that is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Hash(_) | Self::OtherAuthority { .. } => Some(
                "compare the address and the digest with what `pandactl device join-token` prints; if they are right, \
                 somebody is between this device and the server",
            ),
            Self::Refused(_) => Some("`pandactl device join-token` prints a command with a new token"),
            Self::File { .. } | Self::Credentials(_) => Some("check its owner, its mode and the space left"),
            _ => None,
        }
    }
}

/// What joining needs.
#[derive(Clone, Copy)]
pub struct Join<'a> {
    /// Where to.
    pub servers: &'a [Uri],
    /// The token, `id.secret`.
    pub token: &'a str,
    /// `sha256:` and the digest of the authority's public key.
    pub ca_hash: &'a str,
    /// Name of the device.
    pub name: &'a str,
    /// Where the identity is kept.
    pub data_dir: &'a Path,
    /// For pauses that differ.
    pub ids: &'a dyn IdSource,
}

impl std::fmt::Debug for Join<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Join")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Join<'_> {
    /// Joins, and keeps the identity. Servers that are away are tried again without end.
    ///
    /// # Errors
    /// When a person must act.
    pub async fn run(self) -> Result<Credentials, Error> {
        let wanted = self.ca_hash.to_ascii_lowercase();
        let digits = wanted.strip_prefix("sha256:").unwrap_or_default();
        if digits.len() != 64 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(Error::Hash(self.ca_hash.chars().take(100).collect()));
        }
        let key = self.key()?;
        let (ca_pem, servers) = self.authority(&wanted).await?;
        let endpoints = Endpoints::new(servers);
        let connector = PlainConnector {
            endpoints,
            ca_pem: ca_pem.clone(),
        };
        let identity = Identity::Bearer(self.token.trim().to_owned());
        let ask = Ask::new(self.servers, Arc::new(connector), identity)
            .map_err(|error| Error::Client(error.into()))?;
        let request = signing_request(&key, self.name).map_err(Error::Key)?;
        let mut pause = BACKOFF.0;
        let certificate = loop {
            match ask.once(&request).await {
                Ok(Answer::Issued(certificate)) => break certificate,
                Ok(Answer::Waits { name } | Answer::Denied { name }) => {
                    return Err(Error::Refused(format!(
                        "request {name} was not answered with a certificate"
                    )));
                }
                Err(error) if refusal(&error).is_some() => {
                    return Err(Error::Refused(refusal(&error).unwrap_or_default()));
                }
                Err(error) => {
                    let why = crate::runner::chain(&error);
                    tracing::warn!(why, "not joined yet, trying again");
                    self.wait(&mut pause).await;
                }
            }
        };
        let credentials =
            Credentials::new(certificate, key.serialize_pem(), ca_pem).map_err(Error::Answer)?;
        credentials.save(self.data_dir)?;
        let joining = self.data_dir.join(JOINING_FILE);
        if let Err(error) = std::fs::remove_file(&joining) {
            tracing::warn!(%error, file = %joining.display(), "a key that is not needed any more is left");
        }
        Ok(credentials)
    }

    async fn wait(&self, pause: &mut Duration) {
        let part = u32::from(self.ids.uuid().as_bytes()[0]);
        tokio::time::sleep(*pause / 2 + *pause * part / 512).await;
        *pause = (*pause * 2).min(BACKOFF.1);
    }

    /// The key to join with: the one that was made at an earlier try, or a new one.
    fn key(&self) -> Result<KeyPair, Error> {
        let path = self.data_dir.join(JOINING_FILE);
        let file = |source| Error::File {
            path: path.clone(),
            source,
        };
        if let Some(bytes) = places::read_private(&path).map_err(file)? {
            if let Ok(key) = KeyPair::from_pem(&String::from_utf8_lossy(&bytes)) {
                return Ok(key);
            }
            tracing::warn!(file = %path.display(), "the key of an earlier try cannot be read, a new one is made");
        }
        let key = KeyPair::generate().map_err(Error::Key)?;
        places::write_private(&path, key.serialize_pem().as_bytes()).map_err(file)?;
        Ok(key)
    }

    /// The pinned authority, from the first server that shows it; and the servers, that one first.
    async fn authority(&self, wanted: &str) -> Result<(String, Vec<Uri>), Error> {
        let mut pause = BACKOFF.0;
        loop {
            for (index, server) in self.servers.iter().enumerate() {
                match pin::authority(server, wanted).await {
                    Ok(ca_pem) => {
                        let mut servers = self.servers.to_vec();
                        servers.rotate_left(index);
                        return Ok((ca_pem, servers));
                    }
                    Err(pin::Error::Other { found }) => {
                        return Err(Error::OtherAuthority {
                            server: server.to_string(),
                            found,
                            wanted: wanted.to_owned(),
                        });
                    }
                    Err(pin::Error::Unreached(why)) => {
                        tracing::warn!(%server, why, "the control plane is not reached, trying on");
                    }
                }
            }
            self.wait(&mut pause).await;
        }
    }
}

/// The server's words, when it refused for good.
pub(crate) fn refusal(error: &panda_client::Error) -> Option<String> {
    let status = error.status()?;
    let final_ = matches!(status.code, 400 | 401 | 403 | 409 | 422);
    let text = if status.code == 401 {
        "the token, or the key of this device, is not known there".to_owned()
    } else {
        status.message.clone()
    };
    final_.then_some(text)
}
