//! Encryption at rest: a sealed object is stored as an envelope that shows nothing but its uid.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use panda_store::{Body, Key};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

use super::{Error, encode};
use crate::files;

const KEY_SIZE: usize = 32;
const NONCE_SIZE: usize = 24;
/// Where the store writes the version into an envelope.
const VERSION_AT: usize = r#"{"resourceVersion":""#.len();

/// Why the key could not be had.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file could not be used.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// The file is no key.
    #[error("{0} is not a key of 32 bytes; restore it from a backup: without it no Secret can be read")]
    Damaged(String),
    /// There is no randomness.
    #[error("the system gives no random bytes")]
    Random,
}

/// Seals and opens the objects of kinds that must never be stored in clear.
pub struct Sealer {
    cipher: XChaCha20Poly1305,
    random: SystemRandom,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").finish_non_exhaustive()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    /// Written by the store; first, so that its place is known.
    resource_version: &'a str,
    /// Bound into the seal, so that an envelope cannot be moved to another object.
    uid: &'a str,
    /// Where the version goes in the opened object.
    splice: usize,
    /// Nonce and ciphertext, base64.
    sealed: std::borrow::Cow<'a, str>,
}

impl Sealer {
    /// The sealer whose key is in `path`, made if it is not there.
    ///
    /// # Errors
    /// When the file cannot be used or is no key.
    pub fn open(path: &Path) -> Result<Self, KeyError> {
        let random = SystemRandom::new();
        let key = match files::read_private(path)? {
            Some(key) => key,
            None => {
                let mut key = vec![0; KEY_SIZE];
                random.fill(&mut key).map_err(|_| KeyError::Random)?;
                files::write_atomic(path, &key, 0o600)?;
                key
            }
        };
        let cipher = XChaCha20Poly1305::new_from_slice(&key)
            .map_err(|_| KeyError::Damaged(path.display().to_string()))?;
        Ok(Self { cipher, random })
    }

    pub(super) fn seal(&self, key: &Key, uid: &str, body: &Body) -> Result<Body, Error> {
        let failed = |detail: &str| Error::Damaged {
            key: key.to_string(),
            detail: detail.to_owned(),
        };
        let mut nonce = [0; NONCE_SIZE];
        self.random
            .fill(&mut nonce)
            .map_err(|_| failed("the system gives no random bytes"))?;
        let associated = associated(key, uid);
        let payload = Payload {
            msg: &body.bytes,
            aad: associated.as_bytes(),
        };
        let sealed = self
            .cipher
            .encrypt(XNonce::from_slice(&nonce), payload)
            .map_err(|_| failed("it is too large"))?;
        let sealed = STANDARD.encode([&nonce[..], &sealed].concat());
        let envelope = Envelope {
            resource_version: "",
            uid,
            splice: body.splice,
            sealed: sealed.into(),
        };
        let bytes = serde_json::to_vec(&envelope).map_err(|_| failed("it cannot be written"))?;
        Ok(Body::new(bytes, VERSION_AT))
    }

    pub(crate) fn open_value(&self, key: &Key, value: &[u8]) -> Result<Bytes, Error> {
        let failed = |detail: &str| Error::Damaged {
            key: key.to_string(),
            detail: detail.to_owned(),
        };
        let envelope: Envelope<'_> =
            serde_json::from_slice(value).map_err(|_| failed("its envelope is damaged"))?;
        let sealed = STANDARD
            .decode(envelope.sealed.as_bytes())
            .map_err(|_| failed("it is not base64"))?;
        let (nonce, sealed) = sealed
            .split_at_checked(NONCE_SIZE)
            .ok_or_else(|| failed("it is cut"))?;
        let associated = associated(key, envelope.uid);
        let payload = Payload {
            msg: sealed,
            aad: associated.as_bytes(),
        };
        let clear = self
            .cipher
            .decrypt(XNonce::from_slice(nonce), payload)
            .map_err(|_| failed("it was sealed with another key, or for another object"))?;
        Ok(encode::fill(&clear, envelope.splice, envelope.resource_version).into())
    }
}

fn associated(key: &Key, uid: &str) -> String {
    let group = key.resource.split('/').next().unwrap_or_default();
    format!("{group}/{}/{}/{uid}", key.namespace, key.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_object_and_key_open_a_seal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secrets.key");
        let sealer = Sealer::open(&path).unwrap();
        let key = Key::new("/secrets", "web", "gh");
        let body = Body::new(
            br#"{"metadata":{"resourceVersion":""},"data":"canary"}"#.to_vec(),
            32,
        );
        let sealed = sealer.seal(&key, "u1", &body).unwrap();
        let stored = encode::fill(&sealed.bytes, sealed.splice, "17");
        assert!(!String::from_utf8_lossy(&stored).contains("canary"));
        let clear = Sealer::open(&path).unwrap().open_value(&key, &stored).unwrap();
        assert_eq!(
            &clear[..],
            br#"{"metadata":{"resourceVersion":"17"},"data":"canary"}"#
        );
        let other = Key::new("/secrets", "web", "other");
        assert!(sealer.open_value(&other, &stored).is_err());
        let moved = String::from_utf8(stored.clone()).unwrap().replace("u1", "u2");
        assert!(sealer.open_value(&key, moved.as_bytes()).is_err());
        assert!(
            Sealer::open(&dir.path().join("new.key"))
                .unwrap()
                .open_value(&key, &stored)
                .is_err()
        );
        assert!(sealer.open_value(&key, b"{}").is_err());
    }
}
