//! One call of git in a clean environment, bounded, ended with everything that it started.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

/// Most of git's complaints that is kept, in bytes.
const MAX_COMPLAINT: usize = 8 * 1024;
/// How often the size of a repository is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// Deepest folders that count for the size.
const MAX_DEPTH: usize = 16;

/// How a call ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// With success; what it printed.
    Done(Vec<u8>),
    /// With a failure; what it complained.
    Failed(String),
    /// By us: it wrote or printed too much.
    TooLarge,
    /// By us: it took too long.
    TimedOut,
}

/// A call that is being put together.
#[derive(Debug)]
pub(super) struct Call {
    command: Command,
    config: Vec<(String, String)>,
}

/// The header that opens an https repository.
pub(super) fn basic(name: &str, password: &str) -> String {
    format!(
        "Authorization: Basic {}",
        STANDARD.encode(format!("{name}:{password}"))
    )
}

impl Call {
    pub(super) fn new(program: &Path, path: &str, folder: &Path) -> Self {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", path)
            .env("HOME", "/nonexistent")
            .env("LC_ALL", "C")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_SYSTEM", "/dev/null")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_ATTR_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ASKPASS", "/bin/false")
            .env("GIT_NO_LAZY_FETCH", "1")
            .env("GIT_NO_REPLACE_OBJECTS", "1")
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("GIT_PROTOCOL_FROM_USER", "0")
            .env("GIT_ALLOW_PROTOCOL", "none")
            .current_dir(folder)
            .process_group(0)
            .kill_on_drop(true);
        let config = [
            ("core.hooksPath", "/dev/null"),
            ("core.fsmonitor", "false"),
            ("core.attributesFile", "/dev/null"),
            ("fetch.fsckObjects", "true"),
            ("fetch.writeCommitGraph", "false"),
            ("gc.auto", "0"),
            ("maintenance.auto", "false"),
            ("credential.helper", ""),
            ("http.lowSpeedLimit", "100"),
            ("http.lowSpeedTime", "30"),
            ("http.followRedirects", "initial"),
        ];
        Self {
            command,
            config: config
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .to_vec(),
        }
    }

    pub(super) fn config(&mut self, key: &str, value: &str) {
        self.config.push((key.to_owned(), value.to_owned()));
    }

    pub(super) fn env(&mut self, key: &str, value: &str) {
        self.command.env(key, value);
    }

    pub(super) fn args<'a>(mut self, args: impl IntoIterator<Item = &'a str>) -> Self {
        self.command.args(args);
        self
    }

    fn spawn(mut self, input: bool, output: bool) -> std::io::Result<Running> {
        // Not as arguments: every user of the host can see those.
        self.command
            .env("GIT_CONFIG_COUNT", self.config.len().to_string());
        for (number, (key, value)) in self.config.iter().enumerate() {
            self.command.env(format!("GIT_CONFIG_KEY_{number}"), key);
            self.command.env(format!("GIT_CONFIG_VALUE_{number}"), value);
        }
        let pipe = |wanted| if wanted { Stdio::piped() } else { Stdio::null() };
        self.command
            .stdin(pipe(input))
            .stdout(pipe(output))
            .stderr(Stdio::piped());
        let child = self.command.spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(Running { child, group })
    }

    /// Runs it, with bytes for its standard input.
    pub(super) async fn run(
        self,
        input: Option<Vec<u8>>,
        limit: usize,
        timeout: Duration,
    ) -> std::io::Result<Ended> {
        let mut running = self.spawn(input.is_some(), true)?;
        let child = &mut running.child;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let feed = async {
            if let (Some(mut stdin), Some(input)) = (stdin, input) {
                // A git that reads no further says why by its exit code.
                let _: std::io::Result<()> = stdin.write_all(&input).await;
            }
        };
        let work = async {
            let (output, words, ()) = tokio::join!(bounded(stdout, limit), words(stderr), feed);
            match output? {
                Some(output) => std::io::Result::Ok(Some((output, words?, child.wait().await?))),
                None => Ok(None),
            }
        };
        let done = match tokio::time::timeout(timeout, work).await {
            Err(_) => return Ok(Ended::TimedOut),
            Ok(done) => done?,
        };
        let Some((output, words, status)) = done else {
            return Ok(Ended::TooLarge);
        };
        running.ended();
        Ok(if status.success() {
            Ended::Done(output)
        } else {
            Ended::Failed(words)
        })
    }

    /// Runs it while a folder grows no larger than `limit` bytes.
    pub(super) async fn watched(
        self,
        folder: &Path,
        limit: u64,
        timeout: Duration,
    ) -> std::io::Result<Ended> {
        let mut running = self.spawn(false, false)?;
        let stderr = running.child.stderr.take();
        let child = &mut running.child;
        let work = async {
            let words = words(stderr).await?;
            std::io::Result::Ok((words, child.wait().await?))
        };
        let grown = async {
            let mut clock = tokio::time::interval(LOOK);
            loop {
                clock.tick().await;
                if size(folder) > limit {
                    return;
                }
            }
        };
        let done = tokio::select! {
            done = tokio::time::timeout(timeout, work) => done,
            () = grown => return Ok(Ended::TooLarge),
        };
        let (words, status) = match done {
            Err(_) => return Ok(Ended::TimedOut),
            Ok(done) => done?,
        };
        running.ended();
        Ok(match status.success() {
            true if size(folder) > limit => Ended::TooLarge,
            true => Ended::Done(Vec::new()),
            false => Ended::Failed(words),
        })
    }
}

/// A started call. When it is broken off, nothing that git started outlives it.
struct Running {
    child: Child,
    group: Option<Pid>,
}

impl Running {
    /// It has ended by itself; its number may be another's by now.
    fn ended(&mut self) {
        self.group = None;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self.group
            && let Err(error) = kill_process_group(group, Signal::KILL)
            && error != rustix::io::Errno::SRCH
        {
            tracing::warn!(%error, "what git started cannot be ended");
        }
    }
}

/// All of it, or none when it is more than `limit` bytes.
async fn bounded(from: Option<impl AsyncRead + Unpin>, limit: usize) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(limit as u64 + 1).read_to_end(&mut bytes).await?;
    }
    Ok((bytes.len() <= limit).then_some(bytes))
}

/// The last lines of a complaint; the rest is read and dropped, so that git is never held up.
async fn words(from: Option<impl AsyncRead + Unpin>) -> std::io::Result<String> {
    let mut kept = Vec::new();
    if let Some(mut from) = from {
        let mut part = [0; 4096];
        loop {
            let read = from.read(&mut part).await?;
            if read == 0 {
                break;
            }
            kept.extend_from_slice(&part[..read]);
            let excess = kept.len().saturating_sub(MAX_COMPLAINT);
            kept.drain(..excess);
        }
    }
    let text = String::from_utf8_lossy(&kept);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    Ok(lines
        .collect::<Vec<_>>()
        .join("; ")
        .chars()
        .map(visible)
        .collect())
}

/// Bytes of the files below a folder. What goes away meanwhile counts for nothing.
pub(super) fn size(folder: &Path) -> u64 {
    fn below(folder: &Path, depth: usize) -> u64 {
        let Ok(entries) = std::fs::read_dir(folder) else {
            return 0;
        };
        let of = |entry: std::fs::DirEntry| match entry.metadata() {
            Ok(meta) if meta.is_dir() && depth < MAX_DEPTH => below(&entry.path(), depth + 1),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        };
        entries.filter_map(Result::ok).map(of).sum()
    }
    below(folder, 0)
}
