//! What waits for a device that reads slowly: bounded in messages and in bytes, whatever the messages are.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use panda_rpc::v1::{ServerMessage, server_message};
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::Status;

/// Messages waiting for a device.
const MESSAGES: usize = 64;
/// Bytes of messages waiting for a device; a larger message waits alone.
const BYTES: usize = 4 << 20;
/// What bytes are counted in.
const UNIT: usize = 1 << 10;
/// How long a device may leave its side full before it is cut.
const PATIENCE: Duration = Duration::from_secs(20);

type Queued = (Result<ServerMessage, Status>, Option<OwnedSemaphorePermit>);

/// The server's end.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    queue: mpsc::Sender<Queued>,
    room: Arc<Semaphore>,
}

/// The connection's end.
#[derive(Debug)]
pub(crate) struct Reading(mpsc::Receiver<Queued>);

/// Both ends of a new queue.
pub(crate) fn queue() -> (Outgoing, Reading) {
    let (queue, receiver) = mpsc::channel(MESSAGES);
    let room = Arc::new(Semaphore::new(BYTES / UNIT));
    (Outgoing { queue, room }, Reading(receiver))
}

impl Outgoing {
    /// Queues a message as soon as there is room. Given up before, it has queued nothing.
    ///
    /// # Errors
    /// When the device is gone, or has read nothing for [`PATIENCE`].
    pub(crate) async fn send(&self, body: server_message::Body) -> Result<(), Status> {
        let message = ServerMessage { body: Some(body) };
        let share = (message.encoded_len() / UNIT + 1).min(BYTES / UNIT);
        let share = u32::try_from(share).unwrap_or(u32::MAX);
        let queued = async {
            let slot = self.queue.reserve().await.ok()?;
            // A queue that is dropped gives its room back, and the next reservation says that the device is gone.
            let room = Arc::clone(&self.room).acquire_many_owned(share).await.ok()?;
            slot.send((Ok(message), Some(room)));
            Some(())
        };
        let queued = tokio::time::timeout(PATIENCE, queued).await;
        let queued = queued.map_err(|_| Status::deadline_exceeded("the device does not read"))?;
        queued.ok_or_else(|| Status::cancelled("the device is gone"))
    }

    /// Says why the session is over, if there is room; nobody may be left to hear it.
    pub(crate) fn end(&self, why: Status) {
        let _: Result<(), _> = self.queue.try_send((Err(why), None));
    }
}

impl Stream for Reading {
    type Item = Result<ServerMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0
            .poll_recv(cx)
            .map(|queued| queued.map(|(message, _)| message))
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use panda_rpc::v1::AgentsUpsert;

    use super::*;

    fn of_size(bytes: usize) -> server_message::Body {
        server_message::Body::Agents(AgentsUpsert {
            agents: vec![b'x'; bytes],
        })
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_that_nobody_reads_are_bounded_and_then_the_device_is_cut() {
        let (out, mut reading) = queue();
        let mut waiting = 0;
        let why = loop {
            match out.send(of_size(300 << 10)).await {
                Ok(()) => waiting += 300 << 10,
                Err(why) => break why,
            }
        };
        assert_eq!(why.code(), tonic::Code::DeadlineExceeded);
        assert!((3 << 20..=BYTES).contains(&waiting), "{waiting}");
        // What is read makes room; one that is larger than all room goes alone.
        while waiting > 0 {
            reading.next().await.unwrap().unwrap();
            waiting -= 300 << 10;
        }
        out.send(of_size(2 * BYTES)).await.unwrap();
        out.send(of_size(1)).await.unwrap_err();
        reading.next().await.unwrap().unwrap();
        out.send(of_size(1)).await.unwrap();
        drop(reading);
        assert_eq!(
            out.send(of_size(1)).await.unwrap_err().code(),
            tonic::Code::Cancelled
        );
    }
}
