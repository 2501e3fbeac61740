//! Tokens of Runs: good while the Run lives, under the epoch at which it was bound, and while its Task wants it.

use std::collections::BTreeMap;
use std::sync::Arc;

use panda_api::{Lease, Run, RunPhase, Task};
use serde::{Deserialize, Serialize};

use super::key::Use;
use super::{AUTHENTICATED, BoxFuture, Principal, RunIdentity, TokenAuthenticator, TokenKey, User};
use crate::registry::{Error, Registry};

/// The user name of a Run is this, its namespace, a colon and its uid.
pub(crate) const RUN_PREFIX: &str = "panda:run:";
/// The group of all Runs.
pub const RUNS: &str = "panda:runs";

/// Whether a user name is one of a Run.
pub(crate) fn is_run(name: &str) -> bool {
    name.starts_with(RUN_PREFIX)
}

/// Makes and checks the tokens of Runs.
///
/// A token holds which Run it is for, and a MAC; it is stored nowhere. At each request the Run must exist under its
/// uid, not have ended, hold its Lease at the token's epoch, and its Task must say `apiAccess: true`.
#[derive(Clone, Debug)]
pub struct RunTokens {
    key: Arc<TokenKey>,
    registry: Registry,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    ns: String,
    name: String,
    uid: String,
    epoch: i32,
}

impl RunTokens {
    /// Tokens signed with `key`, checked against the objects of `registry`.
    #[must_use]
    pub const fn new(key: Arc<TokenKey>, registry: Registry) -> Self {
        Self { key, registry }
    }

    /// A token for a bound Run. It is always the same one, and whether it is any good is decided when it is used.
    #[must_use]
    pub fn mint(&self, run: &Run) -> String {
        let claims = Claims {
            ns: run.metadata.namespace.clone(),
            name: run.metadata.name.clone(),
            uid: run.metadata.uid.clone(),
            epoch: run.spec.lease_epoch.unwrap_or_default(),
        };
        self.key.sign(Use::Run, &claims)
    }

    /// The Run whose token this is, if it may still use it.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub async fn check(&self, token: &str) -> Result<Option<User>, Error> {
        let Some(claims) = self.key.verify::<Claims>(Use::Run, token) else {
            return Ok(None);
        };
        let run = self.registry.get_as::<Run>(&claims.ns, &claims.name).await?;
        let Some(run) = run.filter(|run| is_live(run, &claims)) else {
            return Ok(None);
        };
        let lease = self.registry.get_as::<Lease>(&claims.ns, &claims.name).await?;
        if !lease.is_some_and(|lease| holds(&lease, &run)) {
            return Ok(None);
        }
        let task_ref = &run.spec.task_ref;
        let task = self.registry.get_as::<Task>(&claims.ns, &task_ref.name).await?;
        let wanted =
            task.is_some_and(|task| task.metadata.uid == task_ref.uid && task.spec.api_access == Some(true));
        Ok(wanted.then(|| user(claims, &run)))
    }
}

fn is_live(run: &Run, claims: &Claims) -> bool {
    run.metadata.uid == claims.uid
        && run.metadata.deletion_timestamp.is_none()
        && run.spec.lease_epoch == Some(claims.epoch)
        && !run.spec.device_uid.is_empty()
        && !run.status.phase.is_some_and(RunPhase::is_terminal)
}

fn holds(lease: &Lease, run: &Run) -> bool {
    lease.spec.holder_identity.as_deref() == Some(run.spec.device_uid.as_str())
        && lease.spec.lease_transitions == run.spec.lease_epoch
}

fn user(claims: Claims, run: &Run) -> User {
    User {
        name: format!("{RUN_PREFIX}{}:{}", claims.ns, claims.uid),
        uid: claims.uid.clone(),
        groups: vec![
            RUNS.to_owned(),
            format!("{RUNS}:{}", claims.ns),
            AUTHENTICATED.to_owned(),
        ],
        extra: BTreeMap::from([
            ("panda.dev/run".to_owned(), vec![claims.name.clone()]),
            ("panda.dev/task".to_owned(), vec![run.spec.task_ref.name.clone()]),
        ]),
        principal: Principal::Run(RunIdentity {
            namespace: claims.ns,
            name: claims.name,
            uid: claims.uid,
            epoch: claims.epoch,
            task: run.spec.task_ref.name.clone(),
        }),
    }
}

impl TokenAuthenticator for RunTokens {
    fn authenticate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<User>, Error>> {
        Box::pin(self.check(token))
    }
}
