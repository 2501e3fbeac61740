//! Workspaces: where an agent works.
//!
//! One folder for each Task and rerun, with the work tree (`ws`), a home (`home`) and a place for temporary files (`tmp`),
//! lent to one Run at a time. What is ours is written down outside the folder, where no agent can write; a folder that
//! is not written down as ours is never used, emptied or removed, whatever its name, unless it is empty: the next free name
//! is taken instead, and when none is free the attempt fails. A later attempt of the same Task finds its own tree again.
//!
//! A git workspace is a private clone ([`clone`]) of a mirror of ours, so the agent never holds a handle to the user's
//! repository: no shared config, refs or hooks, and no remote that leads there. Before a process may start, [`proof`] shows
//! by git's own answer that the work tree and its git folder lie where they should; the [`LaunchProof`] it gives is the
//! only way to a launch.
//!
//! After the agent has ended its tree is data. Nothing of ours runs git in it or follows a link of it: the walker
//! ([`crate::artifact`]) reads it through folder handles, and git is given bytes over a pipe.

pub(crate) mod clone;
mod config;
pub(crate) mod disk;
mod error;
mod proof;
mod record;
pub(crate) mod remove;

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use panda_api::v1alpha1::Retain;
use serde::{Deserialize, Serialize};

use crate::git::Git;
use crate::git::mirror::Mirror;
use crate::git::source::{Source, is_ref_name};

pub use config::{Config, Limits};
pub use error::Error;
pub use proof::LaunchProof;
use record::{Claim, Record, Records, Stage};

/// How many folder names are tried for one Task and rerun.
const MAX_CANDIDATES: u32 = 16;

/// Whose workspace it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Uid of the Task.
    pub task_uid: String,
    /// The Task's `spec.rerun` that the Run belongs to.
    pub rerun: i64,
}

/// What a workspace starts from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Content {
    /// Nothing.
    Empty,
    /// A commit of a repository on this device.
    Git {
        /// Absolute path of the repository.
        path: PathBuf,
        /// Branch, tag or commit; empty: `HEAD`.
        reference: String,
        /// Branch that the work is on, and that the result is published as.
        branch: String,
    },
}

/// The caller's word that no process of a Run is left, taken where another's tree would otherwise be disturbed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEmpty {
    run_uid: String,
}

impl TreeEmpty {
    /// To be made only where the end of the whole process tree of `run_uid` was proved.
    #[must_use]
    pub fn proved(run_uid: impl Into<String>) -> Self {
        Self {
            run_uid: run_uid.into(),
        }
    }

    /// The Run.
    #[must_use]
    pub fn run_uid(&self) -> &str {
        &self.run_uid
    }
}

/// All workspaces of a device.
#[derive(Debug)]
pub struct Workspaces {
    pub(crate) config: Config,
    pub(crate) git: Git,
    records: Records,
    locks: Mutex<HashMap<Key, Weak<tokio::sync::Mutex<()>>>>,
    /// Held as long as this lives: one agentlet for one state folder and one work folder.
    _owners: [disk::Owned; 2],
}

/// The right to change the workspaces of a Task's rerun. What runs on another thread takes its share along, so that a
/// caller who gives up does not let the next one in before that thread is done.
pub(crate) type Held = Arc<tokio::sync::OwnedMutexGuard<()>>;

/// A workspace lent to a Run.
#[derive(Clone, Debug)]
pub struct Workspace {
    pub(crate) key: Key,
    pub(crate) run_uid: String,
    pub(crate) record: Record,
    pub(crate) root: PathBuf,
    resumed: bool,
}

impl Workspace {
    /// The work tree.
    #[must_use]
    pub fn tree(&self) -> PathBuf {
        self.root.join("ws")
    }

    /// The home folder; XDG folders belong inside.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.root.join("home")
    }

    /// The folder for temporary files.
    #[must_use]
    pub fn tmp(&self) -> PathBuf {
        self.root.join("tmp")
    }

    /// Whether an earlier attempt worked here.
    #[must_use]
    pub const fn resumed(&self) -> bool {
        self.resumed
    }

    /// The commit that the work started from; `None` without git.
    #[must_use]
    pub fn base_commit(&self) -> Option<&str> {
        self.record.base.as_deref()
    }

    /// The branch that the work is on; `None` without git.
    #[must_use]
    pub fn branch(&self) -> Option<&str> {
        match &self.record.content {
            Content::Empty => None,
            Content::Git { branch, .. } => Some(branch),
        }
    }
}

