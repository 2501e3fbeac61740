//! The user's own repository: read as its owner, never written to before publication.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Error as GitError, Git, Ids, Repo, is_object_id};

/// Why a repository cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not under a configured root.
    #[error("{} is not under a workspace root of this device; add its folder to the agentlet's workspaceRoots", path.display())]
    RootDenied {
        /// The path, links resolved.
        path: PathBuf,
    },
    /// Nothing there, or no repository.
    #[error("there is no git repository at {}: {detail}", path.display())]
    Absent {
        /// The path.
        path: PathBuf,
        /// What was found.
        detail: String,
    },
    /// Owned by someone else, whom we cannot become.
    #[error("{} belongs to uid {owner} and this agentlet runs as uid {ours}; run it as that user or as root", path.display())]
    Owner {
        /// The path.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Us.
        ours: u32,
    },
    /// Cut history.
    #[error("{} is a shallow or partial clone; run `git fetch --unshallow` there first", path.display())]
    Shallow {
        /// The path.
        path: PathBuf,
    },
    /// No such branch, tag or commit.
    #[error("{} has no branch, tag or commit {reference:?}", path.display())]
    RefNotFound {
        /// The path.
        path: PathBuf,
        /// What was asked for.
        reference: String,
    },
    /// Git failed.
    #[error("reading {} failed", path.display())]
    Git {
        /// The path.
        path: PathBuf,
        /// Cause.
        #[source]
        source: GitError,
    },
}

/// A repository of the user, found and allowed.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Its path, links resolved.
    pub(crate) path: PathBuf,
    /// Its refs and objects.
    pub(crate) repo: Repo,
    /// The git folder that all its work trees share.
    pub(crate) common_dir: PathBuf,
    /// `sha1` or `sha256`.
    pub(crate) format: String,
}

impl Source {
    /// Finds the repository at `path`: beneath one of `roots` once links are resolved, its git folder too.
    pub(crate) async fn locate(git: &Git, path: &Path, roots: &[PathBuf]) -> Result<Self, Error> {
        let absent = |detail: String| Error::Absent {
            path: path.to_owned(),
            detail,
        };
        if !path.is_absolute() {
            return Err(absent("the path is not absolute".to_owned()));
        }
        let canonical = tokio::fs::canonicalize(path)
            .await
            .map_err(|e| absent(e.to_string()))?;
        allow(&canonical, roots).await?;
        let meta = tokio::fs::metadata(&canonical)
            .await
            .map_err(|e| absent(e.to_string()))?;
        if !meta.is_dir() {
            return Err(absent("it is not a folder".to_owned()));
        }
        let user = become_owner(&canonical, meta.uid(), meta.gid())?;
        let out = git
            .call("rev-parse")
            .cwd(&canonical)
            .user(user)
            .args([
                "--path-format=absolute",
                "--git-common-dir",
                "--git-dir",
                "--show-object-format",
                "--is-shallow-repository",
            ])
            .run()
            .await
            .map_err(|e| match e {
                GitError::Failed { stderr, .. } => absent(stderr),
                source => Error::Git {
                    path: canonical.clone(),
                    source,
                },
            })?;
        let text = String::from_utf8(out).map_err(|_| absent("its path is not UTF-8".to_owned()))?;
        let [common, own, format, shallow] = text.lines().collect::<Vec<_>>()[..] else {
            return Err(absent("git described it in an unexpected way".to_owned()));
        };
        for dir in [common, own] {
            let dir = tokio::fs::canonicalize(dir)
                .await
                .map_err(|e| absent(e.to_string()))?;
            allow(&dir, roots).await?;
        }
        if shallow == "true" {
            return Err(Error::Shallow { path: canonical });
        }
        Ok(Self {
            repo: Repo {
                git_dir: PathBuf::from(own),
                user,
            },
            common_dir: PathBuf::from(common),
            format: format.to_owned(),
            path: canonical,
        })
    }

    /// The commit that `reference` names: a branch, a tag, a remote-tracking branch, a full ref or a commit, in that
    /// order; empty: `HEAD`. Expressions such as `main~3` are not understood.
    pub(crate) async fn resolve(&self, git: &Git, reference: &str) -> Result<String, Error> {
        for candidate in candidates(reference) {
            let found = self
                .repo
                .call(git, "rev-parse")
                .args(["--verify", "--quiet", "--end-of-options"])
                .arg(format!("{candidate}^{{commit}}"))
                .query()
                .await
                .map_err(|source| self.error(source))?;
            if let Some(out) = found {
                let id = String::from_utf8_lossy(&out).trim().to_owned();
                if is_object_id(&id) {
                    return Ok(id);
                }
            }
        }
        Err(Error::RefNotFound {
            path: self.path.clone(),
            reference: if reference.is_empty() { "HEAD" } else { reference }.to_owned(),
        })
    }

    pub(crate) fn error(&self, source: GitError) -> Error {
        Error::Git {
            path: self.path.clone(),
            source,
        }
    }
}

/// What to try for a reference that a person wrote.
fn candidates(reference: &str) -> Vec<String> {
    if reference.is_empty() || reference == "HEAD" {
        return vec!["HEAD".to_owned()];
    }
    if !is_ref_name(reference) {
        return Vec::new();
    }
    let mut out = vec![
        format!("refs/heads/{reference}"),
        format!("refs/tags/{reference}"),
        format!("refs/remotes/{reference}"),
    ];
    if reference.starts_with("refs/") {
        out.push(reference.to_owned());
    }
    if (7..=64).contains(&reference.len()) && reference.bytes().all(|b| b.is_ascii_hexdigit()) {
        out.push(reference.to_ascii_lowercase());
    }
    out
}

/// Whether `name` can stand below `refs/heads/`: the rules of `git check-ref-format`, and no leading dash.
#[must_use]
pub fn is_ref_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 200
        && !name.starts_with('-')
        && name != "@"
        && !name.contains("..")
        && !name.contains("@{")
        && !name.ends_with('.')
        && !name
            .chars()
            .any(|c| c.is_control() || matches!(c, ' ' | '~' | '^' | ':' | '?' | '*' | '[' | '\\'))
        && name
            .split('/')
            .all(|part| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock"))
}

async fn allow(canonical: &Path, roots: &[PathBuf]) -> Result<(), Error> {
    for root in roots {
        // A root that does not exist allows nothing.
        if let Ok(root) = tokio::fs::canonicalize(root).await
            && canonical.starts_with(&root)
        {
            return Ok(());
        }
    }
    Err(Error::RootDenied {
        path: canonical.to_owned(),
    })
}

fn become_owner(path: &Path, uid: u32, gid: u32) -> Result<Option<Ids>, Error> {
    let ours = rustix::process::geteuid().as_raw();
    if uid == ours {
        Ok(None)
    } else if ours == 0 {
        Ok(Some(Ids { uid, gid }))
    } else {
        Err(Error::Owner {
            path: path.to_owned(),
            owner: uid,
            ours,
        })
    }
}
