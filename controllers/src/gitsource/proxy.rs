//! A proxy on the loopback interface for one fetch: git asks it to connect (`CONNECT`), and it dials by the rule of
//! [`panda_client::dialer`]. Redirects come through it, too. It serves only who knows its token, and ends with the fetch.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use panda_client::dialer::Dialer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Name that stands before the token.
const USER: &str = "panda";
/// Longest head of a request, in bytes.
const MAX_HEAD: usize = 8 * 1024;
/// How long a head may take.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Connections at one time.
const MAX_CONNECTIONS: usize = 8;
/// The word with which these binaries are ssh's way to a proxy.
const HIDDEN: &str = "git-dial";
/// Where [`hidden`] finds the proxy: `user:token@address`.
pub const VARIABLE: &str = "PANDA_GIT_PROXY";

/// A running proxy; it ends when this is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    token: String,
    refused: Arc<Mutex<Option<String>>>,
    _running: DropGuard,
}

struct Rules {
    dialer: Dialer,
    ports: BTreeSet<u16>,
    credentials: String,
    refused: Arc<Mutex<Option<String>>>,
}

impl Proxy {
    /// Starts a proxy that connects to these ports only.
    ///
    /// # Errors
    /// When no port of the loopback interface is free.
    pub async fn start(dialer: Dialer, token: String, ports: BTreeSet<u16>) -> std::io::Result<Self> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let refused = Arc::new(Mutex::new(None));
        let rules = Arc::new(Rules {
            dialer,
            ports,
            credentials: format!("Basic {}", STANDARD.encode(format!("{USER}:{token}"))),
            refused: Arc::clone(&refused),
        });
        let stop = CancellationToken::new();
        tokio::spawn(accept(listener, rules, stop.clone()));
        Ok(Self {
            address,
            token,
            refused,
            _running: stop.drop_guard(),
        })
    }

    /// `user:token@address`.
    #[must_use]
    pub fn authority(&self) -> String {
        format!("{USER}:{}@{}", self.token, self.address)
    }

    /// Why a connection was refused, if one was.
    #[must_use]
    pub fn refused(&self) -> Option<String> {
        self.refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

async fn accept(listener: TcpListener, rules: Arc<Rules>, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => {
                if let Ok((stream, _)) = accepted {
                    let rules = Arc::clone(&rules);
                    connections.spawn(async move {
                        if let Err(error) = serve(stream, &rules).await {
                            tracing::debug!(%error, "a connection of git ended");
                        }
                    });
                }
            }
        }
    }
}

async fn serve(mut stream: TcpStream, rules: &Rules) -> std::io::Result<()> {
    let head = match tokio::time::timeout(HEAD_TIME, read_head(&mut stream)).await {
        Ok(head) => head?,
        Err(_) => return Ok(()),
    };
    let (host, port) = match target(&head, &rules.credentials) {
        Ok(target) => target,
        Err(answer) => return refuse(&mut stream, answer).await,
    };
    let problem = if rules.ports.contains(&port) {
        match rules.dialer.dial(&host, port).await {
            Ok(mut upstream) => {
                stream.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await?;
                tokio::io::copy_bidirectional(&mut stream, &mut upstream).await?;
                return Ok(());
            }
            Err(error) => panda_error(&error),
        }
    } else {
        format!("port {port} of {host} is not the one of the address")
    };
    *rules.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
    refuse(&mut stream, "403 Forbidden").await
}

fn panda_error(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

async fn refuse(stream: &mut TcpStream, answer: &str) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.shutdown().await
}

/// Everything up to the empty line; what follows it stays in the stream, since a client waits for the answer.
async fn read_head(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MAX_HEAD {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        head.push(stream.read_u8().await?);
    }
    String::from_utf8(head).map_err(|_| std::io::ErrorKind::InvalidData.into())
}

/// The host and port that a request asks for.
fn target(head: &str, credentials: &str) -> Result<(String, u16), &'static str> {
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let known = lines
        .filter_map(|line| line.split_once(':'))
        .any(|(name, value)| name.eq_ignore_ascii_case("proxy-authorization") && value.trim() == credentials);
    if !known {
        return Err("407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"git\"");
    }
    // Anything but CONNECT would be plain HTTP.
    let (Some("CONNECT"), Some(authority)) = (words.next(), words.next()) else {
        return Err("403 Forbidden");
    };
    let Some((host, port)) = authority.rsplit_once(':') else {
        return Err("400 Bad Request");
    };
    let host = host
        .strip_prefix('[')
        .and_then(|h| h.strip_suffix(']'))
        .unwrap_or(host);
    match port.parse() {
        Ok(port) if !host.is_empty() => Ok((host.to_owned(), port)),
        _ => Err("400 Bad Request"),
    }
}

