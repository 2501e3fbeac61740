//! Files and folders of our own.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Error, Held};
use crate::git::Ids;

/// Which folder it is, however it is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
}

/// An error of the file system, with what was done to what.
pub(crate) fn io_error<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Error + 'a {
    move |source| Error::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

/// The folder at `path`, which must not be a link.
pub(crate) fn identity(path: &Path) -> Result<Identity, Error> {
    let meta = fs::symlink_metadata(path).map_err(io_error("looking at", path))?;
    if !meta.is_dir() {
        return Err(io_error("looking at", path)(io::Error::from(
            io::ErrorKind::NotADirectory,
        )));
    }
    Ok(Identity {
        dev: meta.dev(),
        ino: meta.ino(),
    })
}

/// Makes a folder of ours with exactly `mode`, its parents as well; one that exists must be a folder and ours.
pub(crate) fn make_dir(path: &Path, mode: u32) -> Result<(), Error> {
    let failed = io_error("making", path);
    let made = (|| {
        match DirBuilder::new().recursive(true).mode(mode).create(path) {
            Ok(()) => {}
            Err(e) => return Err(e),
        }
        let meta = fs::symlink_metadata(path)?;
        if !meta.is_dir() {
            return Err(io::Error::from(io::ErrorKind::NotADirectory));
        }
        if meta.mode() & 0o7777 != mode {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        }
        Ok(())
    })();
    made.map_err(failed)
}

/// Fails if `agent` could not enter `path`.
pub(crate) fn check_reachable(path: &Path, agent: Ids) -> Result<(), Error> {
    let canonical = fs::canonicalize(path).map_err(io_error("looking at", path))?;
    for dir in canonical.ancestors() {
        let meta = fs::metadata(dir).map_err(io_error("looking at", dir))?;
        let bit = if meta.uid() == agent.uid {
            0o100
        } else if meta.gid() == agent.gid {
            0o010
        } else {
            0o001
        };
        if meta.mode() & bit == 0 {
            return Err(Error::Unreachable {
                path: canonical.clone(),
                closed: dir.to_owned(),
                uid: agent.uid,
            });
        }
    }
    Ok(())
}

/// A lock file, locked. Unlocked expressly: a child that is about to be executed may share it for a moment.
#[derive(Debug)]
pub(crate) struct Owned(File);

impl Drop for Owned {
    fn drop(&mut self) {
        // It is freed with the last descriptor at the latest.
        drop(self.0.unlock());
    }
}

/// The lock file at `path`, locked; `None` if another process has it.
pub(crate) fn own(path: &Path) -> Result<Option<Owned>, Error> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(io_error("opening", path))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(Owned(file))),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(e)) => Err(io_error("locking", path)(e)),
    }
}

/// Replaces the file at `path` as a whole: after a crash it is the old or the new one.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let temporary = temporary(path);
    let written = (|| {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        sync_parent(path)
    })();
    written.map_err(io_error("writing", path))
}

/// Removes a file; one that is gone already is fine.
pub(crate) fn remove_file(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Ok(()) => sync_parent(path).map_err(io_error("removing", path)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(io_error("removing", path)(e)),
    }
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    path.with_file_name(name)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Gives a tree that only we could reach so far to `agent`; its top last, so that nobody reaches in meanwhile.
pub(crate) async fn give(held: &Held, root: &Path, agent: Ids) -> Result<(), Error> {
    let owned = root.to_owned();
    blocking(held, move || -> io::Result<()> {
        let mut pending = vec![owned.clone()];
        while let Some(dir) = pending.pop() {
            for entry in fs::read_dir(&dir)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    pending.push(entry.path());
                }
                std::os::unix::fs::lchown(entry.path(), Some(agent.uid), Some(agent.gid))?;
            }
        }
        std::os::unix::fs::lchown(&owned, Some(agent.uid), Some(agent.gid))
    })
    .await
    .map_err(io_error("giving away", root))
}

/// Works on another thread, which keeps its share of the right to do so until it is done.
pub(super) async fn blocking<T: Send + 'static>(
    held: &Held,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let held = Held::clone(held);
    tokio::task::spawn_blocking(move || {
        let done = work();
        drop(held);
        done
    })
    .await
    .map_err(io::Error::other)
    .flatten()
}
