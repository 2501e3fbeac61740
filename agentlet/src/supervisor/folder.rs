//! The files of one run.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use panda_api::meta::IdSource;
use rustix::fs::FlockOperation;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::grant::Grant;
use super::spec::JobSpec;

/// Longest spec that is read.
const MAX_SPEC: u64 = 16 << 20;

/// What is wrong with a run folder.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system.
    #[error("run folder {path}")]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// A file that is not what it should be.
    #[error("run folder file {path} is damaged")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// Another process supervises this run.
    #[error("run folder {path} is in use by another supervisor")]
    Locked {
        /// The folder.
        path: PathBuf,
    },
}

impl Error {
    /// Whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        !matches!(self, Self::Damaged { .. })
    }
}

/// The folder of one run: mode 0700, made once by the agentlet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Makes the folder with everything that a supervisor needs. It must not exist.
    ///
    /// # Errors
    ///
    /// When it exists or cannot be made.
    pub fn create(
        path: &Path,
        spec: &JobSpec,
        grant: Option<&Grant>,
        ids: &dyn IdSource,
    ) -> Result<Self, Error> {
        let this = Self { path: path.into() };
        let io = |source| Error::Io {
            path: path.into(),
            source,
        };
        DirBuilder::new().mode(0o700).create(path).map_err(io)?;
        DirBuilder::new().mode(0o700).create(this.logs()).map_err(io)?;
        this.replace(
            &this.key_path(),
            ids.uuid().simple().to_string().as_bytes(),
            false,
        )?;
        if let Some(grant) = grant {
            this.write_grant(grant)?;
        }
        // Last: a folder with a spec is complete.
        this.write(&this.spec_path(), spec, true)?;
        Ok(this)
    }

    /// A folder made earlier.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self { path: path.into() }
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// [`JobSpec`].
    #[must_use]
    pub fn spec_path(&self) -> PathBuf {
        self.path.join("spec.json")
    }

    /// What happened.
    #[must_use]
    pub fn journal(&self) -> PathBuf {
        self.path.join("journal.jsonl")
    }

    /// [`Grant`].
    #[must_use]
    pub fn grant_path(&self) -> PathBuf {
        self.path.join("grant.json")
    }

    /// Folder of the outputs; see [`super::log`].
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }

    /// What the supervisor itself says when something is wrong with it.
    #[must_use]
    pub fn supervisor_log(&self) -> PathBuf {
        self.path.join("supervisor.log")
    }

    fn lock_path(&self) -> PathBuf {
        self.path.join("lock")
    }

    fn key_path(&self) -> PathBuf {
        self.path.join("ctl.key")
    }

    fn forbidden_path(&self) -> PathBuf {
        self.path.join("forbidden")
    }

    /// Reads the spec.
    ///
    /// # Errors
    ///
    /// When it is absent or damaged.
    pub fn spec(&self) -> Result<JobSpec, Error> {
        self.read(&self.spec_path())
    }

    /// Reads the grant; none was given when it is absent.
    ///
    /// # Errors
    ///
    /// When it is damaged.
    pub fn grant(&self) -> Result<Option<Grant>, Error> {
        match self.read(&self.grant_path()) {
            Ok(grant) => Ok(Some(grant)),
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Replaces the grant as a whole.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write_grant(&self, grant: &Grant) -> Result<(), Error> {
        // Not made durable: what takes an unwritten file away takes the boot away too, and with it the grant.
        self.write(&self.grant_path(), grant, false)
    }

    /// Sees to it that the job never starts, if it has not yet. For a folder that [`super::Handle::adopt`] found to be
    /// never started and whose run is given up: a supervisor may still be on its way.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn forbid(&self) -> Result<(), Error> {
        self.replace(&self.forbidden_path(), b"", true)
    }

    pub(super) fn is_forbidden(&self) -> bool {
        self.forbidden_path().exists()
    }

    /// The word that commands on the socket must carry: the socket alone cannot tell the agentlet from an agent of the
    /// same user, but that one cannot read this file.
    pub(super) fn key(&self) -> Result<String, Error> {
        fs::read_to_string(self.key_path()).map_err(|source| Error::Io {
            path: self.key_path(),
            source,
        })
    }

    /// Takes the lock that the one supervisor of a run holds as long as it lives.
    pub(super) fn lock(&self) -> Result<Lock, Error> {
        let path = self.lock_path();
        let io = |source| Error::Io {
            path: path.clone(),
            source,
        };
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(io)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Lock { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::Locked {
                path: self.path.clone(),
            }),
            Err(e) => Err(io(e.into())),
        }
    }

    /// The socket's address, through a descriptor of the folder: paths of sockets are limited to 107 bytes.
    pub(super) fn socket(&self) -> io::Result<(File, PathBuf)> {
        let folder = File::open(&self.path)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}/ctl.sock", folder.as_raw_fd()));
        Ok((folder, path))
    }

    fn read<T: DeserializeOwned>(&self, path: &Path) -> Result<T, Error> {
        let io = |source| Error::Io {
            path: path.into(),
            source,
        };
        let file = File::open(path).map_err(io)?;
        let mut text = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(file, MAX_SPEC), &mut text).map_err(io)?;
        serde_json::from_slice(&text).map_err(|source| Error::Damaged {
            path: path.into(),
            source,
        })
    }

    fn write(&self, path: &Path, value: &impl Serialize, durable: bool) -> Result<(), Error> {
        let bytes = serde_json::to_vec(value).map_err(|source| Error::Damaged {
            path: path.into(),
            source,
        })?;
        self.replace(path, &bytes, durable)
    }

    /// Old or new, never in between.
    fn replace(&self, path: &Path, bytes: &[u8], durable: bool) -> Result<(), Error> {
        let new = path.with_extension("new");
        let write = || {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&new)?;
            file.write_all(bytes)?;
            if durable {
                file.sync_data()?;
            }
            fs::rename(&new, path)?;
            if durable {
                File::open(&self.path)?.sync_all()
            } else {
                Ok(())
            }
        };
        write().map_err(|source| Error::Io {
            path: path.into(),
            source,
        })
    }
}

/// Held by the one supervisor of a run.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}