/// What this program does when ssh calls it as `… git-dial HOST PORT`: it joins its standard input and output with a
/// connection through the proxy that `variable` names. `None` when it was not called so.
#[must_use]
pub fn hidden(mut args: impl Iterator<Item = OsString>, variable: Option<String>) -> Option<ExitCode> {
    if args.next()? != HIDDEN {
        return None;
    }
    let words: Vec<String> = args.filter_map(|arg| arg.into_string().ok()).collect();
    let [host, port] = words.as_slice() else {
        return Some(ExitCode::FAILURE);
    };
    Some(match variable.and_then(|proxy| join(&proxy, host, port).ok()) {
        Some(()) => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    })
}

/// The words of [`hidden`] for ssh's `ProxyCommand`.
pub(crate) fn command(program: &std::path::Path) -> String {
    format!("'{}' {HIDDEN} %h %p", program.display())
}

fn join(proxy: &str, host: &str, port: &str) -> std::io::Result<()> {
    let bad = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
    let (user, address) = proxy.rsplit_once('@').ok_or_else(bad)?;
    let mut stream = std::net::TcpStream::connect(address.parse::<SocketAddr>().map_err(|_| bad())?)?;
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    write!(
        stream,
        "CONNECT {host}:{port} HTTP/1.1\r\nProxy-Authorization: Basic {}\r\n\r\n",
        STANDARD.encode(user)
    )?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MAX_HEAD {
            return Err(bad());
        }
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    if !head.starts_with(b"HTTP/1.1 200") {
        return Err(std::io::ErrorKind::PermissionDenied.into());
    }
    let mut up = stream.try_clone()?;
    std::thread::spawn(move || {
        let copied = std::io::copy(&mut std::io::stdin(), &mut up);
        // The other side sees the end; what it still says is passed on.
        let closed = up.shutdown(std::net::Shutdown::Write);
        copied.map(drop).and(closed)
    });
    let mut out = std::io::stdout();
    std::io::copy(&mut stream, &mut out)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use panda_client::dialer::SystemResolver;

    use super::*;

    fn dialer(allowed: &[&str]) -> Dialer {
        let allowed: Vec<String> = allowed.iter().map(|host| (*host).to_owned()).collect();
        Dialer::new(&allowed, Arc::new(SystemResolver), Duration::from_secs(5))
    }

    async fn ask(proxy: &Proxy, token: &str, first: &str) -> (String, TcpStream) {
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        let credentials = STANDARD.encode(format!("{USER}:{token}"));
        let head = format!("{first}\r\nproxy-authorization: Basic {credentials}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = read_head(&mut stream).await.unwrap();
        (answer, stream)
    }

    #[tokio::test]
    async fn it_connects_to_allowed_hosts_for_who_knows_the_token() {
        let echo = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = echo.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = echo.accept().await.unwrap();
            let (mut read, mut write) = stream.split();
            tokio::io::copy(&mut read, &mut write).await.unwrap();
        });
        let proxy = Proxy::start(dialer(&["127.0.0.1"]), "t".into(), [port].into())
            .await
            .unwrap();
        let (answer, _) = ask(&proxy, "wrong", &format!("CONNECT 127.0.0.1:{port} HTTP/1.1")).await;
        assert!(answer.starts_with("HTTP/1.1 407"), "{answer}");
        let (answer, _) = ask(&proxy, "t", &format!("GET http://127.0.0.1:{port}/ HTTP/1.1")).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
        let (answer, mut stream) = ask(&proxy, "t", &format!("CONNECT 127.0.0.1:{port} HTTP/1.1")).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        stream.write_all(b"hello").await.unwrap();
        let mut heard = [0; 5];
        stream.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"hello");
        assert_eq!(proxy.refused(), None);
    }

    #[tokio::test]
    async fn it_refuses_addresses_and_ports_that_are_not_allowed_and_says_why() {
        let proxy = Proxy::start(dialer(&[]), "t".into(), [443].into()).await.unwrap();
        for (authority, word) in [
            ("127.0.0.1:443", "no public address"),
            ("[::1]:443", "no public address"),
            ("169.254.169.254:443", "no public address"),
            ("localhost:443", "no public address"),
            ("1.1.1.1:25", "port 25"),
        ] {
            let (answer, _) = ask(&proxy, "t", &format!("CONNECT {authority} HTTP/1.1")).await;
            assert!(answer.starts_with("HTTP/1.1 403"), "{authority}: {answer}");
            assert!(proxy.refused().unwrap().contains(word), "{:?}", proxy.refused());
        }
    }

    #[tokio::test]
    async fn it_ends_with_its_fetch() {
        let proxy = Proxy::start(dialer(&[]), "t".into(), [443].into()).await.unwrap();
        let address = proxy.address;
        drop(proxy);
        let gone = async {
            while TcpStream::connect(address).await.is_ok() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), gone).await.unwrap();
    }

    #[test]
    fn other_calls_of_the_program_are_its_own() {
        let call = |words: &[&str]| hidden(words.iter().map(OsString::from), None);
        assert_eq!(call(&[]), None);
        assert_eq!(call(&["get", "tasks"]), None);
        assert_eq!(call(&["git-dial", "host"]), Some(ExitCode::FAILURE));
        assert_eq!(call(&["git-dial", "host", "22"]), Some(ExitCode::FAILURE));
    }
}
