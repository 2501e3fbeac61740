//! How a byte stream to the server is opened.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::config::{Config, Identity};

/// A byte stream in both directions.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// Opens byte streams to one server.
pub trait Connector: Send + Sync + fmt::Debug + 'static {
    /// Opens one. Dropping the future gives up.
    fn connect(&self) -> BoxFuture<'_, Result<Box<dyn Io>, Error>>;
}

/// Why no stream could be opened, or no connector built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing listens, or the host cannot be reached.
    #[error("cannot connect to {target}")]
    Connect {
        /// Host and port.
        target: String,
        /// What the operating system says.
        #[source]
        source: io::Error,
    },
    /// The TLS handshake failed: wrong authority, wrong name, refused client certificate.
    #[error("TLS handshake with {target} failed")]
    Handshake {
        /// Host and port.
        target: String,
        /// What TLS says.
        #[source]
        source: io::Error,
    },
    /// The connection was not up in time.
    #[error("{target} did not accept the connection within {after:?}")]
    Timeout {
        /// Host and port.
        target: String,
        /// How long was waited.
        after: Duration,
    },
    /// The peer in memory is gone.
    #[error("the in-memory server is gone")]
    Closed,
    /// A certificate or key of the configuration cannot be used.
    #[error("{field}: {problem}")]
    Credential {
        /// Which part of the configuration.
        field: &'static str,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// TLS refuses the credentials.
    #[error("{field} cannot be used for TLS")]
    Tls {
        /// Which part of the configuration.
        field: &'static str,
        /// What TLS says.
        #[source]
        source: rustls::Error,
    },
}

impl Error {
    /// Whether trying again may help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Timeout { .. } | Self::Closed => true,
            // What TLS objects to stays as it is; a connection that broke half-way need not.
            Self::Handshake { source, .. } => !matches!(source.kind(), io::ErrorKind::InvalidData),
            Self::Credential { .. } | Self::Tls { .. } => false,
        }
    }
}

/// TLS over TCP. Trusts the authorities of the configuration and no other.
pub struct TlsConnector {
    target: String,
    server_name: ServerName<'static>,
    tls: tokio_rustls::TlsConnector,
    timeout: Duration,
}

impl fmt::Debug for TlsConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConnector")
            .field("target", &self.target)
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}

impl TlsConnector {
    /// A connector for `config`; `timeout` bounds TCP and TLS together.
    ///
    /// # Errors
    /// When the address, an authority, a certificate or a key cannot be used.
    pub fn new(config: &Config, timeout: Duration) -> Result<Self, Error> {
        Self::with_protocols(config, timeout, &[])
    }

    /// The same, asking for HTTP/2 in the handshake: for gRPC.
    ///
    /// # Errors
    /// When the address, an authority, a certificate or a key cannot be used.
    pub fn http2(config: &Config, timeout: Duration) -> Result<Self, Error> {
        Self::with_protocols(config, timeout, &[b"h2"])
    }

    fn with_protocols(config: &Config, timeout: Duration, protocols: &[&[u8]]) -> Result<Self, Error> {
        let bad_server = |problem: &str| Error::Credential {
            field: "server",
            problem: problem.to_owned(),
        };
        let host = config
            .server
            .host()
            .ok_or_else(|| bad_server("no host in the address"))?;
        if config.server.scheme_str() != Some("https") {
            return Err(bad_server("only https is spoken"));
        }
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let name = config.tls_server_name.as_deref().unwrap_or(bare).to_owned();
        let server_name = ServerName::try_from(name)
            .map_err(|_| bad_server("the host is neither a DNS name nor an IP address"))?;
        let mut tls = client_config(config)?;
        tls.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(Self {
            target: format!("{host}:{}", config.server.port_u16().unwrap_or(443)),
            server_name,
            tls: tokio_rustls::TlsConnector::from(Arc::new(tls)),
            timeout,
        })
    }

    async fn open(&self) -> Result<Box<dyn Io>, Error> {
        let tcp = TcpStream::connect(&self.target)
            .await
            .map_err(|source| Error::Connect {
                target: self.target.clone(),
                source,
            })?;
        // Requests are small and latency matters; without it they are only slower.
        if let Err(error) = tcp.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY refused");
        }
        let stream = self
            .tls
            .connect(self.server_name.clone(), tcp)
            .await
            .map_err(|source| Error::Handshake {
                target: self.target.clone(),
                source,
            })?;
        Ok(Box::new(stream))
    }
}

impl Connector for TlsConnector {
    fn connect(&self) -> BoxFuture<'_, Result<Box<dyn Io>, Error>> {
        Box::pin(async move {
            match tokio::time::timeout(self.timeout, self.open()).await {
                Ok(result) => result,
                Err(_) => Err(Error::Timeout {
                    target: self.target.clone(),
                    after: self.timeout,
                }),
            }
        })
    }
}

/// The TLS settings that a configuration asks for: its authorities only, its client certificate if it has one.
///
/// # Errors
/// When an authority, a certificate or a key cannot be used.
pub fn client_config(config: &Config) -> Result<rustls::ClientConfig, Error> {
    let certs = |field: &'static str, pem: &[u8]| -> Result<Vec<CertificateDer<'static>>, Error> {
        let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<_, _>>()
            .map_err(|e| Error::Credential {
                field,
                problem: format!("not PEM: {e}"),
            })?;
        if found.is_empty() {
            return Err(Error::Credential {
                field,
                problem: "no certificate in it; want PEM with BEGIN CERTIFICATE".to_owned(),
            });
        }
        Ok(found)
    };
    let mut roots = rustls::RootCertStore::empty();
    for cert in certs("certificate-authority-data", &config.ca)? {
        roots.add(cert).map_err(|source| Error::Tls {
            field: "certificate-authority-data",
            source,
        })?;
    }
    let builder =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|source| Error::Tls {
                field: "protocol versions",
                source,
            })?
            .with_root_certificates(roots);
    match &config.identity {
        Identity::ClientCert { cert, key } => {
            let chain = certs("client-certificate-data", cert)?;
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| Error::Credential {
                field: "client-key-data",
                problem: format!("no private key in it; want PEM with BEGIN PRIVATE KEY ({e})"),
            })?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|source| Error::Tls {
                    field: "client-certificate-data",
                    source,
                })
        }
        Identity::Bearer(_) | Identity::None => Ok(builder.with_no_client_auth()),
    }
}

/// Opens streams in memory, for tests and simulations.
#[derive(Clone, Debug)]
pub struct MemoryConnector {
    peers: mpsc::Sender<DuplexStream>,
}

/// The server's side of a [`MemoryConnector`].
#[derive(Debug)]
pub struct MemoryListener {
    peers: mpsc::Receiver<DuplexStream>,
}

/// A connector in memory and its listener.
#[must_use]
pub fn memory() -> (MemoryConnector, MemoryListener) {
    let (send, receive) = mpsc::channel(64);
    (MemoryConnector { peers: send }, MemoryListener { peers: receive })
}

impl MemoryListener {
    /// The next stream that the client opens; none once every connector is gone.
    pub async fn accept(&mut self) -> Option<DuplexStream> {
        self.peers.recv().await
    }
}

impl Connector for MemoryConnector {
    fn connect(&self) -> BoxFuture<'_, Result<Box<dyn Io>, Error>> {
        Box::pin(async move {
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            self.peers.send(theirs).await.map_err(|_| Error::Closed)?;
            let ours: Box<dyn Io> = Box::new(ours);
            Ok(ours)
        })
    }
}

#[cfg(test)]
mod tests;
