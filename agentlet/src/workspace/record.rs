//! What is written down about workspaces, outside of them.
//!
//! `<state>/workspaces/FOLDER.json` says that a folder is ours, whose it is, which inode it has and how far it got;
//! `FOLDER.holder` names the Run that it is lent to. Both are replaced as a whole.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::disk::{self, Identity, io_error};
use super::{Config, Content, Error, Key, MAX_CANDIDATES, TreeEmpty};

/// How far a workspace got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stage {
    /// Being made: what is inside is ours and may be thrown away.
    Creating,
    /// An agent may have worked in it.
    Ready,
    /// Its agent took it apart: kept, not lent again.
    Spoiled,
    /// Being removed.
    Removing,
}

/// One workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    version: u32,
    pub(crate) task_uid: String,
    pub(crate) rerun: i64,
    pub(crate) folder: String,
    root: Identity,
    /// The work tree, once it is made.
    pub(crate) tree: Option<Identity>,
    pub(crate) stage: Stage,
    pub(crate) content: Content,
    pub(crate) base: Option<String>,
    pub(crate) mirror: Option<PathBuf>,
    pub(crate) format: String,
    pub(crate) created: Timestamp,
}

impl Record {
    pub(crate) fn is_of(&self, key: &Key) -> bool {
        self.task_uid == key.task_uid && self.rerun == key.rerun
    }

    pub(crate) fn key(&self) -> Key {
        Key {
            task_uid: self.task_uid.clone(),
            rerun: self.rerun,
        }
    }

    pub(crate) const fn identity(&self) -> Identity {
        self.root
    }
}

/// A folder for a Task and rerun.
pub(crate) struct Claim {
    pub(crate) record: Record,
    /// Whether it is complete already.
    pub(crate) resumed: bool,
}

/// What lies under the name of a folder of ours.
enum Found {
    Ours,
    Nothing,
    Other,
}

/// The records of a device.
#[derive(Debug)]
pub(crate) struct Records {
    dir: PathBuf,
}

impl Records {
    pub(crate) fn open(dir: PathBuf) -> Result<Self, Error> {
        disk::make_dir(&dir, 0o700)?;
        Ok(Self { dir })
    }

    /// The folder of `key` for `content`: its own if there is one, else the first name that nothing stands under (or only
    /// an empty folder). Nothing that is not written down as ours is touched.
    pub(crate) fn claim(
        &self,
        config: &Config,
        key: &Key,
        content: &Content,
        now: Timestamp,
    ) -> Result<Claim, Error> {
        let mut free = Vec::new();
        for n in 0..MAX_CANDIDATES {
            let folder = folder(key, n);
            let Some(mut record) = self.load(&folder)? else {
                if !self.record_path(&folder).exists() {
                    free.push(folder);
                }
                continue;
            };
            let usable = matches!(record.stage, Stage::Creating | Stage::Ready);
            if !record.is_of(key) || record.content != *content || !usable {
                continue;
            }
            match look(&config.work_dir.join(&folder), record.root)? {
                Found::Ours => {
                    let resumed = record.stage == Stage::Ready;
                    return Ok(Claim { record, resumed });
                }
                Found::Nothing => {
                    let Some(root) = make(config, &folder)? else {
                        continue;
                    };
                    record.root = root;
                    record.tree = None;
                    record.stage = Stage::Creating;
                    self.save(&record)?;
                    return Ok(Claim {
                        record,
                        resumed: false,
                    });
                }
                Found::Other => {
                    tracing::warn!(folder, "something else stands in the place of a workspace");
                    record.stage = Stage::Spoiled;
                    self.save(&record)?;
                }
            }
        }
        for folder in free {
            if let Some(root) = make(config, &folder)? {
                let record = Record {
                    version: 1,
                    task_uid: key.task_uid.clone(),
                    rerun: key.rerun,
                    folder,
                    root,
                    tree: None,
                    stage: Stage::Creating,
                    content: content.clone(),
                    base: None,
                    mirror: None,
                    format: String::new(),
                    created: now,
                };
                if let Err(error) = self.save(&record) {
                    // What no record speaks of would stay for ever. It is empty; one that is not stays.
                    let _: io::Result<()> = fs::remove_dir(config.work_dir.join(&record.folder));
                    return Err(error);
                }
                return Ok(Claim {
                    record,
                    resumed: false,
                });
            }
        }
        Err(Error::NoFreeName {
            work_dir: config.work_dir.clone(),
        })
    }

    /// Lends a folder to a Run: it must be free, lent to that Run already, or lent to one that is proved gone.
    pub(crate) fn lend(&self, folder: &str, run_uid: &str, former: Option<&TreeEmpty>) -> Result<(), Error> {
        match self.holder(folder)? {
            Some(by) if by == run_uid => return Ok(()),
            Some(by) if former.is_none_or(|former| former.run_uid() != by) => {
                return Err(Error::Held { by });
            }
            _ => {}
        }
        disk::write_whole(&self.holder_path(folder), run_uid.as_bytes())
    }

