//! The files of the log: segments, each named after the number of its first record.
//!
//! Space for the next records is reserved before it is needed, so that a disk that fills is noticed while what is under
//! way can still be recorded.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};

use super::chain::{self, Head};
use super::{Error, failed};
use crate::files;

/// Bytes reserved beyond the end.
const RESERVE: u64 = 1 << 20;
/// Longest line that is read.
pub(super) const MAX_LINE: usize = 1 << 20;

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of a segment.
    pub segment: u64,
    /// Bytes of all segments; the oldest goes when a new one would go beyond.
    pub total: u64,
}

/// What was found when the log was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Bytes of a record that was being written when the process died.
    pub(super) torn: u64,
    /// The newest segment holds something that is no record: it is left as it is.
    pub(super) damaged: bool,
}

#[derive(Debug)]
pub(super) struct Files {
    dir: PathBuf,
    bounds: Bounds,
    /// First record and size of each segment, oldest first; the last is written to.
    segments: VecDeque<(u64, u64)>,
    file: Arc<File>,
    /// How far space is reserved in `file`.
    reserved: u64,
    head: Head,
    _lock: File,
}

/// The segments of a log, oldest first.
pub(super) fn segments(dir: &Path) -> Result<Vec<(u64, PathBuf)>, Error> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed("list", dir))? {
        let path = entry.map_err(failed("list", dir))?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let first = name.strip_suffix(".jsonl").filter(|digits| digits.len() == 20);
        if let Some(first) = first.and_then(|digits| digits.parse().ok()) {
            found.push((first, path));
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn path_of(dir: &Path, first: u64) -> PathBuf {
    dir.join(format!("{first:020}.jsonl"))
}

/// Reads the next line, its end included; nothing at the end of the file. A line without an end, or one longer than
/// [`MAX_LINE`], comes as far as it goes.
pub(super) fn next_line(from: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    io::Read::take(&mut *from, MAX_LINE as u64).read_until(b'\n', line)?;
    Ok(!line.is_empty())
}

/// What a segment ends with.
struct Tail {
    /// The newest record.
    head: Option<Head>,
    /// Bytes up to the end of the last whole line.
    whole: u64,
    size: u64,
    damaged: bool,
}

fn tail(path: &Path) -> Result<Tail, Error> {
    let mut from = BufReader::new(File::open(path).map_err(failed("open", path))?);
    let mut tail = Tail {
        head: None,
        whole: 0,
        size: 0,
        damaged: false,
    };
    let mut line = Vec::new();
    while next_line(&mut from, &mut line).map_err(failed("read", path))? {
        tail.size += line.len() as u64;
        if let Some(text) = line.strip_suffix(b"\n") {
            tail.whole = tail.size;
            match chain::read(text) {
                Some(record) => {
                    let follows = tail
                        .head
                        .as_ref()
                        .is_none_or(|head| record.head.seq == head.seq + 1 && record.prev == head.hash);
                    tail.damaged |= !follows;
                    tail.head = Some(record.head);
                }
                None => tail.damaged = true,
            }
        }
    }
    Ok(tail)
}

impl Files {
    /// Opens the log in `dir`, or begins one.
    pub(super) fn open(dir: &Path, bounds: Bounds) -> Result<(Self, Found), Error> {
        files::private_dir(dir)?;
        let path = dir.join("lock");
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed("open", &path))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| Error::Locked { path })?;
        let mut known = VecDeque::new();
        let (mut found, mut head, mut continued) = (Found::default(), None, false);
        for (first, path) in segments(dir)?.into_iter().rev() {
            if head.is_some() {
                let size = path.metadata().map_err(failed("inspect", &path))?.len();
                known.push_front((first, size));
                continue;
            }
            let tail = tail(&path)?;
            let newest = known.is_empty();
            if newest && tail.whole < tail.size {
                found.torn = tail.size - tail.whole;
                let file = OpenOptions::new()
                    .write(true)
                    .open(&path)
                    .map_err(failed("open", &path))?;
                file.set_len(tail.whole)
                    .and_then(|()| file.sync_all())
                    .map_err(failed("mend", &path))?;
            }
            if tail.whole == 0 {
                // Made and never written to.
                fs::remove_file(&path).map_err(failed("remove", &path))?;
                continue;
            }
            found.damaged |= newest && tail.damaged;
            continued = newest && !tail.damaged;
            head = tail.head;
            known.push_front((first, tail.whole));
        }
        let head = head.unwrap_or_default();
        let (file, segments) = match known.back() {
            Some((first, _)) if continued => (append_to(&path_of(dir, *first))?, known),
            _ => {
                // What is damaged stays for whoever looks into it; the chain goes on in a file of its own.
                let path = path_of(dir, head.seq + 1);
                let file = append_to(&path)?;
                let size = file.metadata().map_err(failed("inspect", &path))?.len();
                known.push_back((head.seq + 1, size));
                (file, known)
            }
        };
        sync_dir(dir)?;
        let opened = Self {
            dir: dir.to_owned(),
            bounds,
            segments,
            file: Arc::new(file),
            reserved: 0,
            head,
            _lock: lock,
        };
        Ok((opened, found))
    }

    pub(super) const fn head(&self) -> &Head {
        &self.head
    }

    /// The file that is written to.
    pub(super) fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    fn len(&self) -> u64 {
        self.segments.back().map_or(0, |(_, size)| *size)
    }

    /// Makes sure that there is space for what comes next.
    pub(super) fn reserve(&mut self) -> io::Result<()> {
        let len = self.len();
        if self.reserved >= len + RESERVE / 2 {
            return Ok(());
        }
        match fallocate(&*self.file, FallocateFlags::KEEP_SIZE, len, RESERVE) {
            Ok(()) => {}
            // Such a file system says at the write that it is full.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.reserved = len + RESERVE;
        Ok(())
    }

    /// Writes these events, all or none.
    pub(super) fn append<'a>(&mut self, events: impl Iterator<Item = &'a str>) -> Result<(), Error> {
        let mut bytes = Vec::new();
        let mut head = self.head.clone();
        for event in events {
            head = chain::append(&head, event, &mut bytes);
        }
        let len = self.len();
        let path = path_of(&self.dir, self.segments.back().map_or(0, |(first, _)| *first));
        if let Err(error) = (&*self.file).write_all(&bytes) {
            // Half a line would look like a crash; if this fails, too, the next start mends it.
            if let Err(error) = self.file.set_len(len) {
                tracing::error!(%error, "half a record stays in the audit log");
            }
            self.reserved = 0;
            return Err(failed("write", &path)(error));
        }
        if let Some((_, size)) = self.segments.back_mut() {
            *size += bytes.len() as u64;
        }
        self.head = head;
        Ok(())
    }

    /// Whether the segment is full.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.bounds.segment
    }

    /// Begins another segment and removes the oldest, as far as there are too many; the newest record that went.
    pub(super) fn rotate(&mut self) -> Result<Option<u64>, Error> {
        let old = path_of(&self.dir, self.segments.back().map_or(0, |(first, _)| *first));
        // Also gives back what was reserved.
        self.file
            .set_len(self.len())
            .and_then(|()| self.file.sync_all())
            .map_err(failed("sync", &old))?;
        let first = self.head.seq + 1;
        self.file = Arc::new(append_to(&path_of(&self.dir, first))?);
        self.reserved = 0;
        self.segments.push_back((first, 0));
        let mut gone = None;
        let total = |segments: &VecDeque<(u64, u64)>| segments.iter().map(|(_, size)| size).sum::<u64>();
        while self.segments.len() > 2 && total(&self.segments) + self.bounds.segment > self.bounds.total {
            let Some((oldest, _)) = self.segments.pop_front() else {
                break;
            };
            let path = path_of(&self.dir, oldest);
            fs::remove_file(&path).map_err(failed("remove", &path))?;
            gone = self.segments.front().map(|(next, _)| next - 1);
        }
        sync_dir(&self.dir)?;
        Ok(gone)
    }
}

fn append_to(path: &Path) -> Result<File, Error> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
        .map_err(failed("open", path))
}

fn sync_dir(dir: &Path) -> Result<(), Error> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(failed("sync", dir))
}
