//! B13: a quiet watch grows too old.
//!
//! The server's parts in this process, since nothing outside can make it forget its history; TLS, SQLite, the client and
//! `pandactl` are the real ones, and there is a cable between them that can be cut.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use futures::StreamExt;
use panda_api::ConfigMap;
use panda_api::meta::{ObjectMeta, RandomIds, SystemClock};
use panda_apiserver::pki::Subject;
use panda_apiserver::{Config, Deps, Server};
use panda_client::config::Kubeconfig;
use panda_client::params::{DeleteParams, WatchParams, WriteParams};
use panda_client::runtime::{Change, Informer, Metrics, informer};
use panda_client::watch::WatchEvent;
use panda_client::{Api, Client, Identity, Options};
use panda_e2e::cluster::{PATIENCE, target};
use panda_store::{Body, Cacher, Key, Op, Revision, Sqlite, Store, Txn, cacher, sqlite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Events that have nothing to do with what is watched.
const NOISE: usize = 50_000;

/// A server whose history can be dropped, behind a cable that can be cut.
struct Plane {
    dir: tempfile::TempDir,
    store: Arc<dyn Store>,
    direct: panda_client::Config,
    cable: watch::Sender<Cable>,
    port: SocketAddr,
    stop: CancellationToken,
}

/// Which connections live: those of the newest number, while it is plugged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cable {
    number: u64,
    plugged: bool,
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Plane {
    async fn start() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let stop = CancellationToken::new();
        let sqlite = Sqlite::open(&sqlite::Config::new(dir.path().join("store")), "test")?;
        let (cache, feed) = Cacher::build(Arc::new(sqlite), cacher::Config::default());
        tokio::spawn(feed.run(stop.clone()));
        let store: Arc<dyn Store> = Arc::new(cache);
        let deps = Deps {
            store: Arc::clone(&store),
            clock: Arc::new(SystemClock),
            ids: Arc::new(RandomIds),
            metrics: Arc::default(),
        };
        let server = Server::build(Config::new(dir.path()), deps)?;
        let pki = server.pki();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let token = stop.clone();
        tokio::spawn(async move { server.run(listener, token).await });
        let admin = pki.client("admin", &Subject::admin())?;
        let direct = panda_client::Config {
            server: format!("https://{address}/").parse()?,
            ca: pki.ca_certificate_pem().as_bytes().to_vec(),
            tls_server_name: None,
            identity: Identity::ClientCert {
                cert: admin.certificate_pem.clone().into_bytes(),
                key: admin.key_pem.clone().into_bytes(),
            },
            namespace: "default".into(),
        };
        let (cable, state) = watch::channel(Cable {
            number: 0,
            plugged: true,
        });
        let entry = TcpListener::bind("127.0.0.1:0").await?;
        let port = entry.local_addr()?;
        tokio::spawn(relay(entry, address, state, stop.clone()));
        let plane = Self {
            dir,
            store,
            direct,
            cable,
            port,
            stop,
        };
        let client = plane.client()?;
        eventually("the server is ready", || async {
            client.get_text("/readyz").await.ok()
        })
        .await?;
        Ok(plane)
    }

    /// A client on the server's own side of the cable.
    fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(&self.direct, Options::default())?)
    }

    fn maps(&self) -> anyhow::Result<Api<ConfigMap>> {
        Ok(Api::namespaced(self.client()?, "default"))
    }

    /// How the server is reached through the cable.
    fn config(&self) -> anyhow::Result<panda_client::Config> {
        Ok(panda_client::Config {
            server: format!("https://{}/", self.port).parse()?,
            ..self.direct.clone()
        })
    }

    fn cut(&self) {
        self.cable.send_modify(|cable| {
            cable.number += 1;
            cable.plugged = false;
        });
    }

    fn plug(&self) {
        self.cable.send_modify(|cable| cable.plugged = true);
    }

    /// Writes elsewhere, then forgets everything before now.
    async fn noise(&self, round: usize) -> anyhow::Result<()> {
        self.write_elsewhere(round).await?;
        let now = self.store.current_revision().await?;
        let oldest = self.store.compact(now).await?;
        anyhow::ensure!(oldest > Revision(NOISE as u64 / 2), "history is gone: {oldest:?}");
        Ok(())
    }

    async fn write_elsewhere(&self, round: usize) -> anyhow::Result<()> {
        const TOGETHER: usize = 1000;
        let text = "{\"metadata\":{\"resourceVersion\":\"\"}}";
        let splice = text.find("\"\"").context("a gap")? + 1;
        for part in 0..NOISE / TOGETHER {
            let ops = (0..TOGETHER).map(|n| {
                let key = Key::new("noise", "elsewhere", format!("{round}-{part}-{n}"));
                Op::create(key, Body::new(text.as_bytes().to_vec(), splice))
            });
            self.store.commit(Txn { ops: ops.collect() }).await?;
        }
        Ok(())
    }
}

