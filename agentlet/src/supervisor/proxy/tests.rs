use std::sync::Mutex as Shelf;

use http_body_util::Empty;
use panda_client::config::Identity;
use panda_client::connector::TlsConnector;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;

use super::*;

const TOKEN: &str = "panda-run.abc.def";

/// A control plane that keeps what it hears, and answers `/api/watch` in pieces that the test gives.
struct Plane {
    access: ApiAccess,
    heard: Arc<Shelf<Vec<(String, HeaderMap, usize)>>>,
    pieces: mpsc::Sender<Bytes>,
    _serving: JoinSet<()>,
}

impl Plane {
    async fn start() -> Self {
        let (tls, ca) = tls().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let access = ApiAccess {
            servers: vec![format!("https://{}", listener.local_addr().unwrap())],
            ca,
            namespace: "web".into(),
        };
        let heard = Arc::new(Shelf::new(Vec::new()));
        let (pieces, rx) = mpsc::channel(1);
        let watch = Arc::new(Shelf::new(Some(rx)));
        let mut serving = JoinSet::new();
        let kept = Arc::clone(&heard);
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (tls, kept, watch) = (tls.clone(), Arc::clone(&kept), Arc::clone(&watch));
                connections.spawn(async move {
                    let service = service_fn(move |request: Request<Incoming>| {
                        let (kept, watch) = (Arc::clone(&kept), Arc::clone(&watch));
                        async move {
                            let (parts, body) = request.into_parts();
                            let size = body.collect().await?.to_bytes().len();
                            let path = parts.uri.to_string();
                            let watch = watch.lock().unwrap().take_if(|_| path.contains("watch"));
                            kept.lock().unwrap().push((path, parts.headers, size));
                            let body: Body = match watch {
                                Some(rx) => {
                                    let stream = tokio_stream::wrappers::ReceiverStream::new(rx);
                                    let frames = stream.map(|piece| Ok(hyper::body::Frame::data(piece)));
                                    http_body_util::StreamBody::new(frames).boxed_unsync()
                                }
                                None => Empty::new().map_err(|never| match never {}).boxed_unsync(),
                            };
                            hyper::Result::Ok(Response::new(body))
                        }
                    });
                    let stream = tls.accept(stream).await.unwrap();
                    drop(
                        http1::Builder::new()
                            .serve_connection(TokioIo::new(stream), service)
                            .await,
                    );
                });
            }
        });
        Self {
            access,
            heard,
            pieces,
            _serving: serving,
        }
    }
}