    pub(crate) fn take_back(&self, folder: &str) -> Result<(), Error> {
        disk::remove_file(&self.holder_path(folder))
    }

    pub(crate) fn holder(&self, folder: &str) -> Result<Option<String>, Error> {
        let path = self.holder_path(folder);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(io_error("reading", &path)(e)),
        }
    }

    /// Removes folders that a crash kept from being written down: they have a name of ours, are our user's, and empty.
    pub(crate) fn sweep(&self, work_dir: &Path) -> Result<(), Error> {
        for entry in fs::read_dir(work_dir).map_err(io_error("listing", work_dir))? {
            let entry = entry.map_err(io_error("listing", work_dir))?;
            let name = entry.file_name();
            let Some(folder) = name.to_str().filter(|name| is_folder_name(name)) else {
                continue;
            };
            let Ok(meta) = fs::symlink_metadata(entry.path()) else {
                continue;
            };
            let ours = meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw();
            if ours && !self.record_path(folder).exists() && fs::remove_dir(entry.path()).is_ok() {
                tracing::info!(folder, "empty workspace that was not written down is removed");
            }
        }
        Ok(())
    }

    /// Every record that can be read.
    pub(crate) fn all(&self) -> Result<Vec<Record>, Error> {
        let mut out = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(io_error("listing", &self.dir))? {
            let entry = entry.map_err(io_error("listing", &self.dir))?;
            let name = entry.file_name();
            if let Some(folder) = name.to_str().and_then(|name| name.strip_suffix(".json"))
                && let Some(record) = self.load(folder)?
            {
                out.push(record);
            }
        }
        out.sort_by(|a, b| a.folder.cmp(&b.folder));
        Ok(out)
    }

    pub(crate) fn save(&self, record: &Record) -> Result<(), Error> {
        let path = self.record_path(&record.folder);
        let bytes =
            serde_json::to_vec_pretty(record).map_err(|e| io_error("writing", &path)(io::Error::other(e)))?;
        disk::write_whole(&path, &bytes)
    }

    pub(crate) fn delete(&self, folder: &str) -> Result<(), Error> {
        disk::remove_file(&self.holder_path(folder))?;
        disk::remove_file(&self.record_path(folder))
    }

    /// The record of a folder; one that cannot be understood is as good as somebody else's.
    fn load(&self, folder: &str) -> Result<Option<Record>, Error> {
        let path = self.record_path(folder);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(io_error("reading", &path)(e)),
        };
        match serde_json::from_slice::<Record>(&bytes) {
            Ok(record) if record.version == 1 && record.folder == folder => Ok(Some(record)),
            _ => {
                tracing::warn!(path = %path.display(), "record of a workspace cannot be understood");
                Ok(None)
            }
        }
    }

    fn record_path(&self, folder: &str) -> PathBuf {
        self.dir.join(format!("{folder}.json"))
    }

    fn holder_path(&self, folder: &str) -> PathBuf {
        self.dir.join(format!("{folder}.holder"))
    }
}

/// The `n`th name that is tried.
fn folder(key: &Key, n: u32) -> String {
    if n == 0 {
        format!("{}-{}", key.task_uid, key.rerun)
    } else {
        format!("{}-{}.{n}", key.task_uid, key.rerun)
    }
}

/// Whether it is a name that [`folder`] makes.
fn is_folder_name(name: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    name.rsplit_once('-').is_some_and(|(task, rest)| {
        let (rerun, n) = rest.split_once('.').unwrap_or((rest, "1"));
        !task.is_empty() && digits(rerun) && digits(n)
    })
}

fn look(path: &Path, expected: Identity) -> Result<Found, Error> {
    match fs::symlink_metadata(path) {
        Ok(meta) => {
            let identity = Identity {
                dev: meta.dev(),
                ino: meta.ino(),
            };
            Ok(if meta.is_dir() && identity == expected {
                Found::Ours
            } else {
                Found::Other
            })
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Found::Nothing),
        Err(e) => Err(io_error("looking at", path)(e)),
    }
}

/// Makes the folder; one that exists is used only if it is a real folder, ours and empty.
fn make(config: &Config, folder: &str) -> Result<Option<Identity>, Error> {
    let path = config.work_dir.join(folder);
    match fs::create_dir(&path) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            let meta = fs::symlink_metadata(&path).map_err(io_error("looking at", &path))?;
            let ours = meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw();
            if !ours
                || fs::read_dir(&path)
                    .map_err(io_error("listing", &path))?
                    .next()
                    .is_some()
            {
                return Ok(None);
            }
        }
        Err(e) => return Err(io_error("making", &path)(e)),
    }
    disk::make_dir(&path, if config.agent.is_some() { 0o711 } else { 0o700 })?;
    disk::identity(&path).map(Some)
}
