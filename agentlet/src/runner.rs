//! One run's life on the device, from the acknowledged start to the last byte handed over.
//!
//! A worker goes through stages, each written to the run's folder before it begins and each safe to do again: a kill at
//! any point costs time, never a result, and never starts an agent twice (the supervisor's journal sees to that).
//!
//! | module | idea |
//! |---|---|
//! | `mail` | what dispatcher and worker tell each other |
//! | `record` | what the run's folder remembers |
//! | `worker` | the stages, and what interrupts them |
//! | `job` | one supervised job: start or adopt, steer, follow |
//! | `prepare` | workspace and job of the agent |
//! | `home` | files of the manifest, written into the run's HOME |
//! | `secrets` | the values that the run names, in memory alone |
//! | `residue` | values that an agent left on the disk |
//! | `work` | the agent's job, and what is reported of it |
//! | `collect` | what came out |
//! | `checks` | the platform's own checks |
//! | `finish` | hand over, publish, report the end |
//! | `strangers` | folders that can be made nothing of |
//! | `logs` | the run's log in one stream |

mod checks;
mod collect;
mod finish;
mod home;
mod job;
mod logs;
pub(crate) mod mail;
mod prepare;
mod record;
mod residue;
mod secrets;
mod strangers;
mod work;
mod worker;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use panda_api::meta::{Clock, IdSource};
use panda_api::{Retain, Run};
use panda_sandbox::User;
use tokio::sync::watch;

use crate::boot::Boot;
use crate::config::Config;
use crate::disk::Reserve;
use crate::outbox::Outbox;
use crate::session::Client;
use crate::workspace::{Key, TreeEmpty, Workspaces};
pub(crate) use job::chain;
use mail::{Events, Runs, Stored, Wish};
use record::{Folder, Stage};
use worker::Worker;

/// What all workers share.
#[derive(Debug)]
pub(crate) struct Env {
    pub(crate) config: Arc<Config>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: Arc<dyn IdSource>,
    pub(crate) boot: Arc<dyn Boot>,
    pub(crate) outbox: Outbox,
    pub(crate) reserve: Arc<Reserve>,
    pub(crate) workspaces: Workspaces,
    pub(crate) client: watch::Receiver<Option<Client>>,
    /// Program and arguments up to the hidden `supervise`.
    pub(crate) supervise: Vec<OsString>,
    /// Program and arguments of the floor's helper stage.
    pub(crate) helper: Vec<String>,
    /// User that agents run as.
    pub(crate) user: Option<User>,
}

impl Env {
    fn runs(&self) -> PathBuf {
        self.config.data_dir.join("runs")
    }
}

/// Workers over the folders of [`Env`].
#[derive(Clone, Debug)]
pub(crate) struct Workers(pub(crate) Arc<Env>);

impl Runs for Workers {
    fn stored(&self) -> BoxFuture<'_, io::Result<Vec<Stored>>> {
        Box::pin(async {
            let found = record::all(&self.0.runs())?;
            for (name, why) in &found.strangers {
                strangers::put_away(&self.0.config.data_dir, name, why).await?;
            }
            let stored = found.records.into_iter().map(|record| Stored {
                run: Arc::new(record.run),
                store_uid: record.store_uid,
                finished: record.stage == Stage::Finished,
                shipped_to: record.shipped_to,
            });
            Ok(stored.collect())
        })
    }

    fn condemn(&self, run: &Run, why: &str) -> io::Result<()> {
        let folder = Folder::new(&self.0.runs(), &run.metadata.uid);
        match folder.load()? {
            // What has ended stays as it ended; what has no folder was never begun.
            Some(record) if record.stage < Stage::Finished => folder.condemn(why),
            _ => Ok(()),
        }
    }

    fn work(&self, wish: watch::Receiver<Wish>, events: Events) -> BoxFuture<'static, ()> {
        let env = Arc::clone(&self.0);
        Box::pin(async move { Worker::new(env, wish, events).run().await })
    }

    fn give_up(&self, run: &Run, events: Events) -> BoxFuture<'static, ()> {
        let (env, run) = (Arc::clone(&self.0), run.clone());
        Box::pin(async move {
            strangers::give_up(&env, &run).await;
            // A dispatcher that is gone needs no news.
            drop(events.send((run.metadata.uid, mail::FromRun::Finished)).await);
        })
    }

    fn forget(&self, run: &Run) -> BoxFuture<'static, ()> {
        let (env, run) = (Arc::clone(&self.0), run.clone());
        Box::pin(async move { forget(&env, &run).await })
    }
}

/// The workspace that a run works in.
fn key(run: &Run) -> Key {
    Key {
        task_uid: run.spec.task_ref.uid.clone(),
        rerun: run.spec.rerun,
    }
}

async fn forget(env: &Env, run: &Run) {
    let (uid, key) = (&run.metadata.uid, key(run));
    if let Err(error) = env.workspaces.forget(&key, uid).await {
        tracing::warn!(run = uid, %error, "results of a run that is gone could not be removed");
    }
    let folder = Folder::new(&env.runs(), uid);
    if let Err(error) = std::fs::remove_dir_all(folder.path())
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(run = uid, %error, "folder of a run that is gone could not be removed");
    }
    let retain = run
        .spec
        .workspace
        .as_ref()
        .and_then(|w| w.retain)
        .unwrap_or_default();
    // Where that cannot be known, it may be used.
    let used = record::all(&env.runs()).map_or(true, |others| {
        others.records.iter().any(|other| self::key(&other.run) == key)
    });
    if retain != Retain::Always && !used {
        // It may be lent to this very run still, of which nothing is left; to any other, and it stays, and that is said.
        let gone = TreeEmpty::proved(uid.as_str());
        if let Err(error) = env.workspaces.discard(&key, Some(&gone)).await {
            tracing::warn!(run = uid, %error, "workspace of a task that is gone could not be removed");
        }
    }
}
