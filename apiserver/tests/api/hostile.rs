//! What clients without manners meet: bounds.

use std::io::ErrorKind;
use std::sync::Arc;

use http::Method;
use panda_api::meta::{Duration, RandomIds, SystemClock};
use panda_apiserver::pki::{Pki, Subject};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{CONFIG_MAPS, Client, Harness, PATIENCE};

/// Reads until the other side ends the connection; what came.
async fn drain(stream: &mut (impl AsyncReadExt + Unpin)) -> Vec<u8> {
    let mut out = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut out))
        .await
        .expect("an end in time");
    if let Err(error) = read {
        let kinds = [
            ErrorKind::ConnectionReset,
            ErrorKind::UnexpectedEof,
            ErrorKind::BrokenPipe,
        ];
        assert!(kinds.contains(&error.kind()), "{error}");
    }
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_the_port_ends_its_connection_only() {
    let server = Harness::start().await;
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        b"\x16\x03\x01\xff\xff",
        &[0; 4096],
        b"SSH-2.0-x\r\n",
    ] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        drain(&mut stream).await;
    }
    for garbage in [
        &b"\0\0\0\0\r\n\r\n"[..],
        b"GET /\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut stream = server.admin.connect().await.unwrap();
        stream.write_all(garbage).await.unwrap();
        drop(stream.shutdown().await);
        drain(&mut stream).await;
    }
    server.admin.get("/readyz").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_handshakes_and_slow_headers_are_cut() {
    let server = Harness::with(|config| {
        config.limits.handshake_timeout = Duration::from(std::time::Duration::from_millis(200));
        config.limits.header_timeout = Duration::from(std::time::Duration::from_millis(200));
    })
    .await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    assert!(drain(&mut silent).await.is_empty());
    let mut slow = server.admin.connect().await.unwrap();
    slow.write_all(b"GET /api HTTP/1.1\r\nHost: x\r\nX-A: ")
        .await
        .unwrap();
    let answer = drain(&mut slow).await;
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1.1 408"),
        "{answer:?}"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_and_headers_are_refused() {
    let server = Harness::with(|config| config.limits.body_bytes = 10_000).await;
    let admin = &server.admin;
    let map = json!({"metadata": {"name": "a"}, "data": {"k": "x".repeat(20_000)}});
    admin
        .post(CONFIG_MAPS, &map)
        .await
        .refused(413, "RequestEntityTooLarge");
    // Without a length the limit counts what arrives.
    let mut stream = admin.connect().await.unwrap();
    let head = format!(
        "POST {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..3 {
        let chunk = format!("1388\r\n{}\r\n", " ".repeat(0x1388));
        if stream.write_all(chunk.as_bytes()).await.is_err() {
            break;
        }
    }
    let answer = drain(&mut stream).await;
    assert!(
        answer.starts_with(b"HTTP/1.1 413"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    let long = "x".repeat(200_000);
    let mut stream = admin.connect().await.unwrap();
    let head = format!("GET /api HTTP/1.1\r\nHost: x\r\nX-Long: {long}\r\n\r\n");
    drop(stream.write_all(head.as_bytes()).await);
    let answer = drain(&mut stream).await;
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    let mut deep = "[".repeat(100_000);
    deep.truncate(9_000);
    admin
        .call(Method::POST, CONFIG_MAPS, &[], deep)
        .await
        .refused(400, "BadRequest");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_over_the_bound_are_told_to_come_again() {
    let server = Harness::with(|config| config.limits.long_requests = 2).await;
    let path = format!("{CONFIG_MAPS}?watch=1");
    let one = server.admin.watch(&path).await;
    let _two = server.admin.watch(&path).await;
    let refused = server.admin.get(&path).await;
    refused.refused(429, "TooManyRequests");
    assert_eq!(refused.header("retry-after"), "1");
    server.admin.get(CONFIG_MAPS).await.expect(200);
    drop(one);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let again = server
            .admin
            .open(crate::harness::request(Method::GET, &path, &[], ""))
            .await;
        if again.status() == 200 {
            break;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "the place of a watch that ended stays taken"
        );
        tokio::task::yield_now().await;
    }
    server.stop().await;
}

/// A connection on which a request was answered, so that the server knows whose it is.
async fn used(client: &Client) -> Option<impl AsyncReadExt + AsyncWriteExt + Unpin> {
    let mut stream = client.connect().await.ok()?;
    let request = b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n";
    stream.write_all(request).await.ok()?;
    let mut answer = [0; 12];
    let read = tokio::time::timeout(PATIENCE, stream.read_exact(&mut answer));
    read.await.expect("an answer or an end in time").ok()?;
    (&answer == b"HTTP/1.1 200").then_some(stream)
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_over_the_bound_are_closed() {
    let server = Harness::with(|config| config.limits.connections = 4).await;
    let mut first = Vec::new();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    // The connection of the readiness check may still be closing.
    while first.len() < 4 {
        if let Some(stream) = used(&server.admin).await {
            first.push(stream);
        }
        assert!(tokio::time::Instant::now() < deadline);
    }
    assert!(used(&server.admin).await.is_none());
    drop(first);
    while used(&server.admin).await.is_none() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "places of closed connections stay taken"
        );
        tokio::task::yield_now().await;
    }
    server.stop().await;
}

/// A connection without a certificate on which one request was answered.
async fn asked(server: &Harness, token: Option<&str>) -> impl AsyncReadExt + AsyncWriteExt + Unpin + use<> {
    let mut stream = server.anonymous().connect().await.unwrap();
    ask_again(&mut stream, token).await.expect("an answer");
    stream
}

/// Asks over a connection; nothing when it has ended.
async fn ask_again(
    stream: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin),
    token: Option<&str>,
) -> Option<()> {
    let bearer = token
        .map(|token| format!("Authorization: Bearer {token}\r\n"))
        .unwrap_or_default();
    let request = format!("GET /version HTTP/1.1\r\nHost: x\r\n{bearer}\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"}") {
        let mut byte = [0];
        let read = tokio::time::timeout(PATIENCE, stream.read_exact(&mut byte)).await;
        read.expect("an answer or an end in time").ok()?;
        answer.push(byte[0]);
    }
    answer.starts_with(b"HTTP/1.1 200").then_some(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_keeps_its_connection_while_strangers_crowd() {
    let server = Harness::with(|config| config.limits.anonymous_connections = 3).await;
    let token = crate::identity::account(&server, "bot").await;
    let mut account = asked(&server, Some(&token)).await;
    let mut stranger = asked(&server, None).await;
    let crowd = [
        asked(&server, None).await,
        asked(&server, None).await,
        asked(&server, None).await,
    ];
    assert!(
        ask_again(&mut stranger, None).await.is_none(),
        "the oldest stranger has gone"
    );
    ask_again(&mut account, Some(&token))
        .await
        .expect("the account's connection is there");
    drop(crowd);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_certificates_of_this_authority_open_the_door() {
    let server = Harness::start().await;
    let elsewhere = tempfile::tempdir().unwrap();
    let foreign = Pki::open(elsewhere.path(), Arc::new(SystemClock), Arc::new(RandomIds)).unwrap();
    let identity = foreign.issue(&Subject::admin()).unwrap();
    let client = Client::new(server.address, server.pki.ca_certificate_pem(), Some(&identity));
    // TLS 1.3: the client may only learn of it when it reads.
    if let Ok(mut stream) = client.connect().await {
        drop(stream.write_all(b"GET /api HTTP/1.1\r\nHost: x\r\n\r\n").await);
        let mut out = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut out))
            .await
            .unwrap();
        assert!(read.is_err() && out.is_empty(), "{out:?}");
    }
    let unknown = server.anonymous();
    for path in ["/healthz", "/livez", "/readyz", "/version"] {
        assert_eq!(unknown.get(path).await.status, 200, "{path}");
    }
    for path in ["/api", "/apis", "/metrics", CONFIG_MAPS, "/nope", "/healthzz"] {
        unknown.get(path).await.refused(401, "Unauthorized");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn users_devices_and_controllers_get_what_is_theirs() {
    let server = Harness::start().await;
    let secrets = "/api/v1/namespaces/default/secrets";
    let controllers = server.client(&Subject::controllers());
    controllers.get(CONFIG_MAPS).await.expect(200);
    controllers.get(secrets).await.refused(403, "Forbidden");
    let device = server.client(&Subject::device("pi", "uid-1"));
    for path in [CONFIG_MAPS, secrets, "/apis", "/metrics"] {
        device.get(path).await.refused(403, "Forbidden");
    }
    let viewer = server.client(&Subject::user("viewer", &[]));
    viewer.get("/apis").await.expect(200);
    let refused = viewer
        .get(&format!("{CONFIG_MAPS}/a"))
        .await
        .refused(403, "Forbidden");
    assert_eq!(
        refused["message"],
        "configmaps \"a\" is forbidden: User \"viewer\" cannot get resource \"configmaps\" in API group \"\" in the \
         namespace \"default\""
    );
    assert_eq!(refused["details"]["kind"], "configmaps");
    let text = server.admin.get("/metrics").await;
    let text = String::from_utf8_lossy(&text.body).into_owned();
    assert!(
        text.contains("panda_apiserver_requests_total{verb=\"list\",resource=\"configmaps\",code=\"200\"} 1"),
        "{text}"
    );
    server.stop().await;
}
