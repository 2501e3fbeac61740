//! The proof before start.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Config, Content, Error, Workspace, disk};
use crate::git::mirror::Mirror;
use crate::git::{self, Git, Ids, Repo};

/// Proof that a workspace lies where it should; without one nothing can be launched.
#[derive(Clone, Debug)]
pub struct LaunchProof {
    tree: PathBuf,
    home: PathBuf,
    tmp: PathBuf,
    read_only: Vec<PathBuf>,
    user: Option<Ids>,
}

impl LaunchProof {
    /// Working directory of the agent.
    #[must_use]
    pub fn tree(&self) -> &Path {
        &self.tree
    }

    /// Its home.
    #[must_use]
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Its folder for temporary files.
    #[must_use]
    pub fn tmp(&self) -> &Path {
        &self.tmp
    }

    /// Folders that it must be able to read, and must not be able to write.
    #[must_use]
    pub fn read_only(&self) -> &[PathBuf] {
        &self.read_only
    }

    /// Whom it runs as; `None`: as ourselves.
    #[must_use]
    pub const fn user(&self) -> Option<Ids> {
        self.user
    }
}

pub(super) async fn prove(git: &Git, config: &Config, workspace: &Workspace) -> Result<LaunchProof, Error> {
    let failed = |detail: String| Error::ProofFailed { detail };
    let root = canonical(&config.work_dir)?.join(&workspace.record.folder);
    if disk::identity(&workspace.root).ok() != Some(workspace.record.identity())
        || canonical(&workspace.root)? != root
    {
        return Err(failed(format!("{} is another folder", workspace.root.display())));
    }
    let tree = root.join("ws");
    if workspace.record.tree.is_none() || disk::identity(&tree).ok() != workspace.record.tree {
        return Err(failed(format!("{} is another folder", tree.display())));
    }
    for name in ["home", "tmp"] {
        if disk::identity(&root.join(name)).is_err() {
            return Err(failed(format!("{} is not a folder", root.join(name).display())));
        }
    }
    let mut read_only = Vec::new();
    if matches!(workspace.record.content, Content::Git { .. }) {
        prove_git(git, config, &tree).await?;
        if let (Some(git_dir), Some(_)) = (&workspace.record.mirror, config.agent) {
            read_only.push(
                Mirror {
                    repo: Repo {
                        git_dir: git_dir.clone(),
                        user: None,
                    },
                }
                .objects(),
            );
        }
    }
    Ok(LaunchProof {
        home: root.join("home"),
        tmp: root.join("tmp"),
        tree,
        read_only,
        user: config.agent,
    })
}

/// Asks git itself where it would work, as the agent's user, since an agent may have written the configuration by now.
async fn prove_git(git: &Git, config: &Config, tree: &Path) -> Result<(), Error> {
    let failed = |detail: String| Error::ProofFailed { detail };
    let git_dir = tree.join(".git");
    if !fs::symlink_metadata(&git_dir).is_ok_and(|meta| meta.is_dir()) {
        return Err(failed(format!("{} is not a folder", git_dir.display())));
    }
    let out = git
        .call("rev-parse")
        .cwd(tree)
        .user(config.agent)
        .args([
            "--path-format=absolute",
            "--show-toplevel",
            "--git-dir",
            "--git-common-dir",
        ])
        .run()
        .await
        .map_err(|e| match e {
            git::Error::Failed { stderr, .. } => failed(stderr),
            git::Error::Timeout { .. } | git::Error::TooMuch { .. } => failed(e.to_string()),
            other => Error::Git(other),
        })?;
    let text = String::from_utf8_lossy(&out);
    let lines: Vec<&str> = text.lines().collect();
    let expected = [tree, &git_dir, &git_dir];
    if lines.len() != expected.len() {
        return Err(failed(format!("git says {text:?}")));
    }
    for (line, expected) in lines.iter().zip(expected) {
        // Resolved by the agent's user would be the same: each is compared with a path that is known to hold no link.
        if fs::canonicalize(line).ok().as_deref() != Some(expected) {
            return Err(failed(format!(
                "git works in {line}, not in {}",
                expected.display()
            )));
        }
    }
    Ok(())
}

fn canonical(path: &Path) -> Result<PathBuf, Error> {
    fs::canonicalize(path).map_err(disk::io_error("looking at", path))
}
