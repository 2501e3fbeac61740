//! One suite for both blob stores; what only files can do below it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::StreamExt;
use panda_api::meta::SystemClock;
use proptest::prelude::*;

use super::*;

const LIMITS: StreamLimits = StreamLimits {
    head: 10,
    segment: 8,
    total: 34,
};
const MAX_BLOB: u64 = 1 << 20;

fn files(dir: &tempfile::TempDir) -> Files {
    Files::open(&Config {
        dir: dir.path().join("blobs"),
        max_blob: MAX_BLOB,
        streams: LIMITS,
    })
    .unwrap()
}

/// Both stores, and the folder of the one.
fn stores() -> (tempfile::TempDir, Vec<Box<dyn BlobStore>>) {
    let dir = tempfile::tempdir().unwrap();
    let memory = MemoryBlobs::new(Arc::new(SystemClock), MAX_BLOB, LIMITS);
    let stores: Vec<Box<dyn BlobStore>> = vec![Box::new(memory), Box::new(files(&dir))];
    (dir, stores)
}

fn upload(bytes: &[u8], piece: usize) -> Upload<'static> {
    let pieces: Vec<_> = bytes
        .chunks(piece)
        .map(|piece| Ok(Bytes::copy_from_slice(piece)))
        .collect();
    futures::stream::iter(pieces).boxed()
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|n| u8::try_from(n % 251).unwrap()).collect()
}

async fn put(store: &dyn BlobStore, bytes: &[u8]) -> Result<BlobStat, Error> {
    let request = PutRequest {
        digest: Digest::of(bytes),
        size: bytes.len() as u64,
        offset: 0,
    };
    store.put(request, upload(bytes, 1000)).await
}

async fn get(store: &dyn BlobStore, digest: Digest, range: Range) -> Vec<u8> {
    let blob = store.get(digest, range).await.unwrap();
    let pieces: Vec<Bytes> = blob.body.map(Result::unwrap).collect().await;
    assert_eq!(pieces.concat().len() as u64, blob.length);
    pieces.concat()
}

#[tokio::test]
async fn blobs_come_back_whole_and_in_ranges() {
    let (_dir, stores) = stores();
    for store in &stores {
        for len in [0, 1, 200_000] {
            let bytes = content(len);
            let digest = Digest::of(&bytes);
            assert!(matches!(
                store.get(digest, Range::default()).await,
                Err(Error::NotFound { .. })
            ));
            assert_eq!(put(&**store, &bytes).await.unwrap().size, Some(len as u64));
            assert_eq!(
                store.stat(digest).await.unwrap(),
                BlobStat {
                    size: Some(len as u64),
                    partial: 0
                }
            );
            assert_eq!(get(&**store, digest, Range::default()).await, bytes);
        }
        let bytes = content(200_000);
        let digest = Digest::of(&bytes);
        let middle = Range {
            offset: 70_000,
            length: Some(10),
        };
        assert_eq!(get(&**store, digest, middle).await, bytes[70_000..70_010]);
        let end = Range {
            offset: 199_990,
            length: Some(1000),
        };
        assert_eq!(get(&**store, digest, end).await, bytes[199_990..]);
        let beyond = Range {
            offset: 200_001,
            length: None,
        };
        assert!(matches!(
            store.get(digest, beyond).await,
            Err(Error::InvalidRange { .. })
        ));
    }
}

#[tokio::test]
async fn an_upload_resumes_where_it_broke_off() {
    let (_dir, stores) = stores();
    for store in &stores {
        let bytes = content(5000);
        let digest = Digest::of(&bytes);
        let request = |offset| PutRequest {
            digest,
            size: 5000,
            offset,
        };
        let broken =
            upload(&bytes[..2000], 700).chain(futures::stream::iter([Err(std::io::Error::other("cut"))]));
        let answer = store.put(request(0), broken.boxed()).await;
        assert!(
            matches!(answer, Err(Error::Interrupted { durable: 2000, .. })),
            "{answer:?}"
        );
        assert_eq!(
            store.stat(digest).await.unwrap(),
            BlobStat {
                size: None,
                partial: 2000
            }
        );
        let answer = store.put(request(2001), upload(&bytes[2001..], 700)).await;
        assert!(
            matches!(
                answer,
                Err(Error::Gap {
                    offset: 2001,
                    durable: 2000
                })
            ),
            "{answer:?}"
        );
        // Overlapping, and again not to the end.
        let stat = store
            .put(request(1500), upload(&bytes[1500..3000], 700))
            .await
            .unwrap();
        assert_eq!(
            stat,
            BlobStat {
                size: None,
                partial: 3000
            }
        );
        let stat = store
            .put(request(3000), upload(&bytes[3000..], 700))
            .await
            .unwrap();
        assert_eq!(stat.size, Some(5000));
        assert_eq!(get(&**store, digest, Range::default()).await, bytes);
    }
}

