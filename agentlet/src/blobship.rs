//! Brings files to the server's blob store, by digest, from where an earlier try ended.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use panda_api::BlobRef;
use panda_rpc::v1::{Fence, PutBlobChunk, StatBlobRequest};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use crate::logship::connected;
use crate::session::Client;

/// Bytes in one message.
const CHUNK: usize = 256 << 10;
/// Pauses between tries, from the first to the last, doubling.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// Tries of a file that the server refuses.
const REFUSALS: u32 = 3;

/// A file that the server is to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BlobFile {
    pub(crate) path: PathBuf,
    pub(crate) blob: BlobRef,
}

/// Why a file cannot be handed over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot read {path} to hand it over")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("server refuses {digest}: {message}")]
    Refused { digest: String, message: String },
    #[error("the agentlet is stopping")]
    Stopping,
}

/// Digest and size of a file.
pub(crate) fn digest(path: &Path) -> io::Result<BlobRef> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut size = 0;
    let mut buffer = vec![0; CHUNK];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        hash.update(&buffer[..n]);
        size += n as u64;
    }
    Ok(BlobRef {
        digest: format!("sha256:{}", hex::encode(hash.finalize())),
        size,
    })
}

/// Hands `file` over; waits as long as there is no connection.
pub(crate) async fn upload(
    client: &mut watch::Receiver<Option<Client>>,
    fence: &Fence,
    file: &BlobFile,
) -> Result<(), Error> {
    let mut pause = RETRY.0;
    let mut refusals = 0;
    loop {
        let open = connected(client).await.ok_or(Error::Stopping)?;
        match once(open, fence, file).await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(Once::Read(source)) => {
                let path = file.path.clone();
                return Err(Error::Read { path, source });
            }
            Err(Once::Rpc(status)) => {
                use tonic::Code;
                tracing::debug!(code = ?status.code(), message = status.message(), "blob not taken");
                if matches!(
                    status.code(),
                    Code::PermissionDenied
                        | Code::NotFound
                        | Code::InvalidArgument
                        | Code::FailedPrecondition
                ) {
                    refusals += 1;
                    if refusals >= REFUSALS {
                        return Err(Error::Refused {
                            digest: file.blob.digest.clone(),
                            message: status.message().to_owned(),
                        });
                    }
                }
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY.1);
    }
}

enum Once {
    Read(io::Error),
    Rpc(tonic::Status),
}

impl From<tonic::Status> for Once {
    fn from(status: tonic::Status) -> Self {
        Self::Rpc(status)
    }
}

/// One try; true when the server has the whole file.
async fn once(mut client: Client, fence: &Fence, file: &BlobFile) -> Result<bool, Once> {
    let stat = client
        .stat_blob(StatBlobRequest {
            fence: Some(fence.clone()),
            digest: file.blob.digest.clone(),
        })
        .await?
        .into_inner();
    if stat.complete {
        return Ok(true);
    }
    let source = File::open(&file.path).map_err(Once::Read)?;
    let (tx, rx) = mpsc::channel(4);
    let (fence, blob) = (fence.clone(), file.blob.clone());
    let feed = tokio::task::spawn_blocking(move || feed(&source, &fence, &blob, stat.have, &tx));
    let answer = client.put_blob(ReceiverStream::new(rx)).await;
    // The feeder has ended: its receiver is gone.
    if let Ok(Err(error)) = feed.await {
        return Err(Once::Read(error));
    }
    Ok(answer?.into_inner().complete)
}

fn feed(
    source: &File,
    fence: &Fence,
    blob: &BlobRef,
    mut offset: u64,
    tx: &mpsc::Sender<PutBlobChunk>,
) -> io::Result<()> {
    loop {
        let mut data = vec![0; CHUNK];
        let n = source.read_at(&mut data, offset)?;
        data.truncate(n);
        let chunk = PutBlobChunk {
            fence: Some(fence.clone()),
            digest: blob.digest.clone(),
            size: blob.size,
            offset,
            data,
        };
        offset += n as u64;
        // An empty file is one empty chunk. A receiver that is gone has answered already.
        if tx.blocking_send(chunk).is_err() || n == 0 || offset >= blob.size {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::client_of;
    use crate::testing::FakeServer;

    #[tokio::test]
    async fn files_arrive_whole_and_only_once() {
        let server = FakeServer::start().await;
        let dir = tempfile::tempdir().unwrap();
        let (tx, mut client) = watch::channel(None);
        let client_now = client_of(&server).await;
        tx.send(Some(client_now)).unwrap();
        for content in [Vec::new(), b"short".to_vec(), vec![9; 2 * CHUNK + 1]] {
            let path = dir.path().join(content.len().to_string());
            std::fs::write(&path, &content).unwrap();
            let file = BlobFile {
                blob: digest(&path).unwrap(),
                path: path.clone(),
            };
            assert_eq!(file.blob.size, content.len() as u64);
            upload(&mut client, &Fence::default(), &file).await.unwrap();
            assert_eq!(server.state().blobs[&file.blob.digest], content);
            // The server has it: the file is not needed any more.
            std::fs::remove_file(&path).unwrap();
            upload(&mut client, &Fence::default(), &file).await.unwrap();
        }
    }

    #[tokio::test]
    async fn file_that_is_gone_is_an_error() {
        let server = FakeServer::start().await;
        let (tx, mut client) = watch::channel(None);
        let client_now = client_of(&server).await;
        tx.send(Some(client_now)).unwrap();
        let file = BlobFile {
            path: "/nonexistent/x".into(),
            blob: BlobRef::default(),
        };
        let error = upload(&mut client, &Fence::default(), &file).await.unwrap_err();
        assert!(matches!(error, Error::Read { .. }), "{error}");
    }
}