/// Carries bytes between the two sides for as long as the cable is whole.
async fn relay(
    entry: TcpListener,
    server: SocketAddr,
    cable: watch::Receiver<Cable>,
    stop: CancellationToken,
) {
    while let Some(Ok((mut near, _))) = stop.run_until_cancelled(entry.accept()).await {
        let mut cable = cable.clone();
        let born = *cable.borrow();
        if !born.plugged {
            continue;
        }
        tokio::spawn(async move {
            let Ok(mut far) = TcpStream::connect(server).await else {
                return;
            };
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                _ = cable.wait_for(|now| now.number != born.number) => {}
            }
        });
    }
}

async fn eventually<T, F, Fut>(what: &str, mut check: F) -> anyhow::Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(value) = check().await {
            return Ok(value);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bail!("not within {PATIENCE:?}: {what}")
}

fn map(name: &str, value: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta::named(name),
        data: BTreeMap::from([("value".to_owned(), value.to_owned())]),
        ..ConfigMap::default()
    }
}

/// Removes b, changes a, makes c.
async fn change(maps: &Api<ConfigMap>) -> anyhow::Result<()> {
    maps.delete("b", &DeleteParams::default()).await?;
    let patch = serde_json::json!({"data": {"value": "two"}});
    maps.patch_merge("a", &patch, &WriteParams::default()).await?;
    maps.create(&map("c", "one"), &WriteParams::default()).await?;
    Ok(())
}

/// Counts lists and failures.
#[derive(Default)]
struct Counts {
    lists: AtomicUsize,
    failures: AtomicUsize,
}

impl Metrics for Counts {
    fn listed(&self, _kind: &str) {
        self.lists.fetch_add(1, Ordering::Relaxed);
    }

    fn watch_failed(&self, _kind: &str) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_was_cut_off_lists_once_and_misses_no_deletion() -> anyhow::Result<()> {
    let plane = Plane::start().await?;
    let maps = plane.maps()?;
    for name in ["a", "b"] {
        maps.create(&map(name, "one"), &WriteParams::default()).await?;
    }
    let counts = Arc::new(Counts::default());
    let far = Client::connect(&plane.config()?, Options::default())?;
    let config = informer::Config {
        metrics: Arc::<Counts>::clone(&counts),
        ..informer::Config::default()
    };
    let informer = Informer::new(Api::<ConfigMap>::namespaced(far, "default"), config);
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&told);
    informer.handle().on_change(move |change| {
        let word = match change {
            Change::Added(_) => "added",
            Change::Updated { .. } => "updated",
            Change::Deleted(_) => "deleted",
        };
        let object = change.object();
        let value = object.data.get("value").cloned().unwrap_or_default();
        let line = format!("{word} {} {value}", object.metadata.name);
        sink.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    });
    let all = || told.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let running = tokio::spawn(informer.run(plane.stop.clone()));
    let told_of = |line: &str| all().iter().any(|told| told == line);
    eventually("the cache is filled", || async {
        (told_of("added a one") && told_of("added b one")).then_some(())
    })
    .await?;
    let lists = counts.lists.load(Ordering::Relaxed);