#[tokio::test]
async fn a_wrong_digest_leaves_nothing() {
    let (_dir, stores) = stores();
    for store in &stores {
        let (bytes, digest) = (content(100), Digest::of(b"other"));
        let request = PutRequest {
            digest,
            size: 100,
            offset: 0,
        };
        let answer = store.put(request, upload(&bytes, 10)).await;
        assert!(matches!(answer, Err(Error::DigestMismatch { .. })), "{answer:?}");
        assert_eq!(store.stat(digest).await.unwrap(), BlobStat::default());
    }
}

#[tokio::test]
async fn uploads_are_bounded() {
    let (_dir, stores) = stores();
    for store in &stores {
        let digest = Digest::of(b"x");
        let huge = PutRequest {
            digest,
            size: MAX_BLOB + 1,
            offset: 0,
        };
        assert!(matches!(
            store.put(huge, upload(b"", 1)).await,
            Err(Error::TooLarge { .. })
        ));
        let more = PutRequest {
            digest,
            size: 10,
            offset: 0,
        };
        let answer = store.put(more, upload(&content(11), 4)).await;
        assert!(
            matches!(answer, Err(Error::TooLarge { size: 11, limit: 10 })),
            "{answer:?}"
        );
        assert_eq!(store.stat(digest).await.unwrap(), BlobStat::default());
    }
}

#[tokio::test]
async fn the_collector_finds_what_is_old() {
    let (_dir, stores) = stores();
    for store in &stores {
        let mut digests = Vec::new();
        for n in 0..5_u8 {
            put(&**store, &[n]).await.unwrap();
            digests.push(Digest::of(&[n]));
        }
        digests.sort_unstable();
        let unfinished = PutRequest {
            digest: Digest::of(b"unfinished"),
            size: 10,
            offset: 0,
        };
        store.put(unfinished, upload(b"unf", 3)).await.unwrap();
        assert!(
            store
                .older_than(SystemTime::UNIX_EPOCH, None, 10)
                .await
                .unwrap()
                .is_empty()
        );
        assert_eq!(store.drop_partial(SystemTime::UNIX_EPOCH).await.unwrap(), 0);
        let later = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40);
        let first = store.older_than(later, None, 3).await.unwrap();
        let rest = store.older_than(later, Some(first[2].digest), 3).await.unwrap();
        let found: Vec<Digest> = first.iter().chain(&rest).map(|info| info.digest).collect();
        assert_eq!(found, digests);
        assert!(store.delete(digests[0]).await.unwrap());
        assert!(!store.delete(digests[0]).await.unwrap());
        assert_eq!(store.stat(digests[0]).await.unwrap().size, None);
        assert_eq!(store.drop_partial(later).await.unwrap(), 1);
        assert_eq!(store.stat(unfinished.digest).await.unwrap(), BlobStat::default());
    }
}

/// Reads a stream to its end: the bytes by offset, and the gaps.
async fn read_all(store: &dyn BlobStore, id: &StreamId) -> (Vec<(u64, u8)>, Vec<(u64, u64)>) {
    let (mut offset, mut bytes, mut gaps) = (0, Vec::new(), Vec::new());
    loop {
        match store.read(id.clone(), offset, 7).await.unwrap() {
            Chunk::Data {
                offset: at,
                bytes: piece,
            } => {
                assert_eq!(at, offset);
                bytes.extend(piece.iter().enumerate().map(|(n, byte)| (at + n as u64, *byte)));
                offset += piece.len() as u64;
            }
            Chunk::Gap { from, to } => {
                assert_eq!(from, offset);
                gaps.push((from, to));
                offset = to;
            }
            Chunk::End { offset: end } => {
                assert_eq!(end, offset);
                return (bytes, gaps);
            }
        }
    }
}

