//! A disk that runs full: how it is recognised, and space held back so that what is running can still be finished.

use std::error::Error;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;

use crate::git;

/// Free space below which a disk counts as full where something failed on it and nobody can say why.
const NOTHING: u64 = 256 << 10;

/// What programs say of a disk, or a quota, that is full.
pub(crate) const FULL: [&str; 3] = [
    "No space left on device",
    "Disk quota exceeded",
    "Out of diskspace",
];

/// Size and free space of a file system, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Space {
    pub(crate) total: u64,
    pub(crate) free: u64,
}

pub(crate) fn space(path: &Path) -> Option<Space> {
    let fs = rustix::fs::statvfs(path).ok()?;
    Some(Space {
        total: fs.f_blocks.saturating_mul(fs.f_frsize),
        free: fs.f_bavail.saturating_mul(fs.f_frsize),
    })
}

/// Whether next to nothing is free at `path`.
pub(crate) fn is_full_at(path: &Path) -> bool {
    space(path).is_some_and(|space| space.free < NOTHING)
}

/// Whether an error, or what caused it, is a full disk.
pub(crate) fn is_full(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error
            .downcast_ref::<git::Error>()
            .is_some_and(git::Error::is_disk_full)
        {
            return true;
        }
        if let Some(io) = error.downcast_ref::<io::Error>() {
            if matches!(
                io.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            ) {
                return true;
            }
            // What an I/O error wraps is not its source, but that one's source is.
            if let Some(inner) = io.get_ref()
                && is_full(inner)
            {
                return true;
            }
        }
        next = error.source();
    }
    false
}

/// A file that only holds space.
#[derive(Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
    bytes: u64,
}

impl Reserve {
    pub(crate) const fn new(path: PathBuf, bytes: u64) -> Self {
        Self { path, bytes }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Space that should be held back and is not.
    pub(crate) fn missing(&self) -> u64 {
        let held = std::fs::metadata(&self.path).map_or(0, |meta| meta.len());
        self.bytes.saturating_sub(held)
    }

    /// Takes the space, where there is plenty.
    pub(crate) fn fill(&self) {
        let plenty = self.path.parent().and_then(space);
        if self.missing() == 0 || plenty.is_none_or(|space| space.free / 4 < self.bytes) {
            return;
        }
        let fill = || {
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .mode(0o600)
                .open(&self.path)?;
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, self.bytes)?;
            io::Result::Ok(())
        };
        if let Err(error) = fill() {
            tracing::warn!(%error, "no space is held back for results of runs");
            release(&self.path);
        }
    }

    /// Gives the space back. False when there is none to give.
    pub(crate) fn release(&self) -> bool {
        let released = release(&self.path);
        if released {
            tracing::warn!("the disk is full: the space held back for results is given free");
        }
        released
    }
}

/// Gives the space of the reserve at `path` back, also from another process. False when there is none to give.
pub(crate) fn release(path: &Path) -> bool {
    let held = std::fs::metadata(path).is_ok_and(|meta| meta.len() > 0);
    held && OpenOptions::new().write(true).truncate(true).open(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_found_beneath_other_errors() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let wrapped = crate::workspace::Error::Io {
            what: "writing",
            path: "/x".into(),
            source: io::Error::other(full()),
        };
        assert!(is_full(&full()));
        assert!(is_full(&wrapped));
        assert!(is_full(&io::Error::other(wrapped)));
        assert!(!is_full(&io::Error::other("no")));
    }

    #[test]
    fn whatever_is_full_where_a_workspace_is_made_is_called_the_disk() {
        use panda_api::{FailureClass, FailureReason};

        use crate::workspace::Error;
        let git = |stderr: &str| {
            Error::Git(git::Error::Failed {
                command: "fetch".into(),
                status: "exit status: 128".into(),
                stderr: stderr.into(),
            })
        };
        let io = |kind: io::ErrorKind| Error::Io {
            what: "writing",
            path: "/x".into(),
            source: kind.into(),
        };
        for error in [
            git("fatal: write error: No space left on device"),
            git("error: unable to write file a.bin: Disk quota exceeded"),
            io(io::ErrorKind::StorageFull),
            io(io::ErrorKind::QuotaExceeded),
        ] {
            assert_eq!(error.reason(), FailureReason::DiskFull, "{error}");
            assert!(is_full(&error), "{error}");
            assert_eq!(error.reason().class(), FailureClass::Device);
        }
        assert_eq!(git("fatal: bad object").reason(), FailureReason::WorkspaceFailed);
    }

    #[test]
    fn the_reserve_is_given_free_once() {
        let dir = tempfile::tempdir().unwrap();
        let reserve = Reserve::new(dir.path().join("reserve"), 64 << 10);
        assert!(!reserve.release());
        reserve.fill();
        assert_eq!(std::fs::metadata(reserve.path()).unwrap().len(), 64 << 10);
        assert!(reserve.release());
        assert!(!reserve.release());
    }
}
