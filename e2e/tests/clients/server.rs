//! An API server as a process of its own, without controllers, that can be killed and started again at its address.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use panda_client::config::Kubeconfig;
use panda_client::{Client, Options};
use panda_e2e::cluster::{PATIENCE, target};
use serde_json::json;

/// The namespace that the clients work in.
pub(crate) const NAMESPACE: &str = "default";

pub(crate) struct Server {
    dir: tempfile::TempDir,
    listen: String,
    process: Option<Child>,
}

impl Server {
    /// Starts one that keeps so much history.
    pub(crate) async fn start(history: &str) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        // Free now; whoever takes it meanwhile makes the start fail, and loudly.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let config = json!({
            "apiVersion": "config.panda.dev/v1alpha1", "kind": "ApiServerConfiguration",
            "dataDir": dir.path().join("data"), "history": history,
        });
        std::fs::write(dir.path().join("config.json"), config.to_string())?;
        let mut server = Self {
            dir,
            listen: format!("127.0.0.1:{port}"),
            process: None,
        };
        server.restart().await?;
        Ok(server)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("data/admin.kubeconfig")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("server.log")).unwrap_or_default()
    }

    /// A program that speaks to this server.
    #[expect(
        clippy::disallowed_methods,
        reason = "clients need the PATH of the test to find their interpreters"
    )]
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.dir.path())
            .env("KUBECONFIG", self.kubeconfig())
            .env("PANDA_NAMESPACE", NAMESPACE)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("LC_ALL", "C.UTF-8")
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command
    }

    /// kill -9, if it runs.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.process.take() {
            // Both fail only when it has ended already.
            let _: Result<(), _> = child.kill();
            let _: Result<_, _> = child.wait();
        }
    }

    /// Kills it and starts it again over the same data.
    pub(crate) async fn restart(&mut self) -> anyhow::Result<()> {
        self.kill();
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("server.log"))?;
        let program = target()?.join("panda-apiserver");
        let mut command = self.command(&program);
        command
            .args(["--listen", &self.listen, "--config"])
            .arg(self.dir.path().join("config.json"))
            .stdout(log.try_clone()?)
            .stderr(log);
        let spawned = command.spawn();
        self.process = Some(spawned.with_context(|| format!("cannot start {}", program.display()))?);
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Ok(client) = self.client()
                && client
                    .get_text("/readyz")
                    .await
                    .is_ok_and(|text| text.starts_with("ok"))
            {
                return Ok(());
            }
            let ended = self.process.as_mut().map(Child::try_wait).transpose()?.flatten();
            if let Some(status) = ended {
                bail!("the server ended with {status}:\n{}", self.log());
            }
            ensure!(
                Instant::now() < deadline,
                "the server is not ready:\n{}",
                self.log()
            );
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// A client with the administrator's certificate.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        let text = std::fs::read_to_string(self.kubeconfig())?;
        let config = Kubeconfig::parse(&text)?.resolve(None, &|path| std::fs::read(path))?;
        Ok(Client::connect(&config, Options::default())?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The folder of the clients' programs.
pub(crate) fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}