async fn client(proxy: &Proxy) -> SendRequest<Full<Bytes>> {
    let config = panda_client::Config {
        server: proxy.server.parse().unwrap(),
        ca: proxy.certificate.clone().into_bytes(),
        tls_server_name: None,
        identity: Identity::None,
        namespace: String::new(),
    };
    let stream = TlsConnector::new(&config, HEAD_TIME)
        .unwrap()
        .connect()
        .await
        .unwrap();
    let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn request(path: &str) -> http::request::Builder {
    Request::builder()
        .uri(path)
        .header(HOST, "127.0.0.1")
        .header(AUTHORIZATION, format!("Bearer {TOKEN}"))
}

fn body(size: usize) -> Full<Bytes> {
    Full::new(Bytes::from(vec![b'x'; size]))
}

async fn code(proxy: &Proxy, request: http::request::Builder, size: usize) -> u16 {
    let answer = client(proxy)
        .await
        .send_request(request.body(body(size)).unwrap())
        .await;
    answer.unwrap().status().as_u16()
}

#[tokio::test]
async fn requests_with_the_token_go_on_as_they_are_and_all_others_are_refused() {
    let plane = Plane::start().await;
    let proxy = Proxy::open(&plane.access, TOKEN).await.unwrap();
    let path = "/apis/panda.dev/v1alpha1/namespaces/web/tasks?limit=3";
    let good = request(path)
        .method("POST")
        .header("connection", "keep-alive, x-hop")
        .header("x-hop", "1");
    assert_eq!(code(&proxy, good.header("x-mine", "2"), 5).await, 200);
    {
        let heard = plane.heard.lock().unwrap();
        let (target, headers, size) = &heard[0];
        assert_eq!((target.as_str(), *size), (path, 5));
        assert_eq!(headers[AUTHORIZATION], format!("Bearer {TOKEN}"));
        assert_eq!(headers["x-mine"], "2");
        assert!(!headers.contains_key("x-hop") && !headers.contains_key(CONNECTION));
        assert!(plane.access.servers[0].ends_with(headers[HOST].to_str().unwrap()));
        assert_eq!(headers.len(), 4, "{headers:?}");
    }
    let bare = || Request::builder().uri(path).header(HOST, "x");
    assert_eq!(code(&proxy, bare(), 0).await, 401);
    assert_eq!(
        code(&proxy, bare().header(AUTHORIZATION, "Bearer other"), 0).await,
        401
    );
    assert_eq!(
        code(&proxy, bare().header(AUTHORIZATION, format!("Basic {TOKEN}")), 0).await,
        401
    );
    for path in [
        "/panda.agentlet.v1.Agentlet/Session",
        "/metrics",
        "/",
        "//api",
        "/%70anda.agentlet.v1.Agentlet/Session",
    ] {
        let expected = if path == "//api" { 200 } else { 403 };
        assert_eq!(code(&proxy, request(path), 0).await, expected, "{path}");
    }
    assert_eq!(code(&proxy, request(path).header("upgrade", "h2c"), 0).await, 403);
    assert_eq!(
        code(&proxy, request(path).method("POST"), MAX_BODY + 1).await,
        413
    );
    assert_eq!(
        code(
            &proxy,
            request(path).header("x-long", "x".repeat(2 * MAX_HEAD)),
            0
        )
        .await,
        431
    );
    assert_eq!(plane.heard.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_watch_comes_through_piece_by_piece_and_ends_with_the_run() {
    let plane = Plane::start().await;
    let proxy = Proxy::open(&plane.access, TOKEN).await.unwrap();
    let mut sender = client(&proxy).await;
    let request = request("/api/watch").body(body(0)).unwrap();
    let mut answer = sender.send_request(request).await.unwrap().into_body();
    for piece in ["one", "two"] {
        plane.pieces.send(piece.into()).await.unwrap();
        let frame = answer.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), piece);
    }
    drop(proxy);
    assert!(answer.frame().await.is_none_or(|frame| frame.is_err()));
    // The other side hears of it, too.
    plane.pieces.closed().await;
}

#[tokio::test]
async fn a_control_plane_that_is_away_is_said_to_be() {
    let plane = Plane::start().await;
    let mut access = plane.access.clone();
    access.servers = vec!["https://127.0.0.1:1".into()];
    let proxy = Proxy::open(&access, TOKEN).await.unwrap();
    assert_eq!(code(&proxy, request("/api"), 0).await, 502);
    assert!(Proxy::open(&access, "").await.is_err());
    // The second address answers.
    access.servers.extend(plane.access.servers.clone());
    let proxy = Proxy::open(&access, TOKEN).await.unwrap();
    assert_eq!(code(&proxy, request("/api"), 0).await, 200);
}

#[tokio::test]
async fn the_agent_gets_a_kubeconfig_that_names_the_run_alone() {
    let plane = Plane::start().await;
    let proxy = Proxy::open(&plane.access, TOKEN).await.unwrap();
    let (env, files) = proxy.equip(&plane.access, TOKEN, Path::new("/dev/shm/x"));
    let config: serde_json::Value = serde_json::from_str(&files[0].2).unwrap();
    assert_eq!(config["users"][0]["user"], serde_json::json!({"token": TOKEN}));
    assert_eq!(config["contexts"][0]["context"]["namespace"], "web");
    assert_eq!(config["clusters"][0]["cluster"]["server"], proxy.server);
    assert!(env.contains(&("KUBECONFIG".into(), "/dev/shm/x/.panda-api/kubeconfig".into())));
    assert!(env.contains(&("PANDA_TOKEN".into(), TOKEN.into())));
    assert_eq!(files[1].2, proxy.certificate);
}
