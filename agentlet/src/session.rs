//! The connection to the server: one live session at a time, made anew for ever.
//!
//! This task only moves messages. What they mean is decided by the dispatcher in [`crate::daemon`]; it gets
//! [`SessionEvent`]s and answers through the [`Link`] of the session that is open.

mod told;

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use panda_api::meta::IdSource;
use panda_client::connector::{self, Connector};
use panda_rpc::v1::agentlet_client::AgentletClient;
use panda_rpc::v1::{DeviceMessage, ServerMessage, device_message};
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

use crate::credentials::Credentials;
use crate::endpoints::Endpoints;
use told::Told;

/// Messages on their way to the server; the dispatcher keeps fewer reports than this in flight.
pub(crate) const LINK_QUEUE: usize = 128;
/// How long making a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection on which nothing is answered for as long as both together is dead.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(10));
/// Pauses between failed tries double from the first to the last of these.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// The same for a control plane that has refused this device: only a person can change that.
const REFUSED: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));
/// How long a server may take for its first word; one that says nothing is passed over for the next.
const FIRST_WORD: Duration = Duration::from_secs(30);
/// A session that lived this long was a good one: the next is made at once.
const GOOD: Duration = Duration::from_secs(1);
/// Largest message from the server: a snapshot holds every run of the device.
const MAX_MESSAGE: usize = 64 << 20;

/// Bytes of messages that may wait for the dispatcher; a larger one waits alone.
const QUEUED_BYTES: usize = 16 << 20;
/// What bytes are counted in.
const UNIT: usize = 1 << 10;

/// Client of the service while a session is open, for logs and blobs.
pub(crate) type Client = AgentletClient<Channel>;

/// The way to the server while one session lasts.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    tx: mpsc::Sender<DeviceMessage>,
    cut: CancellationToken,
}

impl Link {
    /// Queues a message. A link whose queue is full is dead: it is cut, and a new session sends everything again.
    pub(crate) fn send(&self, body: device_message::Body) {
        if self.tx.try_send(DeviceMessage { body: Some(body) }).is_err() {
            self.cut.cancel();
        }
    }

    /// Ends the session.
    pub(crate) fn cut(&self) {
        self.cut.cancel();
    }
}

/// What happens on the connection.
#[derive(Debug)]
pub(crate) enum SessionEvent {
    /// A session is being opened: the first message must be Hello.
    Open(Link),
    /// The server said something.
    Message(Heard),
    /// The session is over.
    Closed,
}

/// A message, and its share of what may wait.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) message: Box<ServerMessage>,
    _share: OwnedSemaphorePermit,
}

/// The task that keeps a session open.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) ids: Arc<dyn IdSource>,
    pub(crate) events: mpsc::Sender<SessionEvent>,
    pub(crate) client: watch::Sender<Option<Client>>,
    /// Tells of renewed certificates, where there are any.
    pub(crate) renewals: Option<watch::Receiver<Arc<Credentials>>>,
    /// The addresses that the connector goes to, where there are several to choose from.
    pub(crate) endpoints: Option<Arc<Endpoints>>,
}

/// How one try ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// The server ended the session in good order.
    Clean,
    /// There was no session, or it broke.
    Broken,
    /// The server does not take this device.
    Refused,
}

