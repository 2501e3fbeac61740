//! Folders, names and private files of a device: the usual places, for the programs that hold an agentlet.

use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// User and group that agents of a root device run as: in no range that distributions hand out.
pub const AGENT_UID: u32 = 2_064_000;
/// A private file is no larger.
const MAX_PRIVATE: u64 = 1 << 20;

/// A folder or file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {}", path.display())]
pub struct Error {
    /// Which.
    pub path: PathBuf,
    /// The system's reason.
    #[source]
    pub source: std::io::Error,
}

/// Where agents of a root device work: they run as another user, who cannot pass a private data folder.
const ROOT_WORK: &str = "/var/lib/panda/work";

fn fail(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error { path, source }
}

/// Makes a folder of mode 0700, or makes sure that it is one, and returns its canonical path.
///
/// # Errors
/// When the system refuses.
pub fn private_dir(path: &Path) -> Result<PathBuf, Error> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(fail(path))?;
    let path = path.canonicalize().map_err(fail(path))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).map_err(fail(&path))?;
    Ok(path)
}

/// Makes the folder that agents work in, and returns its canonical path.
///
/// # Errors
/// When the system refuses.
pub fn work_dir(asked: Option<&Path>, data_dir: &Path) -> Result<PathBuf, Error> {
    let root = rustix::process::geteuid().is_root();
    let path = match asked {
        Some(path) => path.to_owned(),
        None if root => {
            // One folder a data folder, so that several control planes of one machine stay apart.
            let digest = Sha256::digest(data_dir.as_os_str().as_encoded_bytes());
            Path::new(ROOT_WORK).join(&hex::encode(digest)[..12])
        }
        None => data_dir.join("work"),
    };
    let mode = if root { 0o711 } else { 0o700 };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(&path)
        .map_err(fail(&path))?;
    let path = path.canonicalize().map_err(fail(&path))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).map_err(fail(&path))?;
    Ok(path)
}

/// A host name as the name of an object: lower case, letters, digits and dashes.
#[must_use]
pub fn device_name(hostname: &str) -> String {
    let short = hostname
        .split('.')
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    let name: String = short
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(63)
        .collect();
    let name = name.trim_matches('-');
    if name.is_empty() {
        "this-device".into()
    } else {
        name.to_owned()
    }
}

/// The absolute path of a program.
#[must_use]
pub fn program(name: &str, path: &str) -> Option<PathBuf> {
    let executable = |file: &PathBuf| {
        file.is_absolute()
            && file
                .metadata()
                .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(path)
        .map(|folder| folder.join(name))
        .find(executable)
}

/// User and group that agents run as, for an agentlet that is told none: 0 is its own.
#[must_use]
pub fn agent_uid() -> u32 {
    if rustix::process::geteuid().is_root() {
        AGENT_UID
    } else {
        0
    }
}

/// Reads a file of ours that others must not see; none when there is none.
///
/// # Errors
/// When it cannot be read, is far too large, or others may read it.
pub fn read_private(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        return Err(std::io::Error::new(
            std::io::ErrorKind::PermissionDenied,
            "others may read this file: run chmod 600 on it",
        ));
    }
    let mut bytes = Vec::new();
    file.take(MAX_PRIVATE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_PRIVATE {
        return Err(std::io::Error::from(std::io::ErrorKind::FileTooLarge));
    }
    Ok(Some(bytes))
}

/// Writes a file of mode 0600 whole or not at all: on a full disk, or after a crash, the old one is still there.
///
/// # Errors
/// When the system refuses.
pub fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    // A symbolic link stays one; what it points to is replaced.
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let temporary = path.with_extension(format!("new.{}", std::process::id()));
    let write = || {
        let mut file = std::fs::File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        std::fs::File::open(folder)?.sync_all()
    };
    write().inspect_err(|_| {
        // Nothing of it was seen by anybody; a leftover would only confuse.
        let _: Result<(), _> = std::fs::remove_file(&temporary);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_become_names() {
        assert_eq!(device_name("Pi-4.lan"), "pi-4");
        assert_eq!(device_name("_My Mac_"), "my-mac");
        assert_eq!(device_name(""), "this-device");
        assert_eq!(device_name("..."), "this-device");
        assert_eq!(device_name(&"x".repeat(100)).len(), 63);
    }

    #[test]
    fn a_private_file_is_whole_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/config");
        write_private(&path, b"one").unwrap();
        write_private(&path, b"two").unwrap();
        assert_eq!(read_private(&path).unwrap().unwrap(), b"two");
        assert!(read_private(&dir.path().join("none")).unwrap().is_none());
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(
            std::fs::read_dir(dir.path().join("sub")).unwrap().count(),
            1,
            "no temporary file is left"
        );
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(read_private(&path).is_err(), "others may read it");
    }
}
