//! Append-only streams as segment files, each named after the offset of its first byte.
//!
//! The first segment is the head and stays. When a stream is over its limit the oldest other segment goes,
//! which leaves a gap that readers are told of.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::disk::{create_dir, io, list, open_private, sync_dir};
use super::{Chunk, Error, MAX_STREAM, StreamId, StreamLimits, check_length};

/// Streams remembered; beyond, those that nobody uses are forgotten (their files stay).
const REMEMBERED: usize = 4096;
/// Segments of a stream: a sender that skips again and again must not make a file each time.
const MAX_SEGMENTS: usize = 256;

#[derive(Debug)]
pub(super) struct Streams {
    root: PathBuf,
    limits: StreamLimits,
    table: Mutex<HashMap<StreamId, Arc<Stream>>>,
}

#[derive(Debug)]
struct Stream {
    dir: PathBuf,
    /// Start and size of each segment.
    segments: Mutex<BTreeMap<u64, u64>>,
    length: watch::Sender<u64>,
}

impl Stream {
    // Changed only after the disk has been, one field at a time.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, start: u64) -> PathBuf {
        self.dir.join(format!("{start:020}"))
    }
}

fn end(segments: &BTreeMap<u64, u64>) -> u64 {
    segments.last_key_value().map_or(0, |(start, size)| start + size)
}

