//! Values of Secrets on their way to an agent: from the agentlet's memory to the supervisor's, and never by a disk.
//!
//! The run folder says only which keys are used where ([`SecretUse`]). The values come over the supervisor's standard
//! input, a file in memory that has no name ([`Handover`]). Files of an Agent that hold a key lie in a folder on a tmpfs,
//! which the supervisor makes before the agent and removes after it; in HOME is a link to it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use panda_api::FileFormat;
use panda_sandbox::User;
use rustix::fs::{Gid, MemfdFlags, Uid};
use serde::{Deserialize, Serialize};

use super::proxy::ApiAccess;

/// Largest handover that is read.
const MAX_HANDOVER: u64 = 16 << 20;
/// Where a tmpfs usually is.
const SHARED_MEMORY: &str = "/dev/shm";
/// What `statfs` calls a tmpfs, and a ramfs.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// A key of a Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretId {
    /// Name of the Secret.
    pub name: String,
    /// Key in it.
    pub key: String,
}

/// Which keys a job uses, and where. With it in its spec, a supervisor expects a [`Handover`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretUse {
    /// Variables that take a value.
    pub env: Vec<(String, SecretId)>,
    /// Files that hold one.
    pub files: Vec<SecretFile>,
    /// Where those files are, on a tmpfs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// Where the API is, for a run that has a token of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api: Option<ApiAccess>,
}

/// A file that holds a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretFile {
    /// Path in the folder.
    pub path: PathBuf,
    /// Permissions.
    pub mode: u32,
    /// What it is put together from.
    pub parts: Vec<Part>,
}

/// A part of a [`SecretFile`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Part {
    /// Text.
    Text(String),
    /// A value, escaped for the format.
    Secret(SecretId, FileFormat),
}

/// The values themselves. It is never written to a disk and never printed.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Handover {
    /// Variables.
    pub env: Vec<(String, String)>,
    /// Path in the folder, permissions, contents.
    pub files: Vec<(PathBuf, u32, String)>,
    /// The run's own token; empty for a job that has none.
    pub token: String,
    /// What must not stand in any output.
    pub masked: Vec<Vec<u8>>,
}

impl std::fmt::Debug for Handover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handover").finish_non_exhaustive()
    }
}

impl Handover {
    /// A descriptor to read it from.
    pub(super) fn send(&self) -> io::Result<OwnedFd> {
        let fd = rustix::fs::memfd_create("handover", MemfdFlags::CLOEXEC)?;
        let mut file = File::from(fd);
        file.write_all(&serde_json::to_vec(self)?)?;
        file.rewind()?;
        Ok(file.into())
    }

    /// Reads what stands on standard input, which is the null device after that.
    pub(super) fn receive() -> io::Result<Self> {
        let mut bytes = Vec::new();
        io::stdin().lock().take(MAX_HANDOVER).read_to_end(&mut bytes)?;
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        serde_json::from_slice(&bytes).map_err(|_| io::ErrorKind::InvalidData.into())
    }
}

/// A folder in memory for the files of one job that hold values; none when this device has no tmpfs that could be used.
pub(crate) fn folder_for(mark: &str) -> Option<PathBuf> {
    let base = Path::new(SHARED_MEMORY);
    is_in_memory(base).then(|| base.join(format!("panda-{mark}")))
}

fn is_in_memory(path: &Path) -> bool {
    let kind = rustix::fs::statfs(path).map(|stat| stat.f_type.cast_unsigned());
    kind.is_ok_and(|kind| IN_MEMORY.contains(&kind))
}

/// The files of one job that hold values; removed when dropped.
#[derive(Debug)]
pub(super) struct SecretFolder(PathBuf);

impl SecretFolder {
    /// Makes the folder for `user`. What a supervisor that was killed left of it is replaced.
    pub(super) fn make(
        path: &Path,
        files: &[(PathBuf, u32, String)],
        user: Option<User>,
    ) -> io::Result<Self> {
        remove(path)?;
        fs::DirBuilder::new().mode(0o700).create(path)?;
        let this = Self(path.to_owned());
        if !is_in_memory(path) {
            return Err(io::Error::other("it is not on a tmpfs"));
        }
        for (name, mode, content) in files {
            let file = path.join(name);
            if let Some(parent) = file.parent().filter(|parent| *parent != path) {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
                for folder in parent.ancestors().take_while(|folder| *folder != path) {
                    give(folder, user)?;
                }
            }
            let mut out = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&file)?;
            out.write_all(content.as_bytes())?;
            out.set_permissions(fs::Permissions::from_mode(*mode))?;
            give(&file, user)?;
        }
        give(path, user)?;
        Ok(this)
    }
}

impl Drop for SecretFolder {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.0) {
            tracing::warn!(%error, "files of the agent in memory not removed");
        }
    }
}

/// Removes the folder of a job, if it is there.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn give(path: &Path, user: Option<User>) -> io::Result<()> {
    if let Some(user) = user {
        rustix::fs::chown(path, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handover_is_read_back_and_never_printed() {
        let handover = Handover {
            env: vec![("T".into(), "hunter22".into())],
            files: Vec::new(),
            token: String::new(),
            masked: vec![b"hunter22".to_vec()],
        };
        assert!(!format!("{handover:?}").contains("hunter22"));
        let mut text = String::new();
        File::from(handover.send().unwrap())
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(serde_json::from_str::<Handover>(&text).unwrap(), handover);
    }

    #[test]
    fn files_lie_in_memory_and_go_with_their_owner() {
        let Some(path) = folder_for(&format!("test-{}", std::process::id())) else {
            return;
        };
        let files = [(PathBuf::from("a/b.toml"), 0o640, "key = 1".to_owned())];
        let made = SecretFolder::make(&path, &files, None).unwrap();
        // A second one replaces what was left.
        std::mem::forget(made);
        let made = SecretFolder::make(&path, &files, None).unwrap();
        assert_eq!(fs::read_to_string(path.join("a/b.toml")).unwrap(), "key = 1");
        drop(made);
        assert!(!path.exists());
        let disk = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let on_disk = disk.path().join("secrets");
        if !is_in_memory(disk.path()) {
            assert!(SecretFolder::make(&on_disk, &files, None).is_err());
            assert!(!on_disk.exists());
        }
    }
}
