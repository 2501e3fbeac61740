//! A run's log in one stream: what the platform said before the agent, the agent's output, what the platform said after.
//!
//! The first part only grows until the agent's job exists, the last only once it has ended; so each byte has one offset
//! for ever, also after a restart.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use panda_api::LogStatus;
use panda_api::logline::{Origin, encode};
use panda_api::meta::Clock;

use sha2::{Digest as _, Sha256};

use super::record::Folder;
use crate::logship::{Piece, Source};
use crate::mask::Mask;
use crate::supervisor::RunFolder;
use crate::supervisor::log::{Chunk, LogReader, Stream};

/// What the platform says of one run at most, before and after.
const MAX_SAID: u64 = 256 << 10;

/// The platform's own words, and the state of the agent's.
#[derive(Debug)]
pub(super) struct Logs {
    before: PathBuf,
    after: PathBuf,
    job: PathBuf,
    ended: Arc<AtomicBool>,
    clock: Arc<dyn Clock>,
    mask: Mask,
}

impl Logs {
    pub(super) fn new(folder: &Folder, clock: Arc<dyn Clock>) -> Self {
        Self {
            before: folder.before(),
            after: folder.after(),
            job: folder.agent(),
            ended: Arc::new(AtomicBool::new(false)),
            clock,
            mask: Mask::default(),
        }
    }

    /// From now on these values are in no line.
    pub(super) fn mask_with(&mut self, mask: Mask) {
        self.mask = mask;
    }

    /// The agent's job writes nothing more, or there never was one.
    pub(super) fn agent_ended(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Adds a line of the platform's.
    pub(super) fn say(&self, text: &str) {
        let path = if self.ended.load(Ordering::Acquire) || self.job.exists() {
            &self.after
        } else {
            &self.before
        };
        let mut line = Vec::new();
        encode(
            &mut line,
            self.clock.now(),
            Origin::System,
            false,
            self.mask.text(text).as_bytes(),
        );
        let append = || {
            let mut file = OpenOptions::new()
                .append(true)
                .create(true)
                .mode(0o600)
                .open(path)?;
            if file.metadata()?.len() < MAX_SAID {
                file.write_all(&line)?;
            }
            io::Result::Ok(())
        };
        if let Err(error) = append() {
            tracing::warn!(%error, "line of a run's log is lost");
        }
    }

    /// Bytes so far, lost ones included.
    pub(super) fn bytes(&self) -> u64 {
        let agent = reader(&self.job, Stream::Log).end().unwrap_or(0);
        length(&self.before) + agent + length(&self.after)
    }

    /// What is said of the log; with the digest of what is kept once it does not grow any more.
    pub(super) fn status(&self, complete: bool) -> LogStatus {
        let digest = if complete {
            self.digest()
        } else {
            Ok(String::new())
        };
        LogStatus {
            bytes: self.bytes(),
            digest: digest.unwrap_or_else(|error| {
                tracing::warn!(%error, "log cannot be read");
                String::new()
            }),
        }
    }

    fn digest(&self) -> io::Result<String> {
        let (log, mut hash, mut offset) = (self.whole(), Sha256::new(), 0);
        loop {
            match log.read(offset, 256 << 10)? {
                Piece::Data(bytes) => {
                    hash.update(&bytes);
                    offset += bytes.len() as u64;
                }
                Piece::Gap(to) => offset = to,
                Piece::End => return Ok(format!("sha256:{}", hex::encode(hash.finalize()))),
            }
        }
    }

    fn whole(&self) -> Whole {
        Whole {
            before: self.before.clone(),
            after: self.after.clone(),
            job: self.job.clone(),
            ended: Arc::clone(&self.ended),
        }
    }

    /// What is to be brought to the server.
    pub(super) fn sources(&self) -> Vec<Box<dyn Source>> {
        vec![
            Box::new(self.whole()),
            Box::new(Agent(reader(&self.job, Stream::Events))),
        ]
    }
}

fn reader(job: &Path, stream: Stream) -> LogReader {
    LogReader::new(&RunFolder::at(job).logs(), stream)
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |meta| meta.len())
}

struct Whole {
    before: PathBuf,
    after: PathBuf,
    job: PathBuf,
    ended: Arc<AtomicBool>,
}

impl Source for Whole {
    fn name(&self) -> &'static str {
        "log"
    }

    fn read(&self, offset: u64, max: usize) -> io::Result<Piece> {
        // Looked at first: what exists from here on does not change the parts before it.
        let ended = self.ended.load(Ordering::Acquire);
        let started = self.job.exists();
        let before = length(&self.before);
        if offset < before {
            return plain(&self.before, offset, max);
        }
        if !started && !ended {
            return Ok(Piece::End);
        }
        let reader = reader(&self.job, Stream::Log);
        let agent = reader.end()?;
        if offset < before + agent {
            return Ok(piece(reader.read(offset - before, max)?, before));
        }
        if ended {
            plain(&self.after, offset - before - agent, max)
        } else {
            Ok(Piece::End)
        }
    }
}

struct Agent(LogReader);

impl Source for Agent {
    fn name(&self) -> &'static str {
        "events"
    }

    fn read(&self, offset: u64, max: usize) -> io::Result<Piece> {
        Ok(piece(self.0.read(offset, max)?, 0))
    }
}

fn piece(chunk: Chunk, base: u64) -> Piece {
    match chunk {
        Chunk::Data(bytes) => Piece::Data(bytes),
        Chunk::Gap { to } => Piece::Gap(to + base),
        Chunk::End => Piece::End,
    }
}

fn plain(path: &Path, offset: u64, max: usize) -> io::Result<Piece> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Piece::End),
        Err(e) => return Err(e),
    };
    let mut bytes = vec![0; max];
    let n = file.read_at(&mut bytes, offset)?;
    bytes.truncate(n);
    Ok(if n == 0 { Piece::End } else { Piece::Data(bytes) })
}
