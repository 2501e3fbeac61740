//! Files of an Agent's manifest, written into the run's HOME.
//!
//! An earlier attempt may have left anything there, links included. So every step opens one name beneath a folder that
//! is already open, and follows nothing.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use panda_sandbox::User;
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Uid, fchmod, fchown, mkdirat, openat, renameat, symlinkat, unlinkat,
};

use crate::driver::render::RenderedFile;

/// Why a file was not written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path} of the Agent into HOME")]
pub(super) struct Error {
    path: String,
    #[source]
    source: io::Error,
}

/// Makes `folders`, writes `files` and sets `links` beneath `home`, owned by `user`.
pub(super) fn fill(
    home: &Path,
    folders: &[PathBuf],
    files: &[RenderedFile],
    links: &[(&Path, PathBuf)],
    user: Option<User>,
) -> Result<(), Error> {
    let at = |path: &Path| {
        let path = path.display().to_string();
        move |source: io::Error| Error { path, source }
    };
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = openat(CWD, home, flags, Mode::empty()).map_err(|e| at(home)(e.into()))?;
    for folder in folders {
        match descend(&root, folder, user) {
            // What an earlier attempt made of its own folder is its own affair.
            Err(e) if is_something_else(&e) => {}
            result => drop(result.map_err(at(folder))?),
        }
    }
    for file in files {
        write(&root, file, user).map_err(at(&file.path))?;
    }
    for (path, target) in links {
        link(&root, path, target, user).map_err(at(path))?;
    }
    Ok(())
}

fn is_something_else(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    matches!(code, Some(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR))
}

/// The folder `path` beneath `root`, made where it is missing.
fn descend(root: &OwnedFd, path: &Path, user: Option<User>) -> io::Result<OwnedFd> {
    let mut here = root.try_clone()?;
    for part in path.components() {
        let Component::Normal(name) = part else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let made = match mkdirat(&here, name, Mode::from_raw_mode(0o700)) {
            Ok(()) => true,
            Err(rustix::io::Errno::EXIST) => false,
            Err(e) => return Err(e.into()),
        };
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let next = openat(&here, name, flags, Mode::empty())?;
        if made {
            give(&next, user)?;
        }
        here = next;
    }
    Ok(here)
}

/// Replaces whatever has the name, unless that is a folder.
fn link(root: &OwnedFd, path: &Path, target: &Path, user: Option<User>) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let folder = descend(root, path.parent().unwrap_or(Path::new("")), user)?;
    match unlinkat(&folder, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(e) => return Err(e.into()),
    }
    Ok(symlinkat(target, &folder, name)?)
}

/// Whole or not at all; replaces whatever has the name, unless that is a folder.
fn write(root: &OwnedFd, file: &RenderedFile, user: Option<User>) -> io::Result<()> {
    let name = file.path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let folder = descend(root, file.path.parent().unwrap_or(Path::new("")), user)?;
    let mut new = name.to_owned();
    new.push(".panda-new");
    match unlinkat(&folder, &new, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(e) => return Err(e.into()),
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut out = File::from(openat(&folder, &new, flags, Mode::from_raw_mode(0o600))?);
    out.write_all(file.content.as_bytes())?;
    fchmod(&out, Mode::from_raw_mode(file.mode))?;
    give(&out, user)?;
    renameat(&folder, &new, &folder, name)?;
    Ok(())
}

fn give(fd: impl std::os::fd::AsFd, user: Option<User>) -> io::Result<()> {
    if let Some(user) = user {
        fchown(fd, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn file(path: &str) -> RenderedFile {
        RenderedFile {
            path: path.into(),
            mode: 0o640,
            content: "key = 1".into(),
        }
    }

    #[test]
    fn writes_files_and_folders() {
        let home = tempfile::tempdir().unwrap();
        fill(
            home.path(),
            &["tmp".into()],
            &[file(".agent/config.toml")],
            &[],
            None,
        )
        .unwrap();
        fill(
            home.path(),
            &["tmp".into()],
            &[file(".agent/config.toml")],
            &[],
            None,
        )
        .unwrap();
        assert!(home.path().join("tmp").is_dir());
        let path = home.path().join(".agent/config.toml");
        assert_eq!(fs::read_to_string(&path).unwrap(), "key = 1");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        let links = [(Path::new(".agent/config.toml"), PathBuf::from("/dev/shm/x"))];
        fill(home.path(), &[], &[], &links, None).unwrap();
        fill(home.path(), &[], &[], &links, None).unwrap();
        assert_eq!(fs::read_link(&path).unwrap(), Path::new("/dev/shm/x"));
    }

    #[test]
    fn never_follows_what_an_agent_left() {
        let home = tempfile::tempdir().unwrap();
        let away = tempfile::tempdir().unwrap();
        let target = away.path().join("target");
        fs::write(&target, "mine").unwrap();
        symlink(away.path(), home.path().join(".agent")).unwrap();
        symlink(away.path(), home.path().join(".config")).unwrap();
        symlink(&target, home.path().join("a.toml")).unwrap();
        symlink(&target, home.path().join("a.toml.panda-new")).unwrap();
        assert!(fill(home.path(), &[], &[file(".agent/config.toml")], &[], None).is_err());
        fill(home.path(), &[".config".into()], &[file("a.toml")], &[], None).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "mine");
        assert_eq!(fs::read_dir(away.path()).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(home.path().join("a.toml")).unwrap(), "key = 1");
        assert!(fill(home.path(), &[], &[file("../x")], &[], None).is_err());
    }
}
