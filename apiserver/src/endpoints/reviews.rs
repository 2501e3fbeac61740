//! Reviews: who somebody is and what they may do. Answered, never stored.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use panda_api::Resource;
use panda_api::access::{
    AccessReviewSpec, AccessReviewStatus, LocalSubjectAccessReview, NonResourceRule, ResourceRule,
    SelfSubjectAccessReview, SelfSubjectReview, SelfSubjectRulesReview, SubjectAccessReview,
    SubjectRulesReviewStatus, TokenReview, TokenReviewStatus, UserInfo,
};
use serde::de::DeserializeOwned;

use crate::authn::{AUDIENCE, Principal, User};
use crate::authz::{Attributes, Authorizer, Decision};
use crate::body;
use crate::endpoints::{Api, Call};
use crate::negotiate::{encoding, plain};
use crate::registry::Kind;
use crate::respond::{Failure, json};

/// Whether a kind is a question.
pub(crate) fn is_review(kind: Kind) -> bool {
    kind.verbs == ["create"]
}

/// The object in a body; `apiVersion` and `kind` may be left out.
pub(crate) async fn decode<K: Resource + DeserializeOwned>(call: &Call, body: Body) -> Result<K, Failure> {
    let encoding = encoding(&call.parts.headers)?;
    let bytes = body::read(body, call.body_limit()).await?;
    let mut value = body::decode(&bytes, encoding, call.params.field_validation()?)?.value;
    let Some(object) = value.as_object_mut() else {
        return Err(Failure::bad_request(format!("want a {} as an object", K::KIND)));
    };
    for (key, wanted) in [("apiVersion", K::api_version()), ("kind", K::KIND.to_owned())] {
        match object.get(key).and_then(serde_json::Value::as_str) {
            None | Some("") => drop(object.insert(key.to_owned(), wanted.into())),
            Some(is) if is == wanted => {}
            Some(_) => {
                return Err(Failure::bad_request(format!(
                    "the {key} in the object is not the one that this URL takes ({wanted:?})"
                )));
            }
        }
    }
    object.remove("status");
    let metadata = object.get("metadata").filter(|metadata| metadata.is_null());
    if metadata.is_some() {
        object.remove("metadata");
    }
    serde_json::from_value(value).map_err(|error| {
        Failure::bad_request(format!("{} cannot be handled as a {}: {error}", K::KIND, K::KIND))
    })
}

pub(crate) async fn create(api: &Arc<Api>, call: &Call, body: Body) -> Result<Response, Failure> {
    plain(&call.parts.headers)?;
    let user = call.user()?;
    let rules = api.authorizer.as_ref();
    match call.kind.kind {
        SelfSubjectReview::KIND => {
            let mut review: SelfSubjectReview = decode(call, body).await?;
            review.status.user_info = info(&user);
            Ok(json(StatusCode::CREATED, &review))
        }
        SelfSubjectAccessReview::KIND => {
            let mut review: SelfSubjectAccessReview = decode(call, body).await?;
            review.status = access(rules, &user, &review.spec)?;
            Ok(json(StatusCode::CREATED, &review))
        }
        SelfSubjectRulesReview::KIND => {
            let mut review: SelfSubjectRulesReview = decode(call, body).await?;
            if review.spec.namespace.is_empty() {
                return Err(Failure::bad_request("no namespace on request"));
            }
            review.status = all(rules, &user, &review.spec.namespace);
            Ok(json(StatusCode::CREATED, &review))
        }
        SubjectAccessReview::KIND => {
            let mut review: SubjectAccessReview = decode(call, body).await?;
            review.status = access(rules, &subject(&review.spec)?, &review.spec)?;
            Ok(json(StatusCode::CREATED, &review))
        }
        LocalSubjectAccessReview::KIND => {
            let mut review: LocalSubjectAccessReview = decode(call, body).await?;
            let place = review
                .spec
                .resource_attributes
                .as_ref()
                .map(|a| a.namespace.as_str());
            if place != Some(call.namespace()) {
                return Err(Failure::bad_request(format!(
                    "spec.resourceAttributes.namespace must be {:?}, the namespace of the review",
                    call.namespace()
                )));
            }
            review.metadata.namespace = call.namespace().to_owned();
            review.status = access(rules, &subject(&review.spec)?, &review.spec)?;
            Ok(json(StatusCode::CREATED, &review))
        }
        TokenReview::KIND => {
            let mut review: TokenReview = decode(call, body).await?;
            review.status = token(api, &review).await?;
            // The token goes no further than it must.
            review.spec.token = String::new();
            Ok(json(StatusCode::CREATED, &review))
        }
        _ => Err(Failure::no_route()),
    }
}

