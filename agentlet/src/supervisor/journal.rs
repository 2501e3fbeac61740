//! What happened in a run, in order: one JSON object a line, only ever appended to.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use panda_api::meta::{Clock, Time};
use panda_api::{Failure, FailureReason, Usage};
use panda_sandbox::Report;
use serde::{Deserialize, Serialize};

use crate::disk;
use crate::process::Exit;

/// Longest line that is read; longer ones are passed over.
const MAX_LINE: usize = 1 << 20;

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Counts from 1.
    pub seq: u64,
    /// Wall time, for people.
    pub at: Time,
    /// What happened.
    #[serde(flatten)]
    pub record: Record,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum Record {
    /// The job is about to start: from here on it never starts again.
    Started {
        /// Control group that everything of it will be in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cgroup: Option<PathBuf>,
    },
    /// A process has its floor and is about to run.
    Spawned {
        /// Process id; also its session.
        pid: i32,
        /// Its start, in clock ticks since boot.
        starttime: u64,
        /// Whether it is the agent, not a command before it.
        agent: bool,
        /// What was enforced.
        sandbox: Report,
    },
    /// First output or event of the agent.
    FirstOutput,
    /// Something that people should know.
    Event {
        /// Stable word.
        reason: String,
        /// Sentence.
        message: String,
    },
    /// The agent's own session.
    Session {
        /// As the agent names it.
        id: String,
    },
    /// What was used so far, in all.
    Usage {
        /// Amounts.
        usage: Usage,
    },
    /// The tree is frozen.
    Paused {
        /// Why.
        why: String,
    },
    /// The tree goes on.
    Resumed,
    /// The tree is being ended.
    StopRequested {
        /// What the failure will be called.
        reason: FailureReason,
        /// Sentence.
        message: String,
    },
    /// The agent's first process has ended.
    Exited {
        /// How.
        exit: Exit,
    },
    /// Nothing is left; the last record.
    Ended {
        /// What came of it.
        outcome: Box<Outcome>,
    },
}

/// What came of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Outcome {
    /// Why it failed; absent: the turn succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// How the agent's first process ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    /// The agent's last words, cut.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// The agent's own session.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub session_id: String,
    /// What it used.
    pub usage: Usage,
    /// Most processes at one time.
    pub processes: u32,
    /// Working time; frozen time does not count.
    pub worked: Duration,
    /// What was enforced.
    pub sandbox: Report,
    /// Whether KILL was needed for something that was left.
    pub killed: bool,
}

/// Appends to a journal.
#[derive(Debug)]
pub(super) struct Writer {
    file: File,
    seq: u64,
    reserve: Option<PathBuf>,
}

impl Writer {
    /// Opens or makes the journal. A line torn by a crash is closed, so that it spoils no other.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut reader = Reader::open(path);
        let seq = reader.read()?.last().map_or(0, |e| e.seq);
        let mut file = OpenOptions::new()
            .append(true)
            .read(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        let mut last = [b'\n'];
        if file.seek(SeekFrom::End(-1)).is_ok() {
            file.read_exact(&mut last)?;
        }
        if last != [b'\n'] {
            file.write_all(b"\n")?;
        }
        Ok(Self {
            file,
            seq,
            reserve: None,
        })
    }

    /// Gives back the space in this file when the disk is full.
    pub(super) fn draw_on(&mut self, reserve: Option<PathBuf>) {
        self.reserve = reserve;
    }

    /// Whether anything was ever written down: the job was started, or cannot be.
    pub(super) const fn has_started(&self) -> bool {
        self.seq > 0
    }

