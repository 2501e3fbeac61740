//! SHA-256 digests.

use std::fmt;
use std::str::FromStr;

use sha2::Digest as _;

use super::{Error, shorten};

/// A SHA-256 digest; shown and parsed as `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest with these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// Without `sha256:`.
    #[must_use]
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || Error::InvalidName {
            what: "digest",
            value: shorten(text),
            expected: "sha256: and 64 lower-case hexadecimal digits",
        };
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        if digits.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(invalid());
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| invalid())?;
        Ok(Self(bytes))
    }
}
