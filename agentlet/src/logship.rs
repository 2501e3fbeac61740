//! Brings a run's output to the server, from whatever offset the server has, until everything is there.
//!
//! The device keeps its copy until the offset is acknowledged; a lost connection costs nothing but the bytes that were
//! under way.

use std::io;
use std::time::Duration;

use panda_rpc::v1::{Fence, LogAck, LogChunk};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::session::Client;

/// Bytes in one message.
const CHUNK: usize = 128 << 10;
/// Pauses of a source that has nothing new: from the first to the last, growing.
const POLL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Pause after a failed connection.
const RETRY: Duration = Duration::from_millis(500);
/// How long an acknowledgement may take.
const ANSWER: Duration = Duration::from_secs(30);

/// What a source has at an offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Data(Vec<u8>),
    /// Bytes up to here are no longer kept.
    Gap(u64),
    End,
}

/// One stream of a run's output.
pub(crate) trait Source: Send + Sync {
    /// Name of the stream.
    fn name(&self) -> &'static str;
    /// Up to `max` bytes from `offset`.
    fn read(&self, offset: u64, max: usize) -> io::Result<Piece>;
}

/// Ships a run's streams.
pub(crate) struct LogShip {
    pub(crate) fence: Fence,
    pub(crate) sources: Vec<Box<dyn Source>>,
    pub(crate) client: watch::Receiver<Option<Client>>,
    /// True once nothing more will be written.
    pub(crate) complete: watch::Receiver<bool>,
}

/// One connection's way of appending.
struct Appender {
    tx: mpsc::Sender<LogChunk>,
    acks: Streaming<LogAck>,
}

/// Why appending stopped.
enum Stop {
    /// Try again over a new connection.
    Again,
    /// The server does not take logs of this run any more.
    Refused,
}

impl LogShip {
    /// Ends when the server has everything, or refuses to take it.
    pub(crate) async fn run(mut self) {
        loop {
            let Some(client) = connected(&mut self.client).await else {
                return;
            };
            match self.ship(client).await {
                Ok(()) | Err(Stop::Refused) => return,
                Err(Stop::Again) => tokio::time::sleep(RETRY).await,
            }
        }
    }

    async fn ship(&mut self, mut client: Client) -> Result<(), Stop> {
        let (tx, rx) = mpsc::channel(1);
        // An empty chunk asks how much the server has; it also lets a server that answers late answer at all.
        let mut offsets = vec![None; self.sources.len()];
        let mut gaps = vec![false; self.sources.len()];
        let Some(probe) = self.sources.first().map(|source| self.chunk(source.as_ref(), 0)) else {
            return Ok(());
        };
        tx.send(probe).await.map_err(|_| Stop::Again)?;
        let acks = tokio::time::timeout(ANSWER, client.append_log(ReceiverStream::new(rx)))
            .await
            .map_err(|_| Stop::Again)?
            .map_err(|status| stop(&status))?
            .into_inner();
        let mut appender = Appender { tx, acks };
        if let Some(first) = offsets.first_mut() {
            *first = Some(appender.answer().await?);
        }
        let mut pause = POLL.0;
        loop {
            let last_round = *self.complete.borrow();
            let mut idle = true;
            for ((source, known), gap) in self.sources.iter().zip(&mut offsets).zip(&mut gaps) {
                let offset = match *known {
                    Some(offset) => offset,
                    None => {
                        appender.send(self.chunk(source.as_ref(), 0)).await?;
                        appender.answer().await?
                    }
                };
                *known = Some(offset);
                match source.read(offset, CHUNK) {
                    Ok(Piece::Data(data)) => {
                        let chunk = LogChunk {
                            data,
                            gap: std::mem::take(gap),
                            ..self.chunk(source.as_ref(), offset)
                        };
                        appender.send(chunk).await?;
                        *known = Some(appender.answer().await?);
                    }
                    // The next bytes say that something before them is lost.
                    Ok(Piece::Gap(to)) => {
                        *gap = true;
                        *known = Some(to);
                    }
                    Ok(Piece::End) => continue,
                    Err(error) => {
                        tracing::warn!(%error, stream = source.name(), "log cannot be read");
                        continue;
                    }
                }
                idle = false;
            }
            if !idle {
                pause = POLL.0;
                continue;
            }
            if last_round {
                return Ok(());
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(POLL.1),
                changed = self.complete.changed() => if changed.is_err() { return Ok(()) },
            }
        }
    }

    fn chunk(&self, source: &dyn Source, offset: u64) -> LogChunk {
        LogChunk {
            fence: Some(self.fence.clone()),
            stream: source.name().to_owned(),
            offset,
            ..LogChunk::default()
        }
    }
}

