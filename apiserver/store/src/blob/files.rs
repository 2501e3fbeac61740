//! Blobs and streams as files: `blobs/ab/HEX`, `partial/HEX`, `streams/RUN/NAME/OFFSET`.

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::watch;
use tokio_util::io::ReaderStream;

use super::disk::{create_dir, io, list, open_private, sync_dir};
use super::streams::Streams;
use super::{
    Blob, BlobInfo, BlobStat, BlobStore, Chunk, Digest, Error, PutRequest, Range, StreamId, StreamLimits,
    Upload, validate_run,
};

/// Bytes read at a time.
const READ: usize = 64 << 10;

/// Where and how much.
#[derive(Clone, Debug)]
pub struct Config {
    /// The folder; made with mode 0700 when it does not exist.
    pub dir: PathBuf,
    /// Largest blob.
    pub max_blob: u64,
    /// How much of each stream is kept.
    pub streams: StreamLimits,
}

impl Config {
    /// The defaults, in this folder.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            max_blob: 2 << 30,
            streams: StreamLimits::default(),
        }
    }
}

/// The blob store of a server: files in one folder, owned by one process (the lock of the object store).
#[derive(Debug)]
pub struct Files {
    layout: Arc<Layout>,
    max_blob: u64,
    streams: Arc<Streams>,
    /// Digests being written.
    busy: Arc<Busy>,
}

#[derive(Debug)]
struct Layout {
    blobs: PathBuf,
    partial: PathBuf,
}

impl Layout {
    fn blob(&self, digest: Digest) -> PathBuf {
        let hex = digest.hex();
        self.blobs.join(&hex[..2]).join(hex)
    }

    fn partial(&self, digest: Digest) -> PathBuf {
        self.partial.join(digest.hex())
    }

    fn stat(&self, digest: Digest) -> Result<BlobStat, Error> {
        let size = size(&self.blob(digest))?;
        let partial = if size.is_some() {
            None
        } else {
            self::size(&self.partial(digest))?
        };
        Ok(BlobStat {
            size,
            partial: partial.unwrap_or(0),
        })
    }

    /// Makes a verified upload visible.
    fn publish(&self, digest: Digest) -> Result<(), Error> {
        let target = self.blob(digest);
        let folder = target.parent().unwrap_or(&self.blobs);
        create_dir(folder)?;
        sync_dir(&self.blobs)?;
        std::fs::rename(self.partial(digest), &target).map_err(io("publish", &target))?;
        sync_dir(folder)
    }

    fn older_than(
        &self,
        cutoff: SystemTime,
        after: Option<Digest>,
        limit: usize,
    ) -> Result<Vec<BlobInfo>, Error> {
        let mut found = Vec::new();
        for folder in list(&self.blobs)? {
            for name in list(&self.blobs.join(folder))? {
                let Ok(digest) = name.parse::<Digest>() else {
                    continue;
                };
                if after.is_some_and(|after| digest <= after) {
                    continue;
                }
                if found.len() >= limit {
                    return Ok(found);
                }
                let path = self.blob(digest);
                let metadata = match path.metadata() {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                    metadata => metadata.map_err(io("inspect", &path))?,
                };
                let modified = metadata.modified().map_err(io("inspect", &path))?;
                if modified < cutoff {
                    found.push(BlobInfo {
                        digest,
                        size: metadata.len(),
                        modified,
                    });
                }
            }
        }
        Ok(found)
    }
}

fn size(path: &Path) -> Result<Option<u64>, Error> {
    match path.metadata() {
        Ok(metadata) => Ok(Some(metadata.len())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io("inspect", path)(error)),
    }
}

fn remove(path: &Path) -> Result<bool, Error> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io("remove", path)(error)),
    }
}

/// Counts as new for the collector.
fn touch(path: &Path) -> Result<(), Error> {
    use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, futimens};
    let at = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let times = Timestamps {
        last_access: at(UTIME_OMIT),
        last_modification: at(UTIME_NOW),
    };
    let file = std::fs::File::open(path).map_err(io("open", path))?;
    futimens(&file, &times).map_err(|errno| io("touch", path)(errno.into()))
}

/// Keeps a digest to one writer, until its last write to the disk is over.
struct Turn {
    busy: Arc<Busy>,
    digest: Digest,
}

#[derive(Debug, Default)]
struct Busy(Mutex<HashSet<Digest>>);

impl Busy {
    fn lock(&self) -> MutexGuard<'_, HashSet<Digest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.busy.lock().remove(&self.digest);
    }
}

