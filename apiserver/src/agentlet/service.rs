//! The gRPC service that devices dial.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use panda_rpc::v1::agentlet_server::Agentlet;
use panda_rpc::v1::{
    BlobChunk, DeviceMessage, Fence, GetBlobRequest, GetRunSecretsRequest, LogAck, LogChunk, PutBlobChunk,
    RunSecrets, ServerMessage, StatBlobRequest, StatBlobResponse,
};
use panda_store::blob::{self, Digest, PutRequest, Range, StreamId};
use tonic::{Request, Response, Status, Streaming};

use super::outgoing;
use super::session::Session;
use super::{Agentlets, DeviceId};
use crate::authn::User;

/// Largest blob that a device may upload.
const MAX_BLOB: u64 = 4 << 30;
/// Streams of a run's log that a device may write.
const STREAMS: [&str; 2] = ["log", "events"];

/// Server side of the agentlet service.
#[derive(Clone)]
pub(crate) struct Service(pub(crate) Arc<Agentlets>);

type Boxed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Who calls: only a device's certificate opens this service.
fn device<T>(request: &Request<T>) -> Result<DeviceId, Status> {
    let user = request.extensions().get::<User>();
    let device = user.and_then(User::device);
    let device =
        device.ok_or_else(|| Status::unauthenticated("the agentlet service needs a device's certificate"))?;
    Ok(DeviceId {
        name: device.name.clone(),
        uid: device.uid.clone(),
    })
}

impl Service {
    async fn append(
        &self,
        device: &DeviceId,
        known: &mut HashMap<String, Fence>,
        chunk: LogChunk,
    ) -> Result<LogAck, Status> {
        let run_uid = chunk
            .fence
            .as_ref()
            .map(|fence| fence.run_uid.clone())
            .unwrap_or_default();
        let stale = |why: &str| LogAck {
            run_uid: run_uid.clone(),
            stream: chunk.stream.clone(),
            offset: chunk.offset,
            stale: why.to_owned(),
        };
        if !STREAMS.contains(&chunk.stream.as_str()) {
            return Err(Status::invalid_argument(format!("streams are {STREAMS:?}")));
        }
        // What a fence names never changes, so one look a stream is enough; that the Run exists is looked at each time.
        if self.0.index.find(&device.uid, &run_uid).is_none() {
            known.remove(&run_uid);
            return Ok(stale("no such run on this device"));
        }
        if known.get(&run_uid) != chunk.fence.as_ref() {
            match self.0.bound_run(device, chunk.fence.as_ref()).await {
                Ok(_) => known.insert(run_uid.clone(), chunk.fence.clone().unwrap_or_default()),
                Err(status) if status.code() == tonic::Code::FailedPrecondition => {
                    return Ok(stale(status.message()));
                }
                Err(status) => return Err(status),
            };
        }
        // The device keeps its log until there is room; results come first.
        if let Some(why) = self.0.pressure.refusal() {
            return Err(Status::unavailable(why));
        }
        let stream = StreamId::new(&run_uid, &chunk.stream).map_err(blob_status)?;
        if chunk.gap {
            self.0
                .blobs
                .skip(stream.clone(), chunk.offset)
                .await
                .map_err(blob_status)?;
        }
        let offset = match self.0.blobs.append(stream, chunk.offset, chunk.data.into()).await {
            Ok(offset) => offset,
            // The device sends again from what is durable here.
            Err(blob::Error::Gap { durable, .. }) => durable,
            Err(error) => return Err(blob_status(error)),
        };
        Ok(LogAck {
            run_uid,
            stream: chunk.stream,
            offset,
            stale: String::new(),
        })
    }
}

fn digest(text: &str) -> Result<Digest, Status> {
    text.parse()
        .map_err(|_| Status::invalid_argument("a digest is sha256: and 64 hexadecimal digits"))
}

pub(crate) fn blob_status(error: blob::Error) -> Status {
    let message = error.to_string();
    match error {
        blob::Error::NotFound { .. } => Status::not_found(message),
        blob::Error::DigestMismatch { .. } => Status::data_loss(message),
        blob::Error::TooLarge { .. } => Status::resource_exhausted(message),
        blob::Error::Gap { .. } | blob::Error::InvalidRange { .. } => Status::out_of_range(message),
        blob::Error::InvalidName { .. } => Status::invalid_argument(message),
        blob::Error::DiskFull => Status::unavailable(message),
        _ => {
            tracing::warn!(error = &error as &dyn std::error::Error, "blob store failed");
            Status::unavailable(message)
        }
    }
}

#[tonic::async_trait]
impl Agentlet for Service {
    type SessionStream = Boxed<ServerMessage>;

