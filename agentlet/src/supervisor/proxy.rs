//! The way of one run to the API, for a Task with `apiAccess`.
//!
//! A server on the loopback interface that lives as long as the agent. It dials the control plane without the device's
//! certificate, which the supervisor does not even have: the run's own token is the only identity, it must stand on every
//! request, and nothing is added. TLS with a certificate made for this run alone, since common clients send no token
//! without; so whoever takes the port over later gets none.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use panda_client::connector::{self, Connector as _};
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::endpoints::{Endpoints, PlainConnector};

/// Connections at one time.
const MAX_CONNECTIONS: usize = 32;
/// Largest body of a request: what the API server takes.
const MAX_BODY: usize = 3 << 20;
/// Largest head of a request.
const MAX_HEAD: usize = 32 << 10;
const MAX_HEADERS: usize = 64;
/// For a handshake, and for a head.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// For a body.
const BODY_TIME: Duration = Duration::from_secs(30);
/// Until the control plane begins to answer; how long an answer may go on is its own business.
const ANSWER_TIME: Duration = Duration::from_secs(90);
/// What a path begins with. The service of the devices is not among it.
const PATHS: [&str; 7] = ["api", "apis", "openapi", "version", "healthz", "livez", "readyz"];
const HOP_BY_HOP: [HeaderName; 5] = [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];

/// Where the files for clients lie in the job's folder in memory.
const FOLDER: &str = ".panda-api";

/// Names and values of variables.
type Variables = Vec<(String, String)>;
/// A file of the agent's: its path in the job's folder, its mode, its text.
type File = (PathBuf, u32, String);

/// Where the API is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiAccess {
    /// Addresses of the control plane, in order.
    pub servers: Vec<String>,
    /// Its authority, PEM.
    pub ca: String,
    /// Namespace of the run.
    pub namespace: String,
}

/// Why there is no way to the API.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("cannot listen on the loopback interface")]
    Listen(#[source] io::Error),
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    #[error("the certificate cannot be used")]
    Tls(#[from] rustls::Error),
    #[error("{0:?} is no address of a control plane")]
    Address(String),
    #[error("the control plane gave the run no token")]
    NoToken,
}

/// The server; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Proxy {
    server: String,
    certificate: String,
    _serving: JoinSet<()>,
}

type Body = UnsyncBoxBody<Bytes, hyper::Error>;
type Outgoing = Request<Full<Bytes>>;

impl Proxy {
    /// Listens on a free port for requests with `token`.
    pub(super) async fn open(access: &ApiAccess, token: &str) -> Result<Self, Error> {
        if token.is_empty() {
            return Err(Error::NoToken);
        }
        let servers = access.servers.iter().map(|server| {
            let uri: Option<Uri> = server.parse().ok();
            uri.filter(|uri| uri.authority().is_some())
                .ok_or_else(|| Error::Address(server.clone()))
        });
        let endpoints = Endpoints::new(servers.collect::<Result<_, _>>()?);
        let (tls, certificate) = tls()?;
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(Error::Listen)?;
        let address = listener.local_addr().map_err(Error::Listen)?;
        let shared = Arc::new(Shared {
            token: Sha256::digest(token).into(),
            connector: PlainConnector {
                endpoints,
                ca_pem: access.ca.clone(),
            },
        });
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, tls, shared));
        Ok(Self {
            server: format!("https://{address}"),
            certificate,
            _serving: serving,
        })
    }

    /// What the agent gets: variables, and files in the job's folder in memory, which is at `folder`.
    pub(super) fn equip(&self, access: &ApiAccess, token: &str, folder: &Path) -> (Variables, Vec<File>) {
        let kubeconfig = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "panda", "cluster": {
                "server": self.server,
                "certificate-authority-data": STANDARD.encode(&self.certificate),
            }}],
            "users": [{"name": "run", "user": {"token": token}}],
            "contexts": [{"name": "run", "context": {"cluster": "panda", "user": "run", "namespace": access.namespace}}],
            "current-context": "run",
        });
        let names = ["kubeconfig", "ca.crt"].map(|name| Path::new(FOLDER).join(name));
        let at = |name: &Path| folder.join(name).display().to_string();
        let env = [
            ("PANDA_SERVER", self.server.clone()),
            ("PANDA_TOKEN", token.to_owned()),
            ("PANDA_CA", at(&names[1])),
            ("PANDACONFIG", at(&names[0])),
            ("KUBECONFIG", at(&names[0])),
        ];
        let [config, ca] = names;
        let files = vec![
            (config, 0o600, kubeconfig.to_string()),
            (ca, 0o600, self.certificate.clone()),
        ];
        (env.map(|(name, value)| (name.to_owned(), value)).into(), files)
    }
}

