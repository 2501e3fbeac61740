//! Small steps on the file system, with their errors named.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use super::Error;

pub(super) fn io(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    move |source| match source.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Error::DiskFull,
        _ => Error::Io {
            operation,
            path: path.to_owned(),
            source,
        },
    }
}

pub(super) fn create_dir(path: &Path) -> Result<(), Error> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(io("create", path))
}

/// Makes names in a folder durable.
pub(super) fn sync_dir(path: &Path) -> Result<(), Error> {
    File::open(path)
        .and_then(|dir| dir.sync_all())
        .map_err(io("sync", path))
}

pub(super) fn open_private(path: &Path) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600);
    options.open(path).map_err(io("open", path))
}

/// Names in a folder, sorted; none when it does not exist. Names that are not UTF-8 are not ours.
pub(super) fn list(path: &Path) -> Result<Vec<String>, Error> {
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(io("list", path))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(io("list", path))?.file_name();
        names.extend(name.into_string());
    }
    names.sort_unstable();
    Ok(names)
}