    async fn session(
        &self,
        request: Request<Streaming<DeviceMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let device = device(&request)?;
        let key = request.extensions().get::<User>().map(User::key_fingerprint);
        self.0.note_key(&device, key.unwrap_or_default()).await?;
        let (number, cut) = self.0.sessions.begin(&device.uid);
        let (out, reading) = outgoing::queue();
        let agentlets = Arc::clone(&self.0);
        let incoming = request.into_inner();
        self.0.tracker.spawn(async move {
            let session = Session {
                agentlets: &agentlets,
                device: device.clone(),
                out: out.clone(),
            };
            let ended = session.run(incoming, cut).await;
            agentlets.sessions.end(&device.uid, number);
            match ended {
                Ok(()) => tracing::info!(device = %device.name, "device disconnected"),
                Err(status) => {
                    tracing::info!(device = %device.name, why = %status.message(), "session ended");
                    out.end(status);
                }
            }
        });
        Ok(Response::new(Box::pin(reading)))
    }

    type AppendLogStream = Boxed<LogAck>;

    async fn append_log(
        &self,
        request: Request<Streaming<LogChunk>>,
    ) -> Result<Response<Self::AppendLogStream>, Status> {
        let device = device(&request)?;
        let service = self.clone();
        let removed = self.0.members.until_removed(&device.uid);
        self.0.registered(&device).await?;
        let chunks = request.into_inner().take_until(removed.cancelled_owned());
        let state = (service, device, HashMap::new(), Box::pin(chunks));
        let acks =
            futures::stream::try_unfold(state, |(service, device, mut known, mut chunks)| async move {
                match chunks.next().await {
                    None => Ok(None),
                    Some(chunk) => {
                        let ack = service.append(&device, &mut known, chunk?).await?;
                        Ok(Some((ack, (service, device, known, chunks))))
                    }
                }
            });
        Ok(Response::new(Box::pin(acks)))
    }

    async fn stat_blob(
        &self,
        request: Request<StatBlobRequest>,
    ) -> Result<Response<StatBlobResponse>, Status> {
        let device = device(&request)?;
        let request = request.into_inner();
        self.0.may_upload(&device, request.fence.as_ref()).await?;
        let stat = self
            .0
            .blobs
            .stat(digest(&request.digest)?)
            .await
            .map_err(blob_status)?;
        Ok(Response::new(StatBlobResponse {
            have: stat.size.unwrap_or(stat.partial),
            complete: stat.size.is_some(),
        }))
    }

    async fn put_blob(
        &self,
        request: Request<Streaming<PutBlobChunk>>,
    ) -> Result<Response<StatBlobResponse>, Status> {
        let device = device(&request)?;
        let mut chunks = request.into_inner();
        let first = chunks
            .next()
            .await
            .ok_or_else(|| Status::invalid_argument("an upload needs a first chunk"))??;
        self.0.may_upload(&device, first.fence.as_ref()).await?;
        if first.size > MAX_BLOB {
            return Err(Status::resource_exhausted(format!(
                "a blob is at most {MAX_BLOB} bytes"
            )));
        }
        let put = PutRequest {
            digest: digest(&first.digest)?,
            size: first.size,
            offset: first.offset,
        };
        let head = futures::stream::once(std::future::ready(Ok(bytes::Bytes::from(first.data))));
        let tail = chunks.map(|chunk| match chunk {
            Ok(chunk) => Ok(chunk.data.into()),
            Err(status) => Err(std::io::Error::other(status.message().to_owned())),
        });
        let stat = self
            .0
            .blobs
            .put(put, head.chain(tail).boxed())
            .await
            .map_err(blob_status)?;
        Ok(Response::new(StatBlobResponse {
            have: stat.size.unwrap_or(stat.partial),
            complete: stat.size.is_some(),
        }))
    }

    async fn get_run_secrets(
        &self,
        request: Request<GetRunSecretsRequest>,
    ) -> Result<Response<RunSecrets>, Status> {
        let device = device(&request)?;
        let fence = request.into_inner().fence;
        let run = self.0.live_run(&device, fence.as_ref()).await?;
        Ok(Response::new(self.0.secrets(&run).await?))
    }

    type GetBlobStream = Boxed<BlobChunk>;

    async fn get_blob(
        &self,
        request: Request<GetBlobRequest>,
    ) -> Result<Response<Self::GetBlobStream>, Status> {
        let device = device(&request)?;
        let request = request.into_inner();
        let run = self.0.live_run(&device, request.fence.as_ref()).await?;
        // A digest is never permission: only what the run itself names.
        let text = serde_json::to_string(&run).map_err(|_| Status::internal("the run does not serialise"))?;
        let digest = digest(&request.digest)?;
        if !text.contains(&digest.to_string()) {
            return Err(Status::permission_denied("the run does not name this blob"));
        }
        let range = Range {
            offset: request.offset,
            length: None,
        };
        let blob = self.0.blobs.get(digest, range).await.map_err(blob_status)?;
        let mut offset = request.offset;
        let chunks = blob.body.map(move |piece| {
            let data = piece.map_err(blob_status)?.to_vec();
            let chunk = BlobChunk { offset, data };
            offset += chunk.data.len() as u64;
            Ok(chunk)
        });
        Ok(Response::new(Box::pin(chunks)))
    }
}
