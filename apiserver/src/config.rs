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
    /// How long changes are kept for watchers that come back and for the later pages of lists, 1 s to 24 h. Who names an
    /// older version is answered 410 and lists again. There are never more than 200,000 changes kept.
    #[serde(default = "default_history")]
    pub history: Duration,
    /// Leases of devices and runs.
    #[serde(default)]
    pub leases: Leases,
    /// Certificates of devices.
    #[serde(default)]
    pub certificates: Certificates,
    /// The audit log.
    #[serde(default)]
    pub audit: Audit,
    /// Free bytes on the data folder's disk below which nothing new is taken; at most a tenth of the disk counts.
    #[serde(default = "default_disk_pressure_bytes")]
    pub disk_pressure_bytes: u64,
}

const fn default_disk_pressure_bytes() -> u64 {
    64 << 20
}

/// How much of the audit log is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Audit {
    /// Bytes of all files, at least three times those of one. The oldest file goes when another would be too much.
    pub max_bytes: u64,
    /// Bytes of one file, at least 64 KiB.
    pub max_file_bytes: u64,
}

impl Default for Audit {
    fn default() -> Self {
        Self {
            max_bytes: 256 << 20,
            max_file_bytes: 16 << 20,
        }
    }
}

impl Audit {
    fn validate(&self) -> Result<(), Error> {
        let file = self.max_file_bytes;
        if file >= 64 << 10 && self.max_bytes / 3 >= file {
            Ok(())
        } else {
            Err(Error::Audit)
        }
    }
}

/// How devices get certificates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Certificates {
    /// How long a device's certificate is good, 1 s to 10 years. A device renews it after two thirds of that.
    pub device_life: Duration,
}

impl Default for Certificates {
    fn default() -> Self {
        Self {
            device_life: Duration::from_secs(90 * 24 * 3600),
        }
    }
}

impl Certificates {
    fn validate(&self) -> Result<(), Error> {
        if (1..=10 * 365 * 24 * 3600).contains(&self.device_life.get().as_secs()) {
            Ok(())
        } else {
            Err(Error::DeviceLife {
                found: self.device_life.to_string(),
            })
        }
    }
}

/// How leases are granted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Leases {
    /// How long a grant lasts, counted from when the device sent its renewal; whole seconds, 1 s to 1 h. It stands in
    /// each Lease and is told with each grant, so that devices and observers need no configuration of their own.
    #[serde(rename = "grantTTL")]
    pub grant_ttl: Duration,
    /// How far the wall clock of a device may be off before its condition `ClockSkew` says so.
    pub max_clock_skew: Duration,
}

impl Default for Leases {
    fn default() -> Self {
        Self {
            grant_ttl: Duration::from_secs(40),
            max_clock_skew: Duration::from_secs(30),
        }
    }
}

impl Leases {
    fn validate(&self) -> Result<(), Error> {
        let ttl = self.grant_ttl.get();
        if ttl.subsec_nanos() == 0 && (1..=3600).contains(&ttl.as_secs()) {
            Ok(())
        } else {
            Err(Error::GrantTtl {
                found: self.grant_ttl.to_string(),
            })
        }
    }
}

/// Bounds of the server. Beyond them it answers that it is busy; it never takes more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limits {
    /// Open connections.
    pub connections: usize,
    /// Those of clients that show no certificate, handshakes included; never more than three quarters of all. When they
    /// are taken, the oldest on which nothing is being answered makes room for the next.
    pub anonymous_connections: usize,
    /// Open connections of one address that is not loopback.
    pub connections_per_peer: usize,
    /// Requests being answered at a time, watches and logs left out. A quarter is for what keeps the system going (leases,
    /// status, bindings); of the rest one client gets at most two thirds. As many may wait for their turn.
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
    /// How long a client may leave an answer unread: within this time it has to take the next 64 KiB.
    pub stall_timeout: Duration,
    /// Time for a request, watches and logs left out.
    pub request_timeout: Duration,
    /// Time that open requests have to end when the server stops.
    pub drain_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            anonymous_connections: 4096,
            connections_per_peer: 1024,
            requests_in_flight: 512,
            long_requests: 16_384,
            body_bytes: 3 << 20,
            header_bytes: 64 << 10,
            handshake_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(60),
            request_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