impl Workspaces {
    /// Opens the folders of `config`, goes on with removals that a crash cut short, and removes empty folders that a crash
    /// kept from being written down.
    pub async fn open(config: Config) -> Result<Self, Error> {
        let shared = if config.agent.is_some() { 0o711 } else { 0o700 };
        disk::make_dir(&config.state_dir, 0o700)?;
        disk::make_dir(&config.mirrors_dir, shared)?;
        disk::make_dir(&config.work_dir, shared)?;
        disk::make_dir(&config.work_dir.join(CHECKS), shared)?;
        if let Some(agent) = config.agent {
            disk::check_reachable(&config.mirrors_dir, agent)?;
            disk::check_reachable(&config.work_dir, agent)?;
        }
        let own = |dir: &PathBuf| {
            disk::own(&dir.join("workspaces.lock"))?.ok_or_else(|| Error::InUse { path: dir.clone() })
        };
        let owners = [own(&config.state_dir)?, own(&config.work_dir)?];
        let records = Records::open(config.state_dir.join("workspaces"))?;
        let this = Self {
            git: Git::new(
                config.git.clone(),
                config.limits.git_timeout,
                config.limits.git_output,
            ),
            records,
            config,
            locks: Mutex::default(),
            _owners: owners,
        };
        for record in this.records.all()? {
            if record.stage == Stage::Removing {
                let held = this.hold(&record.key()).await;
                this.remove(&held, &record).await?;
            }
        }
        this.records.sweep(&this.config.work_dir)?;
        Ok(this)
    }

