//! A real `pandactl up`, started as a process of its own in a folder of its own, killed and started again at will.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use panda_client::config::Kubeconfig;
use panda_client::{Client, Options};

use crate::processes;

/// How long anything may take that is not a test's own subject.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A control plane with one device, in one process.
pub struct Cluster {
    dir: tempfile::TempDir,
    process: Option<Child>,
    extra: Vec<String>,
    env: Vec<(String, String)>,
    path: String,
    hold_stdin: bool,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("dir", &self.dir.path())
            .finish_non_exhaustive()
    }
}

/// The folder of the binaries under test: the one that this test's own binary lies in or below.
///
/// # Errors
/// When they are not built.
pub fn target() -> anyhow::Result<PathBuf> {
    let me = std::env::current_exe()?;
    let folder = me.ancestors().find(|folder| folder.join("pandactl").is_file());
    folder
        .map(Path::to_owned)
        .context("pandactl is not built: run `cargo build --workspace` first")
}

/// A pinned program that tests drive; none when it is not installed and not demanded.
///
/// # Panics
/// When it is demanded (`PANDA_REQUIRE_TOOLS`) and missing.
#[must_use]
pub fn tool(name: &str) -> Option<PathBuf> {
    tool_file(&format!("bin/{name}"))
}

/// The same for any file in the folder of the tools.
///
/// # Panics
/// When it is demanded (`PANDA_REQUIRE_TOOLS`) and missing.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "the test runner says whether the tools must be there"
)]
pub fn tool_file(name: &str) -> Option<PathBuf> {
    let found = optional_tool_file(name);
    assert!(
        found.is_some() || std::env::var_os("PANDA_REQUIRE_TOOLS").is_none(),
        "{name} is missing; run e2e/tools"
    );
    found
}

/// A program that is driven where it happens to be installed among the tools, and never demanded.
#[must_use]
pub fn optional_tool(name: &str) -> Option<PathBuf> {
    optional_tool_file(&format!("bin/{name}"))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the test runner says where the tools are"
)]
fn optional_tool_file(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."));
    let tools = std::env::var_os("PANDA_TOOLS").map_or_else(|| root.join("target/tools"), PathBuf::from);
    let file = tools.join(name);
    if file.exists() {
        return Some(file);
    }
    eprintln!("skipped: {} is not installed", file.display());
    None
}

impl Cluster {
    /// Starts one, with further arguments for `pandactl up`, and waits until it is ready.
    ///
    /// # Errors
    /// When it cannot be started or does not become ready.
    pub async fn start(extra: &[&str]) -> anyhow::Result<Self> {
        Self::start_in(extra, &[], &[]).await
    }

    /// The same with further variables in the environment of the process.
    ///
    /// # Errors
    /// When it cannot be started or does not become ready.
    pub async fn start_with_env(extra: &[&str], env: &[(&str, &str)]) -> anyhow::Result<Self> {
        Self::start_in(extra, env, &[]).await
    }