    /// Appends with one write; durable before it returns when the record is one that decisions hang on.
    pub(super) fn append(&mut self, clock: &dyn Clock, record: Record) -> io::Result<u64> {
        let durable = matches!(
            record,
            Record::Started { .. } | Record::Spawned { .. } | Record::Exited { .. } | Record::Ended { .. }
        );
        let entry = Entry {
            seq: self.seq + 1,
            at: Time::from(clock.now()),
            record,
        };
        let mut line = serde_json::to_vec(&entry)?;
        line.push(b'\n');
        let mut written = self.write(&line, durable);
        if written.as_ref().is_err_and(|e| disk::is_full(e))
            && self.reserve.as_deref().is_some_and(disk::release)
        {
            written = self.write(&line, durable);
        }
        written?;
        self.seq += 1;
        Ok(self.seq)
    }

    /// The whole line or nothing of it: half a line would spoil the next.
    fn write(&mut self, line: &[u8], durable: bool) -> io::Result<()> {
        let before = self.file.metadata()?.len();
        let written = self
            .file
            .write_all(line)
            .and_then(|()| if durable { self.file.sync_data() } else { Ok(()) });
        if written.is_err() {
            // Shorter always fits.
            self.file.set_len(before)?;
        }
        written
    }
}

/// Reads a journal, also while it is written by another process.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    offset: u64,
    torn: Vec<u8>,
}

impl Reader {
    /// From the beginning; the file need not exist yet.
    #[must_use]
    pub fn open(path: &Path) -> Self {
        Self {
            path: path.into(),
            offset: 0,
            torn: Vec::new(),
        }
    }

    /// Entries that have come since the last call. Lines that are no entry are passed over.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn read(&mut self) -> io::Result<Vec<Entry>> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        file.seek(SeekFrom::Start(self.offset))?;
        let mut found = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let n = file.read(&mut buffer)?;
            if n == 0 {
                return Ok(found);
            }
            self.offset += n as u64;
            for piece in buffer[..n].split_inclusive(|b| *b == b'\n') {
                if self.torn.len() <= MAX_LINE {
                    self.torn.extend_from_slice(piece);
                }
                if piece.ends_with(b"\n") {
                    found.extend(serde_json::from_slice::<Entry>(&self.torn).ok());
                    self.torn.clear();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use panda_api::meta::SystemClock;

    use super::*;

    fn event(n: u32) -> Record {
        Record::Event {
            reason: "Test".into(),
            message: n.to_string(),
        }
    }

    #[test]
    fn numbers_go_on_after_a_torn_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let mut writer = Writer::open(&path).unwrap();
        writer.append(&SystemClock, event(1)).unwrap();
        let mut reader = Reader::open(&path);
        assert_eq!(reader.read().unwrap().len(), 1);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"seq\":2,\"at\":\"20").unwrap();
        assert_eq!(reader.read().unwrap(), []);
        let mut writer = Writer::open(&path).unwrap();
        assert_eq!(writer.append(&SystemClock, event(2)).unwrap(), 2);
        let got = reader.read().unwrap();
        assert_eq!(got.len(), 1);
        assert_eq!((got[0].seq, &got[0].record), (2, &event(2)));
        assert_eq!(Reader::open(&path).read().unwrap().len(), 2);
    }

    #[test]
    fn every_record_survives_writing_and_reading() {
        let records = [
            Record::Started {
                cgroup: Some("/g".into()),
            },
            Record::Spawned {
                pid: 1,
                starttime: 2,
                agent: true,
                sandbox: Report::default(),
            },
            Record::FirstOutput,
            Record::Session { id: "s".into() },
            Record::Usage {
                usage: Usage::default(),
            },
            Record::Paused { why: "asked".into() },
            Record::Resumed,
            Record::StopRequested {
                reason: FailureReason::Cancelled,
                message: "m".into(),
            },
            Record::Exited {
                exit: Exit::default(),
            },
            Record::Ended {
                outcome: Box::default(),
            },
        ];
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let mut writer = Writer::open(&path).unwrap();
        for record in &records {
            writer.append(&SystemClock, record.clone()).unwrap();
        }
        let got: Vec<_> = Reader::open(&path)
            .read()
            .unwrap()
            .into_iter()
            .map(|e| e.record)
            .collect();
        assert_eq!(got, records);
    }
}
