//! One HTTP exchange with the server.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, Stream, StreamExt};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use crate::connector::{self, Connector, Io};

/// Carries requests to one server. Paths are relative to the server.
pub trait Transport: Send + Sync + fmt::Debug + 'static {
    /// Sends a request and returns once the head of the answer is there.
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Body>, Error>>;
}

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection; nothing was sent.
    #[error("no connection")]
    Connect(#[source] connector::Error),
    /// The connection broke; whether the request was handled is not known.
    #[error("the connection broke before the answer was complete")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Whether the server may have received the request.
    #[must_use]
    pub const fn may_have_been_sent(&self) -> bool {
        matches!(self, Self::Broken(_))
    }

    /// Whether trying again may help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect(error) => error.is_retryable(),
            Self::Broken(_) => true,
        }
    }
}

/// The body of an answer, as it comes in.
pub struct Body(BoxStream<'static, Result<Bytes, Error>>);

impl Body {
    /// A body from its parts.
    pub fn new(parts: impl Stream<Item = Result<Bytes, Error>> + Send + 'static) -> Self {
        Self(parts.boxed())
    }

    /// A body that is there at once.
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::new(futures::stream::once(async move { Ok(bytes) }))
    }
}

impl Stream for Body {
    type Item = Result<Bytes, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx)
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Body")
    }
}

/// HTTP/1.1 with kept-alive connections over a connector.
pub struct HttpTransport {
    server: Uri,
    http: legacy::Client<Open, Full<Bytes>>,
}

impl fmt::Debug for HttpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpTransport")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl HttpTransport {
    /// Speaks to `server` (its path, if any, is put before every request's) over `connector`.
    #[must_use]
    pub fn new(server: Uri, connector: Arc<dyn Connector>) -> Self {
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(50))
            .pool_max_idle_per_host(16)
            .build(Open(connector));
        Self { server, http }
    }

    fn absolute(&self, relative: &Uri) -> Result<Uri, Error> {
        let path = relative.path_and_query().map_or("/", |p| p.as_str());
        let prefix = self.server.path().trim_end_matches('/');
        Uri::builder()
            .scheme(self.server.scheme_str().unwrap_or("https"))
            .authority(self.server.authority().map_or("localhost", |a| a.as_str()))
            .path_and_query(format!("{prefix}{path}"))
            .build()
            .map_err(|e| Error::Broken(Box::new(e)))
    }
}

impl Transport for HttpTransport {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Body>, Error>> {
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            parts.uri = self.absolute(&parts.uri)?;
            let response = self
                .http
                .request(Request::from_parts(parts, Full::new(body)))
                .await
                .map_err(from_hyper)?;
            Ok(response.map(|incoming| {
                Body::new(
                    incoming
                        .into_data_stream()
                        .map(|part| part.map_err(|e| Error::Broken(Box::new(e)))),
                )
            }))
        })
    }
}

/// Finds the connector's own error again, which says that nothing was sent.
fn from_hyper(error: legacy::Error) -> Error {
    if error.is_connect() {
        let target = "the server".to_owned();
        let source = match std::error::Error::source(&error).and_then(|s| s.downcast_ref::<Opening>()) {
            Some(opening) => match opening.0.lock() {
                Ok(mut slot) => slot.take(),
                Err(_) => None,
            },
            None => None,
        };
        return Error::Connect(source.unwrap_or_else(|| connector::Error::Connect {
            target,
            source: io::Error::other(error),
        }));
    }
    Error::Broken(Box::new(error))
}

/// Carries a connector's error through hyper, which only lends it out.
#[derive(Debug)]
struct Opening(std::sync::Mutex<Option<connector::Error>>);

impl fmt::Display for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no connection")
    }
}

impl std::error::Error for Opening {}

/// A connector as the service that hyper's pool asks for.
#[derive(Clone, Debug)]
struct Open(Arc<dyn Connector>);

impl tower::Service<Uri> for Open {
    type Response = Wire;
    type Error = Opening;
    type Future = BoxFuture<'static, Result<Wire, Opening>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = Arc::clone(&self.0);
        Box::pin(async move {
            match connector.connect().await {
                Ok(io) => Ok(Wire(TokioIo::new(io))),
                Err(error) => Err(Opening(std::sync::Mutex::new(Some(error)))),
            }
        })
    }
}

/// A connector's stream as hyper wants it.
struct Wire(TokioIo<Box<dyn Io>>);

impl Connection for Wire {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl hyper::rt::Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
