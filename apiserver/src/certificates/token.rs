//! Join tokens: `id.secret`, stored hashed, good for one request.

use std::sync::Arc;

use panda_api::meta::Time;
use panda_store::Key;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Certificates;
use crate::agentlet::objects::{self, Stored};
use crate::authn::{AUTHENTICATED, BoxFuture, Principal, TokenAuthenticator, User};
use crate::registry;

/// Internal resource: one record a token.
pub(super) const TOKENS: &str = "panda.internal/jointokens";
/// The user name of a joiner is this and its token's id.
const JOIN_PREFIX: &str = "panda:join:";
/// Length of an id.
const ID: usize = 12;

/// What is kept of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TokenRecord {
    /// SHA-256 of the secret, hexadecimal. The secret has 244 random bits, so it needs no salt and no slow hash.
    pub(super) hash: String,
    /// The only device name that it is good for; empty: any.
    pub(super) device: String,
    /// When it ends.
    pub(super) expires: Time,
    /// Name of the request that used it; empty: unused.
    pub(super) used_by: String,
    /// Fingerprint of the key of that request.
    pub(super) key: String,
}

/// A token as it is shown, once.
pub(super) struct Fresh {
    pub(super) token: String,
    pub(super) stored: Stored<TokenRecord>,
}

fn hash(secret: &str) -> String {
    hex::encode(Sha256::digest(secret.as_bytes()))
}

/// Whether two digests are the same, in a time that does not say how much of them is.
fn same(a: &str, b: &str) -> bool {
    let differences = a.bytes().zip(b.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
    a.len() == b.len() && differences == 0
}

pub(super) fn key(id: &str) -> Key {
    Key::new(TOKENS, "", id)
}

impl Certificates {
    pub(super) fn fresh_token(&self, device: &str, expires: Time) -> Fresh {
        let secret = format!("{}{}", self.ids.uuid().simple(), self.ids.uuid().simple());
        let id = self.ids.uuid().simple().to_string()[..ID].to_owned();
        let record = TokenRecord {
            hash: hash(&secret),
            device: device.to_owned(),
            expires,
            used_by: String::new(),
            key: String::new(),
        };
        Fresh {
            token: format!("{id}.{secret}"),
            stored: Stored::absent(key(&id), record),
        }
    }

    /// The record of a token; none when id or secret are wrong, which look alike from outside.
    pub(super) async fn token(
        &self,
        token: &str,
    ) -> Result<Option<(String, Stored<TokenRecord>)>, objects::Error> {
        let Some((id, secret)) = token.split_once('.') else {
            return Ok(None);
        };
        let hexadecimal = |text: &str| {
            text.bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        };
        if id.len() != ID || !hexadecimal(id) || secret.len() > 128 || !hexadecimal(secret) {
            return Ok(None);
        }
        let stored = self.objects.internal::<TokenRecord>(key(id)).await?;
        let shown = hash(secret);
        // The work is the same whether there is such an id or not.
        let kept = stored
            .as_ref()
            .map_or_else(|| hash(""), |stored| stored.object.hash.clone());
        let good = same(&shown, &kept);
        Ok(stored.filter(|_| good).map(|stored| (id.to_owned(), stored)))
    }
}

/// Knows join tokens. One that has expired or was used is still known, so that its holder can be told.
pub(crate) struct JoinTokens(pub(crate) Arc<Certificates>);

impl TokenAuthenticator for JoinTokens {
    fn authenticate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<User>, registry::Error>> {
        Box::pin(async move {
            let found = self.0.token(token).await.map_err(super::unavailable)?;
            Ok(found.map(|(id, stored)| User {
                name: format!("{JOIN_PREFIX}{id}"),
                groups: vec![AUTHENTICATED.to_owned()],
                principal: Principal::Join {
                    token: id,
                    device: Some(stored.object.device).filter(|device| !device.is_empty()),
                },
                ..User::default()
            }))
        })
    }
}
