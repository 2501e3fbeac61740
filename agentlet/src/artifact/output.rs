//! Declared outputs: files that are kept by name.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use panda_api::v1alpha1::OutputSpec;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::path::{display, parts};
use super::walk::{Hashing, open_file};
use super::{Blob, Error, Output};
use crate::git::Ids;
use crate::workspace::disk::{self, Identity};
use crate::workspace::{TreeEmpty, Workspace, Workspaces};

impl Workspaces {
    /// Takes one declared output of a Run whose processes are proved gone: a copy of ours, so that a later attempt cannot
    /// change what is still being sent.
    pub async fn output(
        &self,
        workspace: &Workspace,
        empty: &TreeEmpty,
        spec: &OutputSpec,
    ) -> Result<Output, Error> {
        let _held = self.hold(&workspace.key).await;
        self.check_lent(workspace, empty)?;
        let dir = self.results(&workspace.run_uid).join("outputs");
        disk::make_dir(&dir, 0o700)?;
        let take = Take {
            tree: workspace.tree(),
            identity: workspace.record.tree,
            owner: self.config.agent,
            limit: self.config.limits.output_bytes,
            // A name may hold anything; its digest is a plain file name.
            to: dir.join(hex::encode(Sha256::digest(spec.name.as_bytes()))),
            spec: spec.clone(),
        };
        tokio::task::spawn_blocking(move || take.run())
            .await
            .map_err(|e| Error::Write(io::Error::other(e)))
            .flatten()
    }
}

struct Take {
    tree: PathBuf,
    identity: Option<Identity>,
    owner: Option<Ids>,
    limit: u64,
    to: PathBuf,
    spec: OutputSpec,
}

impl Take {
    fn run(self) -> Result<Output, Error> {
        let Some(parts) = parts(self.spec.path.as_bytes()) else {
            return Err(self.refused("the path must be relative and stay inside the workspace"));
        };
        let Some((name, folders)) = parts.split_last() else {
            return Err(self.missing());
        };
        let mut dir =
            rustix::fs::openat(CWD, &self.tree, DIR_FLAGS, Mode::empty()).map_err(|e| self.read(e.into()))?;
        let stat = rustix::fs::fstat(&dir).map_err(|e| self.read(e.into()))?;
        if self.identity
            != Some(Identity {
                dev: stat.st_dev,
                ino: stat.st_ino,
            })
        {
            return Err(self.refused("another folder stands in the place of the workspace"));
        }
        let dev = stat.st_dev;
        for folder in folders {
            let folder = CString::new(*folder).map_err(|e| self.read(e.into()))?;
            dir = rustix::fs::openat(&dir, &folder, DIR_FLAGS, Mode::empty()).map_err(|e| match e {
                Errno::NOENT => self.missing(),
                Errno::NOTDIR | Errno::LOOP => self.refused("its path leads through a link or a file"),
                e => self.read(e.into()),
            })?;
        }
        let name = CString::new(*name).map_err(|e| self.read(e.into()))?;
        let (file, stat) = match open_file(&dir, &name) {
            Ok(Some(opened)) => opened,
            Ok(None) => return Err(self.refused("it is not a regular file")),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(self.missing()),
            Err(e) => return Err(self.read(e)),
        };
        if stat.st_dev != dev {
            return Err(self.refused("it lies on another file system"));
        }
        if self.owner.is_some_and(|owner| owner.uid != stat.st_uid) {
            return Err(self.refused("it belongs to another user"));
        }
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        if size > self.limit {
            return Err(Error::Limit {
                what: "bytes in one output",
                limit: self.limit,
                path: display(self.spec.path.as_bytes()),
            });
        }
        let blob = copy(file, &self.to, self.limit)?;
        Ok(Output {
            name: self.spec.name,
            path: self.spec.path,
            blob,
        })
    }

    fn missing(&self) -> Error {
        Error::OutputMissing {
            name: self.spec.name.clone(),
            path: display(self.spec.path.as_bytes()),
        }
    }

    fn refused(&self, why: &'static str) -> Error {
        Error::OutputRefused {
            name: self.spec.name.clone(),
            path: display(self.spec.path.as_bytes()),
            why,
        }
    }

    fn read(&self, source: io::Error) -> Error {
        Error::Read {
            path: display(self.spec.path.as_bytes()),
            source,
        }
    }
}

fn copy(from: File, to: &Path, limit: u64) -> Result<Blob, Error> {
    let partial = to.with_extension("partial");
    let copied = (|| {
        let mut file = File::create(&partial)?;
        let mut hash = Hashing::new(&mut file);
        let size = io::copy(&mut from.take(limit), &mut hash)?;
        let digest = hash.digest();
        file.sync_all()?;
        fs::rename(&partial, to)?;
        Ok(Blob {
            path: to.to_owned(),
            digest,
            size,
        })
    })();
    copied.map_err(Error::Write)
}

const DIR_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
