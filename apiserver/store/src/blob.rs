//! Bytes that do not belong into the log of objects: artifacts by digest, and append-only streams of a run.
//!
//! A digest is never permission: whoever calls has decided that the caller may. Names are validated here all
//! the same, because they become file names.

mod digest;
mod disk;
mod files;
mod memory;
mod streams;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use tokio::sync::watch;

pub use digest::Digest;
pub use files::{Config, Files};
pub use memory::MemoryBlobs;

/// The body of an upload; an error of the transport ends it, and what has arrived is kept.
pub type Upload<'a> = BoxStream<'a, Result<Bytes, std::io::Error>>;

/// Why a blob operation did not happen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No such blob or stream.
    #[error("{what} not found")]
    NotFound {
        /// What was asked for.
        what: String,
    },
    /// The bytes have another digest; the upload was discarded.
    #[error("the uploaded bytes have digest {actual}, expected {expected}; upload again from the start")]
    DigestMismatch {
        /// The digest announced.
        expected: Digest,
        /// The digest of what arrived.
        actual: Digest,
    },
    /// More bytes than announced or allowed.
    #[error("{size} bytes are over the limit of {limit}")]
    TooLarge {
        /// The size announced or reached.
        size: u64,
        /// The bound.
        limit: u64,
    },
    /// The write would leave a gap.
    #[error("cannot continue at offset {offset}, only {durable} bytes are here; continue there")]
    Gap {
        /// The offset of the write.
        offset: u64,
        /// How many bytes are durable.
        durable: u64,
    },
    /// Another upload of the same digest is running.
    #[error("blob {digest} is being uploaded by another request; try again")]
    Busy {
        /// The digest.
        digest: Digest,
    },
    /// A digest, run uid or stream name that is not one.
    #[error("invalid {what} {value:?}: {expected}")]
    InvalidName {
        /// Which name.
        what: &'static str,
        /// Its value, shortened.
        value: String,
        /// What it must look like.
        expected: &'static str,
    },
    /// A read outside of the blob.
    #[error("range starts at {offset}, the blob has {size} bytes")]
    InvalidRange {
        /// Start of the range.
        offset: u64,
        /// Size of the blob.
        size: u64,
    },
    /// The sender broke off; what arrived is kept.
    #[error("the upload broke off after {durable} bytes")]
    Interrupted {
        /// How many bytes are durable.
        durable: u64,
        /// The transport's error.
        #[source]
        source: std::io::Error,
    },
    /// The disk is full.
    #[error("no space left on the device that holds the blobs")]
    DiskFull,
    /// The file system refused.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// What was being done.
        operation: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// Whether the same request may succeed later without being changed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Busy { .. } | Self::Interrupted { .. } | Self::DiskFull | Self::Io { .. }
        )
    }
}

/// An upload, or the rest of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutRequest {
    /// The digest of the whole.
    pub digest: Digest,
    /// The size of the whole.
    pub size: u64,
    /// Where in the whole the body starts; at most [`BlobStat::partial`].
    pub offset: u64,
}

/// How much of a blob is here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlobStat {
    /// Its size, once it is complete and verified.
    pub size: Option<u64>,
    /// Bytes of an unfinished upload; continue there.
    pub partial: u64,
}

/// Which part of a blob to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Most bytes; none: to the end.
    pub length: Option<u64>,
}

/// A blob being read.
pub struct Blob {
    /// Size of the whole blob.
    pub size: u64,
    /// Bytes that the body will yield.
    pub length: u64,
    /// The bytes of the range, in pieces.
    pub body: BoxStream<'static, Result<Bytes, Error>>,
}

impl std::fmt::Debug for Blob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blob")
            .field("size", &self.size)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

/// A stored blob, for the collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobInfo {
    /// Its digest.
    pub digest: Digest,
    /// Its size.
    pub size: u64,
    /// When it was last uploaded, by the file system's clock.
    pub modified: SystemTime,
}

/// A stream of a run: its log, its events.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    run: Arc<str>,
    name: Arc<str>,
}

impl StreamId {
    /// Refuses names that could leave the store's folder: a run uid is letters, digits and `-`, a stream name
    /// lower-case letters, digits, `-`, `_` and inner `.`.
    pub fn new(run: &str, name: &str) -> Result<Self, Error> {
        validate_run(run)?;
        let plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
        let dotted = name.bytes().all(|byte| plain(byte) || byte == b'.') && !name.contains("..");
        if name.is_empty() || name.len() > 63 || !dotted || !name.bytes().next().is_some_and(plain) {
            let expected = "1 to 63 of a-z, 0-9, -, _, and single inner dots";
            return Err(Error::InvalidName {
                what: "stream name",
                value: shorten(name),
                expected,
            });
        }
        Ok(Self {
            run: run.into(),
            name: name.into(),
        })
    }

