//! Join tokens: `id.secret`, stored hashed, good for one request.

use std::sync::Arc;

use panda_api::meta::Reason;
use panda_api::meta::Time;
use panda_store::Key;
use panda_store::{ListRequest, Op, Scope};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Certificates, failed};
use crate::agentlet::objects::{self, Stored};
use crate::authn::{AUTHENTICATED, BoxFuture, Principal, TokenAuthenticator, User};
use crate::registry;
use crate::respond::Failure;

/// Internal resource: one record a token.
pub(super) const TOKENS: &str = "panda.internal/jointokens";
/// The user name of a joiner is this and its token's id.
const JOIN_PREFIX: &str = "panda:join:";
/// Length of an id.
const ID: usize = 12;
pub(super) const API_VERSION: &str = "panda.dev/v1alpha1";
/// How often a lost race is run again.
const ATTEMPTS: usize = 8;

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
    /// Name of the device that joined with it; empty in records of older servers, too.
    #[serde(default)]
    pub(super) joined: String,
}

/// A join token as it can be shown to people: without its secret, which the server does not have.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TokenView {
    kind: &'static str,
    api_version: &'static str,
    metadata: Value,
    /// The only device name that it is good for; absent: any.
    #[serde(skip_serializing_if = "String::is_empty")]
    device_name: String,
    /// When it ends.
    expires: Time,
    /// `Unused`, `Used` or `Expired`.
    state: &'static str,
    /// Name of the device that joined with it.
    #[serde(skip_serializing_if = "String::is_empty")]
    joined: String,
}

/// All that are kept, by id.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TokenList {
    kind: &'static str,
    api_version: &'static str,
    metadata: Value,
    items: Vec<TokenView>,
}

fn view(id: &str, record: TokenRecord, now: Time) -> TokenView {
    let state = if !record.used_by.is_empty() {
        "Used"
    } else if record.expires <= now {
        "Expired"
    } else {
        "Unused"
    };
    TokenView {
        kind: "JoinToken",
        api_version: API_VERSION,
        metadata: json!({"name": id}),
        device_name: record.device,
        expires: record.expires,
        state,
        joined: record.joined,
    }
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

fn hexadecimal(text: &str) -> bool {
    text.bytes()
        .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn is_id(text: &str) -> bool {
    text.len() == ID && hexadecimal(text)
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
            joined: String::new(),
        };
        Fresh {
            token: format!("{id}.{secret}"),
            stored: Stored::absent(key(&id), record),
        }
    }

    /// The tokens that are kept: those that are good, and for a day those that were.
    pub(crate) async fn tokens(&self) -> Result<TokenList, Failure> {
        let request = ListRequest {
            scope: Scope::resource(TOKENS),
            ..ListRequest::default()
        };
        let page = self.objects.store().list(request).await;
        let page = page.map_err(|error| failed(error.into()))?;
        let now = self.now();
        let items = page.items.iter().filter_map(|entry| {
            let record = serde_json::from_slice(&entry.value).ok()?;
            Some(view(&entry.key.name, record, now))
        });
        Ok(TokenList {
            kind: "JoinTokenList",
            api_version: API_VERSION,
            metadata: json!({"resourceVersion": page.revision.0.to_string()}),
            items: items.collect(),
        })
    }

    /// Makes a token worthless. A device that has joined with it stays one.
    pub(crate) async fn revoke(&self, id: &str) -> Result<TokenView, Failure> {
        for _ in 0..ATTEMPTS {
            let found = match is_id(id) {
                true => self
                    .objects
                    .internal::<TokenRecord>(key(id))
                    .await
                    .map_err(failed)?,
                false => None,
            };
            let stored = found.ok_or_else(|| {
                Failure::new(
                    Reason::NotFound,
                    format!("jointokens.panda.dev \"{id}\" not found"),
                )
            })?;
            let shown = view(id, stored.object.clone(), self.now());
            let Some(op) = stored.remove() else { continue };
            let ops: Vec<Op> = vec![op];
            match self.objects.commit(ops).await {
                Ok(_) => {
                    tracing::info!(token = id, state = shown.state, "join token revoked");
                    return Ok(shown);
                }
                // It was used at this moment.
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(Failure::new(
            Reason::ServiceUnavailable,
            "too many changes at a time; try again",
        ))
    }

    /// The record of a token; none when id or secret are wrong, which look alike from outside.
    pub(super) async fn token(
        &self,
        token: &str,
    ) -> Result<Option<(String, Stored<TokenRecord>)>, objects::Error> {
        let Some((id, secret)) = token.split_once('.') else {
            return Ok(None);
        };
        if !is_id(id) || secret.len() > 128 || !hexadecimal(secret) {
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
