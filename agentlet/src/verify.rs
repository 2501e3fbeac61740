//! Fresh extractions of a snapshot, for the checks of the platform.
//!
//! A check never sees the agent's tree: it works in a folder of its own, filled from the snapshot, with `restore` paths
//! as the base commit has them (what the agent added there is gone, what it deleted is back). Filling runs nothing: no
//! hook, filter or attribute of the snapshot counts, submodules stay empty folders, links are made and never followed.
//! There is no `.git` in it.

#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::PathBuf;

use panda_api::v1alpha1::FailureReason;
use sha2::{Digest, Sha256};

use crate::artifact::{GitResult, Globs, Snapshot, Stored, archive, entries};
use crate::git::{self, Ids, Repo};
use crate::workspace::{Key, Workspaces, disk, remove};
use crate::{artifact, workspace};

/// Why there is no extraction.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Its folder.
    #[error(transparent)]
    Workspace(#[from] workspace::Error),
    /// A glob of `restore`.
    #[error("`restore` cannot be used")]
    Restore(#[source] artifact::Error),
    /// Git failed.
    #[error("git failed while the snapshot was extracted")]
    Git(#[from] git::Error),
    /// The archive of a snapshot without git.
    #[error("the archive of the snapshot could not be extracted")]
    Archive(#[source] io::Error),
}

impl Error {
    /// The reason that a Run fails with.
    #[must_use]
    pub fn reason(&self) -> FailureReason {
        match self {
            Self::Workspace(e) => e.reason(),
            Self::Git(e) if e.is_disk_full() => FailureReason::DiskFull,
            Self::Archive(e) if crate::disk::is_full(e) => FailureReason::DiskFull,
            _ => FailureReason::WorkspaceFailed,
        }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Workspace(e) => e.is_retryable(),
            Self::Git(e) => e.is_retryable(),
            Self::Archive(e) => e.kind() != io::ErrorKind::InvalidData,
            Self::Restore(_) => false,
        }
    }
}

/// A folder with a fresh copy of a snapshot, for one check. It belongs to the user that checks run as.
#[derive(Debug)]
pub struct Extraction {
    root: PathBuf,
    user: Option<Ids>,
}

impl Extraction {
    /// The copy: working directory of the check.
    #[must_use]
    pub fn tree(&self) -> PathBuf {
        self.root.join("ws")
    }

    /// An empty home.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.root.join("home")
    }

    /// An empty folder for temporary files.
    #[must_use]
    pub fn tmp(&self) -> PathBuf {
        self.root.join("tmp")
    }

    /// Whom the check runs as; `None`: as ourselves.
    #[must_use]
    pub const fn user(&self) -> Option<Ids> {
        self.user
    }
}

impl Workspaces {
    /// Makes a fresh extraction for the check called `name`; one that a crash left behind is replaced, so no process of
    /// an earlier try of this check may be left.
    pub async fn extract(
        &self,
        key: &Key,
        snapshot: &Snapshot,
        name: &str,
        restore: &[String],
    ) -> Result<Extraction, Error> {
        let restore = Globs::new(restore).map_err(Error::Restore)?;
        let held = self.hold(key).await;
        let shared = if self.config.agent.is_some() { 0o711 } else { 0o700 };
        let checks = self.checks(&snapshot.run_uid);
        disk::make_dir(&checks, shared)?;
        // A check's name may hold anything; its digest is a plain folder name.
        let root = checks.join(&hex::encode(Sha256::digest(name.as_bytes()))[..16]);
        remove::tree(&held, &root).await?;
        disk::make_dir(&root, shared)?;
        let extraction = Extraction {
            root,
            user: self.config.agent,
        };
        let tree = extraction.tree();
        for dir in [&tree, &extraction.home(), &extraction.tmp()] {
            disk::make_dir(dir, 0o700)?;
        }
        match &snapshot.store {
            Stored::Git(result) => self.check_out(result, &extraction, &restore).await?,
            Stored::Archive { archive } => {
                // The start was empty: what `restore` names was added by the agent.
                let (archive, to) = (archive.path.clone(), tree.clone());
                tokio::task::spawn_blocking(move || archive::unpack(&archive, &to, &restore))
                    .await
                    .map_err(io::Error::other)
                    .flatten()
                    .map_err(Error::Archive)?;
            }
        }
        if let Some(agent) = self.config.agent {
            for dir in [&extraction.home(), &extraction.tmp(), &tree] {
                disk::give(&held, dir, agent).await?;
            }
        }
        Ok(extraction)
    }

    /// Removes an extraction whose processes are gone.
    pub async fn remove_extraction(&self, key: &Key, extraction: Extraction) -> Result<(), Error> {
        let held = self.hold(key).await;
        Ok(remove::tree(&held, &extraction.root).await?)
    }

    /// Removes whatever the checks of a Run left.
    pub async fn remove_extractions(&self, key: &Key, run_uid: &str) -> Result<(), Error> {
        workspace::check_key(key, run_uid)?;
        let held = self.hold(key).await;
        let checks = self.checks(run_uid);
        match fs::read_dir(&checks) {
            Ok(listing) => {
                for entry in listing {
                    let path = entry.map_err(disk::io_error("listing", &checks))?.path();
                    remove::tree(&held, &path).await?;
                }
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(disk::io_error("listing", &checks)(e).into()),
        }
        Ok(remove::tree(&held, &checks).await?)
    }

    async fn check_out(
        &self,
        result: &GitResult,
        extraction: &Extraction,
        restore: &Globs,
    ) -> Result<(), Error> {
        let git = &self.git;
        let repo = Repo {
            git_dir: result.git_dir.clone(),
            user: None,
        };
        // In the fresh folder, where no lock of a killed git can be left.
        let index = extraction.root.join("index");
        let tree = extraction.tree();
        repo.call(git, "read-tree")
            .index(&index)
            .arg(&result.commit)
            .run()
            .await?;
        if !restore.is_empty() && result.commit != result.base {
            let lines = self.restored(&repo, result, restore).await?;
            repo.call(git, "update-index")
                .index(&index)
                .args(["-z", "--index-info"])
                .input(lines)
                .run()
                .await?;
        }
        repo.call(git, "checkout-index")
            .index(&index)
            .work_tree(&tree)
            .cwd(&tree)
            .args(["--all", "--force", "--quiet"])
            .run()
            .await?;
        disk::remove_file(&index)?;
        Ok(())
    }

    /// What makes the paths that `restore` names those of the base again, for `git update-index --index-info`.
    async fn restored(
        &self,
        repo: &Repo,
        result: &GitResult,
        restore: &Globs,
    ) -> Result<Vec<u8>, git::Error> {
        let base = entries(&self.git, repo, &result.base).await?;
        let now = entries(&self.git, repo, &result.commit).await?;
        let none = "0".repeat(result.base.len());
        let mut lines = Vec::new();
        for path in now.keys().filter(|path| restore.matches(path)) {
            lines.extend_from_slice(format!("0 {none}\t").as_bytes());
            lines.extend_from_slice(path);
            lines.push(0);
        }
        for (path, entry) in base.iter().filter(|(path, _)| restore.matches(path)) {
            lines.extend_from_slice(format!("{} {}\t", entry.mode, entry.id).as_bytes());
            lines.extend_from_slice(path);
            lines.push(0);
        }
        Ok(lines)
    }
}
