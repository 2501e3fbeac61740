//! When a repository is looked at.

use std::sync::Arc;

use panda_api::GitSource;
use panda_api::meta::Clock;
use panda_client::runtime::controller::{Config, Controller};
use panda_client::runtime::{InformerHandle, ObjectRef, Outcome as Next, Store};
use tokio_util::sync::CancellationToken;

use super::status::{Outcome, due, plan};
use super::sync::Syncer;
use crate::framework::Runner;
use crate::framework::execute::Error;

/// Keeps repositories applied until the token is cancelled.
pub(crate) async fn run(
    sources: InformerHandle<GitSource>,
    syncer: Option<Syncer>,
    runner: Runner,
    clock: Arc<dyn Clock>,
    config: Config,
    token: CancellationToken,
) {
    let controller = Controller::new("gitsource", config).reconciles(&sources);
    let keeper = Arc::new(Keeper {
        sources: sources.store().clone(),
        syncer,
        runner,
        clock,
        uids: std::sync::Mutex::default(),
    });
    controller
        .run(
            move |request| {
                let keeper = Arc::clone(&keeper);
                async move { keeper.reconcile(&request.key).await }
            },
            token,
        )
        .await;
}

struct Keeper {
    sources: Store<GitSource>,
    syncer: Option<Syncer>,
    runner: Runner,
    clock: Arc<dyn Clock>,
    /// Uid of each source that was looked at, so that its repository can go with it.
    uids: std::sync::Mutex<std::collections::BTreeMap<ObjectRef, String>>,
}

impl Keeper {
    fn remember(&self, key: &ObjectRef, uid: Option<&str>) {
        let mut uids = self
            .uids
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let before = match uid {
            Some(uid) => uids.insert(key.clone(), uid.to_owned()),
            None => uids.remove(key),
        };
        drop(uids);
        if let Some(before) = before.filter(|before| uid != Some(before.as_str()))
            && let Some(syncer) = &self.syncer
        {
            syncer.forget(&before);
        }
    }

    async fn reconcile(&self, key: &ObjectRef) -> Result<Next, Error> {
        let source = self.sources.get(key);
        let source = source.filter(|source| source.metadata.deletion_timestamp.is_none());
        self.remember(key, source.as_ref().map(|source| source.metadata.uid.as_str()));
        let Some(source) = source else {
            return Ok(Next::Done);
        };
        let suspended = source.spec.suspend == Some(true);
        if !suspended && let Some(left) = due(&source, self.clock.now()) {
            return Ok(Next::After(left));
        }
        let outcome = match &self.syncer {
            Some(syncer) => syncer.sync(&source).await,
            None => Outcome::Stopped {
                commit: None,
                reason: "NotSetUp",
                message: "these controllers have no folder for repositories (gitSources.workDir)".to_owned(),
            },
        };
        self.runner
            .run(&plan(&source, &outcome, self.clock.now()), None)
            .await
    }
}
