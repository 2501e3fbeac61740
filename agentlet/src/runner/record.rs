//! What a run's folder remembers: enough to go on after a kill at any point.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use panda_api::meta::Time;
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

/// Format of `run.json`, and with it of the whole folder. To be counted up when an older agentlet would misread it.
pub(super) const FORMAT: u32 = 1;

/// What every version of `run.json` says.
#[derive(Deserialize)]
struct Versioned {
    #[serde(default)]
    format: u32,
}

/// `run.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    /// [`FORMAT`]; absent in the first version.
    #[serde(default)]
    pub(super) format: u32,
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
    /// When the work was done: the agent's end, or that of the last check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ended: Option<Time>,
    /// Newest entry of the agent's journal that was reported.
    #[serde(default)]
    pub(super) journal: u64,
    /// Files for the blob store.
    #[serde(default)]
    pub(super) blobs: Vec<BlobFile>,
    /// A value of a Secret may lie in the workspace: it is not kept and never lent again.
    #[serde(default)]
    pub(super) tainted: bool,
    /// Store that has every log and blob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) shipped_to: Option<String>,
}

impl Record {
    /// The report of the end, once that is decided.
    pub(super) fn terminal(&self) -> RunReport {
        RunReport {
            phase: Some(
                self.ending
                    .as_ref()
                    .map_or(RunPhase::Succeeded, |ending| ending.phase),
            ),
            failure: self.ending.as_ref().map(|ending| ending.failure.clone()),
            ..self.facts.clone()
        }
    }
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
        let path = self.path.join("run.json");
        if let Ok(Some(Versioned { format })) = read_json(&path)
            && format > FORMAT
        {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "{} has format {format}, this version knows {FORMAT}: install a newer agentlet",
                    path.display()
                ),
            ));
        }
        read_json(&path)
    }

    /// Durable when it returns.
    pub(super) fn save(&self, record: &Record) -> io::Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.path)?;
        write_json(&self.path, "run.json", record, true)
    }

    /// None when there is none, or none that can be read: it is not made durable, so a loss of power may tear it.
    pub(super) fn load_grant(&self) -> Option<Grant> {
        let read = read_json(&self.path.join("grant.json"));
        read.unwrap_or_else(|error| {
            tracing::warn!(%error, "grant cannot be read, and counts as none");
            None
        })
    }

    /// Writes down why the run must end as a failure of the device; durable when it returns.
    pub(super) fn condemn(&self, why: &str) -> io::Result<()> {
        write_json(&self.path, "condemned.json", &why, true)
    }

    /// Why the run must end, if it must.
    pub(super) fn condemned(&self) -> io::Result<Option<String>> {
        read_json(&self.path.join("condemned.json"))
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

/// The run folders beneath `runs`.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Those that can be read.
    pub(super) records: Vec<Record>,
    /// Names of the others, and what is wrong with them.
    pub(super) strangers: Vec<(String, String)>,
}

/// Every run folder beneath `runs`.
pub(super) fn all(runs: &Path) -> io::Result<Found> {
    let mut found = Found::default();
    for entry in fs::read_dir(runs)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        match Folder::new(runs, &name).load() {
            Ok(Some(record)) if record.run.metadata.uid == name => found.records.push(record),
            Ok(Some(_)) => found.strangers.push((name, "it holds another run".into())),
            Ok(None) => found.strangers.push((name, "it has no record".into())),
            // Not damaged: its run may go on and be finished by the version that began it.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return Err(error),
            Err(error) => found.strangers.push((name, error.to_string())),
        }
    }
    found.strangers.sort();
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
            format: FORMAT,
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
            ended: None,
            journal: 4,
            blobs: Vec::new(),
            tainted: false,
            shipped_to: None,
        };
        folder.save(&record).unwrap();
        assert_eq!(folder.load().unwrap(), Some(record.clone()));
        fs::create_dir(dir.path().join("stranger")).unwrap();
        fs::create_dir(dir.path().join("torn")).unwrap();
        fs::write(dir.path().join("torn/run.json"), b"{").unwrap();
        let found = all(dir.path()).unwrap();
        assert_eq!(found.records, vec![record]);
        let names: Vec<&str> = found.strangers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["stranger", "torn"]);
        fs::write(
            dir.path().join("torn/run.json"),
            br#"{"format":2,"run":"elsewhere"}"#,
        )
        .unwrap();
        let error = all(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains("format 2") && error.contains("newer agentlet"),
            "{error}"
        );
        fs::write(dir.path().join("r1/grant.json"), b"").unwrap();
        assert_eq!(folder.load_grant(), None);
        assert_eq!(folder.condemned().unwrap(), None);
        folder.condemn("why").unwrap();
        assert_eq!(folder.condemned().unwrap().as_deref(), Some("why"));
    }

    #[test]
    fn stages_are_in_order() {
        assert!(Stage::Accepted < Stage::Working && Stage::Verifying < Stage::Finished);
    }
}
