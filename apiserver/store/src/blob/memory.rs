//! Blobs and streams in memory, for tests: the same contract without files.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use panda_api::meta::Clock;
use tokio::sync::watch;

use super::{
    Blob, BlobInfo, BlobStat, BlobStore, Chunk, Digest, Error, PutRequest, Range, StreamId, StreamLimits,
    Upload, check_length, validate_run,
};

/// A blob store that forgets everything when it is dropped.
#[derive(Debug)]
pub struct MemoryBlobs {
    clock: Arc<dyn Clock>,
    max_blob: u64,
    limits: StreamLimits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    blobs: BTreeMap<Digest, (Bytes, SystemTime)>,
    partial: BTreeMap<Digest, (Vec<u8>, SystemTime)>,
    streams: BTreeMap<StreamId, Stream>,
}

#[derive(Debug)]
struct Stream {
    /// Start and bytes of each segment, as the files of the durable store.
    segments: BTreeMap<u64, Vec<u8>>,
    length: watch::Sender<u64>,
}

impl MemoryBlobs {
    /// An empty store.
    pub fn new(clock: Arc<dyn Clock>, max_blob: u64, limits: StreamLimits) -> Self {
        Self {
            clock,
            max_blob,
            limits,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> SystemTime {
        let millis = u64::try_from(self.clock.now().as_millisecond()).unwrap_or(0);
        SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
    }

    async fn upload(&self, request: PutRequest, mut body: Upload<'_>) -> Result<BlobStat, Error> {
        let PutRequest { digest, size, offset } = request;
        if size > self.max_blob {
            return Err(Error::TooLarge {
                size,
                limit: self.max_blob,
            });
        }
        if let Some((bytes, modified)) = self.lock().blobs.get_mut(&digest) {
            *modified = self.now();
            return Ok(BlobStat {
                size: Some(bytes.len() as u64),
                partial: 0,
            });
        }
        let mut bytes = self
            .lock()
            .partial
            .remove(&digest)
            .map_or_else(Vec::new, |(bytes, _)| bytes);
        let durable = bytes.len() as u64;
        let mut outcome = if offset > durable {
            Err(Error::Gap { offset, durable })
        } else {
            Ok(())
        };
        let mut skip = usize::try_from(durable.saturating_sub(offset)).unwrap_or(usize::MAX);
        while outcome.is_ok()
            && let Some(piece) = body.next().await
        {
            match piece {
                Err(source) => {
                    outcome = Err(Error::Interrupted {
                        durable: bytes.len() as u64,
                        source,
                    })
                }
                Ok(piece) => {
                    let known = skip.min(piece.len());
                    skip -= known;
                    bytes.extend_from_slice(&piece[known..]);
                    if bytes.len() as u64 > size {
                        return Err(Error::TooLarge {
                            size: bytes.len() as u64,
                            limit: size,
                        });
                    }
                }
            }
        }
        let now = self.now();
        let len = bytes.len() as u64;
        if outcome.is_err() || len < size {
            self.lock().partial.insert(digest, (bytes, now));
            return outcome.map(|()| BlobStat {
                size: None,
                partial: len,
            });
        }
        let actual = Digest::of(&bytes);
        if actual != digest {
            return Err(Error::DigestMismatch {
                expected: digest,
                actual,
            });
        }
        self.lock().blobs.insert(digest, (bytes.into(), now));
        Ok(BlobStat {
            size: Some(size),
            partial: 0,
        })
    }

    fn download(&self, digest: Digest, range: Range) -> Result<Blob, Error> {
        let state = self.lock();
        let (bytes, _) = state.blobs.get(&digest).ok_or_else(|| Error::NotFound {
            what: format!("blob {digest}"),
        })?;
        let size = bytes.len() as u64;
        if range.offset > size {
            return Err(Error::InvalidRange {
                offset: range.offset,
                size,
            });
        }
        let length = range.length.unwrap_or(u64::MAX).min(size - range.offset);
        let start = usize::try_from(range.offset).unwrap_or(usize::MAX);
        let piece = bytes.slice(start..start + usize::try_from(length).unwrap_or(0));
        let body = futures::stream::iter((!piece.is_empty()).then_some(Ok(piece))).boxed();
        Ok(Blob { size, length, body })
    }

    fn with_stream<T>(&self, id: &StreamId, work: impl FnOnce(&mut Stream) -> T) -> T {
        let mut state = self.lock();
        let stream = state.streams.entry(id.clone()).or_insert_with(|| Stream {
            segments: BTreeMap::new(),
            length: watch::Sender::new(0),
        });
        work(stream)
    }
}

impl Stream {
    fn len(&self) -> u64 {
        self.segments
            .last_key_value()
            .map_or(0, |(start, bytes)| start + bytes.len() as u64)
    }

    fn append(&mut self, offset: u64, bytes: &[u8], limits: StreamLimits) -> Result<u64, Error> {
        let durable = self.len();
        if offset > durable {
            return Err(Error::Gap { offset, durable });
        }
        let known = usize::try_from(durable - offset)
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        let mut rest = &bytes[known..];
        check_length(durable.saturating_add(rest.len() as u64))?;
        while !rest.is_empty() {
            let len = self.len();
            let last = self
                .segments
                .last_key_value()
                .map(|(start, bytes)| (*start, bytes.len() as u64));
            let capacity = |start: u64| if start == 0 { limits.head } else { limits.segment }.max(1);
            let (start, size) = last
                .filter(|(start, size)| *size < capacity(*start))
                .unwrap_or((len, 0));
            let room = usize::try_from(capacity(start) - size).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(room.min(rest.len()));
            self.segments.entry(start).or_default().extend_from_slice(now);
            rest = later;
            self.trim(limits);
        }
        let len = self.len();
        self.length.send_replace(len);
        Ok(len)
    }

    fn trim(&mut self, limits: StreamLimits) {
        while self.segments.len() > 2
            && self
                .segments
                .values()
                .map(|bytes| bytes.len() as u64)
                .sum::<u64>()
                > limits.total
        {
            let Some(oldest) = self.segments.keys().copied().find(|start| *start > 0) else {
                break;
            };
            self.segments.remove(&oldest);
        }
    }

    fn skip(&mut self, offset: u64) -> Result<u64, Error> {
        if offset > self.len() {
            check_length(offset)?;
            self.segments.insert(offset, Vec::new());
            self.length.send_replace(offset);
        }
        Ok(self.len())
    }

    fn read(&self, offset: u64, max: usize) -> Chunk {
        let len = self.len();
        if offset >= len {
            return Chunk::End { offset: len };
        }
        let segment = self.segments.range(..=offset).next_back();
        let Some((start, part)) = segment.filter(|(start, part)| offset < **start + part.len() as u64) else {
            // Behind `offset`: two skips leave an empty segment, and a gap must lead on.
            let next = self.segments.range(offset + 1..).next();
            return Chunk::Gap {
                from: offset,
                to: next.map_or(len, |(start, _)| *start),
            };
        };
        let rest = &part[usize::try_from(offset - start).unwrap_or(part.len())..];
        Chunk::Data {
            offset,
            bytes: Bytes::copy_from_slice(&rest[..rest.len().min(max.max(1))]),
        }
    }
}

impl BlobStore for MemoryBlobs {
    fn stat(&self, digest: Digest) -> BoxFuture<'_, Result<BlobStat, Error>> {
        async move {
            let state = self.lock();
            let size = state.blobs.get(&digest).map(|(bytes, _)| bytes.len() as u64);
            let partial = state
                .partial
                .get(&digest)
                .map_or(0, |(bytes, _)| bytes.len() as u64);
            Ok(BlobStat { size, partial })
        }
        .boxed()
    }

    fn put<'a>(&'a self, request: PutRequest, body: Upload<'a>) -> BoxFuture<'a, Result<BlobStat, Error>> {
        self.upload(request, body).boxed()
    }

    fn get(&self, digest: Digest, range: Range) -> BoxFuture<'_, Result<Blob, Error>> {
        async move { self.download(digest, range) }.boxed()
    }

