//! The one way by which Panda's servers reach addresses that users name: a host is resolved once, what it resolves to is
//! held against one rule, and exactly that address is dialled. So a name that answers differently the second time gains
//! nothing, and a redirect is a new dial with the same rule.
//!
//! Refused, unless the operator listed the host: loopback, link-local (where clouds keep their metadata), private and shared
//! ranges, and everything else that is not public unicast, also inside IPv6 forms that carry an IPv4 address.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::net::TcpStream;

/// Most addresses of a name that are tried.
const MAX_ADDRESSES: usize = 8;
/// Addresses of clouds that look public.
const METADATA: [Ipv4Addr; 1] = [Ipv4Addr::new(168, 63, 129, 16)];

/// Why a host is not reached.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name has no address.
    #[error("cannot find {host}")]
    Resolve {
        /// The host.
        host: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// None of its addresses may be reached.
    #[error("{host} is {address}, which is no public address and not allowed here")]
    Refused {
        /// The host.
        host: String,
        /// The first of its addresses.
        address: IpAddr,
    },
    /// Nobody answers.
    #[error("cannot connect to {host} at {address}")]
    Connect {
        /// The host.
        host: String,
        /// The address that was tried last.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// How names become addresses.
pub trait Resolve: Send + Sync {
    /// The addresses of a host, best first.
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>>;
}

/// The system's resolver.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    }
}

/// See the module.
#[derive(Clone)]
pub struct Dialer {
    resolver: Arc<dyn Resolve>,
    allowed: Arc<BTreeSet<String>>,
    timeout: Duration,
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer")
            .field("allowed", &self.allowed)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Dialer {
    /// A dialer; `allowed` are hosts (names or addresses, without a port) that may be anywhere, `timeout` bounds finding the
    /// host and each try to connect.
    #[must_use]
    pub fn new(allowed: &[String], resolver: Arc<dyn Resolve>, timeout: Duration) -> Self {
        let allowed = allowed.iter().map(|host| plain(host)).collect();
        Self {
            resolver,
            allowed: Arc::new(allowed),
            timeout,
        }
    }

    /// The addresses of a host that may be dialled.
    ///
    /// # Errors
    /// When there are none.
    pub async fn addresses(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, Error> {
        let name = plain(host);
        let found = match name.parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, port)],
            Err(_) => tokio::time::timeout(self.timeout, self.resolver.resolve(&name, port))
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
                .map_err(|source| Error::Resolve {
                    host: name.clone(),
                    source,
                })?,
        };
        let Some(first) = found.first().map(SocketAddr::ip) else {
            let source = io::Error::from(io::ErrorKind::NotFound);
            return Err(Error::Resolve { host: name, source });
        };
        if self.allowed.contains(&name) {
            return Ok(found);
        }
        let good: Vec<SocketAddr> = found
            .into_iter()
            .filter(|address| is_public(address.ip()))
            .collect();
        if good.is_empty() {
            return Err(Error::Refused {
                host: name,
                address: first,
            });
        }
        Ok(good)
    }

    /// A connection to a host.
    ///
    /// # Errors
    /// When it cannot be found, may not be reached, or does not answer.
    pub async fn dial(&self, host: &str, port: u16) -> Result<TcpStream, Error> {
        let addresses = self.addresses(host, port).await?;
        let mut failed = None;
        for address in addresses.into_iter().take(MAX_ADDRESSES) {
            let connected = tokio::time::timeout(self.timeout, TcpStream::connect(address)).await;
            match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(stream) => return Ok(stream),
                Err(source) => {
                    failed = Some(Error::Connect {
                        host: plain(host),
                        address,
                        source,
                    })
                }
            }
        }
        Err(failed.unwrap_or_else(|| Error::Resolve {
            host: plain(host),
            source: io::ErrorKind::NotFound.into(),
        }))
    }
}

