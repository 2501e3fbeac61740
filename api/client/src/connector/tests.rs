//! The client over real TLS and TCP, and over memory.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::StreamExt;
use http::{Response, Uri};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::WebPkiClientVerifier;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;
use crate::api::Api;
use crate::client::{Client, Options};
use crate::params::WatchParams;
use crate::transport;
use crate::watch::WatchEvent;

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> Vec<u8> {
        self.0.pem().into_bytes()
    }

    fn issue(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.0).unwrap(), key)
    }
}

/// A server that counts connections and says whether a client certificate came; ends with its owner.
struct TestServer {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

async fn serve(authority: &Authority) -> TestServer {
    let (cert, key) = authority.issue("127.0.0.1");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.0.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .allow_unauthenticated()
        .build()
        .unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![cert.der().clone()],
            PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        )
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&connections);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut inner = JoinSet::new();
        while let Ok((tcp, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            let counter = Arc::clone(&counter);
            inner.spawn(async move {
                let Ok(tls) = acceptor.accept(tcp).await else {
                    return;
                };
                counter.fetch_add(1, Ordering::SeqCst);
                let known = tls.get_ref().1.peer_certificates().is_some();
                let service = service_fn(move |request: http::Request<hyper::body::Incoming>| async move {
                    let token = request.headers().get("authorization").cloned();
                    let body = format!("cert={known} token={token:?}");
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(body))))
                });
                // The client closes when it is done; that is no failure here.
                drop(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(tls), service)
                        .await,
                );
            });
        }
    });
    TestServer {
        address,
        connections,
        _tasks: tasks,
    }
}

fn config(address: SocketAddr, ca: Vec<u8>, identity: Identity) -> Config {
    Config {
        server: Uri::try_from(format!("https://{address}")).unwrap(),
        ca,
        tls_server_name: None,
        identity,
        namespace: "default".into(),
    }
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let authority = Authority::new();
    let server = serve(&authority).await;
    let config = config(server.address, authority.pem(), Identity::Bearer("t0ken".into()));
    let client = Client::connect(&config, Options::default()).unwrap();
    for _ in 0..5 {
        let text = client.get_text("/whoami").await.unwrap();
        assert_eq!(
            text,
            "cert=false token=Some(Sensitive)".replace("Sensitive", "\"Bearer t0ken\"")
        );
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn the_client_certificate_is_shown() {
    let authority = Authority::new();
    let server = serve(&authority).await;
    let (cert, key) = authority.issue("me");
    let identity = Identity::ClientCert {
        cert: cert.pem().into_bytes(),
        key: key.serialize_pem().into_bytes(),
    };
    let client = Client::connect(
        &config(server.address, authority.pem(), identity),
        Options::default(),
    )
    .unwrap();
    assert_eq!(client.get_text("/").await.unwrap(), "cert=true token=None");
}

#[tokio::test]
async fn another_authority_is_not_trusted_and_not_tried_again() {
    let server = serve(&Authority::new()).await;
    let config = config(server.address, Authority::new().pem(), Identity::None);
    let client = Client::connect(&config, Options::default()).unwrap();
    let error = client.get_text("/").await.unwrap_err();
    assert!(
        matches!(
            &error,
            crate::Error::Transport(transport::Error::Connect(Error::Handshake { .. }))
        ),
        "{error:?}"
    );
    assert!(!error.is_retryable() && !error.may_have_happened());
}

#[tokio::test]
async fn nobody_listening_is_a_connection_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let options = Options {
        retries: 1,
        ..Options::default()
    };
    let client = Client::connect(&config(address, Authority::new().pem(), Identity::None), options).unwrap();
    let error = client.get_text("/").await.unwrap_err();
    assert!(error.is_retryable() && !error.may_have_happened(), "{error:?}");
    let mut chain = vec![error.to_string()];
    let mut next = std::error::Error::source(&error);
    while let Some(cause) = next {
        chain.push(cause.to_string());
        next = cause.source();
    }
    assert!(
        chain.contains(&format!("cannot connect to {address}")),
        "{chain:?}"
    );
}

#[tokio::test]
async fn a_server_that_never_shakes_hands_runs_into_the_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = config(
        listener.local_addr().unwrap(),
        Authority::new().pem(),
        Identity::None,
    );
    let connector = TlsConnector::new(&config, Duration::from_millis(50)).unwrap();
    assert!(matches!(
        connector.connect().await.err(),
        Some(Error::Timeout { .. })
    ));
}

#[test]
fn bad_credentials_name_their_field() {
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let field = |config: &Config| match client_config(config) {
        Err(Error::Credential { field, .. } | Error::Tls { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    let bad = config(address, b"nonsense".to_vec(), Identity::None);
    assert_eq!(field(&bad), "certificate-authority-data");
    let authority = Authority::new();
    let (cert, key) = authority.issue("me");
    let no_key = Identity::ClientCert {
        cert: cert.pem().into_bytes(),
        key: Vec::new(),
    };
    assert_eq!(
        field(&config(address, authority.pem(), no_key)),
        "client-key-data"
    );
    let no_cert = Identity::ClientCert {
        cert: Vec::new(),
        key: key.serialize_pem().into_bytes(),
    };
    assert_eq!(
        field(&config(address, authority.pem(), no_cert)),
        "client-certificate-data"
    );
}

#[tokio::test]
async fn a_watch_streams_over_memory() {
    let (connector, mut listener) = memory();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let io = listener.accept().await.unwrap();
        let service = service_fn(|request: http::Request<hyper::body::Incoming>| async move {
            assert_eq!(request.uri().path(), "/prefix/apis/panda.dev/v1alpha1/tasks");
            let line = r#"{"type":"ADDED","object":{"apiVersion":"panda.dev/v1alpha1","kind":"Task","metadata":{"name":"a"},"spec":{"prompt":"x"}}}"#;
            // Never ends: events must come out as they come in.
            let parts = futures::stream::iter([format!("{line}\n")])
                .map(|l| Ok::<_, Infallible>(Frame::data(Bytes::from(l))))
                .chain(futures::stream::pending());
            Ok::<_, Infallible>(Response::new(BodyExt::boxed(StreamBody::new(parts))))
        });
        drop(
            hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(io), service)
                .await,
        );
    });
    let mut config = config(SocketAddr::from(([127, 0, 0, 1], 1)), Vec::new(), Identity::None);
    config.server = Uri::from_static("https://panda.test/prefix/");
    let client = Client::over(&config, Arc::new(connector), Options::default()).unwrap();
    let mut events = Api::<panda_api::Task>::all(client)
        .watch(&WatchParams::default())
        .await
        .unwrap();
    let first = events.next().await.unwrap().unwrap();
    assert!(matches!(first, WatchEvent::Added(task) if task.metadata.name == "a"));
}