    plane.cut();
    change(&maps).await?;
    plane.noise(0).await?;
    plane.plug();
    eventually("what happened meanwhile is told", || async {
        ["deleted b one", "updated a two", "added c one"]
            .iter()
            .all(|line| told_of(line))
            .then_some(())
    })
    .await?;
    assert_eq!(
        counts.lists.load(Ordering::Relaxed),
        lists + 1,
        "listed again, once"
    );
    // It watches again: from the new version, not the old one.
    maps.create(&map("d", "one"), &WriteParams::default()).await?;
    eventually("it goes on", || async { told_of("added d one").then_some(()) }).await?;
    assert_eq!(counts.lists.load(Ordering::Relaxed), lists + 1);
    let mut lines = all();
    lines.sort();
    lines.dedup();
    assert_eq!(lines.len(), all().len(), "nothing is told twice: {:?}", all());
    plane.stop.cancel();
    running.await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookmark_carries_an_idle_client_over_a_compaction() -> anyhow::Result<()> {
    let plane = Plane::start().await?;
    let maps = plane.maps()?;
    let first = maps.create(&map("a", "one"), &WriteParams::default()).await?;
    let from = |version: &str, timeout: u64| WatchParams {
        resource_version: Some(version.to_owned()),
        timeout: Some(Duration::from_secs(timeout)),
        ..WatchParams::default()
    };
    let old = first.metadata.resource_version.clone();
    // A watch that lives longer than the noise is written: how long that takes is the machine's affair.
    let mut told = None;
    for (round, life) in [8, 32, 128].into_iter().enumerate() {
        let opened = Instant::now();
        let mut idle = maps.watch(&from(&old, life)).await?;
        plane.write_elsewhere(round).await?;
        let noise = plane.store.current_revision().await?;
        if opened.elapsed() > Duration::from_secs(life - 2) {
            continue;
        }
        let mut last = None;
        while let Some(event) = idle.next().await {
            match event? {
                WatchEvent::Bookmark { resource_version } => last = Some(resource_version),
                other => bail!("nothing happened here: {other:?}"),
            }
        }
        let last = last.context("a quiet watch ends with a bookmark")?;
        assert!(
            last.parse::<u64>()? >= noise.0,
            "{last} is behind the noise, {noise:?}"
        );
        told = Some(last);
        break;
    }
    let told = told.context("no watch outlived the noise")?;
    let marked = Revision(told.parse()?);
    plane.store.compact(marked).await?;

    // The bookmark's version is still good for a watch; the one before is answered with 410, once and clearly.
    maps.create(&map("b", "one"), &WriteParams::default()).await?;
    let mut fresh = maps.watch(&from(&told, 30)).await?;
    match fresh.next().await.context("an event")?? {
        WatchEvent::Added(object) => assert_eq!(object.metadata.name, "b"),
        other => bail!("{other:?}"),
    }
    let gone = match maps.watch(&from(&old, 30)).await {
        Err(error) => error.is_gone(),
        Ok(mut stream) => match stream.next().await.context("an answer")? {
            Ok(WatchEvent::Error(status)) => status.code == 410,
            Err(error) => error.is_gone(),
            other => bail!("{other:?}"),
        },
    };
    assert!(gone, "an old version is answered with 410");
    Ok(())
}

/// `pandactl get configmaps -w` on the far side of the cable.
struct Watcher {
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

impl Watcher {
    fn start(plane: &Plane) -> anyhow::Result<Self> {
        let mut kubeconfig = Kubeconfig::default();
        kubeconfig.set_all("far", &plane.config()?);
        kubeconfig.set_current_context("far")?;
        let path = plane.dir.path().join("far.yaml");
        std::fs::write(&path, kubeconfig.to_yaml()?)?;
        let (out, err) = (plane.dir.path().join("out"), plane.dir.path().join("err"));
        let child = Command::new(target()?.join("pandactl"))
            .args(["get", "configmaps", "-w"])
            .env_clear()
            .env("PANDACONFIG", path)
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(&out)?)
            .stderr(std::fs::File::create(&err)?)
            .spawn()?;
        Ok(Self { child, out, err })
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.out).unwrap_or_default()
    }

    fn names(&self) -> Vec<String> {
        let said = self.said();
        let first = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
        said.lines().map(first).collect()
    }

    fn signal(&self, signal: rustix::process::Signal) -> anyhow::Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        Ok(rustix::process::kill_process(pid, signal)?)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Fails only when it has ended by itself.
        let _: Result<(), _> = self.child.kill();
        let _: Result<_, _> = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watching_command_that_slept_goes_on_without_alarm() -> anyhow::Result<()> {
    let plane = Plane::start().await?;
    let maps = plane.maps()?;
    for name in ["a", "b"] {
        maps.create(&map(name, "one"), &WriteParams::default()).await?;
    }
    let mut watcher = Watcher::start(&plane)?;
    let shows = |watcher: &Watcher, name: &str| watcher.names().iter().any(|n| n == name);
    eventually("it shows what is there", || async {
        shows(&watcher, "b").then_some(())
    })
    .await?;

    // Asleep for the whole time that the history is kept, with its connection standing, and then with it broken.
    for (round, cut) in [(0, false), (1, true)] {
        watcher.signal(rustix::process::Signal::STOP)?;
        if cut {
            plane.cut();
            plane.plug();
        }
        let name = format!("during-{round}");
        maps.create(&map(&name, "one"), &WriteParams::default()).await?;
        plane.noise(round).await?;
        watcher.signal(rustix::process::Signal::CONT)?;
        eventually("what came meanwhile is shown", || async {
            shows(&watcher, &name).then_some(())
        })
        .await?;
        let name = format!("after-{round}");
        maps.create(&map(&name, "one"), &WriteParams::default()).await?;
        eventually("it goes on", || async { shows(&watcher, &name).then_some(()) }).await?;
    }
    assert!(watcher.child.try_wait()?.is_none(), "it still watches");
    assert_eq!(std::fs::read_to_string(&watcher.err)?, "", "no alarm");
    Ok(())
}
