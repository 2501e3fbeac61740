//! Tokens of ServiceAccounts: signed, ending, and good only while the account exists under its uid.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use panda_api::ServiceAccount;
use serde::{Deserialize, Serialize};

use super::key::Use;
use super::{AUTHENTICATED, BoxFuture, Principal, TokenAuthenticator, TokenKey, User};
use crate::registry::{Error, Registry};

/// The audience of this API.
pub const AUDIENCE: &str = "panda";
const ISSUER: &str = "panda";

/// Makes and checks the tokens of ServiceAccounts.
#[derive(Clone, Debug)]
pub struct AccountTokens {
    key: Arc<TokenKey>,
    registry: Registry,
}

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    aud: Vec<String>,
    exp: i64,
    iat: i64,
    iss: String,
    jti: String,
    nbf: i64,
    sub: String,
    #[serde(rename = "kubernetes.io")]
    account: Account,
}

#[derive(Debug, Serialize, Deserialize)]
struct Account {
    namespace: String,
    serviceaccount: NameAndUid,
}

#[derive(Debug, Serialize, Deserialize)]
struct NameAndUid {
    name: String,
    uid: String,
}

impl AccountTokens {
    /// Tokens signed with `key`, checked against the objects of `registry`.
    #[must_use]
    pub const fn new(key: Arc<TokenKey>, registry: Registry) -> Self {
        Self { key, registry }
    }

    /// A token for `account`, and when it ends. No audience: this API.
    #[must_use]
    pub fn mint(
        &self,
        account: &ServiceAccount,
        lifetime: Duration,
        mut audiences: Vec<String>,
    ) -> (String, Timestamp) {
        if audiences.is_empty() {
            audiences.push(AUDIENCE.to_owned());
        }
        let meta = &account.metadata;
        let now = self.registry.clock().now();
        let seconds = i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX);
        let exp = now.as_second().saturating_add(seconds);
        let claims = Claims {
            aud: audiences,
            exp,
            iat: now.as_second(),
            iss: ISSUER.to_owned(),
            jti: self.registry.ids().uuid().to_string(),
            nbf: now.as_second(),
            sub: name(&meta.namespace, &meta.name),
            account: Account {
                namespace: meta.namespace.clone(),
                serviceaccount: NameAndUid {
                    name: meta.name.clone(),
                    uid: meta.uid.clone(),
                },
            },
        };
        let token = self.key.sign(Use::Account, &claims);
        (token, Timestamp::from_second(exp).unwrap_or(Timestamp::MAX))
    }

    /// The account whose token this is, and the audiences that it is for, if it is good now.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub async fn check(&self, token: &str) -> Result<Option<(User, Vec<String>)>, Error> {
        let Some(claims) = self.key.verify::<Claims>(Use::Account, token) else {
            return Ok(None);
        };
        let now = self.registry.clock().now().as_second();
        // No limit below: a device or server whose clock is a little behind is no attack, and the end is what counts.
        if now >= claims.exp {
            return Ok(None);
        }
        let Account {
            namespace,
            serviceaccount,
        } = claims.account;
        let stored = self
            .registry
            .get_as::<ServiceAccount>(&namespace, &serviceaccount.name)
            .await?;
        let live = stored.is_some_and(|account| {
            account.metadata.uid == serviceaccount.uid && account.metadata.deletion_timestamp.is_none()
        });
        if !live {
            return Ok(None);
        }
        let user = User {
            name: name(&namespace, &serviceaccount.name),
            uid: serviceaccount.uid.clone(),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                AUTHENTICATED.to_owned(),
            ],
            extra: BTreeMap::from([(
                "authentication.kubernetes.io/credential-id".to_owned(),
                vec![format!("JTI={}", claims.jti)],
            )]),
            principal: Principal::ServiceAccount {
                namespace,
                name: serviceaccount.name,
                uid: serviceaccount.uid,
            },
        };
        Ok(Some((user, claims.aud)))
    }
}

fn name(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

impl TokenAuthenticator for AccountTokens {
    fn authenticate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<User>, Error>> {
        Box::pin(async move {
            let found = self.check(token).await?;
            // A token for others must not open this API, or whoever gets it could use it here.
            Ok(found.and_then(|(user, audiences)| audiences.iter().any(|a| a == AUDIENCE).then_some(user)))
        })
    }
}
