//! Publication: the accepted result becomes a branch of the user's repository.
//!
//! The only thing that ever writes there, as the repository's owner: objects first, each checked, then one ref by
//! compare-and-swap. The index, the work tree, `HEAD` and every other ref stay as they are, and a branch that is checked
//! out somewhere is not moved under the feet of whoever works on it. A second call after a crash finds its own work.

#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use panda_api::v1alpha1::FailureReason;

use crate::artifact::GitResult;
use crate::git::source::{self, Source, is_ref_name};
use crate::git::transfer::{known, transfer};
use crate::git::{self, Repo, is_object_id};
use crate::workspace::Workspaces;

/// Why a result was not published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The branch is not what it was expected to be.
    #[error(
        "branch {branch} points to {found}, expected {expected}; look at both and publish under another name, or retry"
    )]
    Moved {
        /// Branch.
        branch: String,
        /// What it points to: a commit, or `nothing`.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// Somebody works on the branch.
    #[error("branch {branch} is checked out in {}; switch to another branch there and retry", worktree.display())]
    CheckedOut {
        /// Branch.
        branch: String,
        /// Where.
        worktree: PathBuf,
    },
    /// The branch is another name of a different ref.
    #[error("branch {branch} is a symbolic ref; it is not followed")]
    Symbolic {
        /// Branch.
        branch: String,
    },
    /// A branch of a shorter or longer name stands in the way.
    #[error("branch {branch} cannot exist beside {other}")]
    InTheWay {
        /// Branch.
        branch: String,
        /// The other one.
        other: String,
    },
    /// A name or id that cannot be one.
    #[error("{value:?} is not a valid {what}")]
    Invalid {
        /// What it should be.
        what: &'static str,
        /// The value.
        value: String,
    },
    /// The repository cannot be used.
    #[error(transparent)]
    Source(#[from] source::Error),
    /// Git failed.
    #[error("git failed while the result was published")]
    Git(#[from] git::Error),
}

impl Error {
    /// `PublishConflict`, which a person must look at, or `PublishFailed`, which is retried.
    #[must_use]
    pub const fn reason(&self) -> FailureReason {
        match self {
            Self::Moved { .. } | Self::CheckedOut { .. } | Self::Symbolic { .. } | Self::InTheWay { .. } => {
                FailureReason::PublishConflict
            }
            Self::Invalid { .. } | Self::Source(_) | Self::Git(_) => FailureReason::PublishFailed,
        }
    }

    /// Whether another try may succeed without anybody doing something.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Git(e) => e.is_retryable(),
            Self::Source(source::Error::Git { source, .. }) => source.is_retryable(),
            _ => false,
        }
    }
}

/// How a branch came to point to the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// It was moved now.
    Moved,
    /// It pointed there already.
    Already,
}

impl Workspaces {
    /// The commit that `branch` of the repository at `repository` points to: the value for `expectedOldCommit`.
    pub async fn branch(&self, repository: &Path, branch: &str) -> Result<Option<String>, Error> {
        let source = self.target(repository, branch).await?;
        self.current(&source, branch).await
    }

    /// Moves the result's branch to its commit, if it points to `expected_old` now (`None`: does not exist).
    pub async fn publish(&self, result: &GitResult, expected_old: Option<&str>) -> Result<Published, Error> {
        let GitResult {
            branch,
            commit,
            base,
            repository,
            ..
        } = result;
        if let Some(old) = expected_old
            && !is_object_id(old)
        {
            return Err(Error::Invalid {
                what: "commit",
                value: old.to_owned(),
            });
        }
        let source = self.target(repository, branch).await?;
        let current = self.current(&source, branch).await?;
        if current.as_deref() == Some(commit) {
            return Ok(Published::Already);
        }
        check_expected(branch, current.as_deref(), expected_old)?;
        self.check_free(&source, branch).await?;
        let kept = Repo {
            git_dir: result.git_dir.clone(),
            user: None,
        };
        // The user may have thrown the base away since: then everything is sent.
        let haves = known(&self.git, &source.repo, std::slice::from_ref(base)).await?;
        transfer(
            &self.git,
            &kept,
            &source.repo,
            commit,
            &haves,
            self.config.limits.transfer_bytes,
        )
        .await?;
        // As late as possible: a person may have switched to the branch meanwhile.
        self.check_free(&source, branch).await?;
        let none = "0".repeat(commit.len());
        let moved = source
            .repo
            .call(&self.git, "update-ref")
            .args(["--no-deref", "-m", "panda: publish result"])
            .args([
                &format!("refs/heads/{branch}"),
                commit,
                expected_old.unwrap_or(&none),
            ])
            .run()
            .await;
        let Err(failed) = moved else {
            return Ok(Published::Moved);
        };
        // Git does not say by its exit code whether somebody else was first.
        let current = self.current(&source, branch).await?;
        if current.as_deref() == Some(commit) {
            return Ok(Published::Already);
        }
        check_expected(branch, current.as_deref(), expected_old)?;
        Err(failed.into())
    }