impl Session {
    pub(crate) async fn run(self, token: CancellationToken) {
        let mut pause = BACKOFF.0;
        let mut told = Told::default();
        let mut refusals = 0;
        while !token.is_cancelled() {
            let opened = tokio::time::Instant::now();
            let mut renewals = self.renewals.clone();
            if let Some(renewals) = &mut renewals {
                renewals.mark_unchanged();
            }
            told.begin();
            let ended = tokio::select! {
                ended = self.once(&mut told) => ended,
                () = token.cancelled() => break,
            };
            drop(self.client.send_replace(None));
            if !told.heard()
                && let Some(endpoints) = &self.endpoints
            {
                endpoints.pass_over();
            }
            refusals = if ended == Ended::Refused { refusals + 1 } else { 0 };
            // One that refuses does not speak for the others.
            let all = self
                .endpoints
                .as_ref()
                .map_or(1, |endpoints| endpoints.servers().len());
            let (least, most) = if refusals >= all { REFUSED } else { BACKOFF };
            let clean = ended == Ended::Clean;
            if refusals == 0 && (clean || opened.elapsed() >= GOOD) {
                pause = least;
            }
            if clean && opened.elapsed() >= GOOD {
                continue;
            }
            pause = pause.max(least).min(most);
            let wait = self.jitter(pause);
            pause *= 2;
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // What was refused to the older certificate may be granted to this one.
                () = renewed(&mut renewals) => pause = BACKOFF.0,
                () = token.cancelled() => break,
            }
        }
    }

    /// Which server is spoken to, for people.
    fn server(&self) -> String {
        let current = self.endpoints.as_ref().and_then(|endpoints| endpoints.current());
        current.map_or_else(|| "the control plane".to_owned(), ToString::to_string)
    }

    /// One connection and one session.
    async fn once(&self, told: &mut Told) -> Ended {
        let channel = match tokio::time::timeout(CONNECT_TIMEOUT, channel(&self.connector)).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => {
                tracing::debug!(%error, "no connection to the server");
                return Ended::Broken;
            }
            Err(_) => {
                tracing::debug!("no connection to the server in time");
                return Ended::Broken;
            }
        };
        let mut client = AgentletClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        let (tx, rx) = mpsc::channel(LINK_QUEUE);
        let cut = CancellationToken::new();
        let link = Link { tx, cut: cut.clone() };
        if self.events.send(SessionEvent::Open(link)).await.is_err() {
            return Ended::Broken;
        }
        let bulk = client.clone();
        let ended = tokio::select! {
            ended = self.pump(&mut client, bulk, rx, told) => ended,
            () = cut.cancelled() => {
                tracing::info!("session ended from this side");
                Ended::Broken
            }
        };
        // A dispatcher that is gone needs no news.
        drop(self.events.send(SessionEvent::Closed).await);
        ended
    }

    async fn pump(
        &self,
        client: &mut Client,
        bulk: Client,
        rx: mpsc::Receiver<DeviceMessage>,
        told: &mut Told,
    ) -> Ended {
        let silent = tokio::time::sleep(FIRST_WORD);
        tokio::pin!(silent);
        let opened = tokio::select! {
            opened = client.session(ReceiverStream::new(rx)) => opened,
            () = &mut silent => {
                told.silent(&self.server(), FIRST_WORD);
                return Ended::Broken;
            }
        };
        let mut stream = match opened {
            Ok(response) => response.into_inner(),
            Err(status) => return told.ended(&self.server(), &status),
        };
        self.client.send_replace(Some(bulk));
        let room = Arc::new(Semaphore::new(QUEUED_BYTES / UNIT));
        let mut renewals = self.renewals.clone();
        if let Some(renewals) = &mut renewals {
            renewals.mark_unchanged();
        }
        loop {
            let message = tokio::select! {
                message = stream.message() => message,
                () = renewed(&mut renewals) => {
                    self.use_new_certificate().await;
                    continue;
                }
                () = &mut silent, if !told.heard() => {
                    told.silent(&self.server(), FIRST_WORD);
                    return Ended::Broken;
                }
            };
            match message {
                Ok(Some(message)) => {
                    told.hears(&self.server());
                    let share = (message.encoded_len() / UNIT + 1).min(QUEUED_BYTES / UNIT);
                    let share = u32::try_from(share).unwrap_or(u32::MAX);
                    let Ok(share) = Arc::clone(&room).acquire_many_owned(share).await else {
                        return Ended::Broken;
                    };
                    let heard = Heard {
                        message: Box::new(message),
                        _share: share,
                    };
                    if self.events.send(SessionEvent::Message(heard)).await.is_err() {
                        return Ended::Broken;
                    }
                }
                Ok(None) => return Ended::Clean,
                Err(status) => return told.ended(&self.server(), &status),
            }
        }
    }

    /// The session goes on over its connection; logs and blobs get another one, since a server takes no new request of
    /// a certificate that has ended.
    async fn use_new_certificate(&self) {
        match tokio::time::timeout(CONNECT_TIMEOUT, channel(&self.connector)).await {
            Ok(Ok(channel)) => {
                let client = AgentletClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
                self.client.send_replace(Some(client));
            }
            // The next session has it anyway.
            Ok(Err(error)) => tracing::warn!(%error, "no connection with the new certificate yet"),
            Err(_) => tracing::warn!("no connection with the new certificate in time"),
        }
    }

    /// Evenly between half of `pause` and the whole.
    fn jitter(&self, pause: Duration) -> Duration {
        let part = u32::from(self.ids.uuid().as_bytes()[0]);
        pause / 2 + pause * part / 512
    }
}

/// Resolves when there is a new certificate; never without a source of them.
async fn renewed(renewals: &mut Option<watch::Receiver<Arc<Credentials>>>) {
    if let Some(receiver) = renewals
        && receiver.changed().await.is_ok()
    {
        return;
    }
    *renewals = None;
    std::future::pending().await
}

/// One HTTP/2 connection over a byte stream of `connector`.
pub(crate) async fn channel(connector: &Arc<dyn Connector>) -> Result<Channel, tonic::transport::Error> {
    let connector = Arc::clone(connector);
    // The address only fills the `:authority` of requests: the connector knows where to go.
    Endpoint::from_static("http://agentlet.panda.dev")
        .http2_keep_alive_interval(KEEPALIVE.0)
        .keep_alive_timeout(KEEPALIVE.1)
        .keep_alive_while_idle(true)
        .connect_with_connector(tower::service_fn(move |_| {
            let connector = Arc::clone(&connector);
            async move { Ok::<_, connector::Error>(TokioIo::new(connector.connect().await?)) }
        }))
        .await
}

/// A client of its own, as while a session is open.
#[cfg(test)]
pub(crate) async fn client_of(server: &crate::testing::FakeServer) -> Client {
    let connector: Arc<dyn Connector> = Arc::new(server.clone());
    Client::new(channel(&connector).await.expect("the test's server listens"))
}