    /// The same with folders put in front of the PATH of the device.
    ///
    /// # Errors
    /// When it cannot be started or does not become ready.
    pub async fn start_with_path(extra: &[&str], path: &[&Path]) -> anyhow::Result<Self> {
        Self::start_in(extra, &[], path).await
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the PATH of the test is the PATH of the device"
    )]
    async fn start_in(extra: &[&str], env: &[(&str, &str)], path: &[&Path]) -> anyhow::Result<Self> {
        // Agents of a root device run as another user, who must be able to reach its folders and programs.
        let dir = tempfile::Builder::new().prefix("panda-e2e-").tempdir()?;
        open_to_all(dir.path())?;
        let programs = dir.path().join("bin");
        std::fs::create_dir(&programs)?;
        open_to_all(&programs)?;
        let fakeagent = target()?.join("fakeagent");
        if fakeagent.is_file() {
            std::fs::copy(&fakeagent, programs.join("fakeagent"))?;
        }
        std::fs::create_dir(dir.path().join("home"))?;
        let old = std::env::var("PATH").unwrap_or_default();
        let mut folders: Vec<String> = path.iter().map(|folder| folder.display().to_string()).collect();
        folders.push(programs.display().to_string());
        folders.push(old);
        let mut cluster = Self {
            dir,
            process: None,
            extra: extra.iter().map(|arg| (*arg).to_owned()).collect(),
            env: env
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            path: folders.join(":"),
            hold_stdin: false,
        };
        cluster.restart().await?;
        Ok(cluster)
    }

    /// The same, started again so that its standard input is a pipe that stays open and brings nothing.
    ///
    /// # Errors
    /// When it cannot be started or does not become ready.
    pub async fn hold_stdin(&mut self) -> anyhow::Result<()> {
        self.hold_stdin = true;
        self.restart().await
    }

    /// Everything of this cluster lies below this folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The data folder of the control plane.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// The kubeconfig that it wrote.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.dir.path().join("home/.panda/config")
    }

    /// The standard error of the process, over all its starts.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("up.log")).unwrap_or_default()
    }

    /// A program that speaks to this cluster: HOME and PATH are its own, everything else is scrubbed.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("HOME", self.dir.path().join("home"))
            .env("PANDACONFIG", self.config())
            .env("KUBECONFIG", self.config())
            .env("PATH", &self.path)
            .env("LC_ALL", "C.UTF-8")
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command
    }

    /// `pandactl` with these arguments.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn pandactl(&self, args: &[&str]) -> anyhow::Result<Output> {
        Ok(self.command(target()?.join("pandactl")).args(args).output()?)
    }

    /// The standard output of a `pandactl` that must succeed.
    ///
    /// # Errors
    /// When it fails; the error holds what it said.
    pub fn ok(&self, args: &[&str]) -> anyhow::Result<String> {
        let output = self.pandactl(args)?;
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        if !output.status.success() {
            bail!("pandactl {args:?} failed ({}):\n{out}\n{err}", output.status);
        }
        Ok(out.into_owned())
    }

    /// The program under test.
    ///
    /// # Errors
    /// When it is not built.
    pub fn pandactl_path(&self) -> anyhow::Result<PathBuf> {
        Ok(target()?.join("pandactl"))
    }

    /// The process, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Starts the process again (killed or not) and waits until it is ready.
    ///
    /// # Errors
    /// When it cannot be started or does not become ready.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.kill();
        let _: Result<(), _> = std::fs::remove_file(self.config());
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("up.log"))?;
        let data = self.data();
        let child = self
            .command(target()?.join("pandactl"))
            .args(["up", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(&data)
            .arg("--work-dir")
            .arg(self.dir.path().join("work"))
            .args(&self.extra)
            .envs(self.env.iter().cloned())
            .stdin(if self.hold_stdin {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.process = Some(child);
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self
                .process
                .as_mut()
                .and_then(|child| child.try_wait().ok())
                .flatten()
            {
                bail!("pandactl up ended with {status}:\n{}", self.log());
            }
            if let Ok(client) = self.client()
                && client
                    .get_text("/readyz")
                    .await
                    .is_ok_and(|text| text.starts_with("ok"))
            {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("pandactl up is not ready after {PATIENCE:?}:\n{}", self.log());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// kill -9: nothing of the process has a chance to clean up.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.process.take() {
            // Both fail only when it has ended already.
            let _: Result<(), _> = child.kill();
            let _: Result<_, _> = child.wait();
        }
    }

    /// Sends a signal to the process.
    ///
    /// # Errors
    /// When there is none.
    pub fn signal(&self, signal: rustix::process::Signal) -> anyhow::Result<()> {
        let child = self.process.as_ref().context("not running")?;
        let pid = rustix::process::Pid::from_child(child);
        Ok(rustix::process::kill_process(pid, signal)?)
    }

    /// Waits until the process has ended by itself.
    ///
    /// # Errors
    /// When it does not.
    pub async fn wait(&mut self) -> anyhow::Result<std::process::ExitStatus> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let child = self.process.as_mut().context("not running")?;
            if let Some(status) = child.try_wait()? {
                self.process = None;
                return Ok(status);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("pandactl up did not end:\n{}", self.log())
    }

    /// A client with the administrator's certificate.
    ///
    /// # Errors
    /// When there is no configuration yet.
    pub fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(&self.connection()?, Options::default())?)
    }

    /// How the administrator connects.
    ///
    /// # Errors
    /// When its kubeconfig cannot be used.
    pub fn connection(&self) -> anyhow::Result<panda_client::Config> {
        let text = std::fs::read_to_string(self.config())?;
        Ok(Kubeconfig::parse(&text)?.resolve(None, &|path| std::fs::read(path))?)
    }

    /// Waits until `check` says something.
    ///
    /// # Errors
    /// When it does not within [`PATIENCE`]; the error holds `what` and the log.
    pub async fn eventually<T, F, Fut>(&self, what: &str, check: F) -> anyhow::Result<T>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Option<T>>,
    {
        self.within(PATIENCE, what, check).await
    }

    /// The same with a patience of its own.
    ///
    /// # Errors
    /// When it does not within `patience`; the error holds `what` and the log.
    pub async fn within<T, F, Fut>(&self, patience: Duration, what: &str, mut check: F) -> anyhow::Result<T>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Option<T>>,
    {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(value) = check().await {
                return Ok(value);
            }
            if Instant::now() > deadline {
                bail!("not within {patience:?}: {what}\n{}", self.log());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Processes whose command line or environment names this cluster's folder, the server itself left out.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        let own = self.process.as_ref().map(Child::id);
        let mut found = processes::naming(self.dir.path());
        found.retain(|process| Some(process.pid) != own);
        found.into_iter().map(|process| process.text).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill();
        // Runs outlive their agentlet by design; a test's must not outlive the test.
        processes::kill_naming(self.dir.path(), Duration::from_secs(5));
    }
}

pub(crate) fn open_to_all(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}
