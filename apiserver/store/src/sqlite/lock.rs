//! One owner a directory.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::Error;

/// Held until dropped; the kernel gives it up when the process dies.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "held, not read")] File);

impl Lock {
    pub(super) fn acquire(dir: &Path) -> Result<Self, Error> {
        let path = dir.join("store.lock");
        let io = |operation| {
            let path = path.clone();
            move |source| Error::Io {
                operation,
                path,
                source,
            }
        };
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600);
        let mut file = options.open(&path).map_err(io("open"))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let read = (&file).take(32).read_to_string(&mut text);
                return Err(Error::Locked {
                    path,
                    pid: read.ok().and_then(|_| text.trim().parse().ok()),
                });
            }
            Err(errno) => return Err(io("lock")(errno.into())),
        }
        file.set_len(0).map_err(io("write"))?;
        file.rewind().map_err(io("write"))?;
        writeln!(file, "{}", std::process::id()).map_err(io("write"))?;
        Ok(Self(file))
    }
}

/// Makes the directory, or makes it private.
pub(super) fn private_dir(dir: &Path) -> Result<(), Error> {
    let io = |operation| {
        move |source| Error::Io {
            operation,
            path: dir.to_owned(),
            source,
        }
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(io("create directory"))?;
    let mode = dir.metadata().map_err(io("inspect"))?.permissions().mode();
    if mode & 0o077 != 0 {
        std::fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(io("make private"))?;
    }
    Ok(())
}

/// Creates a file with mode 0600, or makes it so; SQLite gives its side files the same mode.
pub(super) fn private_file(path: &Path) -> Result<u64, Error> {
    let io = |operation| {
        move |source| Error::Io {
            operation,
            path: path.to_owned(),
            source,
        }
    };
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let metadata = options
        .open(path)
        .map_err(io("open"))?
        .metadata()
        .map_err(io("inspect"))?;
    if metadata.permissions().mode() & 0o077 != 0 {
        std::fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(io("make private"))?;
    }
    Ok(metadata.len())
}