    /// Makes the workspace of a Run, or finds the one that an earlier attempt left, and lends it to the Run. If it is
    /// lent to another Run still, `former` must be that Run's proof. May be called again after a crash at any point.
    pub async fn prepare(
        &self,
        key: &Key,
        run_uid: &str,
        content: &Content,
        former: Option<&TreeEmpty>,
    ) -> Result<Workspace, Error> {
        check_key(key, run_uid)?;
        if let Content::Git { branch, .. } = content
            && !is_ref_name(branch)
        {
            return Err(Error::Invalid {
                field: "workspace.result.branch",
                value: branch.clone(),
                why: "it is not a valid branch name",
            });
        }
        let held = self.hold(key).await;
        loop {
            let Claim { mut record, resumed } =
                self.records
                    .claim(&self.config, key, content, self.config.clock.now())?;
            self.records.lend(&record.folder, run_uid, former)?;
            let root = self.config.work_dir.join(&record.folder);
            if !resumed {
                self.build(&held, &mut record, &root).await?;
            }
            let workspace = Workspace {
                key: key.clone(),
                run_uid: run_uid.to_owned(),
                record,
                root,
                resumed,
            };
            match self.prove(&workspace).await {
                Ok(_) => return Ok(workspace),
                Err(e @ Error::ProofFailed { .. }) if resumed => {
                    // Its agent moved the tree or its git folder away: that folder is kept as evidence, not reused.
                    tracing::warn!(
                        folder = workspace.record.folder,
                        error = %e,
                        "workspace of an earlier attempt is not trusted again"
                    );
                    let mut record = workspace.record;
                    record.stage = Stage::Spoiled;
                    self.records.save(&record)?;
                    self.records.take_back(&record.folder)?;
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// The workspace that is lent to `run_uid`: for a Run that outlived its agentlet. It needs a new proof before a launch.
    pub async fn reopen(&self, key: &Key, run_uid: &str) -> Result<Workspace, Error> {
        check_key(key, run_uid)?;
        let _held = self.hold(key).await;
        for record in self.records.all()? {
            if record.is_of(key)
                && record.stage == Stage::Ready
                && self.records.holder(&record.folder)?.as_deref() == Some(run_uid)
            {
                return Ok(Workspace {
                    key: key.clone(),
                    run_uid: run_uid.to_owned(),
                    root: self.config.work_dir.join(&record.folder),
                    record,
                    resumed: true,
                });
            }
        }
        Err(Error::NotLent {
            run_uid: run_uid.to_owned(),
        })
    }

    /// The proof that a launch needs.
    pub async fn prove(&self, workspace: &Workspace) -> Result<LaunchProof, Error> {
        proof::prove(&self.git, &self.config, workspace).await
    }

    /// Takes the workspace back from a Run whose processes are proved gone, and removes it unless it is to be kept.
    pub async fn release(
        &self,
        workspace: Workspace,
        empty: &TreeEmpty,
        retain: Retain,
        succeeded: bool,
    ) -> Result<(), Error> {
        let held = self.hold(&workspace.key).await;
        self.check_lent(&workspace, empty)?;
        let keep = match retain {
            Retain::Always => true,
            Retain::OnFailure => !succeeded,
            Retain::Never => false,
        };
        if keep {
            return self.records.take_back(&workspace.record.folder);
        }
        self.remove_all(&held, &workspace.key, Some(&workspace.run_uid))
            .await
    }

    /// Removes what a preparation for the Run left half made, as it was interrupted or failed: nobody worked in it.
    pub async fn undo(&self, key: &Key, run_uid: &str) -> Result<(), Error> {
        check_key(key, run_uid)?;
        let held = self.hold(key).await;
        for mut record in self.records.all()? {
            let half_made = matches!(record.stage, Stage::Creating | Stage::Removing);
            // It is lent last: one that is lent to nobody was not made to its end, either.
            let holder = self.records.holder(&record.folder)?;
            if half_made && record.is_of(key) && holder.is_none_or(|by| by == run_uid) {
                record.stage = Stage::Removing;
                self.records.save(&record)?;
                self.remove(&held, &record).await?;
            }
        }
        Ok(())
    }

    /// Removes every folder of a Task's rerun that is lent to nobody, or to a Run that is proved gone, whatever the retain
    /// policy said: for a deleted Task. Results stay until [`Self::forget`].
    pub async fn discard(&self, key: &Key, gone: Option<&TreeEmpty>) -> Result<(), Error> {
        let held = self.hold(key).await;
        self.remove_all(&held, key, gone.map(TreeEmpty::run_uid)).await
    }

    /// Removes the results of a Run: once the server has them and the Run is gone.
    pub async fn forget(&self, key: &Key, run_uid: &str) -> Result<(), Error> {
        check_key(key, run_uid)?;
        let held = self.hold(key).await;
        let path = self.results(run_uid);
        remove::tree(&held, &path).await
    }

    /// Where the results of a Run are kept until the server has them.
    pub(crate) fn results(&self, run_uid: &str) -> PathBuf {
        self.config.state_dir.join("results").join(run_uid)
    }

    /// Where the checks of a Run work.
    pub(crate) fn checks(&self, run_uid: &str) -> PathBuf {
        self.config.work_dir.join(CHECKS).join(run_uid)
    }

    /// Fails unless the workspace is lent to the Run whose processes are proved gone.
    pub(crate) fn check_lent(&self, workspace: &Workspace, empty: &TreeEmpty) -> Result<(), Error> {
        let holder = self.records.holder(&workspace.record.folder)?;
        if holder.as_deref() != Some(workspace.run_uid.as_str()) || empty.run_uid != workspace.run_uid {
            return Err(Error::NotLent {
                run_uid: empty.run_uid.clone(),
            });
        }
        Ok(())
    }

    async fn build(&self, held: &Held, record: &mut Record, root: &Path) -> Result<(), Error> {
        remove::contents(held, root, record.identity()).await?;
        disk::make_dir(&root.join("home"), 0o700)?;
        disk::make_dir(&root.join("tmp"), 0o700)?;
        let tree = root.join("ws");
        disk::make_dir(&tree, 0o700)?;
        if let Content::Git {
            path,
            reference,
            branch,
        } = &record.content
        {
            let source = Source::locate(&self.git, path, &self.config.workspace_roots).await?;
            let commit = source.resolve(&self.git, reference).await?;
            let mirror = Mirror::ensure(
                &self.git,
                &self.config.mirrors_dir,
                &source,
                &commit,
                self.config.agent,
                self.config.limits.transfer_bytes,
            )
            .await?;
            clone::make(
                &self.git,
                &mirror,
                &source.format,
                &commit,
                branch,
                &tree,
                self.config.agent,
            )
            .await?;
            record.base = Some(commit);
            record.mirror = Some(mirror.repo.git_dir);
            record.format = source.format;
        }
        record.tree = Some(disk::identity(&tree)?);
        if let Some(agent) = self.config.agent {
            for name in ["home", "tmp", "ws"] {
                disk::give(held, &root.join(name), agent).await?;
            }
        }
        record.stage = Stage::Ready;
        self.records.save(record)
    }

    /// Removes every folder of a Task's rerun; `holder` is the Run whose own folder may still be lent to it.
    async fn remove_all(&self, held: &Held, key: &Key, holder: Option<&str>) -> Result<(), Error> {
        for mut record in self.records.all()? {
            if !record.is_of(key) {
                continue;
            }
            match self.records.holder(&record.folder)? {
                Some(by) if Some(by.as_str()) != holder => return Err(Error::Held { by }),
                _ => {}
            }
            // From here on it is not found again: a crash leaves a removal to be gone on with, nothing half removed.
            record.stage = Stage::Removing;
            self.records.save(&record)?;
            self.remove(held, &record).await?;
        }
        Ok(())
    }

    async fn remove(&self, held: &Held, record: &Record) -> Result<(), Error> {
        let root = self.config.work_dir.join(&record.folder);
        remove::owned(held, &root, record.identity()).await?;
        self.records.delete(&record.folder)
    }

    /// Waits until nobody else works on the workspaces of `key`.
    pub(crate) async fn hold(&self, key: &Key) -> Held {
        let held = Arc::new(self.lock(key).lock_owned().await);
        self.git.settle().await;
        held
    }

    fn lock(&self, key: &Key) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = locks.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        locks.insert(key.clone(), Arc::downgrade(&lock));
        lock
    }
}

/// Folder of extractions that checks run in; no Task uid can be this word, since a rerun follows it.
const CHECKS: &str = "checks";

pub(crate) fn check_key(key: &Key, run_uid: &str) -> Result<(), Error> {
    for (field, value) in [("task uid", key.task_uid.as_str()), ("run uid", run_uid)] {
        let plain = !value.is_empty()
            && value.len() <= 128
            && value
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if !plain {
            return Err(Error::Invalid {
                field,
                value: value.to_owned(),
                why: "only a-z, 0-9 and - are allowed",
            });
        }
    }
    Ok(())
}
