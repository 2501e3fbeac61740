//! Folders and names of a one-process control plane.

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::Error;

/// Where agents of a root device work: they run as another user, who cannot pass a private data folder.
const ROOT_WORK: &str = "/var/lib/panda/work";

fn fail(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Path { path, source }
}

/// Makes a folder of mode 0700, or makes sure that it is one, and returns its canonical path.
pub(super) fn private_dir(path: &Path) -> Result<PathBuf, Error> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(fail(path))?;
    let path = path.canonicalize().map_err(fail(path))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).map_err(fail(&path))?;
    Ok(path)
}

/// The folder that agents work in.
pub(super) fn work_dir(asked: Option<&Path>, data_dir: &Path) -> Result<PathBuf, Error> {
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
pub(super) fn device_name(hostname: &str) -> String {
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
pub(super) fn program(name: &str, path: &str) -> Option<PathBuf> {
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

/// Writes a file of mode 0600 whole or not at all.
pub(super) fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    // A symbolic link stays one; what it points to is replaced.
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().unwrap_or(Path::new("."));
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
        std::fs::rename(&temporary, path)
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
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(
            std::fs::read_dir(dir.path().join("sub")).unwrap().count(),
            1,
            "no temporary file is left"
        );
    }
}
