//! `Authorization: Bearer`, and who is asked about the token.

use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
pub use panda_store::BoxFuture;

use super::{Unknown, User};
use crate::registry;

/// Longest token that is looked at.
const MAX_TOKEN: usize = 8 << 10;

/// Knows one kind of token.
pub trait TokenAuthenticator: Send + Sync + 'static {
    /// The bearer. None: the token is of another kind, or no longer good; the next authenticator is asked. An error
    /// means that it cannot be said now, and the request is answered so, not refused.
    fn authenticate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<User>, registry::Error>>;
}

/// All kinds of tokens, in the order in which they are asked.
#[derive(Clone, Default)]
pub(crate) struct Bearers(Vec<Arc<dyn TokenAuthenticator>>);

impl Bearers {
    pub(crate) fn extend(&mut self, more: Vec<Arc<dyn TokenAuthenticator>>) {
        self.0.extend(more);
    }

    /// The bearer of the request's token. Without an `Authorization` header it is anonymous; any other that is not
    /// taken is refused.
    pub(crate) async fn user(
        &self,
        headers: &HeaderMap,
    ) -> Result<Result<Arc<User>, Unknown>, registry::Error> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let Some(value) = values.next() else {
            return Ok(Err(Unknown::Anonymous));
        };
        let token = value.to_str().ok().and_then(bearer);
        match token.filter(|_| values.next().is_none()) {
            Some(token) => self.check(token).await.map(|user| user.ok_or(Unknown::Rejected)),
            None => Ok(Err(Unknown::Rejected)),
        }
    }

    /// The bearer of a token; none when it is no good.
    pub(crate) async fn check(&self, token: &str) -> Result<Option<Arc<User>>, registry::Error> {
        if token.len() > MAX_TOKEN {
            return Ok(None);
        }
        for authenticator in &self.0 {
            if let Some(user) = authenticator.authenticate(token).await? {
                return Ok(Some(Arc::new(user)));
            }
        }
        Ok(None)
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    let plain = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    (scheme.eq_ignore_ascii_case("bearer") && plain).then_some(token)
}
