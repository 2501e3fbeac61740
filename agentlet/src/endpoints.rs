//! The ways to the control plane: several addresses, tried in order, and the one that works is kept.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The next to be tried: the one that worked last.
    current: usize,
    /// Whether the last connection that was asked for was made, and to `current`.
    connected: bool,
    /// What was last logged, so that a server that is away fills no log.
    told: String,
}

impl Endpoints {
    /// These addresses, in this order. None of them is asked yet.
    #[must_use]
    pub fn new(servers: Vec<Uri>) -> Arc<Self> {
        Arc::new(Self {
            servers,
            state: Mutex::default(),
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
        self.servers.get(self.state().current).or(self.servers.first())
    }

    /// The server to which the last connection was made is of no use, although it could be connected to: the next one has
    /// its turn. A failed connection needs no such word.
    pub fn pass_over(&self) {
        let mut state = self.state();
        if std::mem::take(&mut state.connected) {
            state.current = self.after(state.current);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn after(&self, index: usize) -> usize {
        (index + 1) % self.servers.len().max(1)
    }

    async fn connect(&self, ca_pem: &str, identity: &Identity, http2: bool) -> Result<Box<dyn Io>, Error> {
        let first = self.state().current;
        let mut failure = Error::Credential {
            field: "servers",
            problem: "no address is given".into(),
        };
        for step in 0..self.servers.len() {
            let index = (first + step) % self.servers.len();
            {
                // Also when this future is dropped half-way, the next try begins with the next address.
                let mut state = self.state();
                state.current = self.after(index);
                state.connected = false;
            }
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
                    {
                        let mut state = self.state();
                        state.current = index;
                        state.connected = true;
                    }
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
        let mut state = self.state();
        if state.told == text {
            return;
        }
        if text.is_empty() {
            let server = self.servers.get(state.current).map(ToString::to_string);
            tracing::info!(server, "the control plane is reached");
        } else {
            tracing::warn!(why = text, "the control plane is not reached, trying on");
        }
        state.told = text;
    }
}

/// An error of a connection, with what to do about it.
#[must_use]
pub fn describe(error: &Error) -> String {
    let text = crate::runner::chain(error);
    let remedy = match error {
        Error::Handshake { .. } => remedy(&text),
        _ => None,
    };
    remedy.map_or_else(|| text.clone(), |remedy| format!("{text}; {remedy}"))
}

/// What to do about a handshake that failed so. All authorities of ours bear one name: another one shows in a signature that
/// does not fit.
fn remedy(text: &str) -> Option<&'static str> {
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if says(&["UnknownIssuer", "BadSignature"]) {
        Some(
            "the server's certificate is of another authority than the one this device joined: check the address, or remove \
             identity.pem and ca.crt and join again",
        )
    } else if says(&["not valid for name", "NotValidForName"]) {
        Some("start panda-apiserver with --tls-name for this address, or use a name that it has")
    } else if says(&["certificate expired", "not valid yet", "NotValidYet", "Expired"]) {
        Some(
            "check the clocks of this machine and of the server; panda-apiserver renews its certificate when it is started",
        )
    } else {
        None
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

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Arc<Endpoints> {
        let servers = ["https://127.0.0.1:1", "https://127.0.0.1:2"];
        Endpoints::new(servers.iter().map(|server| server.parse().unwrap()).collect())
    }

    #[test]
    fn a_server_that_was_connected_to_is_passed_over_once_for_each_connection() {
        let endpoints = two();
        endpoints.pass_over();
        assert_eq!(
            endpoints.current(),
            endpoints.servers().first(),
            "none was connected to"
        );
        endpoints.state().connected = true;
        endpoints.pass_over();
        endpoints.pass_over();
        assert_eq!(endpoints.current(), endpoints.servers().last());
        endpoints.state().connected = true;
        endpoints.pass_over();
        assert_eq!(endpoints.current(), endpoints.servers().first());
        let none = Endpoints::new(Vec::new());
        none.pass_over();
        assert_eq!(none.current(), None);
    }

    #[tokio::test]
    async fn when_none_can_be_connected_to_each_had_its_turn_and_none_is_passed_over() {
        let endpoints = two();
        let failed = endpoints.connect("", &Identity::None, true).await;
        assert!(failed.is_err());
        let next = endpoints.current().cloned();
        endpoints.pass_over();
        assert_eq!(endpoints.current().cloned(), next);
    }
}