fn info(user: &User) -> UserInfo {
    UserInfo {
        username: user.name.clone(),
        uid: user.uid.clone(),
        groups: user.groups.clone(),
        extra: user.extra.clone(),
    }
}

/// The user that an access review asks about. Of a name alone it is not known whether it is a device or a Run, so what
/// only those may do is not answered.
fn subject(spec: &AccessReviewSpec) -> Result<User, Failure> {
    if spec.user.is_empty() && spec.groups.is_empty() {
        return Err(Failure::bad_request(
            "at least one of spec.user and spec.groups must be set",
        ));
    }
    Ok(User {
        name: spec.user.clone(),
        uid: spec.uid.clone(),
        groups: spec.groups.clone(),
        extra: spec.extra.clone(),
        principal: Principal::Person,
    })
}

fn access(
    rules: &dyn Authorizer,
    user: &User,
    spec: &AccessReviewSpec,
) -> Result<AccessReviewStatus, Failure> {
    let attributes = match (&spec.resource_attributes, &spec.non_resource_attributes) {
        (Some(on), None) => Attributes {
            verb: &on.verb,
            group: &on.group,
            resource: &on.resource,
            subresource: &on.subresource,
            namespace: &on.namespace,
            name: &on.name,
            ..Attributes::default()
        },
        (None, Some(on)) => Attributes {
            verb: &on.verb,
            path: &on.path,
            ..Attributes::default()
        },
        _ => {
            return Err(Failure::bad_request(
                "exactly one of spec.nonResourceAttributes or spec.resourceAttributes must be specified",
            ));
        }
    };
    let decision = rules.decide(user, &attributes);
    Ok(AccessReviewStatus {
        allowed: decision.is_allowed(),
        denied: matches!(decision, Decision::Deny(_)),
        reason: match decision {
            Decision::Deny(why) => why.to_owned(),
            Decision::Allow | Decision::NoOpinion => String::new(),
        },
        evaluation_error: String::new(),
    })
}

fn all(rules: &dyn Authorizer, user: &User, namespace: &str) -> SubjectRulesReviewStatus {
    let mut status = SubjectRulesReviewStatus::default();
    for rule in rules.rules(user, namespace) {
        if rule.non_resource_urls.is_empty() {
            status.resource_rules.push(ResourceRule {
                verbs: rule.verbs,
                api_groups: rule.api_groups,
                resources: rule.resources,
                resource_names: rule.resource_names,
            });
        } else {
            status.non_resource_rules.push(NonResourceRule {
                verbs: rule.verbs,
                non_resource_urls: rule.non_resource_urls,
            });
        }
    }
    if !matches!(
        user.principal,
        Principal::Person | Principal::ServiceAccount { .. }
    ) {
        status.incomplete = true;
        status.evaluation_error =
            "what devices and runs may do is decided before these rules, and is less".to_owned();
    }
    status
}

async fn token(api: &Api, review: &TokenReview) -> Result<TokenReviewStatus, Failure> {
    let wanted = &review.spec.audiences;
    let refused = |error: &str| TokenReviewStatus {
        error: error.to_owned(),
        ..TokenReviewStatus::default()
    };
    if review.spec.token.is_empty() {
        return Err(Failure::bad_request("spec.token must be set"));
    }
    let (user, audiences) = match api.accounts.check(&review.spec.token).await? {
        Some(found) => found,
        None => match api.bearers.check(&review.spec.token).await? {
            Some(user) => ((*user).clone(), vec![AUDIENCE.to_owned()]),
            None => return Ok(refused("the token is not valid")),
        },
    };
    let common: Vec<String> = audiences
        .into_iter()
        .filter(|audience| wanted.contains(audience) || (wanted.is_empty() && audience == AUDIENCE))
        .collect();
    if common.is_empty() {
        return Ok(refused("the token is for other audiences"));
    }
    Ok(TokenReviewStatus {
        authenticated: true,
        user: Some(info(&user)),
        audiences: common,
        error: String::new(),
    })
}