    /// The run's uid.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.run
    }

    /// The stream's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

fn validate_run(run: &str) -> Result<(), Error> {
    let valid = run
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if run.is_empty() || run.len() > 64 || !valid || run.starts_with('-') {
        let expected = "1 to 64 letters, digits and inner dashes";
        return Err(Error::InvalidName {
            what: "run uid",
            value: shorten(run),
            expected,
        });
    }
    Ok(())
}

/// No stream grows beyond this, whatever its sender claims: offsets stay exact in JSON, and sums cannot overflow.
const MAX_STREAM: u64 = 1 << 53;

fn check_length(length: u64) -> Result<(), Error> {
    if length > MAX_STREAM {
        return Err(Error::TooLarge {
            size: length,
            limit: MAX_STREAM,
        });
    }
    Ok(())
}

fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}

/// What a stream holds at an offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// Bytes that start at the offset.
    Data {
        /// Of the first byte.
        offset: u64,
        /// Never empty.
        bytes: Bytes,
    },
    /// Bytes that are no longer kept; go on at `to`.
    Gap {
        /// First byte missing.
        from: u64,
        /// First byte kept again.
        to: u64,
    },
    /// Nothing is here yet.
    End {
        /// Bytes written so far: where to go on.
        offset: u64,
    },
}

/// How much of each stream is kept: the head and the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLimits {
    /// Bytes kept of the beginning.
    pub head: u64,
    /// Bytes dropped at a time.
    pub segment: u64,
    /// Most bytes kept.
    pub total: u64,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self {
            head: 1 << 20,
            segment: 4 << 20,
            total: 64 << 20,
        }
    }
}

/// Blobs by digest, and append-only streams.
///
/// 1. When `put` says that a blob is complete, or `append` returns an offset, the bytes are durable.
/// 2. A blob is visible whole and verified, or not at all.
/// 3. Every upload and append can be repeated, whole or from any offset that is already here.
pub trait BlobStore: Send + Sync + 'static {
    /// How much of a blob is here.
    fn stat(&self, digest: Digest) -> BoxFuture<'_, Result<BlobStat, Error>>;

    /// Stores a blob, or the next part of it. An existing blob is left as it is, but counts as new for the
    /// collector; its body is not read.
    fn put<'a>(&'a self, request: PutRequest, body: Upload<'a>) -> BoxFuture<'a, Result<BlobStat, Error>>;

    /// Reads a blob or a part of it.
    fn get(&self, digest: Digest, range: Range) -> BoxFuture<'_, Result<Blob, Error>>;

    /// Deletes a blob, and any unfinished upload of it; whether there was one.
    fn delete(&self, digest: Digest) -> BoxFuture<'_, Result<bool, Error>>;

    /// Blobs not uploaded since `cutoff`, in digest order behind `after`, at most `limit`.
    fn older_than(
        &self,
        cutoff: SystemTime,
        after: Option<Digest>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<BlobInfo>, Error>>;

    /// Removes unfinished uploads that have not grown since `cutoff`; how many.
    fn drop_partial(&self, cutoff: SystemTime) -> BoxFuture<'_, Result<usize, Error>>;

    /// Appends to a stream at `offset`; what is already here is skipped. Returns the durable length.
    fn append(&self, stream: StreamId, offset: u64, bytes: Bytes) -> BoxFuture<'_, Result<u64, Error>>;

    /// Goes on at `offset`: the bytes before it that are not here never come, and read as a gap. Changes nothing
    /// when the stream is that long already. Returns the length.
    fn skip(&self, stream: StreamId, offset: u64) -> BoxFuture<'_, Result<u64, Error>>;

    /// What a stream holds at `offset`, at most `max` bytes. An unknown stream is empty.
    fn read(&self, stream: StreamId, offset: u64, max: usize) -> BoxFuture<'_, Result<Chunk, Error>>;

    /// Bytes ever appended to a stream.
    fn len(&self, stream: StreamId) -> BoxFuture<'_, Result<u64, Error>>;

    /// The durable length of a stream as it grows.
    fn follow(&self, stream: StreamId) -> BoxFuture<'_, Result<watch::Receiver<u64>, Error>>;

    /// The streams of a run.
    fn streams<'a>(&'a self, run: &'a str) -> BoxFuture<'a, Result<Vec<StreamId>, Error>>;

    /// Run uids that have streams, in order behind `after`, at most `limit`.
    fn runs<'a>(&'a self, after: Option<&'a str>, limit: usize) -> BoxFuture<'a, Result<Vec<String>, Error>>;

    /// Deletes every stream of a run.
    fn delete_streams<'a>(&'a self, run: &'a str) -> BoxFuture<'a, Result<(), Error>>;
}
