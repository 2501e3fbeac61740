//! Output of an agent within a bound, as raw bytes with offsets that never shift.
//!
//! A stream is a row of files named by the offset of their first byte. The first file is kept for good, of the rest
//! the newest; a reader who asks for bytes that are gone is told so. Bytes are never looked at here: bad UTF-8, NUL
//! and lines without end are as good as any.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// How much of one stream is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caps {
    /// First bytes.
    pub head: u64,
    /// Newest bytes; up to one segment fewer are left at times.
    pub tail: u64,
    /// Size of one file of the newest bytes.
    pub segment: u64,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            head: 1 << 20,
            // With a quarter of all this for events, and what the platform says, a Run stays below 64 MiB.
            tail: 49 << 20,
            segment: 4 << 20,
        }
    }
}

impl Caps {
    /// What is kept of events beside an output with these bounds.
    #[must_use]
    pub const fn of_events(self) -> Self {
        Self {
            head: self.head / 4,
            tail: self.tail / 4,
            segment: self.segment / 4,
        }
    }
}

/// Which output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stream {
    /// Both outputs, also of the commands before the run, as records of [`panda_api::logline`].
    Log,
    /// What the driver understood: one JSON object a line.
    Events,
}

impl Stream {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Log, Self::Events];

    /// `log` or `events`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Events => "events",
        }
    }
}

/// Bytes, or the reason why there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// Bytes from the offset asked for.
    Data(Vec<u8>),
    /// These bytes are no longer kept; go on at `to`.
    Gap {
        /// Offset after the last byte that is gone.
        to: u64,
    },
    /// Nothing more so far.
    End,
}

/// Writes one stream.
#[derive(Debug)]
pub struct LogWriter {
    dir: PathBuf,
    stream: Stream,
    caps: Caps,
    end: u64,
    current: Option<(File, u64)>,
    /// Files after the first one: offset and length.
    rest: VecDeque<(u64, u64)>,
    failing: bool,
}

impl LogWriter {
    /// A new stream in `dir`.
    #[must_use]
    pub fn new(dir: &Path, stream: Stream, caps: Caps) -> Self {
        let caps = Caps {
            head: caps.head.max(1),
            tail: caps.tail,
            segment: caps.segment.max(1),
        };
        Self {
            dir: dir.into(),
            stream,
            caps,
            end: 0,
            current: None,
            rest: VecDeque::new(),
            failing: false,
        }
    }

    /// Offset after the last byte, lost ones included.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// Appends bytes. What cannot be written (a full disk) leaves a gap, so that the agent is never blocked; the error
    /// is returned once, when writing begins to fail.
    ///
    /// # Errors
    ///
    /// See above.
    pub fn append(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.append_some(bytes) {
                Ok(n) => {
                    self.failing = false;
                    bytes = &bytes[n..];
                }
                Err(e) => {
                    self.end += bytes.len() as u64;
                    self.current = None;
                    return if std::mem::replace(&mut self.failing, true) {
                        Ok(())
                    } else {
                        Err(e)
                    };
                }
            }
        }
        Ok(())
    }

    fn append_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (mut file, room) = match self.current.take() {
            Some((file, room)) if room > 0 => (file, room),
            _ => self.next_file()?,
        };
        let n = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        let written = file.write(&bytes[..n])?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.end += written as u64;
        if let Some((_, length)) = self.rest.back_mut() {
            *length += written as u64;
        }
        self.current = Some((file, room - written as u64));
        Ok(written)
    }

    fn next_file(&mut self) -> io::Result<(File, u64)> {
        let path = file_path(&self.dir, self.stream, self.end);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        if self.end == 0 {
            return Ok((file, self.caps.head));
        }
        self.rest.push_back((self.end, 0));
        let mut kept: u64 = self.rest.iter().map(|(_, length)| length).sum();
        // Room for the new one is made beforehand, so that the bound holds at every moment.
        while kept + self.caps.segment > self.caps.tail && self.rest.len() > 1 {
            let Some((offset, length)) = self.rest.pop_front() else {
                break;
            };
            fs::remove_file(file_path(&self.dir, self.stream, offset))?;
            kept -= length;
        }
        Ok((file, self.caps.segment))
    }

    /// Makes what is written durable.
    ///
    /// # Errors
    ///
    /// When the disk fails.
    pub fn sync(&self) -> io::Result<()> {
        match &self.current {
            Some((file, _)) => file.sync_data(),
            None => Ok(()),
        }
    }
}

/// Reads one stream, also while it is written by another process.
#[derive(Clone, Debug)]
pub struct LogReader {
    dir: PathBuf,
    stream: Stream,
}

impl LogReader {
    /// The stream in `dir`; it need not exist yet.
    #[must_use]
    pub fn new(dir: &Path, stream: Stream) -> Self {
        Self {
            dir: dir.into(),
            stream,
        }
    }

    /// Offset after the last byte so far.
    ///
    /// # Errors
    ///
    /// When the folder cannot be read.
    pub fn end(&self) -> io::Result<u64> {
        Ok(self.files()?.last().map_or(0, |(offset, length)| offset + length))
    }

    /// Up to `max` bytes from `offset`.
    ///
    /// # Errors
    ///
    /// When the files cannot be read.
    pub fn read(&self, offset: u64, max: usize) -> io::Result<Chunk> {
        // A file may be removed between the look and the opening; then look again.
        for _ in 0..8 {
            let files = self.files()?;
            let Some((start, length)) = files.iter().rev().find(|(start, _)| *start <= offset) else {
                return Ok(files
                    .first()
                    .map_or(Chunk::End, |(start, _)| Chunk::Gap { to: *start }));
            };
            if offset >= start + length {
                let next = files.iter().find(|(start, _)| *start > offset);
                return Ok(next.map_or(Chunk::End, |(start, _)| Chunk::Gap { to: *start }));
            }
            let file = match File::open(file_path(&self.dir, self.stream, *start)) {
                Ok(file) => file,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            };
            let room = usize::try_from(start + length - offset).unwrap_or(usize::MAX);
            let mut bytes = vec![0; max.min(room)];
            let n = file.read_at(&mut bytes, offset - start)?;
            bytes.truncate(n);
            return Ok(if n == 0 { Chunk::End } else { Chunk::Data(bytes) });
        }
        Ok(Chunk::End)
    }

    /// Offset and length of each file, in order.
    fn files(&self) -> io::Result<Vec<(u64, u64)>> {
        let mut found = Vec::new();
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(found),
            Err(e) => return Err(e),
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let offset = name.to_str().and_then(|n| {
                n.strip_prefix(self.stream.name())?
                    .strip_prefix('.')?
                    .parse()
                    .ok()
            });
            if let (Some(offset), Ok(meta)) = (offset, entry.metadata()) {
                found.push((offset, meta.len()));
            }
        }
        found.sort_unstable();
        Ok(found)
    }
}

fn file_path(dir: &Path, stream: Stream, offset: u64) -> PathBuf {
    dir.join(format!("{}.{offset:020}", stream.name()))
}

#[cfg(test)]
mod tests;