impl Streams {
    pub(super) fn new(root: PathBuf, limits: StreamLimits) -> Self {
        Self {
            root,
            limits,
            table: Mutex::new(HashMap::new()),
        }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<StreamId, Arc<Stream>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one state of a stream, read from its folder when it is not known.
    fn stream(&self, id: &StreamId) -> Result<Arc<Stream>, Error> {
        let mut table = self.table();
        if let Some(stream) = table.get(id) {
            return Ok(Arc::clone(stream));
        }
        if table.len() >= REMEMBERED {
            table.retain(|_, stream| Arc::strong_count(stream) > 1 || stream.length.receiver_count() > 0);
        }
        let dir = self.root.join(id.run()).join(id.name());
        let mut segments = BTreeMap::new();
        for name in list(&dir)? {
            if let Ok(start) = name.parse()
                && start <= MAX_STREAM
            {
                let path = dir.join(name);
                segments.insert(start, path.metadata().map_err(io("inspect", &path))?.len());
            }
        }
        let length = watch::Sender::new(end(&segments));
        let stream = Arc::new(Stream {
            dir,
            segments: Mutex::new(segments),
            length,
        });
        table.insert(id.clone(), Arc::clone(&stream));
        Ok(stream)
    }

    pub(super) fn append(&self, id: &StreamId, offset: u64, bytes: &[u8]) -> Result<u64, Error> {
        let stream = self.stream(id)?;
        let mut segments = stream.lock();
        let mut len = end(&segments);
        if offset > len {
            return Err(Error::Gap { offset, durable: len });
        }
        let known = usize::try_from(len - offset)
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        let mut rest = &bytes[known..];
        check_length(len.saturating_add(rest.len() as u64))?;
        while !rest.is_empty() {
            let written = self.extend(&stream, &mut segments, rest)?;
            rest = &rest[written..];
            len += written as u64;
            self.trim(&stream, &mut segments)?;
            stream.length.send_replace(len);
        }
        Ok(len)
    }

    /// An empty segment marks where the stream goes on; what is before it reads as a gap.
    pub(super) fn skip(&self, id: &StreamId, offset: u64) -> Result<u64, Error> {
        let stream = self.stream(id)?;
        let mut segments = stream.lock();
        let len = end(&segments);
        if offset <= len {
            return Ok(len);
        }
        check_length(offset)?;
        create_dir(&stream.dir)?;
        sync_dir(&self.root)?;
        sync_dir(stream.dir.parent().unwrap_or(&self.root))?;
        open_private(&stream.path(offset))?;
        sync_dir(&stream.dir)?;
        segments.insert(offset, 0);
        self.trim(&stream, &mut segments)?;
        stream.length.send_replace(offset);
        Ok(offset)
    }

    /// Writes as much as goes into one segment.
    fn extend(
        &self,
        stream: &Stream,
        segments: &mut BTreeMap<u64, u64>,
        bytes: &[u8],
    ) -> Result<usize, Error> {
        let capacity = |start| {
            if start == 0 {
                self.limits.head
            } else {
                self.limits.segment
            }
            .max(1)
        };
        let len = end(segments);
        let last = segments.last_key_value().map(|(start, size)| (*start, *size));
        let open = last.filter(|(start, size)| *size < capacity(*start));
        let (start, size) = open.unwrap_or((len, 0));
        if last.is_none() {
            create_dir(&stream.dir)?;
            sync_dir(&self.root)?;
            sync_dir(stream.dir.parent().unwrap_or(&self.root))?;
        }
        let room = usize::try_from(capacity(start) - size).unwrap_or(usize::MAX);
        let bytes = &bytes[..room.min(bytes.len())];
        let path = stream.path(start);
        let file = open_private(&path)?;
        let written = file.write_all_at(bytes, size).and_then(|()| file.sync_data());
        if let Err(error) = written {
            // Not acknowledged, so it must not count after a restart either; if this fails too, the sender's
            // repetition writes the same bytes over it.
            if let Err(error) = file.set_len(size) {
                tracing::warn!(%error, "unacknowledged bytes stay in a stream");
            }
            return Err(io("write", &path)(error));
        }
        if open.is_none() {
            sync_dir(&stream.dir)?;
        }
        segments.insert(start, size + bytes.len() as u64);
        Ok(bytes.len())
    }

    fn trim(&self, stream: &Stream, segments: &mut BTreeMap<u64, u64>) -> Result<(), Error> {
        while segments.len() > MAX_SEGMENTS
            || (segments.len() > 2 && segments.values().sum::<u64>() > self.limits.total)
        {
            let Some(oldest) = segments.keys().copied().find(|start| *start > 0) else {
                break;
            };
            let path = stream.path(oldest);
            std::fs::remove_file(&path).map_err(io("remove", &path))?;
            segments.remove(&oldest);
        }
        Ok(())
    }

    pub(super) fn read(&self, id: &StreamId, offset: u64, max: usize) -> Result<Chunk, Error> {
        let stream = self.stream(id)?;
        let segments = stream.lock();
        let len = end(&segments);
        if offset >= len {
            return Ok(Chunk::End { offset: len });
        }
        let segment = segments
            .range(..=offset)
            .next_back()
            .map(|(start, size)| (*start, *size));
        let Some((start, size)) = segment.filter(|(start, size)| offset < start + size) else {
            // Behind `offset`: two skips leave an empty segment, and a gap must lead on.
            let next = segments.range(offset + 1..).next();
            return Ok(Chunk::Gap {
                from: offset,
                to: next.map_or(len, |(start, _)| *start),
            });
        };
        let path = stream.path(start);
        // Opened under the lock, so that trimming cannot take it away first.
        let file = File::open(&path).map_err(io("open", &path))?;
        drop(segments);
        let available = usize::try_from(start + size - offset).unwrap_or(usize::MAX);
        let mut bytes = vec![0; available.min(max.max(1))];
        file.read_exact_at(&mut bytes, offset - start)
            .map_err(io("read", &path))?;
        Ok(Chunk::Data {
            offset,
            bytes: bytes.into(),
        })
    }

    pub(super) fn follow(&self, id: &StreamId) -> Result<watch::Receiver<u64>, Error> {
        Ok(self.stream(id)?.length.subscribe())
    }

    pub(super) fn of_run(&self, run: &str) -> Result<Vec<StreamId>, Error> {
        let names = list(&self.root.join(run))?;
        Ok(names
            .iter()
            .filter_map(|name| StreamId::new(run, name).ok())
            .collect())
    }

    pub(super) fn runs(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>, Error> {
        let names = list(&self.root)?.into_iter();
        Ok(names
            .filter(|name| after.is_none_or(|after| name.as_str() > after))
            .take(limit)
            .collect())
    }

    pub(super) fn delete(&self, run: &str) -> Result<(), Error> {
        let table = self.table();
        let known: Vec<&Arc<Stream>> = table
            .iter()
            .filter(|(id, _)| id.run() == run)
            .map(|(_, s)| s)
            .collect();
        let mut locked: Vec<_> = known.iter().map(|stream| stream.lock()).collect();
        let path = self.root.join(run);
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(io("remove", &path)(error));
            }
            _ => {}
        }
        for (segments, stream) in locked.iter_mut().zip(&known) {
            segments.clear();
            stream.length.send_replace(0);
        }
        sync_dir(&self.root)
    }
}