impl Appender {
    async fn send(&self, chunk: LogChunk) -> Result<(), Stop> {
        self.tx.send(chunk).await.map_err(|_| Stop::Again)
    }

    /// The offset that is durable now.
    async fn answer(&mut self) -> Result<u64, Stop> {
        match tokio::time::timeout(ANSWER, self.acks.message()).await {
            Ok(Ok(Some(ack))) if ack.stale.is_empty() => Ok(ack.offset),
            Ok(Ok(Some(ack))) => {
                tracing::info!(run = ack.run_uid, reason = ack.stale, "log refused as stale");
                Err(Stop::Refused)
            }
            Ok(Err(status)) => Err(stop(&status)),
            Ok(Ok(None)) | Err(_) => Err(Stop::Again),
        }
    }
}

fn stop(status: &tonic::Status) -> Stop {
    match status.code() {
        tonic::Code::PermissionDenied | tonic::Code::NotFound | tonic::Code::InvalidArgument => Stop::Refused,
        _ => Stop::Again,
    }
}

/// The client of the session that is open, once one is. `None` when the daemon ends.
pub(crate) async fn connected(client: &mut watch::Receiver<Option<Client>>) -> Option<Client> {
    client.wait_for(Option::is_some).await.ok()?.clone()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::session::client_of;
    use crate::testing::FakeServer;

    /// A log in memory whose first bytes may be gone.
    struct Growing(&'static str, Arc<Mutex<Vec<u8>>>);

    impl Source for Growing {
        fn name(&self) -> &'static str {
            self.0
        }

        fn read(&self, offset: u64, max: usize) -> io::Result<Piece> {
            let bytes = self.1.lock().unwrap();
            let rest = bytes.get(usize::try_from(offset).unwrap()..).unwrap_or(&[]);
            let rest = &rest[..rest.len().min(max)];
            Ok(if rest.is_empty() {
                Piece::End
            } else {
                Piece::Data(rest.to_vec())
            })
        }
    }

    struct Cut;

    impl Source for Cut {
        fn name(&self) -> &'static str {
            "log"
        }

        fn read(&self, offset: u64, _: usize) -> io::Result<Piece> {
            Ok(match offset {
                0 => Piece::Data(b"head".to_vec()),
                4..8 => Piece::Gap(8),
                8 => Piece::Data(b"tail".to_vec()),
                _ => Piece::End,
            })
        }
    }

    #[tokio::test]
    async fn lost_bytes_are_named_as_a_gap() {
        let server = FakeServer::start().await;
        let client_now = client_of(&server).await;
        let (_client, client) = watch::channel(Some(client_now));
        let (_done, complete) = watch::channel(true);
        let fence = Fence {
            run_uid: "r1".into(),
            ..Fence::default()
        };
        LogShip {
            fence,
            sources: vec![Box::new(Cut)],
            client,
            complete,
        }
        .run()
        .await;
        let key = ("r1".to_owned(), "log".to_owned());
        assert_eq!(server.state().logs[&key], b"head????tail");
    }

    #[tokio::test]
    async fn everything_arrives_once_although_the_connection_comes_and_goes() {
        let server = FakeServer::start().await;
        let out = Arc::new(Mutex::new(b"first ".to_vec()));
        let err = Arc::new(Mutex::new(vec![7_u8; 3 * CHUNK + 5]));
        let key = |name: &str| ("r1".to_owned(), name.to_owned());
        // The server has a part already: an acknowledgement was lost.
        server.state().logs.insert(key("stdout"), b"fir".to_vec());
        let (client_tx, client) = watch::channel(None);
        let (done, complete) = watch::channel(false);
        let ship = LogShip {
            fence: Fence {
                run_uid: "r1".into(),
                ..Fence::default()
            },
            sources: vec![
                Box::new(Growing("stdout", Arc::clone(&out))),
                Box::new(Growing("stderr", Arc::clone(&err))),
            ],
            client,
            complete,
        };
        let task = tokio::spawn(ship.run());
        let client_now = client_of(&server).await;
        client_tx.send(Some(client_now)).unwrap();
        let all = 3 * CHUNK + 5;
        let arrived =
            |s: &crate::testing::State| (s.logs.get(&key("stderr")).map(Vec::len) == Some(all)).then_some(());
        server.until("stderr", arrived).await;
        out.lock().unwrap().extend_from_slice(b"second");
        done.send(true).unwrap();
        task.await.unwrap();
        assert_eq!(server.state().logs[&key("stdout")], b"first second");
        assert_eq!(server.state().logs[&key("stderr")], vec![7_u8; all]);
    }
}
