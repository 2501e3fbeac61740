//! A server in memory, and `pandactl` as a process.

use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use panda_api::Resource;
use panda_api::meta::{Clock, IdSource, RandomIds, SystemClock};
use panda_apiserver::agentlet::{self, Agentlets};
use panda_apiserver::pki::Subject;
use panda_apiserver::{Config, Deps, Registry, Server, SharedRegistry};
use panda_client::config::{Identity, Kubeconfig};
use panda_store::blob::{BlobStore, MemoryBlobs, StreamLimits};
use panda_store::{Memory, Store};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Longest that any wait of a test takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Cluster {
    pub(crate) dir: TempDir,
    pub(crate) registry: Registry,
    pub(crate) blobs: Arc<dyn BlobStore>,
    pub(crate) client: panda_client::Client,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (clock, ids): (Arc<dyn Clock>, Arc<dyn IdSource>) = (Arc::new(SystemClock), Arc::new(RandomIds));
        let store: Arc<dyn Store> = Arc::new(Memory::new("test"));
        let blobs: Arc<dyn BlobStore> = Arc::new(MemoryBlobs::new(
            Arc::clone(&clock),
            64 << 20,
            StreamLimits::default(),
        ));
        let metrics = SharedRegistry::default();
        let deps = Deps {
            store: Arc::clone(&store),
            clock: Arc::clone(&clock),
            ids: Arc::clone(&ids),
            metrics: metrics.clone(),
        };
        let server = Server::build(Config::new(dir.path().join("server")), deps).unwrap();
        let (pki, registry) = (server.pki(), server.registry());
        let deps = agentlet::Deps {
            store,
            blobs: Arc::clone(&blobs),
            clock,
            ids,
            registry: registry.clone(),
            run_tokens: server.run_tokens(),
            pressure: server.pressure(),
        };
        let server = server.with_routes(Agentlets::build(&Default::default(), deps, &metrics).routes());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let token = stop.clone();
        tasks.spawn(async move { server.run(listener, token).await.unwrap() });
        let admin = pki.issue(&Subject::admin()).unwrap();
        let config = panda_client::Config {
            server: format!("https://{address}").parse().unwrap(),
            ca: pki.ca_certificate_pem().as_bytes().to_vec(),
            tls_server_name: None,
            identity: Identity::ClientCert {
                cert: admin.certificate_pem.clone().into_bytes(),
                key: admin.key_pem.clone().into_bytes(),
            },
            namespace: "default".to_owned(),
        };
        let mut kubeconfig = Kubeconfig::default();
        kubeconfig.set_all("panda", &config);
        std::fs::write(dir.path().join("config"), kubeconfig.to_yaml().unwrap()).unwrap();
        let client = panda_client::Client::connect(&config, panda_client::Options::default()).unwrap();
        client.get_text("/readyz").await.unwrap();
        Self {
            dir,
            registry,
            blobs,
            client,
            stop,
            tasks,
        }
    }

    /// Stops the server; the folder stays.
    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        tokio::time::timeout(PATIENCE, self.tasks.wait()).await.unwrap();
    }

    /// The program, in a clean environment.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        pandactl(self.dir.path(), args)
    }

    /// Runs the program to its end.
    pub(crate) async fn run(&self, args: &[&str]) -> Done {
        finish(self.command(args), b"").await
    }

    /// Runs the program with a standard input.
    pub(crate) async fn feed(&self, args: &[&str], input: &[u8]) -> Done {
        finish(self.command(args), input).await
    }

    /// What a run prints that must succeed.
    pub(crate) async fn ok(&self, args: &[&str]) -> String {
        self.run(args).await.ok()
    }

    /// Writes a file into the cluster's folder; its path.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn api<K: Resource>(&self) -> panda_client::Api<K> {
        panda_client::Api::namespaced(self.client.clone(), "default")
    }
}

/// The program, in a clean environment with `home` as its home folder and `home/config` as its configuration.
pub(crate) fn pandactl(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pandactl"));
    command
        .args(args)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", home)
        .env("PANDACONFIG", home.join("config"))
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .current_dir(home)
        .kill_on_drop(true);
    command
}

pub(crate) async fn finish(mut command: Command, input: &[u8]) -> Done {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // The program may end before it has read everything.
    let _: std::io::Result<()> = stdin.write_all(input).await;
    drop(stdin);
    Done(
        tokio::time::timeout(PATIENCE, child.wait_with_output())
            .await
            .expect("the program ends")
            .unwrap(),
    )
}

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Done(pub(crate) Output);

impl Done {
    pub(crate) fn code(&self) -> i32 {
        self.0.status.code().unwrap_or(-1)
    }

    pub(crate) fn out(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    pub(crate) fn err(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code(), 0, "{}\n{}", self.out(), self.err());
        self.out()
    }

    /// What is said by a run that must fail, with an error and a hint, and without a panic.
    pub(crate) fn fails(self) -> String {
        let err = self.err();
        assert_eq!(self.code(), 1, "{}\n{err}", self.out());
        assert!(err.contains("error:") && err.contains("hint:"), "{err}");
        assert!(!err.contains("panicked"), "{err}");
        err
    }
}
