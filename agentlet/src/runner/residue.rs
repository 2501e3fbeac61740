//! What an agent left on the disk that holds a value of a Secret.
//!
//! The platform never writes a value to a disk, but an agent that was given one may. So after its end everything that it
//! could write is read: tree, HOME, temporary folder. What it means is decided by [`super::collect`].

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, readlinkat, statat};

use crate::mask::Mask;

/// Deepest folder that is entered; whoever goes deeper hides something.
const MAX_DEPTH: usize = 512;

/// Whether anything beneath `root` holds a value, in a file, a name or the target of a link. Nothing is followed and no
/// other file system entered. An error means that it cannot be told.
pub(super) fn holds(root: &Path, mask: &Mask) -> io::Result<bool> {
    let root = match openat(CWD, root, FOLDER, Mode::empty()) {
        Ok(root) => root,
        Err(rustix::io::Errno::NOENT) => return Ok(false),
        Err(e) => return Err(e.into()),
    };
    let device = rustix::fs::fstat(&root)?.st_dev;
    // Open folders from the root down, each with what is still to be looked at in it.
    let mut stack = vec![(names(&root, mask)?, root)];
    loop {
        let depth = stack.len();
        let Some((Names { rest, found }, folder)) = stack.last_mut() else {
            return Ok(false);
        };
        if *found {
            return Ok(true);
        }
        let Some(name) = rest.pop() else {
            stack.pop();
            continue;
        };
        let stat = match statat(&*folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(rustix::io::Errno::NOENT) => continue,
            Err(e) => return Err(e.into()),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory if stat.st_dev == device => {
                if depth >= MAX_DEPTH {
                    return Err(io::Error::other("folders are nested too deep to be read"));
                }
                let inner = openat(&*folder, &name, FOLDER, Mode::empty())?;
                let names = names(&inner, mask)?;
                stack.push((names, inner));
            }
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                if mask.finds(File::from(openat(&*folder, &name, flags, Mode::empty())?))? {
                    return Ok(true);
                }
            }
            FileType::Symlink if mask.finds(readlinkat(&*folder, &name, Vec::new())?.as_bytes())? => {
                return Ok(true);
            }
            _ => {}
        }
    }
}

/// Whether the file at `path` in `tree`, written as in a snapshot's changes, holds a value.
pub(super) fn in_file(tree: &Path, path: &str, mask: &Mask) -> io::Result<bool> {
    let Some(bytes) = crate::artifact::parse(path) else {
        return Ok(false);
    };
    let mut folder = openat(CWD, tree, FOLDER, Mode::empty())?;
    let mut parts = bytes.split(|b| *b == b'/').peekable();
    while let Some(part) = parts.next() {
        let name = CString::new(part)?;
        let next = if parts.peek().is_some() {
            openat(&folder, &name, FOLDER, Mode::empty())
        } else {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            openat(&folder, &name, flags, Mode::empty())
        };
        match next {
            Ok(next) => folder = next,
            // Removed, or a link: its target is in the patch.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => {
                return Ok(false);
            }
            Err(e) => return Err(e.into()),
        }
    }
    mask.finds(File::from(folder))
}

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

struct Names {
    rest: Vec<CString>,
    found: bool,
}

fn names(folder: &OwnedFd, mask: &Mask) -> io::Result<Names> {
    let mut rest = Vec::new();
    let mut found = false;
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if !matches!(name.to_bytes(), b"." | b"..") {
            found |= mask.finds(name.to_bytes())?;
            rest.push(name.to_owned());
        }
    }
    Ok(Names { rest, found })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_names_and_links_are_looked_at_and_nothing_is_followed() {
        let mask = Mask::new([&b"hunter22x"[..]]);
        let away = tempfile::tempdir().unwrap();
        fs::write(away.path().join("f"), "hunter22x").unwrap();
        let plant: [fn(&Path, &Path) -> io::Result<()>; 4] = [
            |dir, _| fs::write(dir.join("a/b/f"), "xx\nhunter22x"),
            |dir, _| fs::write(dir.join("a/b/f"), "aHVudGVyMjJ4"),
            |dir, _| fs::write(dir.join("a/hunter22x"), ""),
            |dir, _| symlink("hunter22x", dir.join("a/l")),
        ];
        for plant in plant {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir_all(dir.path().join("a/b")).unwrap();
            symlink(away.path(), dir.path().join("a/folder")).unwrap();
            symlink(away.path().join("f"), dir.path().join("a/file")).unwrap();
            assert!(!holds(dir.path(), &mask).unwrap());
            plant(dir.path(), away.path()).unwrap();
            assert!(holds(dir.path(), &mask).unwrap());
        }
        assert!(!holds(&away.path().join("absent"), &mask).unwrap());
    }
}
