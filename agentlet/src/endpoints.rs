//! The ways to the control plane: several addresses, tried in order, and the one that works is kept.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use http::Uri;
use panda_client::Config;
use panda_client::config::Identity;
use panda_client::connector::{Connector, Error, Io, TlsConnector};
use tokio::sync::watch;

use crate::credentials::Credentials;

/// How long one address may take; short, so that the next has its turn within one try of a session.
const CONNECT: Duration = Duration::from_secs(3);

/// Addresses of the control plane, shared by everything that dials it.
#[derive(Debug)]
pub struct Endpoints {
    servers: Vec<Uri>,
    /// The one that worked last.
    current: AtomicUsize,
    /// What was last logged, so that a server that is away fills no log.
    told: Mutex<String>,
}

impl Endpoints {
    /// These addresses, in this order. None of them is asked yet.
    #[must_use]
    pub fn new(servers: Vec<Uri>) -> Arc<Self> {
        Arc::new(Self {
            servers,
            current: AtomicUsize::new(0),
            told: Mutex::default(),
        })
    }

    /// The addresses.
    #[must_use]
    pub fn servers(&self) -> &[Uri] {
        &self.servers
    }

    /// The address that worked last, or the first.
    #[must_use]
    pub fn current(&self) -> Option<&Uri> {
        self.servers
            .get(self.current.load(Ordering::Relaxed))
            .or(self.servers.first())
    }

    async fn connect(&self, ca_pem: &str, identity: &Identity, http2: bool) -> Result<Box<dyn Io>, Error> {
        let first = self.current.load(Ordering::Relaxed);
        let mut failure = Error::Credential {
            field: "servers",
            problem: "no address is given".into(),
        };
        for step in 0..self.servers.len() {
            let index = (first + step) % self.servers.len();
            // Also when this future is dropped half-way, the next try begins with the next address.
            self.current
                .store((index + 1) % self.servers.len(), Ordering::Relaxed);
            let config = Config {
                server: self.servers[index].clone(),
                ca: ca_pem.as_bytes().to_vec(),
                tls_server_name: None,
                identity: identity.clone(),
                namespace: String::new(),
            };
            let connector = if http2 {
                TlsConnector::http2(&config, CONNECT)
            } else {
                TlsConnector::new(&config, CONNECT)
            };
            match connector?.connect().await {
                Ok(stream) => {
                    self.current.store(index, Ordering::Relaxed);
                    self.tell(String::new());
                    return Ok(stream);
                }
                Err(error) => failure = error,
            }
        }
        self.tell(describe(&failure));
        Err(failure)
    }

    fn tell(&self, text: String) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if *told == text {
            return;
        }
        if text.is_empty() {
            tracing::info!(server = ?self.current(), "the control plane is reached");
        } else {
            tracing::warn!(why = text, "the control plane is not reached, trying on");
        }
        *told = text;
    }
}

/// An error of a connection, with what to do about it.
#[must_use]
pub fn describe(error: &Error) -> String {
    let text = crate::runner::chain(error);
    match error {
        Error::Handshake { .. } if text.contains("UnknownIssuer") => format!(
            "{text}; the server's certificate is of another authority than the one this device joined: check the              address, or remove identity.pem and ca.crt and join again"
        ),
        Error::Handshake { .. } if text.contains("NotValidForName") => format!(
            "{text}; start panda-apiserver with --tls-name for this address, or use a name that it has"
        ),
        _ => text,
    }
}

/// Dials with the device's certificate as it is at that moment: a renewed one is used from the next connection on.
#[derive(Debug)]
pub struct DeviceConnector {
    endpoints: Arc<Endpoints>,
    credentials: watch::Receiver<Arc<Credentials>>,
    http2: bool,
}

impl DeviceConnector {
    /// For gRPC.
    #[must_use]
    pub fn http2(endpoints: Arc<Endpoints>, credentials: watch::Receiver<Arc<Credentials>>) -> Self {
        Self {
            endpoints,
            credentials,
            http2: true,
        }
    }

    /// For plain requests.
    #[must_use]
    pub fn http1(endpoints: Arc<Endpoints>, credentials: watch::Receiver<Arc<Credentials>>) -> Self {
        Self {
            endpoints,
            credentials,
            http2: false,
        }
    }
}

impl Connector for DeviceConnector {
    fn connect(&self) -> BoxFuture<'_, Result<Box<dyn Io>, Error>> {
        Box::pin(async move {
            let credentials = Arc::clone(&self.credentials.borrow());
            let identity = credentials.identity();
            self.endpoints
                .connect(&credentials.ca_pem, &identity, self.http2)
                .await
        })
    }
}

/// Dials without a certificate, for a device that has none that is good.
#[derive(Debug)]
pub struct PlainConnector {
    /// Where to.
    pub endpoints: Arc<Endpoints>,
    /// The authority to trust, PEM.
    pub ca_pem: String,
}

impl Connector for PlainConnector {
    fn connect(&self) -> BoxFuture<'_, Result<Box<dyn Io>, Error>> {
        Box::pin(self.endpoints.connect(&self.ca_pem, &Identity::None, false))
    }
}