fn tls() -> Result<(TlsAcceptor, String), Error> {
    let mut params = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, "panda run");
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = vec![CertificateDer::from(certificate.der().to_vec())];
    let secret = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, secret)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((TlsAcceptor::from(Arc::new(config)), certificate.pem()))
}

/// What all connections share.
struct Shared {
    /// Digest of the run's token.
    token: [u8; 32],
    connector: PlainConnector,
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, shared: Arc<Shared>) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        // Never closed.
        let Ok(place) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let (tls, shared) = (tls.clone(), Arc::clone(&shared));
                connections.spawn(async move {
                    converse(stream, tls, shared).await;
                    drop(place);
                });
            }
            Err(error) => {
                // No descriptors, for example: that may pass.
                tracing::debug!(%error, "a connection to the API was not taken");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn converse(stream: TcpStream, tls: TlsAcceptor, shared: Arc<Shared>) {
    let Ok(Ok(stream)) = timeout(HEAD_TIME, tls.accept(stream)).await else {
        return;
    };
    let upstream = Arc::new(Mutex::new(None));
    let service = service_fn(move |request| {
        let (shared, upstream) = (Arc::clone(&shared), Arc::clone(&upstream));
        async move {
            let answer = shared.answer(&mut *upstream.lock().await, request).await;
            Ok::<_, Infallible>(answer.unwrap_or_else(Refusal::response))
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection to the API ended");
    }
}

/// One connection to the control plane; it ends when this is dropped.
struct Upstream {
    sender: SendRequest<Full<Bytes>>,
    _driving: JoinSet<()>,
}

#[derive(Debug)]
struct Refusal(StatusCode, &'static str, String);

impl Refusal {
    fn of(code: StatusCode, reason: &'static str, why: impl Into<String>) -> Self {
        Self(code, reason, why.into())
    }

    fn response(self) -> Response<Body> {
        let Self(code, reason, message) = self;
        let status = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Status",
            "metadata": {},
            "status": "Failure",
            "reason": reason,
            "code": code.as_u16(),
            "message": message,
        });
        let body = Full::new(Bytes::from(status.to_string())).map_err(|never| match never {});
        let mut response = Response::new(body.boxed_unsync());
        *response.status_mut() = code;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        response
    }
}

impl Shared {
    async fn answer(
        &self,
        upstream: &mut Option<Upstream>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Refusal> {
        self.admit(&request)?;
        let (parts, body) = request.into_parts();
        let body = timeout(BODY_TIME, Limited::new(body, MAX_BODY).collect()).await;
        let body = body.map_err(|_| {
            Refusal::of(
                StatusCode::REQUEST_TIMEOUT,
                "Timeout",
                "the request did not arrive in time",
            )
        })?;
        let body = body.map_err(|_| {
            let why = format!("the request breaks off or is larger than {MAX_BODY} bytes");
            Refusal::of(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", why)
        })?;
        let mut outgoing = Request::new(Full::new(body.to_bytes()));
        *outgoing.method_mut() = parts.method;
        let target = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        *outgoing.uri_mut() = target
            .parse()
            .map_err(|_| Refusal::of(StatusCode::BAD_REQUEST, "BadRequest", "the path cannot be read"))?;
        let mut headers = end_to_end(parts.headers);
        headers.remove(CONTENT_LENGTH);
        headers.remove(HOST);
        *outgoing.headers_mut() = headers;
        let away = |why: String| Refusal::of(StatusCode::BAD_GATEWAY, "ServiceUnavailable", why);
        let sent = timeout(ANSWER_TIME, self.send(upstream, outgoing)).await;
        let response = sent
            .map_err(|_| {
                Refusal::of(
                    StatusCode::GATEWAY_TIMEOUT,
                    "Timeout",
                    "the control plane does not answer",
                )
            })?
            .map_err(|error| away(format!("the control plane is out of reach: {error}")))?;
        let (mut parts, body) = response.into_parts();
        parts.headers = end_to_end(parts.headers);
        Ok(Response::from_parts(parts, body.boxed_unsync()))
    }

    fn admit(&self, request: &Request<Incoming>) -> Result<(), Refusal> {
        let bearer = request.headers().get(AUTHORIZATION).and_then(|value| {
            let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
        });
        // Digests are compared, so that the time says nothing of the token.
        if bearer.is_none_or(|token| <[u8; 32]>::from(Sha256::digest(token)) != self.token) {
            let why = "this way to the API is for one run, and its token is missing";
            return Err(Refusal::of(StatusCode::UNAUTHORIZED, "Unauthorized", why));
        }
        if *request.method() == Method::CONNECT || request.headers().contains_key(UPGRADE) {
            let why = "connections cannot be turned into others here";
            return Err(Refusal::of(StatusCode::FORBIDDEN, "Forbidden", why));
        }
        let first = request.uri().path().trim_start_matches('/').split('/').next();
        if !first.is_some_and(|first| PATHS.contains(&first)) {
            let why = "runs use the API and nothing else of the control plane";
            return Err(Refusal::of(StatusCode::FORBIDDEN, "Forbidden", why));
        }
        Ok(())
    }

    /// Sends over the connection that there is, or a new one. Only what was never sent is sent again.
    async fn send(
        &self,
        upstream: &mut Option<Upstream>,
        mut request: Outgoing,
    ) -> Result<Response<Incoming>, Trouble> {
        loop {
            let fresh = upstream.is_none();
            let connection = match upstream {
                Some(connection) => connection,
                None => upstream.insert(self.dial().await?),
            };
            if let Some(host) = self.host() {
                request.headers_mut().insert(HOST, host);
            }
            if connection.sender.ready().await.is_err() && !fresh {
                *upstream = None;
                continue;
            }
            match connection.sender.try_send_request(request).await {
                Ok(response) => return Ok(response),
                Err(mut error) => {
                    *upstream = None;
                    match error.take_message() {
                        Some(unsent) if !fresh => request = unsent,
                        _ => return Err(error.into_error().into()),
                    }
                }
            }
        }
    }

    fn host(&self) -> Option<HeaderValue> {
        let authority = self.connector.endpoints.current()?.authority()?;
        HeaderValue::from_str(authority.as_str()).ok()
    }

    async fn dial(&self) -> Result<Upstream, Trouble> {
        let stream = self.connector.connect().await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        let mut driving = JoinSet::new();
        driving.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the control plane ended");
            }
        });
        Ok(Upstream {
            sender,
            _driving: driving,
        })
    }
}

#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Connect(#[from] connector::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

/// The headers that are not about one connection.
fn end_to_end(mut headers: HeaderMap) -> HeaderMap {
    let listed: BTreeSet<String> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        // The token is the point of it all.
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| name != AUTHORIZATION.as_str())
        .collect();
    for name in
        listed
            .iter()
            .map(String::as_str)
            .chain(["keep-alive", "proxy-connection", "proxy-authorization"])
    {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    headers
}

#[cfg(test)]
mod tests;