/// A host as it is compared: lower case, without brackets and without the dot of the root.
fn plain(host: &str) -> String {
    let host = host
        .strip_prefix('[')
        .and_then(|h| h.strip_suffix(']'))
        .unwrap_or(host);
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

/// Whether an address is public unicast (IANA's special-purpose registries for IPv4 and IPv6, conservatively).
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = a == 0
        || a == 10
        || a == 127
        || a >= 224
        || (a == 100 && (64..128).contains(&b))
        || (a == 169 && b == 254)
        || (a == 172 && (16..32).contains(&b))
        || (a == 192 && b == 168)
        || (a == 192 && b == 0 && (c == 0 || c == 2))
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && (b == 18 || b == 19))
        || (a == 198 && b == 51 && c == 100)
        || (a == 203 && b == 0 && c == 113);
    !special && !METADATA.contains(&address)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let s = address.segments();
    let low = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match s {
        // Forms that carry an IPv4 address: mapped, translated (well-known and local), 6to4.
        [0, 0, 0, 0, 0, 0xffff, high, tail] | [0, 0, 0, 0, 0xffff, 0, high, tail] => {
            is_public_v4(low(high, tail))
        }
        [0x64, 0xff9b, 0, 0, 0, 0, high, tail] => is_public_v4(low(high, tail)),
        [0x2002, high, tail, ..] => is_public_v4(low(high, tail)),
        // Teredo, ORCHID, benchmarking and documentation.
        [0x2001, second, ..] if second < 0x200 || second == 0xdb8 => false,
        [0x3fff, second, ..] if second < 0x1000 => false,
        // Only 2000::/3 is given out as global unicast.
        [first, ..] => (0x2000..0x4000).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Answers with one list after the other, the last one for ever.
    struct Names(Vec<Vec<&'static str>>, AtomicUsize);

    impl Resolve for Names {
        fn resolve<'a>(&'a self, _: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
            let turn = self.1.fetch_add(1, Ordering::SeqCst).min(self.0.len() - 1);
            let found = self.0[turn]
                .iter()
                .map(|text| SocketAddr::new(text.parse().unwrap(), port));
            let found = found.collect();
            Box::pin(async move { Ok(found) })
        }
    }

    fn dialer(allowed: &[&str], names: &[&[&'static str]]) -> Dialer {
        let allowed: Vec<String> = allowed.iter().map(|host| (*host).to_owned()).collect();
        let names = Names(
            names.iter().map(|list| list.to_vec()).collect(),
            AtomicUsize::new(0),
        );
        Dialer::new(&allowed, Arc::new(names), Duration::from_secs(5))
    }

    #[test]
    fn only_public_addresses_are_public() {
        for public in [
            "1.1.1.1",
            "140.82.121.4",
            "172.15.0.1",
            "172.32.0.1",
            "100.63.0.1",
            "192.0.1.1",
            "2606:4700::1111",
            "2a00::1",
            "64:ff9b::101:101",
            "::ffff:1.1.1.1",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
        for special in [
            "0.0.0.0",
            "10.1.2.3",
            "127.0.0.1",
            "127.255.255.254",
            "100.64.0.1",
            "100.100.100.200",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.0.1",
            "192.0.0.192",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.9",
            "168.63.129.16",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:0:10.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2001::1",
            "2001:db8::1",
            "3fff::1",
            "::7f00:1",
            "100::1",
            "5f00::1",
        ] {
            assert!(!is_public(special.parse().unwrap()), "{special}");
        }
    }

    #[tokio::test]
    async fn a_host_is_what_it_resolves_to() {
        let dialer = dialer(&[], &[&["127.0.0.1", "10.0.0.1"], &["10.0.0.1", "1.1.1.1"], &[]]);
        let refused = dialer.addresses("evil.example", 443).await.unwrap_err();
        assert!(matches!(refused, Error::Refused { .. }), "{refused}");
        let found = dialer.addresses("mixed.example", 443).await.unwrap();
        assert_eq!(found, ["1.1.1.1:443".parse().unwrap()]);
        let none = dialer.addresses("none.example", 443).await.unwrap_err();
        assert!(matches!(none, Error::Resolve { .. }));
        for literal in ["127.0.0.1", "[::1]", "::1", "169.254.169.254"] {
            let refused = dialer.addresses(literal, 80).await.unwrap_err();
            assert!(matches!(refused, Error::Refused { .. }), "{literal}");
        }
    }

    #[tokio::test]
    async fn a_listed_host_may_be_anywhere_and_is_compared_by_name() {
        let dialer = dialer(&["Git.Intern", "::1"], &[&["10.0.0.1"]]);
        for host in ["git.intern", "GIT.intern.", "[::1]"] {
            assert!(dialer.addresses(host, 22).await.is_ok(), "{host}");
        }
        assert!(dialer.addresses("git.intern.example", 22).await.is_err());
        assert!(dialer.addresses("10.0.0.1", 22).await.is_err());
    }

    #[tokio::test]
    async fn what_was_checked_is_what_is_dialled() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        // A second look at the name would give another address.
        let dialer = dialer(&["local"], &[&["127.0.0.1"], &["192.0.2.1"]]);
        let stream = dialer.dial("local", port).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap().port(), port);
    }
}