    async fn target(&self, repository: &Path, branch: &str) -> Result<Source, Error> {
        if !is_ref_name(branch) {
            return Err(Error::Invalid {
                what: "branch name",
                value: branch.to_owned(),
            });
        }
        Ok(Source::locate(&self.git, repository, &self.config.workspace_roots).await?)
    }

    async fn current(&self, source: &Source, branch: &str) -> Result<Option<String>, Error> {
        let reference = format!("refs/heads/{branch}");
        if source
            .repo
            .call(&self.git, "symbolic-ref")
            .args(["--quiet", &reference])
            .query()
            .await?
            .is_some()
        {
            return Err(Error::Symbolic {
                branch: branch.to_owned(),
            });
        }
        let found = source
            .repo
            .call(&self.git, "rev-parse")
            .args(["--verify", "--quiet", "--end-of-options", &reference])
            .query()
            .await?;
        Ok(found.map(|out| String::from_utf8_lossy(&out).trim().to_owned()))
    }

    /// Fails if the branch is checked out, is being rebased, or cannot exist beside another one.
    async fn check_free(&self, source: &Source, branch: &str) -> Result<(), Error> {
        let reference = format!("refs/heads/{branch}");
        let out = source
            .repo
            .call(&self.git, "worktree")
            .args(["list", "--porcelain", "-z"])
            .run()
            .await?;
        let mut worktree = PathBuf::new();
        for field in out.split(|b| *b == 0) {
            let field = String::from_utf8_lossy(field);
            if let Some(path) = field.strip_prefix("worktree ") {
                worktree = PathBuf::from(path);
            } else if field.strip_prefix("branch ") == Some(&reference) {
                return Err(Error::CheckedOut {
                    branch: branch.to_owned(),
                    worktree,
                });
            }
        }
        for git_dir in git_dirs(&source.common_dir) {
            for state in ["rebase-merge/head-name", "rebase-apply/head-name"] {
                if fs::read_to_string(git_dir.join(state)).is_ok_and(|name| name.trim() == reference) {
                    return Err(Error::CheckedOut {
                        branch: branch.to_owned(),
                        worktree: git_dir,
                    });
                }
            }
        }
        let out = source
            .repo
            .call(&self.git, "for-each-ref")
            .args(["--format=%(refname)", "refs/heads/"])
            .run()
            .await?;
        let below = format!("{reference}/");
        for other in String::from_utf8_lossy(&out).lines() {
            if other.starts_with(&below) || reference.starts_with(&format!("{other}/")) {
                return Err(Error::InTheWay {
                    branch: branch.to_owned(),
                    other: other.trim_start_matches("refs/heads/").to_owned(),
                });
            }
        }
        Ok(())
    }
}

/// The git folders of a repository: its own, and those of its linked work trees.
fn git_dirs(common: &Path) -> Vec<PathBuf> {
    let mut out = vec![common.to_owned()];
    if let Ok(listing) = fs::read_dir(common.join("worktrees")) {
        out.extend(listing.flatten().map(|entry| entry.path()));
    }
    out
}

fn check_expected(branch: &str, current: Option<&str>, expected: Option<&str>) -> Result<(), Error> {
    if current == expected {
        return Ok(());
    }
    let name = |commit: Option<&str>| commit.unwrap_or("nothing").to_owned();
    Err(Error::Moved {
        branch: branch.to_owned(),
        found: name(current),
        expected: name(expected),
    })
}