#[tokio::test]
async fn a_stream_keeps_its_head_and_its_newest_and_marks_the_gap() {
    let (_dir, stores) = stores();
    for store in &stores {
        let id = StreamId::new("run-1", "stdout").unwrap();
        let text = content(100);
        assert_eq!(
            store
                .append(id.clone(), 0, Bytes::copy_from_slice(&text[..30]))
                .await
                .unwrap(),
            30
        );
        assert_eq!(read_all(&**store, &id).await.1, []);
        // The repetition overlaps.
        assert_eq!(
            store
                .append(id.clone(), 20, Bytes::copy_from_slice(&text[20..]))
                .await
                .unwrap(),
            100
        );
        let (bytes, gaps) = read_all(&**store, &id).await;
        assert_eq!(gaps.len(), 1);
        assert_eq!(gaps[0].0, LIMITS.head);
        assert!(bytes.len() as u64 <= LIMITS.total);
        assert!(bytes.len() as u64 > LIMITS.total - LIMITS.segment);
        assert_eq!(bytes.last(), Some(&(99, text[99])));
        assert!(
            bytes
                .iter()
                .all(|(at, byte)| text[usize::try_from(*at).unwrap()] == *byte)
        );
        let answer = store.append(id.clone(), 101, Bytes::from_static(b"x")).await;
        assert!(
            matches!(
                answer,
                Err(Error::Gap {
                    offset: 101,
                    durable: 100
                })
            ),
            "{answer:?}"
        );
        assert_eq!(store.len(id.clone()).await.unwrap(), 100);
        assert_eq!(store.streams("run-1").await.unwrap(), std::slice::from_ref(&id));
        assert_eq!(store.runs(None, 10).await.unwrap(), ["run-1"]);
        assert!(store.runs(Some("run-1"), 10).await.unwrap().is_empty());
        store.delete_streams("run-1").await.unwrap();
        assert_eq!(
            store.read(id.clone(), 0, 10).await.unwrap(),
            Chunk::End { offset: 0 }
        );
        assert!(store.runs(None, 10).await.unwrap().is_empty());
        assert_eq!(
            store.append(id, 0, Bytes::from_static(b"again")).await.unwrap(),
            5
        );
    }
}

#[tokio::test]
async fn a_skip_reads_as_a_gap_and_the_stream_goes_on() {
    let (_dir, stores) = stores();
    for store in stores {
        let id = StreamId::new("run-1", "log").unwrap();
        store
            .append(id.clone(), 0, Bytes::from_static(b"abc"))
            .await
            .unwrap();
        assert_eq!(store.skip(id.clone(), 10).await.unwrap(), 10);
        assert_eq!(store.skip(id.clone(), 2).await.unwrap(), 10, "never back");
        assert_eq!(
            store
                .append(id.clone(), 10, Bytes::from_static(b"xy"))
                .await
                .unwrap(),
            12
        );
        let (bytes, gaps) = read_all(store.as_ref(), &id).await;
        assert_eq!(bytes, [(0, b'a'), (1, b'b'), (2, b'c'), (10, b'x'), (11, b'y')]);
        assert_eq!(gaps, [(3, 10)]);
    }
}

#[tokio::test]
async fn wild_offsets_are_refused_and_leave_the_stream_as_it_was() {
    let (_dir, stores) = stores();
    for store in stores {
        let id = StreamId::new("run-1", "log").unwrap();
        let abc = Bytes::from_static(b"abc");
        store.append(id.clone(), 0, abc.clone()).await.unwrap();
        for wild in [u64::MAX, u64::MAX - 2, 1 << 60] {
            let skipped = store.skip(id.clone(), wild).await;
            assert!(matches!(skipped, Err(Error::TooLarge { .. })), "{skipped:?}");
            let appended = store.append(id.clone(), wild, abc.clone()).await;
            assert!(
                matches!(appended, Err(Error::Gap { durable: 3, .. })),
                "{appended:?}"
            );
        }
        let end = 1 << 53;
        assert_eq!(store.skip(id.clone(), end).await.unwrap(), end);
        let over = store.append(id.clone(), end, abc.clone()).await;
        assert!(matches!(over, Err(Error::TooLarge { .. })), "{over:?}");
        let (bytes, gaps) = read_all(store.as_ref(), &id).await;
        assert_eq!(bytes, [(0, b'a'), (1, b'b'), (2, b'c')]);
        assert_eq!(gaps, [(3, end)]);
    }
}

#[tokio::test]
async fn a_sender_that_skips_without_end_does_not_fill_the_disk_with_files() {
    let dir = tempfile::tempdir().unwrap();
    let store = files(&dir);
    let id = StreamId::new("run-1", "log").unwrap();
    store
        .append(id.clone(), 0, Bytes::from_static(b"head"))
        .await
        .unwrap();
    for n in 1..=600 {
        store.skip(id.clone(), n * 10).await.unwrap();
    }
    let segments = std::fs::read_dir(dir.path().join("blobs/streams/run-1/log")).unwrap();
    assert!(segments.count() <= 256);
    let (bytes, gaps) = read_all(&store, &id).await;
    assert_eq!(bytes.len(), 4, "the head stays");
    assert_eq!(gaps.iter().map(|(from, to)| to - from).sum::<u64>(), 5996);
}

#[tokio::test]
async fn followers_hear_of_growth() {
    let (_dir, stores) = stores();
    for store in &stores {
        let id = StreamId::new("run-1", "stdout").unwrap();
        let mut length = store.follow(id.clone()).await.unwrap();
        assert_eq!(*length.borrow_and_update(), 0);
        store.append(id, 0, Bytes::from_static(b"hello")).await.unwrap();
        let heard = tokio::time::timeout(Duration::from_secs(10), length.changed()).await;
        heard.expect("the follower heard nothing").unwrap();
        assert_eq!(*length.borrow(), 5);
    }
}

