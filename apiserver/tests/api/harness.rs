//! A server in this process and a small client for it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use panda_api::meta::{RandomIds, SystemClock};
use panda_apiserver::authn::RunTokens;
use panda_apiserver::pki::{Identity, Pki, Subject};
use panda_apiserver::{Config, Deps, Registry, Server};
use panda_store::{Memory, Store};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

/// Longest that any single wait of a test takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const TASKS: &str = "/apis/panda.dev/v1alpha1/namespaces/default/tasks";
pub(crate) const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

pub(crate) struct Harness {
    pub(crate) dir: TempDir,
    pub(crate) address: SocketAddr,
    pub(crate) pki: Arc<Pki>,
    pub(crate) registry: Registry,
    pub(crate) run_tokens: RunTokens,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) admin: Client,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Harness {
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::over(Arc::new(Memory::new("test")), change).await
    }

    pub(crate) async fn over(store: Arc<dyn Store>, change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(dir.path());
        change(&mut config);
        Self::routed(store, dir, config, Router::new()).await
    }

    /// A server over a data folder that another one has left.
    pub(crate) async fn over_dir(store: Arc<dyn Store>, dir: TempDir) -> Self {
        let config = Config::new(dir.path());
        Self::routed(store, dir, config, Router::new()).await
    }

    pub(crate) async fn routed(store: Arc<dyn Store>, dir: TempDir, config: Config, routes: Router) -> Self {
        let deps = Deps {
            store: Arc::clone(&store),
            clock: Arc::new(SystemClock),
            ids: Arc::new(RandomIds),
            metrics: Arc::default(),
        };
        let server = Server::build(config, deps).unwrap().with_routes(routes);
        let (pki, registry, run_tokens) = (server.pki(), server.registry(), server.run_tokens());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let token = stop.clone();
        let running = tokio::spawn(async move { server.run(listener, token).await.unwrap() });
        let identity = pki.issue(&Subject::admin()).unwrap();
        let admin = Client::new(address, pki.ca_certificate_pem(), Some(&identity));
        let harness = Self {
            dir,
            address,
            pki,
            registry,
            run_tokens,
            store,
            admin,
            stop,
            running,
        };
        let reply = harness.admin.get("/readyz").await;
        assert_eq!(reply.status, StatusCode::OK);
        harness
    }

    pub(crate) fn client(&self, subject: &Subject) -> Client {
        let identity = self.pki.issue(subject).unwrap();
        Client::new(self.address, self.pki.ca_certificate_pem(), Some(&identity))
    }

    pub(crate) fn anonymous(&self) -> Client {
        Client::new(self.address, self.pki.ca_certificate_pem(), None)
    }

    /// Stops the server and waits for it.
    pub(crate) async fn stop(self) {
        self.halt().await;
    }

    /// Stops the server and leaves its data folder.
    pub(crate) async fn halt(self) -> TempDir {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.running)
            .await
            .unwrap()
            .unwrap();
        self.dir
    }
}

#[derive(Clone)]
pub(crate) struct Client {
    address: SocketAddr,
    tls: Arc<rustls::ClientConfig>,
    token: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&self.body)))
    }

    /// The object of an answer that must have this code.
    pub(crate) fn expect(&self, code: u16) -> Value {
        assert_eq!(
            self.status.as_u16(),
            code,
            "{}",
            String::from_utf8_lossy(&self.body)
        );
        self.json()
    }

    /// The message of a `Status` that must have this code and reason.
    pub(crate) fn refused(&self, code: u16, reason: &str) -> Value {
        let status = self.expect(code);
        assert_eq!(status["kind"], "Status", "{status}");
        assert_eq!(status["status"], "Failure", "{status}");
        assert_eq!(status["reason"], reason, "{status}");
        assert_eq!(status["code"], code, "{status}");
        assert_eq!(self.headers[CONTENT_TYPE], "application/json");
        status
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map(|value| value.to_str().unwrap())
            .unwrap_or_default()
    }
}

