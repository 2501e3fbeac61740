//! Removing trees that an agent made.
//!
//! Such a tree may be deeper than any path or stack allows, hold folders without permissions and links to anywhere. So
//! it is taken apart through folder handles, never through paths: files are unlinked, and a folder found inside another is
//! moved up to the top before it is opened, which keeps the depth at one. Every step can be repeated after a crash.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::disk::{self, Identity, io_error};
use super::{Error, Held};

/// Empties the folder at `root`, if it is still the one expected.
pub(super) async fn contents(held: &Held, root: &Path, expected: Identity) -> Result<(), Error> {
    run(held, root, move |root| clear(&open_top(root, Some(expected))?)).await
}

/// Removes the folder at `root`, if it is still the one expected; something else there, or nothing, is left alone.
pub(super) async fn owned(held: &Held, root: &Path, expected: Identity) -> Result<(), Error> {
    run(held, root, move |root| {
        let top = match open_top(root, Some(expected)) {
            Ok(top) => top,
            Err(e) if is_other(&e) => return Ok(()),
            Err(e) => return Err(e),
        };
        clear(&top)?;
        fs::remove_dir(root)
    })
    .await
}

/// Removes the folder at `root`, which lies where only we can write; nothing there is fine.
pub(crate) async fn tree(held: &Held, root: &Path) -> Result<(), Error> {
    run(held, root, move |root| {
        let top = match open_top(root, None) {
            Ok(top) => top,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e),
        };
        clear(&top)?;
        fs::remove_dir(root)
    })
    .await
}

async fn run(
    held: &Held,
    root: &Path,
    work: impl FnOnce(&Path) -> io::Result<()> + Send + 'static,
) -> Result<(), Error> {
    let owned = root.to_owned();
    disk::blocking(held, move || work(&owned))
        .await
        .map_err(io_error("removing", root))
}

fn is_other(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn open_top(root: &Path, expected: Option<Identity>) -> io::Result<OwnedFd> {
    let top = rustix::fs::openat(CWD, root, DIR_FLAGS, Mode::empty())?;
    if let Some(expected) = expected {
        let stat = rustix::fs::fstat(&top)?;
        if (stat.st_dev, stat.st_ino) != (expected.dev, expected.ino) {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "another folder stands in its place",
            ));
        }
    }
    Ok(top)
}

const DIR_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

fn clear(top: &OwnedFd) -> io::Result<()> {
    let dev = rustix::fs::fstat(top)?.st_dev;
    let mut number = 0u64;
    // Reading a folder while it changes may skip entries, so passes are made until one finds nothing.
    loop {
        let mut folders = Vec::new();
        let mut found = false;
        let mut listing = Dir::read_from(top)?;
        while let Some(entry) = listing.read() {
            let entry = entry?;
            let name = entry.file_name();
            if is_dots(name) {
                continue;
            }
            found = true;
            if is_dir(top, name, entry.file_type())? {
                folders.push(name.to_owned());
            } else {
                unlink(top, name)?;
            }
        }
        if !found {
            return Ok(());
        }
        while let Some(name) = folders.pop() {
            flatten(top, &name, dev, &mut number, &mut folders)?;
        }
    }
}

/// Removes the folder `name` of `top`; folders inside are moved to `top` and added to `folders`.
fn flatten(
    top: &OwnedFd,
    name: &CStr,
    dev: u64,
    number: &mut u64,
    folders: &mut Vec<CString>,
) -> io::Result<()> {
    let dir = open_folder(top, name)?;
    if rustix::fs::fstat(&dir)?.st_dev != dev {
        return Err(io::Error::new(
            io::ErrorKind::CrossesDevices,
            "a file system is mounted inside; unmount it",
        ));
    }
    loop {
        let mut listing = Dir::read_from(&dir)?;
        while let Some(entry) = listing.read() {
            let entry = entry?;
            let inner = entry.file_name();
            if is_dots(inner) {
                continue;
            }
            if is_dir(&dir, inner, entry.file_type())? {
                folders.push(move_up(&dir, inner, top, number)?);
            } else {
                unlink(&dir, inner)?;
            }
        }
        match rustix::fs::unlinkat(top, name, AtFlags::REMOVEDIR) {
            Ok(()) => return Ok(()),
            // Entries that the listing skipped while it changed.
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(Errno::ACCESS | Errno::PERM) => open_up(top)?,
            Err(e) => return Err(e.into()),
        }
    }
}

fn move_up(dir: &OwnedFd, inner: &CStr, top: &OwnedFd, number: &mut u64) -> io::Result<CString> {
    let mut opened = false;
    loop {
        *number += 1;
        let name = CString::new(format!(".removing-{number}"))?;
        match rustix::fs::renameat_with(dir, inner, top, &name, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(name),
            Err(Errno::EXIST) => {}
            Err(Errno::ACCESS | Errno::PERM) if !opened => {
                // A folder that moves needs write permission itself, since its `..` changes.
                opened = true;
                open_up(dir)?;
                open_up(&handle(dir, inner)?)?;
            }
            Err(e) => return Err(e.into()),
        }
    }
}

fn unlink(dir: &OwnedFd, name: &CStr) -> io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::ACCESS | Errno::PERM) => {
            open_up(dir)?;
            Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?)
        }
        Err(Errno::NOENT) => Ok(()),
        other => Ok(other?),
    }
}

/// Opens a folder for listing, giving its owner the right first if it has none.
pub(crate) fn open_folder(dir: &OwnedFd, name: &CStr) -> io::Result<OwnedFd> {
    match rustix::fs::openat(dir, name, DIR_FLAGS, Mode::empty()) {
        Err(Errno::ACCESS) => {
            open_up(&handle(dir, name)?)?;
            Ok(rustix::fs::openat(dir, name, DIR_FLAGS, Mode::empty())?)
        }
        other => Ok(other?),
    }
}

/// A handle of a folder that cannot be opened otherwise; never of what a link points to.
fn handle(dir: &OwnedFd, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

/// Gives the owner all rights on the folder that the handle refers to, whatever its name refers to by now.
fn open_up(folder: impl AsFd) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", folder.as_fd().as_raw_fd());
    Ok(rustix::fs::chmod(path, Mode::RWXU)?)
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

fn is_dir(dir: &OwnedFd, name: &CStr, hint: FileType) -> io::Result<bool> {
    if hint != FileType::Unknown {
        return Ok(hint == FileType::Directory);
    }
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
        Err(Errno::NOENT) => Ok(false),
        Err(e) => Err(e.into()),
    }
}
