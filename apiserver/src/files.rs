//! Files that hold keys: written whole or not at all, readable by their owner only.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Largest key or certificate file that is read.
const MAX_FILE: u64 = 1 << 20;

/// Why a file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system refused.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// What was being done.
        operation: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Others may read a file that holds a key.
    #[error("{} holds a key but other users may read it (mode {mode:o}); run: chmod 600 {}", path.display(), path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file is larger than any that this program writes.
    #[error("{} is larger than {MAX_FILE} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
}

impl Error {
    /// Whether there was no space left.
    pub(crate) fn is_disk_full(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, Self::Io { source, .. } if full.contains(&source.kind()))
    }
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io {
        operation,
        path,
        source,
    }
}

/// Makes a directory that only its owner may enter; an existing one is left as it is.
pub(crate) fn private_dir(path: &Path) -> Result<(), Error> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(failed("create", path))
}

/// Reads a private file; nothing when it does not exist.
pub(crate) fn read_private(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("open", path)(error)),
    };
    let mode = file
        .metadata()
        .map_err(failed("stat", path))?
        .permissions()
        .mode()
        & 0o777;
    if mode & 0o077 != 0 {
        return Err(Error::Exposed {
            path: path.to_owned(),
            mode,
        });
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1)
        .read_to_end(&mut bytes)
        .map_err(failed("read", path))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(Error::TooLarge {
            path: path.to_owned(),
        });
    }
    Ok(Some(bytes))
}

/// Replaces a file: a reader sees the old content or the new, also after a crash.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.tmp"));
    // Left behind by a crash: never used, and perhaps with other permissions.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("remove", &temporary)(error));
        }
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temporary)
        .map_err(failed("create", &temporary))?;
    file.write_all(bytes).map_err(failed("write", &temporary))?;
    file.sync_all().map_err(failed("sync", &temporary))?;
    fs::rename(&temporary, path).map_err(failed("rename", &temporary))?;
    if let Some(parent) = path.parent() {
        File::open(parent)
            .and_then(|dir| dir.sync_all())
            .map_err(failed("sync", parent))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_whole_files_with_their_mode_and_refuses_exposed_ones() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        assert!(read_private(&path).unwrap().is_none());
        fs::write(dir.path().join(".key.tmp"), "half").unwrap();
        write_atomic(&path, b"whole", 0o600).unwrap();
        assert_eq!(read_private(&path).unwrap().unwrap(), b"whole");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(
            read_private(&path),
            Err(Error::Exposed { mode: 0o644, .. })
        ));
    }
}