#[test]
fn names_cannot_leave_the_folder() {
    for run in ["", ".", "..", "a/b", "../a", "-a", "a\0", "ä", &"x".repeat(65)] {
        assert!(StreamId::new(run, "log").is_err(), "{run:?}");
    }
    for name in [
        "",
        ".",
        "..",
        "a/b",
        "../a",
        ".hidden",
        "a..b",
        "A",
        "a\0",
        &"x".repeat(64),
    ] {
        assert!(StreamId::new("run", name).is_err(), "{name:?}");
    }
    assert!(StreamId::new("3f2c-A9", "stdout.jsonl").is_ok());
    for digest in [
        "",
        "sha256:",
        "sha256:../../etc/passwd",
        &"A".repeat(64),
        &"a".repeat(63),
    ] {
        assert!(digest.parse::<Digest>().is_err(), "{digest:?}");
    }
    let digest = Digest::of(b"x");
    assert_eq!(digest.to_string().parse::<Digest>().unwrap(), digest);
    assert_eq!(digest.hex().parse::<Digest>().unwrap(), digest);
}

#[tokio::test]
async fn files_survive_a_restart_and_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let id = StreamId::new("run-1", "stdout").unwrap();
    let (bytes, text) = (content(3000), content(100));
    let half = PutRequest {
        digest: Digest::of(&bytes),
        size: 3000,
        offset: 0,
    };
    let before = {
        let store = files(&dir);
        store.append(id.clone(), 0, text.clone().into()).await.unwrap();
        store.put(half, upload(&bytes[..1000], 100)).await.unwrap();
        read_all(&store, &id).await
    };
    let store = files(&dir);
    assert_eq!(read_all(&store, &id).await, before);
    assert_eq!(
        store
            .append(id.clone(), 90, Bytes::from_static(b"0123456789abc"))
            .await
            .unwrap(),
        103
    );
    let rest = PutRequest { offset: 1000, ..half };
    store.put(rest, upload(&bytes[1000..], 100)).await.unwrap();
    assert_eq!(get(&store, half.digest, Range::default()).await, bytes);
    let hex = half.digest.hex();
    for (path, mode) in [
        (String::new(), 0o700),
        (format!("blobs/{}/{hex}", &hex[..2]), 0o600),
        ("streams/run-1".to_owned(), 0o700),
        ("streams/run-1/stdout/00000000000000000000".to_owned(), 0o600),
    ] {
        let metadata = dir.path().join("blobs").join(&path).metadata().unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{path}");
    }
}

#[tokio::test]
async fn one_writer_a_digest() {
    let dir = tempfile::tempdir().unwrap();
    let store = files(&dir);
    let bytes = content(10);
    let request = PutRequest {
        digest: Digest::of(&bytes),
        size: 10,
        offset: 0,
    };
    let (first, rest) = (upload(&bytes[..5], 5), upload(&bytes[5..], 5));
    let (ask, asked) = tokio::sync::oneshot::channel();
    let (go, gone) = tokio::sync::oneshot::channel::<()>();
    let waiting = futures::stream::once(async move {
        ask.send(()).unwrap();
        gone.await.unwrap();
        Ok(Bytes::new())
    });
    let slow = store.put(request, first.chain(waiting).chain(rest).boxed());
    let other = async {
        asked.await.unwrap();
        let answer = put(&store, &bytes).await;
        assert!(
            matches!(&answer, Err(error @ Error::Busy { .. }) if error.is_retryable()),
            "{answer:?}"
        );
        go.send(()).unwrap();
    };
    let (slow, ()) = futures::future::join(slow, other).await;
    assert_eq!(slow.unwrap().size, Some(10));
    assert_eq!(put(&store, &bytes).await.unwrap().size, Some(10));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn repeated_and_overlapping_appends_make_one_stream(
        steps in proptest::collection::vec((0_u64..20, 0_usize..40), 1..12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (_dir, stores) = stores();
            for store in &stores {
                let id = StreamId::new("run", "log").unwrap();
                let mut len = 0_u64;
                for (back, more) in &steps {
                    let offset = len.saturating_sub(*back);
                    let bytes: Vec<u8> = (offset..offset + *more as u64).map(|at| (at % 251) as u8).collect();
                    len = len.max(offset + *more as u64);
                    assert_eq!(store.append(id.clone(), offset, bytes.into()).await.unwrap(), len);
                }
                let (bytes, gaps) = read_all(&**store, &id).await;
                assert!(bytes.iter().all(|(at, byte)| (*at % 251) as u8 == *byte));
                let missing: u64 = gaps.iter().map(|(from, to)| to - from).sum();
                assert_eq!(bytes.len() as u64 + missing, len);
                assert!(gaps.len() <= 1 && bytes.len() as u64 <= LIMITS.total);
            }
        });
    }
}
