//! Putting a restored state in place of the old one.
//!
//! Everything new is ready, checked and synced in `.restore/new` before `.restore/commit.json` is written. From then on
//! the only way is forward: each part moves by two renames that can be repeated, and whoever comes next (a server that
//! starts, another restore) goes on where it stopped. Before the commit nothing of the old state has been touched.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use panda_store::sqlite::copy;
use serde::{Deserialize, Serialize};

use super::{Error, failed};
use crate::files;

/// Folder of a restore in a data folder.
const FOLDER: &str = ".restore";
/// The old state, when it is kept.
pub(super) const REPLACED: &str = "replaced";

/// What is to be moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Commit {
    /// Paths in the data folder, in this order. What is not in `new` only goes.
    pub(super) parts: Vec<String>,
    /// Whether the old state is kept in `replaced`.
    pub(super) keep_old: bool,
}

pub(super) struct Staging(PathBuf);

impl Staging {
    pub(super) fn of(data: &Path) -> Self {
        Self(data.join(FOLDER))
    }

    pub(super) fn folder(&self) -> &Path {
        &self.0
    }

    /// Where the new state is made ready.
    pub(super) fn new_state(&self) -> PathBuf {
        self.0.join("new")
    }

    fn old_state(&self) -> PathBuf {
        self.0.join("old")
    }

    fn commit_file(&self) -> PathBuf {
        self.0.join("commit.json")
    }

    /// An empty folder, whatever an earlier restore has left.
    pub(super) fn begin(&self) -> Result<(), Error> {
        self.remove()?;
        files::private_dir(&self.new_state())?;
        Ok(())
    }

    pub(super) fn remove(&self) -> Result<(), Error> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &self.0)(error)),
            _ => Ok(()),
        }
    }

    /// From here on the new state is the one that counts.
    pub(super) fn commit(&self, commit: &Commit) -> Result<(), Error> {
        let bytes = serde_json::to_vec(commit).expect("our types serialise");
        Ok(files::write_atomic(&self.commit_file(), &bytes, 0o600)?)
    }
}

/// Whether a restore into this data folder stopped after its commit.
pub(super) fn is_pending(data: &Path) -> Result<bool, Error> {
    let file = Staging::of(data).commit_file();
    file.try_exists().map_err(failed("inspect", &file))
}

/// Ends a restore that was interrupted after its commit; nothing happens when there is none.
///
/// # Errors
/// When a server uses the folder, or the file system refuses.
pub(crate) fn finish(data: &Path) -> Result<(), Error> {
    if !is_pending(data)? {
        return Ok(());
    }
    let _owned = copy::own(&super::store_dir(data))?;
    tracing::warn!(data = %data.display(), "a restore was interrupted; it is brought to its end");
    forward(data, usize::MAX).map(|_| ())
}

/// Moves all parts; at most so many renames, for tests of crashes in between. Whether it came to the end. The store's
/// folder must be owned.
pub(super) fn forward(data: &Path, mut renames: usize) -> Result<bool, Error> {
    let staging = Staging::of(data);
    let file = staging.commit_file();
    let Some(bytes) = files::read_private(&file)? else {
        return Ok(true);
    };
    let commit: Commit = serde_json::from_slice(&bytes)
        .map_err(|error| Error::Damaged(format!("{}: {error}", file.display())))?;
    for part in &commit.parts {
        let live = data.join(part);
        let (new, old) = (staging.new_state().join(part), staging.old_state().join(part));
        let mut moves = Vec::new();
        // What is there and has no old counterpart is the old one.
        if exists(&live)? && !exists(&old)? {
            moves.push((&live, &old));
        }
        if exists(&new)? {
            moves.push((&new, &live));
        }
        for (from, to) in moves {
            if renames == 0 {
                return Ok(false);
            }
            renames -= 1;
            rename(from, to)?;
        }
    }
    if commit.keep_old {
        let (old, kept) = (staging.old_state(), data.join(REPLACED));
        if exists(&old)? {
            match fs::remove_dir_all(&kept) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("remove", &kept)(error));
                }
                _ => {}
            }
            rename(&old, &kept)?;
        }
    }
    fs::remove_file(&file).map_err(failed("remove", &file))?;
    sync(staging.folder())?;
    staging.remove()?;
    Ok(true)
}

fn exists(path: &Path) -> Result<bool, Error> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed("inspect", path)(error)),
    }
}

fn rename(from: &Path, to: &Path) -> Result<(), Error> {
    if let Some(parent) = to.parent() {
        files::private_dir(parent)?;
    }
    fs::rename(from, to).map_err(failed("move", from))?;
    for folder in [from.parent(), to.parent()].into_iter().flatten() {
        sync(folder)?;
    }
    Ok(())
}

/// Makes names in a folder durable.
pub(super) fn sync(folder: &Path) -> Result<(), Error> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(failed("sync", folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: [&str; 4] = ["store/a-wal", "store/a", "blobs/blobs", "key"];

    fn before() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path();
        for folder in ["store", "blobs/blobs"] {
            fs::create_dir_all(data.join(folder)).unwrap();
        }
        for (path, text) in [
            ("store/a-wal", "old"),
            ("store/a", "old"),
            ("blobs/blobs/x", "old"),
            ("store/lock", "lock"),
        ] {
            fs::write(data.join(path), text).unwrap();
        }
        let staging = Staging::of(data);
        staging.begin().unwrap();
        let new = staging.new_state();
        fs::create_dir_all(new.join("store")).unwrap();
        fs::create_dir_all(new.join("blobs/blobs")).unwrap();
        for path in ["store/a", "blobs/blobs/y", "key"] {
            fs::write(new.join(path), "new").unwrap();
        }
        dir
    }

    fn commit(data: &Path, keep_old: bool) {
        let parts = PARTS.map(str::to_owned).to_vec();
        Staging::of(data).commit(&Commit { parts, keep_old }).unwrap();
    }

    fn is_new(data: &Path) {
        assert_eq!(fs::read_to_string(data.join("store/a")).unwrap(), "new");
        assert_eq!(fs::read_to_string(data.join("key")).unwrap(), "new");
        assert_eq!(fs::read_to_string(data.join("store/lock")).unwrap(), "lock");
        assert!(data.join("blobs/blobs/y").exists() && !data.join("blobs/blobs/x").exists());
        assert!(!data.join("store/a-wal").exists() && !data.join(FOLDER).exists());
    }

    #[test]
    fn a_crash_after_any_rename_is_brought_to_the_end() {
        for renames in 0.. {
            let dir = before();
            let data = dir.path();
            commit(data, false);
            let done = forward(data, renames).unwrap();
            assert_eq!(is_pending(data).unwrap(), !done);
            finish(data).unwrap();
            is_new(data);
            if done {
                assert_eq!(renames, 6);
                return;
            }
        }
    }

    #[test]
    fn the_old_state_is_kept_when_asked_for_and_nothing_moves_without_a_commit() {
        let dir = before();
        let data = dir.path();
        finish(data).unwrap();
        assert_eq!(fs::read_to_string(data.join("store/a")).unwrap(), "old");
        commit(data, true);
        finish(data).unwrap();
        is_new(data);
        assert_eq!(
            fs::read_to_string(data.join(REPLACED).join("store/a")).unwrap(),
            "old"
        );
        assert!(data.join(REPLACED).join("blobs/blobs/x").exists());
    }
}
