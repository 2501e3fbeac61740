//! `Impersonate-*` headers: acting as somebody else, for who has the verb `impersonate` on users, groups and accounts.
//!
//! Whoever one acts as is a person or an account: a device, a Run or a join token is known by its proof alone. Devices,
//! runs and join tokens never act as others.

use std::collections::BTreeMap;

use http::HeaderMap;
use panda_api::meta::Reason;

use super::access::forbidden;
use crate::authn::{AUTHENTICATED, Principal, User};
use crate::authz::{Attributes, Authorizer};
use crate::respond::Failure;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";
const ACCOUNT: &str = "system:serviceaccount:";
/// Most groups that one may act in.
const MAX_GROUPS: usize = 64;

/// Whom the request is made as; none: as who it is.
pub(super) fn acting(
    user: &User,
    headers: &HeaderMap,
    authorizer: &dyn Authorizer,
) -> Result<Option<User>, Failure> {
    if !headers
        .keys()
        .any(|name| name.as_str().starts_with("impersonate-"))
    {
        return Ok(None);
    }
    let further = headers
        .keys()
        .any(|name| name == UID || name.as_str().starts_with(EXTRA));
    if further {
        return Err(Failure::bad_request(
            "only Impersonate-User and Impersonate-Group are supported",
        ));
    }
    let names = texts(headers, USER)?;
    let [name] = names.as_slice() else {
        return Err(Failure::bad_request(
            "want one Impersonate-User header beside Impersonate-Group",
        ));
    };
    let mut groups = texts(headers, GROUP)?;
    if groups.len() > MAX_GROUPS {
        return Err(Failure::bad_request("too many Impersonate-Group headers"));
    }
    let account = name.strip_prefix(ACCOUNT).and_then(|rest| rest.split_once(':'));
    let target = match account {
        Some((namespace, name)) => Attributes {
            resource: "serviceaccounts",
            namespace,
            name,
            ..verb()
        },
        None => Attributes {
            resource: "users",
            name,
            ..verb()
        },
    };
    let wanted = groups.iter().map(|group| Attributes {
        resource: "groups",
        name: group,
        ..verb()
    });
    for attributes in std::iter::once(target).chain(wanted) {
        if user.device().is_some() || !authorizer.decide(user, &attributes).is_allowed() {
            return Err(forbidden(user, &attributes, ""));
        }
    }
    if let Some((namespace, _)) = account.filter(|_| groups.is_empty()) {
        groups = vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
        ];
    }
    if !groups.iter().any(|group| group == AUTHENTICATED) {
        groups.push(AUTHENTICATED.to_owned());
    }
    Ok(Some(User {
        name: name.clone(),
        uid: String::new(),
        groups,
        extra: BTreeMap::new(),
        principal: Principal::Person,
    }))
}

fn verb() -> Attributes<'static> {
    Attributes {
        verb: "impersonate",
        ..Attributes::default()
    }
}

fn texts(headers: &HeaderMap, name: &str) -> Result<Vec<String>, Failure> {
    let text = |value: &http::HeaderValue| {
        value
            .to_str()
            .ok()
            .filter(|text| !text.is_empty())
            .map(ToOwned::to_owned)
    };
    let texts: Option<Vec<String>> = headers.get_all(name).iter().map(text).collect();
    texts.ok_or_else(|| {
        Failure::new(
            Reason::BadRequest,
            format!("the header {name} is not readable text"),
        )
    })
}