impl Client {
    pub(crate) fn new(address: SocketAddr, ca: &str, identity: Option<&Identity>) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let tls = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let chain =
                    vec![CertificateDer::from_pem_slice(identity.certificate_pem.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        Self {
            address,
            tls: Arc::new(tls),
            token: None,
        }
    }

    /// The same client with a bearer token.
    pub(crate) fn bearer(&self, token: &str) -> Self {
        Self {
            token: Some(token.to_owned()),
            ..self.clone()
        }
    }

    pub(crate) async fn connect(&self) -> std::io::Result<TlsStream<TcpStream>> {
        self.connect_with(&[]).await
    }

    /// A connection that offers these protocols.
    pub(crate) async fn connect_with(&self, protocols: &[&str]) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").unwrap();
        let mut tls = (*self.tls).clone();
        tls.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsConnector::from(Arc::new(tls)).connect(name, stream).await
    }

    pub(crate) async fn open(&self, request: Request<Full<Bytes>>) -> http::Response<Incoming> {
        let stream = self.connect().await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        tokio::time::timeout(PATIENCE, sender.send_request(request))
            .await
            .unwrap()
            .unwrap()
    }

    pub(crate) async fn send(&self, mut request: Request<Full<Bytes>>) -> Reply {
        if let Some(token) = &self.token {
            let value = format!("Bearer {token}").parse().unwrap();
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        let response = self.open(request).await;
        let (parts, body) = response.into_parts();
        let body = tokio::time::timeout(PATIENCE, body.collect())
            .await
            .unwrap()
            .unwrap()
            .to_bytes();
        Reply {
            status: parts.status,
            headers: parts.headers,
            body,
        }
    }

    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Reply {
        self.send(request(method, path, headers, body)).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.call(Method::GET, path, &[], "").await
    }

    pub(crate) async fn get_as(&self, path: &str, accept: &str) -> Reply {
        self.call(Method::GET, path, &[("accept", accept)], "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.call(
            Method::POST,
            path,
            &[("content-type", "application/json")],
            body.to_string(),
        )
        .await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Reply {
        self.call(
            Method::PUT,
            path,
            &[("content-type", "application/json")],
            body.to_string(),
        )
        .await
    }

    pub(crate) async fn merge(&self, path: &str, body: &Value) -> Reply {
        let kind = [("content-type", "application/merge-patch+json")];
        self.call(Method::PATCH, path, &kind, body.to_string()).await
    }

    pub(crate) async fn json_patch(&self, path: &str, body: &Value) -> Reply {
        let kind = [("content-type", "application/json-patch+json")];
        self.call(Method::PATCH, path, &kind, body.to_string()).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Reply {
        self.call(Method::DELETE, path, &[], "").await
    }

    /// Opens a watch.
    pub(crate) async fn watch(&self, path: &str) -> WatchLines {
        self.watch_as(path, "application/json").await
    }

    pub(crate) async fn watch_as(&self, path: &str, accept: &str) -> WatchLines {
        let response = self
            .open(request(Method::GET, path, &[("accept", accept)], ""))
            .await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
        WatchLines {
            body: response.into_body(),
            rest: Vec::new(),
        }
    }
}

pub(crate) fn request(
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Request<Full<Bytes>> {
    let mut builder = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, "localhost");
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Full::new(body.into())).unwrap()
}

/// The lines of a watch.
pub(crate) struct WatchLines {
    body: Incoming,
    rest: Vec<u8>,
}

impl WatchLines {
    /// The next event; nothing when the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame())
                .await
                .expect("an event in time");
            match frame {
                Some(frame) => self.rest.extend_from_slice(&frame.unwrap().into_data().unwrap()),
                None => {
                    assert!(self.rest.is_empty(), "the stream ended inside a line");
                    return None;
                }
            }
        }
    }

    /// The type and the name of the next event.
    pub(crate) async fn short(&mut self) -> (String, String) {
        let event = self.next().await.expect("an event");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&event["type"]), text(&event["object"]["metadata"]["name"]))
    }
}