impl Limits {
    /// Connections without a certificate: some places are always left for those with one.
    pub(crate) fn most_anonymous(&self) -> usize {
        self.anonymous_connections
            .min((self.connections - self.connections / 4).max(1))
    }
}

fn default_listen() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 7443))
}

fn default_event_ttl() -> Duration {
    Duration::from_secs(24 * 3600)
}

fn default_history() -> Duration {
    Duration::from_secs(600)
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
    /// A history of that length is no good.
    #[error("history is {found}, want 1s to 24h")]
    History {
        /// What it says.
        found: String,
    },
    /// Certificates of that length are no good.
    #[error("certificates.deviceLife is {found}, want 1s to 87600h")]
    DeviceLife {
        /// What it says.
        found: String,
    },
    /// The bounds of the audit log make no sense.
    #[error("audit.maxFileBytes must be at least 65536 and audit.maxBytes at least three times that")]
    Audit,
    /// Grants of that length are no good.
    #[error("leases.grantTTL is {found}, want whole seconds from 1s to 1h")]
    GrantTtl {
        /// What it says.
        found: String,
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
            history: default_history(),
            leases: Leases::default(),
            certificates: Certificates::default(),
            audit: Audit::default(),
            disk_pressure_bytes: default_disk_pressure_bytes(),
        }
    }

    /// Checks what the types cannot say.
    ///
    /// # Errors
    /// When the object is another one, a bound is zero, or grants have no sensible length.
    pub fn validate(&self) -> Result<(), Error> {
        if self.api_version != API_VERSION || self.kind != KIND {
            return Err(Error::Kind {
                found: format!("{} {}", self.api_version, self.kind),
            });
        }
        if !(1..=24 * 3600).contains(&self.history.get().as_secs()) {
            return Err(Error::History {
                found: self.history.to_string(),
            });
        }
        let limits = &self.limits;
        let counts = [
            ("connections", limits.connections),
            ("anonymousConnections", limits.anonymous_connections),
            ("connectionsPerPeer", limits.connections_per_peer),
            ("requestsInFlight", limits.requests_in_flight),
            ("longRequests", limits.long_requests),
            ("bodyBytes", limits.body_bytes),
            ("headerBytes", limits.header_bytes),
        ];
        let times = [
            ("handshakeTimeout", &limits.handshake_timeout),
            ("headerTimeout", &limits.header_timeout),
            ("stallTimeout", &limits.stall_timeout),
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
            None => self
                .leases
                .validate()
                .and_then(|()| self.certificates.validate())
                .and_then(|()| self.audit.validate()),
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
        for (ttl, good) in [
            ("1s", true),
            ("1h", true),
            ("0s", false),
            ("1500ms", false),
            ("2h", false),
        ] {
            let leases = format!("\"/d\",\"leases\":{{\"grantTTL\":\"{ttl}\"}}");
            let config: Config = serde_json::from_str(&text.replace("\"/d\"", &leases)).unwrap();
            assert_eq!(config.validate().is_ok(), good, "{ttl}");
        }
        for (history, good) in [("1s", true), ("24h", true), ("0s", false), ("25h", false)] {
            let history = format!("\"/d\",\"history\":\"{history}\"");
            let config: Config = serde_json::from_str(&text.replace("\"/d\"", &history)).unwrap();
            assert_eq!(config.validate().is_ok(), good, "{history}");
        }
        let other = Config {
            kind: "Task".to_owned(),
            ..config
        };
        assert!(matches!(other.validate(), Err(Error::Kind { .. })));
    }
}
