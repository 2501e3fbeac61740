//! Continue tokens: where a page ended, and at which version.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use panda_store::{Key, Revision};
use serde::{Deserialize, Serialize};

use super::{Error, Kind, kinds};

/// Longest token that is read.
const MAX: usize = 2048;

/// A decoded token. It only names a position inside the scope of the request that carries it, so a forged one
/// shows nothing that the request could not see anyway.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Token {
    v: u8,
    /// Version of the list; absent: go on with the newest state.
    #[serde(skip_serializing_if = "Option::is_none")]
    rv: Option<u64>,
    ns: String,
    name: String,
}

impl Token {
    pub(super) fn new(at: Option<Revision>, last: &Key) -> Self {
        Self {
            v: 1,
            rv: at.map(|revision| revision.0),
            ns: last.namespace.to_string(),
            name: last.name.to_string(),
        }
    }

    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let invalid = || Error::BadRequest("continue key is not valid: list again from the start".to_owned());
        if text.len() > MAX {
            return Err(invalid());
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid())?;
        let token: Self = serde_json::from_slice(&bytes).map_err(|_| invalid())?;
        if token.v == 1 && !token.name.is_empty() {
            Ok(token)
        } else {
            Err(invalid())
        }
    }

    pub(super) fn at(&self) -> Option<Revision> {
        self.rv.map(Revision)
    }

    pub(super) fn last(&self, kind: Kind) -> Key {
        kinds::key(kind, &self.ns, &self.name)
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let json = serde_json::to_vec(self).map_err(|_| std::fmt::Error)?;
        f.write_str(&URL_SAFE_NO_PAD.encode(json))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_and_nonsense_is_refused() {
        let token = Token::new(Some(Revision(7)), &Key::new("g/tasks", "web", "a"));
        assert_eq!(Token::parse(&token.to_string()).unwrap(), token);
        for bad in [
            "",
            "!",
            "e30",
            &URL_SAFE_NO_PAD.encode(r#"{"v":2,"ns":"","name":"a"}"#),
            &"A".repeat(4096),
        ] {
            assert!(Token::parse(bad).is_err(), "{bad}");
        }
    }
}