    fn delete(&self, digest: Digest) -> BoxFuture<'_, Result<bool, Error>> {
        async move {
            let mut state = self.lock();
            Ok(state.blobs.remove(&digest).is_some() | state.partial.remove(&digest).is_some())
        }
        .boxed()
    }

    fn older_than(
        &self,
        cutoff: SystemTime,
        after: Option<Digest>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<BlobInfo>, Error>> {
        async move {
            let state = self.lock();
            let old = state.blobs.iter().filter(|(digest, (_, modified))| {
                *modified < cutoff && after.is_none_or(|after| **digest > after)
            });
            let info = |(digest, (bytes, modified)): (&Digest, &(Bytes, SystemTime))| BlobInfo {
                digest: *digest,
                size: bytes.len() as u64,
                modified: *modified,
            };
            Ok(old.take(limit).map(info).collect())
        }
        .boxed()
    }

    fn drop_partial(&self, cutoff: SystemTime) -> BoxFuture<'_, Result<usize, Error>> {
        async move {
            let mut state = self.lock();
            let before = state.partial.len();
            state.partial.retain(|_, (_, modified)| *modified >= cutoff);
            Ok(before - state.partial.len())
        }
        .boxed()
    }

    fn append(&self, stream: StreamId, offset: u64, bytes: Bytes) -> BoxFuture<'_, Result<u64, Error>> {
        async move { self.with_stream(&stream, |stream| stream.append(offset, &bytes, self.limits)) }.boxed()
    }

    fn skip(&self, stream: StreamId, offset: u64) -> BoxFuture<'_, Result<u64, Error>> {
        async move { self.with_stream(&stream, |stream| stream.skip(offset)) }.boxed()
    }

    fn read(&self, stream: StreamId, offset: u64, max: usize) -> BoxFuture<'_, Result<Chunk, Error>> {
        async move { Ok(self.with_stream(&stream, |stream| stream.read(offset, max))) }.boxed()
    }

    fn len(&self, stream: StreamId) -> BoxFuture<'_, Result<u64, Error>> {
        async move { Ok(self.with_stream(&stream, |stream| stream.len())) }.boxed()
    }

    fn follow(&self, stream: StreamId) -> BoxFuture<'_, Result<watch::Receiver<u64>, Error>> {
        async move { Ok(self.with_stream(&stream, |stream| stream.length.subscribe())) }.boxed()
    }

    fn streams<'a>(&'a self, run: &'a str) -> BoxFuture<'a, Result<Vec<StreamId>, Error>> {
        async move {
            validate_run(run)?;
            let state = self.lock();
            let written = state
                .streams
                .iter()
                .filter(|(id, stream)| id.run() == run && !stream.segments.is_empty());
            Ok(written.map(|(id, _)| id.clone()).collect())
        }
        .boxed()
    }

    fn runs<'a>(&'a self, after: Option<&'a str>, limit: usize) -> BoxFuture<'a, Result<Vec<String>, Error>> {
        async move {
            let state = self.lock();
            let written = state
                .streams
                .iter()
                .filter(|(_, stream)| !stream.segments.is_empty());
            let mut runs: Vec<String> = written.map(|(id, _)| id.run().to_owned()).collect();
            runs.dedup();
            Ok(runs
                .into_iter()
                .filter(|run| after.is_none_or(|after| run.as_str() > after))
                .take(limit)
                .collect())
        }
        .boxed()
    }

    fn delete_streams<'a>(&'a self, run: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            validate_run(run)?;
            let mut state = self.lock();
            for (_, stream) in state.streams.iter_mut().filter(|(id, _)| id.run() == run) {
                stream.segments.clear();
                stream.length.send_replace(0);
            }
            Ok(())
        }
        .boxed()
    }
}
