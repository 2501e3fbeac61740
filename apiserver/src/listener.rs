//! The accept loop: bounded connections, bounded handshakes, HTTP/1.1 or HTTP/2 by ALPN, graceful end.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::authn::Peer;
use crate::config::Limits;
use crate::metrics::Metrics;

/// Streams that one HTTP/2 connection may have open.
const STREAMS: u32 = 256;
/// How often an idle HTTP/2 connection is asked whether it is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Wait after the system gave no connection (no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Most headers of a request.
const HEADERS: usize = 100;

pub(crate) struct Listener {
    pub(crate) tls: Arc<rustls::ServerConfig>,
    pub(crate) router: Router,
    pub(crate) limits: Limits,
    pub(crate) metrics: Arc<Metrics>,
}

/// Open connections of each address.
#[derive(Default)]
struct Peers(Mutex<HashMap<IpAddr, usize>>);

/// One connection's place among those of its address.
struct Place {
    peers: Arc<Peers>,
    address: IpAddr,
}

impl Peers {
    fn enter(self: &Arc<Self>, address: IpAddr, most: usize) -> Option<Place> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_insert(0);
        // Everything on this machine shares one address.
        if *count >= most && !address.is_loopback() {
            return None;
        }
        *count += 1;
        drop(open);
        Some(Place {
            peers: Arc::clone(self),
            address,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.peers.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

impl Listener {
    /// Serves until `stop`; then lets open requests end, for a while.
    pub(crate) async fn run(self, listener: TcpListener, stop: CancellationToken) {
        let drain = self.limits.drain_timeout.get();
        let open = Arc::new(Semaphore::new(self.limits.connections));
        let peers = Arc::new(Peers::default());
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
            let Ok(permit) = Arc::clone(&open).try_acquire_owned() else {
                shared.metrics.refused_connection();
                tracing::debug!(%address, "connection refused, too many are open");
                continue;
            };
            let Some(place) = peers.enter(address.ip(), shared.limits.connections_per_peer) else {
                shared.metrics.refused_connection();
                tracing::debug!(%address, "connection refused, too many of this address are open");
                continue;
            };
            let (shared, stop, cut) = (Arc::clone(&shared), stop.clone(), cut.clone());
            tracker.spawn(async move {
                tokio::select! {
                    () = cut.cancelled() => {}
                    result = shared.connection(stream, address, stop) => {
                        if let Err(error) = result {
                            tracing::debug!(%address, %error, "connection ended");
                        }
                    }
                }
                drop((permit, place));
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
            Some(certificate) => Peer::from_certificate(certificate),
            None => Peer::anonymous(),
        };
        let http2 = session.alpn_protocol() == Some(b"h2");
        let _open = self.metrics.connection();
        let router = self.router.clone();
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            answer(router.clone(), request, peer.clone(), address)
        });
        let io = TokioIo::new(stream);
        if http2 {
            self.http2(io, service, stop).await
        } else {
            self.http1(io, service, stop).await
        }
    }

    async fn http1<S>(
        &self,
        io: TokioIo<TlsStream<TcpStream>>,
        service: S,
        stop: CancellationToken,
    ) -> Result<(), String>
    where
        S: hyper::service::HttpService<Incoming, ResBody = Body, Error = Infallible> + Send,
        S::Future: Send,
    {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.header_timeout.get())
            .max_headers(HEADERS)
            // The smallest that hyper takes is 8 KiB.
            .max_buf_size(self.limits.header_bytes.max(8 << 10));
        let mut connection = std::pin::pin!(builder.serve_connection(io, service));
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        result.map_err(|error| error.to_string())
    }

    async fn http2<S>(
        &self,
        io: TokioIo<TlsStream<TcpStream>>,
        service: S,
        stop: CancellationToken,
    ) -> Result<(), String>
    where
        S: hyper::service::HttpService<Incoming, ResBody = Body, Error = Infallible> + Send,
        S::Future: Send + 'static,
    {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(u32::try_from(self.limits.header_bytes).unwrap_or(u32::MAX))
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE);
        let mut connection = std::pin::pin!(builder.serve_connection(io, service));
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        result.map_err(|error| error.to_string())
    }
}

async fn answer(
    router: Router,
    request: Request<Incoming>,
    peer: Peer,
    address: SocketAddr,
) -> Result<Response, Infallible> {
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(peer);
    request.extensions_mut().insert(address);
    router.oneshot(request).await
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "it is used as a function for map_err"
)]
fn describe(error: io::Error) -> String {
    format!("handshake failed: {error}")
}
