//! The server's configuration: a versioned object, unknown fields refused.

use std::net::SocketAddr;
use std::path::PathBuf;

use panda_api::meta::Duration;
use serde::{Deserialize, Serialize};

/// The only `apiVersion` that is read.
pub const API_VERSION: &str = "config.panda.dev/v1alpha1";
/// The `kind` of the configuration.
pub const KIND: &str = "ApiServerConfiguration";

/// Configuration of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// [`API_VERSION`].
    pub api_version: String,
    /// [`KIND`].
    pub kind: String,
    /// Folder that holds keys, certificates and data.
    pub data_dir: PathBuf,
    /// Address to listen on.
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// Further host names and addresses that stand in the server's certificate.
    #[serde(default)]
    pub tls_names: Vec<String>,
    /// Bounds.
    #[serde(default)]
    pub limits: Limits,
    /// How long Events live.
    #[serde(default = "default_event_ttl")]
    pub event_ttl: Duration,
}

/// Bounds of the server. Beyond them it answers that it is busy; it never takes more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limits {
    /// Open connections.
    pub connections: usize,
    /// Open connections of one address that is not loopback.
    pub connections_per_peer: usize,
    /// Requests being answered at a time, watches and logs left out.
    pub requests_in_flight: usize,
    /// Watches and other long requests at a time.
    pub long_requests: usize,
    /// Bytes of a request body.
    pub body_bytes: usize,
    /// Bytes of all headers of a request.
    pub header_bytes: usize,
    /// Time for a TLS handshake.
    pub handshake_timeout: Duration,
    /// Time for the headers of a request; also how long an unused connection stays open.
    pub header_timeout: Duration,
    /// Time for a request, watches and logs left out.
    pub request_timeout: Duration,
    /// Time that open requests have to end when the server stops.
    pub drain_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            connections_per_peer: 1024,
            requests_in_flight: 512,
            long_requests: 16_384,
            body_bytes: 3 << 20,
            header_bytes: 64 << 10,
            handshake_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(60),
            request_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

fn default_listen() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 7443))
}

fn default_event_ttl() -> Duration {
    Duration::from_secs(24 * 3600)
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is another kind of object.
    #[error("the configuration is {found}, want {API_VERSION} {KIND}")]
    Kind {
        /// What it says it is.
        found: String,
    },
    /// A bound makes no sense.
    #[error("limits.{field} must not be zero")]
    Zero {
        /// The bound.
        field: &'static str,
    },
}

impl Config {
    /// The defaults for a data folder.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            data_dir: data_dir.into(),
            listen: default_listen(),
            tls_names: Vec::new(),
            limits: Limits::default(),
            event_ttl: default_event_ttl(),
        }
    }

    /// Checks what the types cannot say.
    ///
    /// # Errors
    /// When the object is another one, or a bound is zero.
    pub fn validate(&self) -> Result<(), Error> {
        if self.api_version != API_VERSION || self.kind != KIND {
            return Err(Error::Kind {
                found: format!("{} {}", self.api_version, self.kind),
            });
        }
        let limits = &self.limits;
        let counts = [
            ("connections", limits.connections),
            ("connectionsPerPeer", limits.connections_per_peer),
            ("requestsInFlight", limits.requests_in_flight),
            ("longRequests", limits.long_requests),
            ("bodyBytes", limits.body_bytes),
            ("headerBytes", limits.header_bytes),
        ];
        let times = [
            ("handshakeTimeout", &limits.handshake_timeout),
            ("headerTimeout", &limits.header_timeout),
            ("requestTimeout", &limits.request_timeout),
        ];
        let zero = counts.iter().find(|(_, n)| *n == 0).map(|(field, _)| *field);
        let zero = zero.or_else(|| {
            times
                .iter()
                .find(|(_, t)| t.get().is_zero())
                .map(|(field, _)| *field)
        });
        match zero {
            Some(field) => Err(Error::Zero { field }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_filled_in_and_unknown_fields_refused() {
        let text =
            r#"{"apiVersion":"config.panda.dev/v1alpha1","kind":"ApiServerConfiguration","dataDir":"/d"}"#;
        let config: Config = serde_json::from_str(text).unwrap();
        assert_eq!(config, Config::new("/d"));
        config.validate().unwrap();
        let typo = text.replace("dataDir", "datadir");
        assert!(serde_json::from_str::<Config>(&typo).is_err());
        let zero = text.replace("\"/d\"", "\"/d\",\"limits\":{\"bodyBytes\":0}");
        let zero: Config = serde_json::from_str(&zero).unwrap();
        assert_eq!(
            zero.validate().unwrap_err().to_string(),
            "limits.bodyBytes must not be zero"
        );
        let other = Config {
            kind: "Task".to_owned(),
            ..config
        };
        assert!(matches!(other.validate(), Err(Error::Kind { .. })));
    }
}
