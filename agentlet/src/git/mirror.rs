//! Bare mirrors: the objects that workspaces share.
//!
//! One mirror for each repository of the user, owned by the agentlet. Workspaces borrow its objects (`alternates`), which
//! they can only read, or get copies. Every commit that was ever a base has a ref, nothing here is ever pruned, and `preciousObjects` makes
//! git itself refuse to: so neither a `git gc` here nor one in a workspace can take an object that the other needs.

use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::source::Source;
use super::transfer::transfer;
use super::{Error as GitError, Git, Ids, Repo};

/// How many commits of the mirror are offered as already present.
const MAX_HAVES: usize = 256;

/// Why a mirror could not be made or filled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Its folder.
    #[error("the mirror at {} cannot be used", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// Git.
    #[error("the mirror at {} could not be filled", path.display())]
    Git {
        /// Where.
        path: PathBuf,
        /// Cause.
        #[source]
        source: GitError,
    },
}

/// A mirror that holds the wanted commit.
#[derive(Clone, Debug)]
pub(crate) struct Mirror {
    pub(crate) repo: Repo,
}

impl Mirror {
    /// Where the mirror of the repository at `canonical` lies: another one for another kind of object ids.
    pub(crate) fn path(mirrors: &Path, canonical: &Path, format: &str) -> PathBuf {
        let mut hash = Sha256::new();
        hash.update(canonical.as_os_str().as_bytes());
        hash.update([0]);
        hash.update(format.as_bytes());
        let digest = hex::encode(hash.finalize());
        mirrors.join(format!("{}.git", &digest[..32]))
    }

    /// The folder of objects that workspaces borrow.
    pub(crate) fn objects(&self) -> PathBuf {
        self.repo.git_dir.join("objects")
    }

    /// Makes the mirror of `source` if need be and brings `commit` into it. `reader` is the group that may read it.
    pub(crate) async fn ensure(
        git: &Git,
        mirrors: &Path,
        source: &Source,
        commit: &str,
        reader: Option<Ids>,
        max_bytes: u64,
    ) -> Result<Self, Error> {
        let path = Self::path(mirrors, &source.path, &source.format);
        let git_error = |source| Error::Git {
            path: path.clone(),
            source,
        };
        let _lock = lock(&path.with_extension("lock")).await?;
        git.settle().await;
        remove_leftovers(&path).map_err(|source| Error::Io {
            path: path.clone(),
            source,
        })?;
        let repo = Repo {
            git_dir: path.clone(),
            user: None,
        };
        let complete = path.join("panda-mirror");
        if !exists(&complete).await? {
            init(git, &repo, &source.format, reader).await?;
        }
        let keep = format!("refs/panda/base/{commit}");
        let present = repo
            .call(git, "rev-parse")
            .args(["--verify", "--quiet", "--end-of-options", &keep])
            .query()
            .await
            .map_err(git_error)?;
        if present.is_none() {
            let haves = repo
                .call(git, "for-each-ref")
                .arg(format!("--count={MAX_HAVES}"))
                .args([
                    "--sort=-committerdate",
                    "--format=%(objectname)",
                    "refs/panda/base",
                ])
                .line()
                .await
                .map_err(git_error)?;
            let haves: Vec<String> = haves.lines().map(str::to_owned).collect();
            let brought = transfer(git, &source.repo, &repo, commit, &haves, max_bytes).await;
            if brought.is_err() {
                // Half a pack may be what the disk is full of.
                git.settle().await;
                if let Err(error) = remove_leftovers(&path) {
                    tracing::warn!(%error, "half a pack is left in a mirror until its next use");
                }
            }
            brought.map_err(git_error)?;
            repo.call(git, "update-ref")
                .args(["--no-deref", &keep, commit])
                .run()
                .await
                .map_err(git_error)?;
        }
        Ok(Self { repo })
    }
}

async fn init(git: &Git, repo: &Repo, format: &str, reader: Option<Ids>) -> Result<(), Error> {
    let path = &repo.git_dir;
    let io_error = |source| Error::Io {
        path: path.clone(),
        source,
    };
    let git_error = |source| Error::Git {
        path: path.clone(),
        source,
    };
    // Files of the mirror belong to the agents' group, which may read them; other people of the machine may not.
    let mode = if reader.is_some() { 0o2750 } else { 0o700 };
    match std::fs::DirBuilder::new().mode(mode).create(path) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && !path.is_symlink() && path.is_dir() => {}
        Err(e) => return Err(io_error(e)),
    }
    if let Some(Ids { gid, .. }) = reader {
        std::os::unix::fs::chown(path, None, Some(gid)).map_err(io_error)?;
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(io_error)?;
    let mut call = git
        .call("init")
        .args(["--quiet", "--bare", "--template="])
        .arg(format!("--object-format={format}"));
    if reader.is_some() {
        call = call.arg("--shared=0640");
    }
    call.arg(path).run().await.map_err(git_error)?;
    for (name, value) in [
        ("gc.auto", "0"),
        ("gc.pruneExpire", "never"),
        ("maintenance.auto", "false"),
        ("core.repositoryFormatVersion", "1"),
        ("extensions.preciousObjects", "true"),
    ] {
        repo.call(git, "config")
            .args([name, value])
            .run()
            .await
            .map_err(git_error)?;
    }
    std::fs::write(path.join("panda-mirror"), b"1\n").map_err(io_error)
}

/// Removes what git leaves when it is killed or fails: lock files and half packs. Nobody else works in the mirror while we hold it.
fn remove_leftovers(path: &Path) -> std::io::Result<()> {
    for dir in ["", "refs/panda/base", "objects/pack"] {
        let dir = path.join(dir);
        let listing = match std::fs::read_dir(&dir) {
            Ok(listing) => listing,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        for entry in listing {
            let file = entry?.path();
            let name = file.file_name().unwrap_or_default().as_bytes();
            if name.ends_with(b".lock") || name.starts_with(b"tmp_") {
                std::fs::remove_file(file)?;
            }
        }
    }
    Ok(())
}

async fn exists(path: &Path) -> Result<bool, Error> {
    tokio::fs::try_exists(path).await.map_err(|source| Error::Io {
        path: path.to_owned(),
        source,
    })
}

/// Waits for the mirror's lock; freed when the file is dropped, so a crash frees it as well.
async fn lock(path: &Path) -> Result<File, Error> {
    let owned = path.to_owned();
    tokio::task::spawn_blocking(move || {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&owned)?;
        file.lock()?;
        Ok(file)
    })
    .await
    .map_err(std::io::Error::other)
    .flatten()
    .map_err(|source| Error::Io {
        path: path.to_owned(),
        source,
    })
}