/// An unfinished upload. Moves into each blocking write and back, so that an abandoned request cannot leave a
/// write behind that outlives its turn.
struct Partial {
    path: PathBuf,
    file: std::fs::File,
    hasher: Sha256,
    len: u64,
    turn: Turn,
}

impl Partial {
    /// Opens the file for appending, with the digest of what is there.
    fn resume(path: PathBuf, turn: Turn) -> Result<Self, Error> {
        let mut file = open_private(&path)?;
        let mut hasher = Sha256::new();
        // Reads to the end, which is where writing goes on.
        let len = std::io::copy(&mut file, &mut hasher).map_err(io("read", &path))?;
        Ok(Self {
            path,
            file,
            hasher,
            len,
            turn,
        })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(io("write", &self.path))?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Makes it durable and, when it is whole, visible.
    fn finish(self, layout: &Layout, size: u64) -> Result<BlobStat, Error> {
        self.file.sync_all().map_err(io("sync", &self.path))?;
        if self.len < size {
            return Ok(BlobStat {
                size: None,
                partial: self.len,
            });
        }
        let (actual, expected) = (Digest::new(self.hasher.finalize().into()), self.turn.digest);
        if actual != expected {
            remove(&self.path)?;
            return Err(Error::DigestMismatch { expected, actual });
        }
        layout.publish(expected)?;
        Ok(BlobStat {
            size: Some(size),
            partial: 0,
        })
    }
}

impl Files {
    /// Opens the folder, or makes it. Blocks on the disk.
    pub fn open(config: &Config) -> Result<Self, Error> {
        let layout = Layout {
            blobs: config.dir.join("blobs"),
            partial: config.dir.join("partial"),
        };
        let streams = config.dir.join("streams");
        for dir in [&config.dir, &layout.blobs, &layout.partial, &streams] {
            create_dir(dir)?;
        }
        sync_dir(&config.dir)?;
        Ok(Self {
            layout: Arc::new(layout),
            max_blob: config.max_blob,
            streams: Arc::new(Streams::new(streams, config.streams)),
            busy: Arc::default(),
        })
    }

    fn turn(&self, digest: Digest) -> Result<Turn, Error> {
        let free = self.busy.lock().insert(digest);
        if free {
            Ok(Turn {
                busy: Arc::clone(&self.busy),
                digest,
            })
        } else {
            Err(Error::Busy { digest })
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Layout) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let layout = Arc::clone(&self.layout);
        blocking(move || work(&layout)).await
    }

    async fn stream<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Streams) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let streams = Arc::clone(&self.streams);
        blocking(move || work(&streams)).await
    }

    async fn upload(&self, request: PutRequest, mut body: Upload<'_>) -> Result<BlobStat, Error> {
        let PutRequest { digest, size, offset } = request;
        if size > self.max_blob {
            return Err(Error::TooLarge {
                size,
                limit: self.max_blob,
            });
        }
        let turn = self.turn(digest)?;
        let begin = move |layout: &Layout| {
            if layout.stat(digest)?.size.is_some() {
                touch(&layout.blob(digest))?;
                return Ok(None);
            }
            Partial::resume(layout.partial(digest), turn).map(Some)
        };
        let Some(mut partial) = self.blocking(begin).await? else {
            return self.stat(digest).await;
        };
        if offset > partial.len {
            return Err(Error::Gap {
                offset,
                durable: partial.len,
            });
        }
        let mut skip = partial.len - offset;
        while let Some(piece) = body.next().await {
            let mut piece = match piece {
                Ok(piece) => piece,
                Err(source) => {
                    let durable = partial.len;
                    self.blocking(move |layout| partial.finish(layout, u64::MAX))
                        .await?;
                    return Err(Error::Interrupted { durable, source });
                }
            };
            let known = usize::try_from(skip).unwrap_or(usize::MAX).min(piece.len());
            skip -= known as u64;
            let piece = piece.split_off(known);
            let reached = partial.len + piece.len() as u64;
            if reached > size {
                self.blocking(move |_| remove(&partial.path)).await?;
                return Err(Error::TooLarge {
                    size: reached,
                    limit: size,
                });
            }
            partial = self
                .blocking(move |_| partial.write(&piece).map(|()| partial))
                .await?;
        }
        self.blocking(move |layout| partial.finish(layout, size)).await
    }

    async fn download(&self, digest: Digest, range: Range) -> Result<Blob, Error> {
        let path = self.layout.blob(digest);
        let mut file = match tokio::fs::File::open(&path).await {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::NotFound {
                    what: format!("blob {digest}"),
                });
            }
            opened => opened.map_err(io("open", &path))?,
        };
        let size = file.metadata().await.map_err(io("inspect", &path))?.len();
        if range.offset > size {
            return Err(Error::InvalidRange {
                offset: range.offset,
                size,
            });
        }
        let length = range.length.unwrap_or(u64::MAX).min(size - range.offset);
        file.seek(std::io::SeekFrom::Start(range.offset))
            .await
            .map_err(io("read", &path))?;
        let pieces = ReaderStream::with_capacity(file.take(length), READ);
        let body = pieces.map(move |piece| piece.map_err(io("read", &path))).boxed();
        Ok(Blob { size, length, body })
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.map_err(|error| io("work on", Path::new("blobs"))(std::io::Error::other(error)))?
}

