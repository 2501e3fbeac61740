//! What a run's folder remembers: enough to go on after a kill at any point.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use panda_api::{Failure, Run, RunPhase};
use panda_rpc::report::RunReport;
use serde::{Deserialize, Serialize};

use super::mail::Grant;
use crate::blobship::BlobFile;

/// Largest record that is read.
const MAX_RECORD: u64 = 64 << 20;

/// How far a run has come. Every stage can be done again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Stage {
    /// The server must acknowledge that this device prepares it.
    Accepted,
    /// Workspace and job are being made.
    Preparing,
    /// The agent's job exists; it may have been started.
    Working,
    /// No process is left: the result is being taken.
    Collecting,
    /// Checks are being run.
    Verifying,
    /// Files are being handed over.
    Handing,
    /// Waits for the word to publish.
    Publishing,
    /// The terminal report is in the outbox.
    Finished,
}

/// How a run ends, once that is decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Ending {
    pub(super) phase: RunPhase,
    pub(super) failure: Failure,
}

/// `run.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    /// The run as it was accepted: what is done is decided by this copy alone.
    pub(super) run: Run,
    pub(super) store_uid: String,
    pub(super) boot_id: String,
    pub(super) accepted: Timestamp,
    pub(super) stage: Stage,
    /// Everything that is known to report.
    #[serde(default)]
    pub(super) facts: RunReport,
    /// Set when it does not end as a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ending: Option<Ending>,
    /// Newest entry of the agent's journal that was reported.
    #[serde(default)]
    pub(super) journal: u64,
    /// Files for the blob store.
    #[serde(default)]
    pub(super) blobs: Vec<BlobFile>,
    /// Store that has every log and blob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) shipped_to: Option<String>,
}

/// The folder of one run.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(super) fn new(runs: &Path, uid: &str) -> Self {
        Self { path: runs.join(uid) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Folder of the agent's job.
    pub(super) fn agent(&self) -> PathBuf {
        self.path.join("agent")
    }

    /// Folder of the job of check `index`.
    pub(super) fn check(&self, index: usize) -> PathBuf {
        self.path.join(format!("check-{index}"))
    }

    /// Where the output of check `index` is put together.
    pub(super) fn check_log(&self, index: usize) -> PathBuf {
        self.path.join(format!("check-{index}.log"))
    }

    /// What the platform says before the agent.
    pub(super) fn before(&self) -> PathBuf {
        self.path.join("before.log")
    }

    /// What the platform says after the agent.
    pub(super) fn after(&self) -> PathBuf {
        self.path.join("after.log")
    }

    pub(super) fn load(&self) -> io::Result<Option<Record>> {
        read_json(&self.path.join("run.json"))
    }

    /// Durable when it returns.
    pub(super) fn save(&self, record: &Record) -> io::Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.path)?;
        write_json(&self.path, "run.json", record, true)
    }

    pub(super) fn load_grant(&self) -> io::Result<Option<Grant>> {
        read_json(&self.path.join("grant.json"))
    }

    /// Not made durable: what takes an unwritten file away takes the boot away too, and with it the grant.
    pub(super) fn save_grant(&self, grant: &Grant) -> io::Result<()> {
        write_json(&self.path, "grant.json", grant, false)
    }
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, MAX_RECORD), &mut bytes)?;
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// Old or new, never in between.
fn write_json(dir: &Path, name: &str, value: &impl Serialize, durable: bool) -> io::Result<()> {
    let (path, new) = (dir.join(name), dir.join(format!("{name}.new")));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    if durable {
        file.sync_data()?;
    }
    fs::rename(&new, &path)?;
    if durable {
        File::open(dir)?.sync_all()
    } else {
        Ok(())
    }
}

/// Every run folder beneath `runs` that can be read.
pub(super) fn all(runs: &Path) -> io::Result<Vec<Record>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(runs)? {
        let name = entry?.file_name();
        let Some(uid) = name.to_str() else { continue };
        match Folder::new(runs, uid).load() {
            Ok(Some(record)) if record.run.metadata.uid == uid => found.push(record),
            Ok(_) => tracing::warn!(run = uid, "folder of a run without its record"),
            Err(error) => tracing::error!(run = uid, %error, "record of a run cannot be read"),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_survives_and_strangers_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path(), "r1");
        assert_eq!(folder.load().unwrap(), None);
        let mut run = Run::default();
        run.metadata.uid = "r1".into();
        let record = Record {
            run,
            store_uid: "s".into(),
            boot_id: "b".into(),
            accepted: Timestamp::UNIX_EPOCH,
            stage: Stage::Verifying,
            facts: RunReport {
                processes: Some(3),
                ..RunReport::default()
            },
            ending: None,
            journal: 4,
            blobs: Vec::new(),
            shipped_to: None,
        };
        folder.save(&record).unwrap();
        assert_eq!(folder.load().unwrap(), Some(record.clone()));
        fs::create_dir(dir.path().join("stranger")).unwrap();
        fs::create_dir(dir.path().join("torn")).unwrap();
        fs::write(dir.path().join("torn/run.json"), b"{").unwrap();
        assert_eq!(all(dir.path()).unwrap(), vec![record]);
    }

    #[test]
    fn stages_are_in_order() {
        assert!(Stage::Accepted < Stage::Working && Stage::Verifying < Stage::Finished);
    }
}
