//! The one place where plans become API calls.

use std::future::Future;

use panda_api::meta::ObjectMeta;
use serde_json::{Value, json};

use super::{Action, Basis, Check, KINDS, Kind, Plan, Target};

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such object.
    #[error("{0} does not exist")]
    NotFound(String),
    /// An object of that name exists.
    #[error("{0} exists already")]
    AlreadyExists(String),
    /// A precondition did not hold.
    #[error("{0} has changed")]
    Conflict(String),
    /// Anything else.
    #[error("request for {target} failed")]
    Request {
        /// What it was about.
        target: String,
        /// Whether trying again later could help.
        retryable: bool,
        /// The client's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// Whether trying again could help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NotFound(_) | Self::AlreadyExists(_) => false,
            Self::Conflict(_) => true,
            Self::Request { retryable, .. } => *retryable,
        }
    }
}

/// One request of the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb<'a> {
    /// Reads the object live.
    Get,
    /// Creates the object.
    Create(&'a Value),
    /// Posts to a subresource.
    Post(&'a str, &'a Value),
    /// Replaces a subresource.
    Put(&'a str, &'a Value),
    /// Merges into the object.
    Patch(&'a Value),
    /// Deletes it, with preconditions.
    Delete {
        /// Uid that it must have.
        uid: &'a str,
        /// Version that it must have.
        resource_version: Option<&'a str>,
        /// Whether it waits for what it owns.
        foreground: bool,
    },
}

/// What the executor needs of an API: requests about one object, and whether a namespace holds any of a kind.
pub trait Api: Send + Sync {
    /// Does one request and returns the object that it answers with.
    fn call(&self, target: &Target, verb: Verb<'_>) -> impl Future<Output = Result<Value, Error>> + Send;

    /// The objects that name an owner, read live: in its namespace, or everywhere when it has none.
    fn dependents(
        &self,
        owner: &Target,
        uid: &str,
    ) -> impl Future<Output = Result<Vec<(Target, ObjectMeta)>, Error>> + Send;

    /// Name of some object of `kind` in `namespace`, read live.
    fn any(&self, kind: Kind, namespace: &str) -> impl Future<Output = Result<Option<String>, Error>> + Send;
}

/// How far a plan got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of it was done.
    Done,
    /// What the plan was made from is no longer true: plan again from a newer view.
    Stale(Target),
    /// A child's name is taken by an object of another owner.
    Taken(Target),
}

/// Carries out a plan, in the order that [`Plan`] fixes.
///
/// # Errors
/// A request failed for another reason than a conflict. What was done stays done; the next plan goes on from there.
pub async fn execute<A: Api>(api: &A, plan: &Plan) -> Result<Outcome, Error> {
    for check in &plan.checks {
        if let Some(found) = refuted(api, check).await? {
            return Ok(Outcome::Stale(found));
        }
    }
    if let Some(basis) = &plan.basis {
        if let Some(object) = &plan.status {
            match api.call(&basis.target, Verb::Put("status", object)).await {
                Ok(_) => {}
                Err(Error::Conflict(_) | Error::NotFound(_)) => {
                    return Ok(Outcome::Stale(basis.target.clone()));
                }
                Err(error) => return Err(error),
            }
        } else if !plan.actions.is_empty() && !is_current(api, basis).await? {
            return Ok(Outcome::Stale(basis.target.clone()));
        }
    }
    for action in &plan.actions {
        match perform(api, action).await? {
            Outcome::Done => {}
            stopped => return Ok(stopped),
        }
    }
    Ok(Outcome::Done)
}

/// The object that shows that a check does not hold.
async fn refuted<A: Api>(api: &A, check: &Check) -> Result<Option<Target>, Error> {
    match check {
        Check::Absent { target, uid } => match api.call(target, Verb::Get).await {
            Ok(found) => {
                let same = uid.as_deref().is_none_or(|uid| uid_of(&found) == uid);
                Ok(same.then(|| target.clone()))
            }
            Err(Error::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        },
        Check::NotReplaced { target, uid } => match api.call(target, Verb::Get).await {
            Ok(found) => Ok((uid_of(&found) != uid).then(|| target.clone())),
            Err(Error::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        },
        Check::Unowned {
            owner,
            uid,
            blocking,
            except,
        } => {
            let blocks = |meta: &ObjectMeta| {
                let mut references = meta.owner_references.iter().filter(|r| r.uid == *uid);
                !except.contains(&meta.uid)
                    && references.any(|r| !blocking || r.block_owner_deletion == Some(true))
            };
            let found = api.dependents(owner, uid).await?;
            Ok(found
                .into_iter()
                .find(|(_, meta)| blocks(meta))
                .map(|(target, _)| target))
        }
        Check::Empty { namespace } => {
            for kind in KINDS.into_iter().filter(|kind| kind.namespaced) {
                if let Some(name) = api.any(kind, namespace).await? {
                    let namespace = namespace.clone();
                    return Ok(Some(Target {
                        kind,
                        namespace,
                        name,
                    }));
                }
            }
            Ok(None)
        }
    }
}

async fn is_current<A: Api>(api: &A, basis: &Basis) -> Result<bool, Error> {
    match api.call(&basis.target, Verb::Get).await {
        Ok(live) => Ok(uid_of(&live) == basis.uid
            && live["metadata"]["resourceVersion"].as_str() == Some(&basis.resource_version)),
        Err(Error::NotFound(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

async fn perform<A: Api>(api: &A, action: &Action) -> Result<Outcome, Error> {
    let (target, result) = match action {
        Action::Create {
            target,
            owner_uid,
            object,
        } => match api.call(target, Verb::Create(object)).await {
            Err(Error::AlreadyExists(_)) => return adopt(api, target, owner_uid).await,
            result => (target, result),
        },
        Action::Status { target, object } => (target, api.call(target, Verb::Put("status", object)).await),
        Action::Patch { target, body } => (target, api.call(target, Verb::Patch(body)).await),
        Action::Delete {
            target,
            uid,
            resource_version,
            foreground,
        } => {
            let resource_version = resource_version.as_deref();
            match api
                .call(
                    target,
                    Verb::Delete {
                        uid,
                        resource_version,
                        foreground: *foreground,
                    },
                )
                .await
            {
                Err(Error::NotFound(_)) => return Ok(Outcome::Done),
                result => (target, result),
            }
        }
        Action::Bind { target, body } => (target, api.call(target, Verb::Post("binding", body)).await),
        Action::Finalize { target, object } => {
            (target, api.call(target, Verb::Put("finalize", object)).await)
        }
    };
    match result {
        Ok(_) => Ok(Outcome::Done),
        Err(Error::Conflict(_) | Error::NotFound(_) | Error::AlreadyExists(_)) => {
            Ok(Outcome::Stale(target.clone()))
        }
        Err(error) => Err(error),
    }
}

/// A child exists: it is ours when its managing owner is the one that wants it.
async fn adopt<A: Api>(api: &A, target: &Target, owner_uid: &str) -> Result<Outcome, Error> {
    match api.call(target, Verb::Get).await {
        Ok(found) if controller_uid(&found) == Some(owner_uid) => Ok(Outcome::Done),
        Ok(_) => Ok(Outcome::Taken(target.clone())),
        Err(Error::NotFound(_)) => Ok(Outcome::Stale(target.clone())),
        Err(error) => Err(error),
    }
}

fn uid_of(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

fn controller_uid(object: &Value) -> Option<&str> {
    object["metadata"]["ownerReferences"]
        .as_array()?
        .iter()
        .find(|r| r["controller"] == json!(true))?["uid"]
        .as_str()
}