impl BlobStore for Files {
    fn stat(&self, digest: Digest) -> BoxFuture<'_, Result<BlobStat, Error>> {
        self.blocking(move |layout| layout.stat(digest)).boxed()
    }

    fn put<'a>(&'a self, request: PutRequest, body: Upload<'a>) -> BoxFuture<'a, Result<BlobStat, Error>> {
        self.upload(request, body).boxed()
    }

    fn get(&self, digest: Digest, range: Range) -> BoxFuture<'_, Result<Blob, Error>> {
        self.download(digest, range).boxed()
    }

    fn delete(&self, digest: Digest) -> BoxFuture<'_, Result<bool, Error>> {
        async move {
            let turn = self.turn(digest)?;
            let work = move |layout: &Layout| {
                let _turn = turn;
                Ok(remove(&layout.blob(digest))? | remove(&layout.partial(digest))?)
            };
            self.blocking(work).await
        }
        .boxed()
    }

    fn older_than(
        &self,
        cutoff: SystemTime,
        after: Option<Digest>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<BlobInfo>, Error>> {
        self.blocking(move |layout| layout.older_than(cutoff, after, limit))
            .boxed()
    }

    fn drop_partial(&self, cutoff: SystemTime) -> BoxFuture<'_, Result<usize, Error>> {
        async move {
            let mut dropped = 0;
            for name in self.blocking(|layout| list(&layout.partial)).await? {
                let Ok(digest) = name.parse::<Digest>() else {
                    continue;
                };
                let Ok(turn) = self.turn(digest) else { continue };
                let work = move |layout: &Layout| {
                    let _turn = turn;
                    let path = layout.partial(digest);
                    let modified = path.metadata().and_then(|metadata| metadata.modified());
                    Ok(modified.map_err(io("inspect", &path))? < cutoff && remove(&path)?)
                };
                dropped += usize::from(self.blocking(work).await?);
            }
            Ok(dropped)
        }
        .boxed()
    }

    fn append(&self, stream: StreamId, offset: u64, bytes: Bytes) -> BoxFuture<'_, Result<u64, Error>> {
        self.stream(move |streams| streams.append(&stream, offset, &bytes))
            .boxed()
    }

    fn skip(&self, stream: StreamId, offset: u64) -> BoxFuture<'_, Result<u64, Error>> {
        self.stream(move |streams| streams.skip(&stream, offset)).boxed()
    }

    fn read(&self, stream: StreamId, offset: u64, max: usize) -> BoxFuture<'_, Result<Chunk, Error>> {
        self.stream(move |streams| streams.read(&stream, offset, max))
            .boxed()
    }

    fn len(&self, stream: StreamId) -> BoxFuture<'_, Result<u64, Error>> {
        self.stream(move |streams| streams.follow(&stream).map(|length| *length.borrow()))
            .boxed()
    }

    fn follow(&self, stream: StreamId) -> BoxFuture<'_, Result<watch::Receiver<u64>, Error>> {
        self.stream(move |streams| streams.follow(&stream)).boxed()
    }

    fn streams<'a>(&'a self, run: &'a str) -> BoxFuture<'a, Result<Vec<StreamId>, Error>> {
        async move {
            validate_run(run)?;
            let run = run.to_owned();
            self.stream(move |streams| streams.of_run(&run)).await
        }
        .boxed()
    }

    fn runs<'a>(&'a self, after: Option<&'a str>, limit: usize) -> BoxFuture<'a, Result<Vec<String>, Error>> {
        let after = after.map(str::to_owned);
        self.stream(move |streams| streams.runs(after.as_deref(), limit))
            .boxed()
    }

    fn delete_streams<'a>(&'a self, run: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            validate_run(run)?;
            let run = run.to_owned();
            self.stream(move |streams| streams.delete(&run)).await
        }
        .boxed()
    }
}
