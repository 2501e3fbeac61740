//! The accept loop: bounded connections, bounded handshakes, HTTP/1.1 or HTTP/2 by ALPN, graceful end.

mod activity;
mod places;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use activity::{Activity, Answer, Over};
use places::{Place, Places};

pub(crate) use places::Vouch;

use crate::authn::Peer;
use crate::config::Limits;
use crate::metrics::Metrics;

/// Streams that one HTTP/2 connection may have open.
const STREAMS: u32 = 256;
/// Bytes that one stream of HTTP/2 may have waiting to be sent.
const SEND_BUFFER: usize = 128 << 10;
/// How often an idle HTTP/2 connection is asked whether it is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Wait after the system gave no connection (no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time that a connection that is no longer used has to end in good order.
const FAREWELL: Duration = Duration::from_secs(5);
/// Most headers of a request.
const HEADERS: usize = 100;

pub(crate) struct Listener {
    pub(crate) tls: Arc<rustls::ServerConfig>,
    pub(crate) router: Router,
    pub(crate) limits: Limits,
    pub(crate) metrics: Arc<Metrics>,
}

impl Listener {
    /// Serves until `stop`; then lets open requests end, for a while.
    pub(crate) async fn run(self, listener: TcpListener, stop: CancellationToken) {
        let drain = self.limits.drain_timeout.get();
        let places = Places::new(&self.limits);
        let tracker = TaskTracker::new();
        // Cut after the drain time, whatever a connection is doing.
        let cut = CancellationToken::new();
        let shared = Arc::new(self);
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "cannot accept a connection"
                    );
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(place) = places.enter(address.ip()) else {
                shared.metrics.refused_connection();
                tracing::debug!(%address, "connection refused, too many are open");
                continue;
            };
            let (shared, stop, cut) = (Arc::clone(&shared), stop.clone(), cut.clone());
            tracker.spawn(async move {
                let place_lost = place.cut.clone();
                tokio::select! {
                    () = cut.cancelled() => {}
                    () = place_lost.cancelled() => {
                        shared.metrics.refused_connection();
                        tracing::debug!(%address, "connection cut, too many of unknown clients are open");
                    }
                    result = shared.connection(stream, address, place, stop) => {
                        if let Err(error) = result {
                            tracing::debug!(%address, %error, "connection ended");
                        }
                    }
                }
            });
        }
        drop(listener);
        tracker.close();
        if tokio::time::timeout(drain, tracker.wait()).await.is_err() {
            tracing::info!(
                connections = tracker.len(),
                "connections are cut, they did not end in time"
            );
            cut.cancel();
            tracker.wait().await;
        }
    }

    async fn connection(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        place: Place,
        stop: CancellationToken,
    ) -> Result<(), String> {
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let handshake = TlsAcceptor::from(Arc::clone(&self.tls)).accept(stream);
        let stream = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            stream = tokio::time::timeout(self.limits.handshake_timeout.get(), handshake) => {
                stream.map_err(|_| "handshake took too long".to_owned())?.map_err(describe)?
            }
        };
        let (_, session) = stream.get_ref();
        let peer = match session.peer_certificates().and_then(<[_]>::first) {
            Some(certificate) => {
                place.vouch().is_known();
                Peer::from_certificate(certificate)
            }
            None => Peer::anonymous(),
        };
        let http2 = session.alpn_protocol() == Some(b"h2");
        let _open = self.metrics.connection();
        let (router, activity, vouch) = (self.router.clone(), Arc::clone(&place.activity), place.vouch());
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            answer(
                router.clone(),
                request,
                (peer.clone(), vouch.clone()),
                address,
                Arc::clone(&activity),
            )
        });
        let io = TokioIo::new(stream);
        if http2 {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder
                .timer(TokioTimer::new())
                .max_concurrent_streams(STREAMS)
                .max_send_buf_size(SEND_BUFFER)
                .max_header_list_size(u32::try_from(self.limits.header_bytes).unwrap_or(u32::MAX))
                .keep_alive_interval(KEEP_ALIVE)
                .keep_alive_timeout(KEEP_ALIVE);
            let connection = std::pin::pin!(builder.serve_connection(io, service));
            self.serve(connection, http2::Connection::graceful_shutdown, &place, stop)
                .await
        } else {
            let mut builder = http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(self.limits.header_timeout.get())
                .max_headers(HEADERS)
                // The smallest that hyper takes is 8 KiB.
                .max_buf_size(self.limits.header_bytes.max(8 << 10));
            let connection = std::pin::pin!(builder.serve_connection(io, service));
            self.serve(connection, http1::Connection::graceful_shutdown, &place, stop)
                .await
        }
    }

    /// Until it ends, the server stops, or it has to end.
    async fn serve<C: Future<Output = hyper::Result<()>>>(
        &self,
        mut connection: Pin<&mut C>,
        shut_down: fn(Pin<&mut C>),
        place: &Place,
        stop: CancellationToken,
    ) -> Result<(), String> {
        let unused = self.limits.header_timeout.get();
        let over = place.activity.over(unused, self.limits.stall_timeout.get());
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = stop.cancelled() => {
                shut_down(connection.as_mut());
                connection.await
            }
            over = over => {
                if over == Over::Unread {
                    return Err("an answer was not read in time".to_owned());
                }
                shut_down(connection.as_mut());
                match tokio::time::timeout(FAREWELL, connection).await {
                    Ok(result) => result,
                    Err(_) => return Err("it was not used, and not ended by the client".to_owned()),
                }
            }
        };
        result.map_err(|error| error.to_string())
    }
}

async fn answer(
    router: Router,
    request: Request<Incoming>,
    (peer, vouch): (Peer, Vouch),
    address: SocketAddr,
    activity: Arc<Activity>,
) -> Result<Response, Infallible> {
    let busy = activity.begin();
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(peer);
    request.extensions_mut().insert(vouch);
    request.extensions_mut().insert(address);
    let response = router.oneshot(request).await?;
    Ok(response.map(|body| Body::new(Answer::new(body, busy))))
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "it is used as a function for map_err"
)]
fn describe(error: io::Error) -> String {
    format!("handshake failed: {error}")
}
