//! Signed tokens: claims and a MAC over them, in the compact form of JWT. Nothing of a token is stored.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::files;

const KEY_SIZE: usize = 32;

/// Why the key could not be had.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file could not be used.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// The file is no key.
    #[error("{0} is not a key of 32 bytes; remove it to make a new one, which ends all tokens")]
    Damaged(String),
    /// There is no randomness.
    #[error("the system gives no random bytes")]
    Random,
}

/// What a token is for. It stands in the signed header, so that one kind is never taken for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// A ServiceAccount's token.
    Account,
    /// A Run's own token.
    Run,
}

impl Use {
    const fn header(self) -> &'static str {
        match self {
            Self::Account => r#"{"alg":"HS256","typ":"JWT"}"#,
            Self::Run => r#"{"alg":"HS256","typ":"panda-run+jwt"}"#,
        }
    }
}

/// The key that signs and checks tokens.
pub struct TokenKey(hmac::Key);

impl std::fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenKey").finish_non_exhaustive()
    }
}

impl TokenKey {
    /// The key in `path`, made if it is not there; only its owner may read it.
    ///
    /// # Errors
    /// When the file cannot be used or is no key.
    pub fn open(path: &Path) -> Result<Self, KeyError> {
        let key = match files::read_private(path)? {
            Some(key) => key,
            None => {
                let mut key = vec![0; KEY_SIZE];
                SystemRandom::new().fill(&mut key).map_err(|_| KeyError::Random)?;
                files::write_atomic(path, &key, 0o600)?;
                key
            }
        };
        if key.len() != KEY_SIZE {
            return Err(KeyError::Damaged(path.display().to_string()));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &key)))
    }

    pub(super) fn sign<C: Serialize>(&self, use_: Use, claims: &C) -> String {
        let claims = serde_json::to_vec(claims).expect("claims are structs of text and numbers");
        let mut token = format!(
            "{}.{}",
            URL_SAFE_NO_PAD.encode(use_.header()),
            URL_SAFE_NO_PAD.encode(claims)
        );
        let mac = hmac::sign(&self.0, token.as_bytes());
        token.push('.');
        token.push_str(&URL_SAFE_NO_PAD.encode(mac));
        token
    }

    /// The claims of a token of this use that was signed with this key.
    pub(super) fn verify<C: DeserializeOwned>(&self, use_: Use, token: &str) -> Option<C> {
        let (signed, mac) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let mac = URL_SAFE_NO_PAD.decode(mac).ok()?;
        hmac::verify(&self.0, signed.as_bytes(), &mac).ok()?;
        let header = URL_SAFE_NO_PAD.decode(header).ok()?;
        if header != use_.header().as_bytes() {
            return None;
        }
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
    }
}
