//! A device whose certificate has expired shows its request instead: the request's signature by the device's recorded
//! key is the proof. It gets nothing by that but a request that waits for a person.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use panda_api::certificates::RENEWAL_BEARER;

use super::{Certificates, csr};
use crate::authn::{AUTHENTICATED, BoxFuture, Principal, TokenAuthenticator, User};
use crate::registry;

/// What stands for a token's id: it is followed by the device's uid. No id of a token has a colon.
pub(super) const EXPIRED: &str = "expired:";
/// The user name of such a device is this and its name.
const RENEWAL_PREFIX: &str = "panda:device-renewal:";

/// Knows requests of devices by their recorded keys.
pub(crate) struct Renewals(pub(crate) Arc<Certificates>);

impl TokenAuthenticator for Renewals {
    fn authenticate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<User>, registry::Error>> {
        Box::pin(async move {
            let der = token
                .strip_prefix(RENEWAL_BEARER)
                .and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
            let Some(request) = der.and_then(|der| csr::parse(&der).ok()) else {
                return Ok(None);
            };
            let device = self.0.device(&request.name).await.map_err(super::unavailable)?;
            let Some(device) = device.filter(|device| super::holds(&device.object, &request)) else {
                return Ok(None);
            };
            Ok(Some(User {
                name: format!("{RENEWAL_PREFIX}{}", request.name),
                groups: vec![AUTHENTICATED.to_owned()],
                principal: Principal::Join {
                    token: format!("{EXPIRED}{}", device.object.metadata.uid),
                    device: Some(request.name),
                },
                ..User::default()
            }))
        })
    }
}
