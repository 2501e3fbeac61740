//! Every start and end of an agent on this device, in one append-only file.
//!
//! It is written apart from everything else, so that somebody outside can prove that no two attempts of one task ran
//! at a time: whoever reads it needs to trust nothing but these lines.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::spec::JobFence;

/// What a line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StartEvent {
    /// A process is about to run.
    Start,
    /// Nothing of it is left.
    End,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StartLine {
    /// Start or end.
    pub event: StartEvent,
    /// Uid of the Task.
    #[serde(rename = "taskUID")]
    pub task_uid: String,
    /// Uid of the Run.
    #[serde(rename = "runUID")]
    pub run_uid: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// First process.
    pub pid: i32,
    /// Its start, in clock ticks since boot.
    pub starttime: u64,
    /// Identity of the boot.
    pub boot_id: String,
    /// Milliseconds since boot.
    pub boottime: u64,
}

/// The file, open for appending.
#[derive(Debug)]
pub struct StartsJournal {
    file: File,
}

impl StartsJournal {
    /// Opens it, or makes it.
    ///
    /// # Errors
    ///
    /// When that fails.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        Ok(Self { file })
    }

    /// Appends a line with one write and makes it durable.
    ///
    /// # Errors
    ///
    /// When that fails; a start that cannot be recorded must not happen.
    pub fn append(&mut self, line: &StartLine) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        let written = self.file.write(&bytes)?;
        if written < bytes.len() {
            // Others append, too: what was begun is closed, not taken back.
            drop(self.file.write_all(b"\n"));
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.sync_data()
    }
}

impl StartLine {
    pub(super) fn new(
        event: StartEvent,
        fence: &JobFence,
        main: (i32, u64),
        boot_id: &str,
        boottime: Duration,
    ) -> Self {
        Self {
            event,
            task_uid: fence.task_uid.clone(),
            run_uid: fence.run_uid.clone(),
            attempt: fence.attempt,
            pid: main.0,
            starttime: main.1,
            boot_id: boot_id.into(),
            boottime: u64::try_from(boottime.as_millis()).unwrap_or(u64::MAX),
        }
    }
}
