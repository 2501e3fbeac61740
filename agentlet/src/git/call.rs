//! One call of git.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{PipeReader, PipeWriter};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use super::running::{Running, tail, to_file, to_memory};
use super::{Error, Git, Ids};

/// Settings of every call. Each either keeps git from running another program, from opening a connection, or makes what
/// it does the same on every machine.
const SETTINGS: &[&str] = &[
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.sshCommand=false",
    "core.gitProxy=",
    "core.askPass=",
    "core.editor=false",
    "core.pager=cat",
    "core.alternateRefsCommand=true",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.autocrlf=false",
    "core.safecrlf=false",
    "core.eol=lf",
    "core.fileMode=true",
    "core.symlinks=true",
    "core.ignoreCase=false",
    "core.precomposeUnicode=false",
    "core.protectHFS=true",
    "core.protectNTFS=true",
    "core.splitIndex=false",
    "core.quotePath=true",
    "core.commitGraph=false",
    "credential.helper=",
    "commit.gpgSign=false",
    "tag.gpgSign=false",
    "gpg.program=false",
    "log.showSignature=false",
    "diff.orderFile=/dev/null",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
    "diff.ignoreSubmodules=none",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "protocol.allow=never",
    "gc.auto=0",
    "maintenance.auto=false",
    "pack.threads=1",
    "advice.detachedHead=false",
];

/// What a call reads.
enum Feed {
    Nothing,
    Bytes(Vec<u8>),
    Pipe(PipeReader),
}

/// Where what a call prints goes.
pub(crate) enum Sink {
    Memory,
    File { file: File, limit: u64 },
    Pipe(PipeWriter),
}

/// A call of git, described step by step and then made.
#[must_use]
pub struct Call {
    git: Git,
    command: &'static str,
    settings: Vec<String>,
    git_dir: Option<PathBuf>,
    work_tree: Option<PathBuf>,
    index: Option<PathBuf>,
    ceiling: Option<PathBuf>,
    cwd: PathBuf,
    user: Option<Ids>,
    args: Vec<OsString>,
    feed: Feed,
    timeout: Duration,
}

impl Call {
    pub(super) fn new(git: Git, command: &'static str) -> Self {
        let timeout = git.timeout;
        Self {
            git,
            command,
            settings: Vec::new(),
            git_dir: None,
            work_tree: None,
            index: None,
            ceiling: None,
            cwd: PathBuf::from("/"),
            user: None,
            args: Vec::new(),
            feed: Feed::Nothing,
            timeout,
        }
    }

    /// The repository; without it git looks for one from the working directory.
    pub fn git_dir(mut self, path: &Path) -> Self {
        self.git_dir = Some(path.to_owned());
        self
    }

    /// The work tree.
    pub fn work_tree(mut self, path: &Path) -> Self {
        self.work_tree = Some(path.to_owned());
        self
    }

    /// The index file, instead of the repository's own.
    pub fn index(mut self, path: &Path) -> Self {
        self.index = Some(path.to_owned());
        self
    }

    /// Working directory; git never looks for a repository above it.
    pub fn cwd(mut self, path: &Path) -> Self {
        self.cwd = path.to_owned();
        self.ceiling = path.parent().map(Path::to_owned);
        self
    }

    /// Runs as this user; `None`: as ourselves.
    pub fn user(mut self, user: Option<Ids>) -> Self {
        self.user = user;
        self
    }

    /// One more setting, `name=value`.
    pub fn setting(mut self, setting: impl Into<String>) -> Self {
        self.settings.push(setting.into());
        self
    }

    /// One more argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// More arguments.
    pub fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, args: I) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// What it reads.
    pub fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.feed = Feed::Bytes(bytes.into());
        self
    }

    /// What it reads, from a pipe.
    pub(crate) fn input_pipe(mut self, pipe: PipeReader) -> Self {
        self.feed = Feed::Pipe(pipe);
        self
    }

    /// Another deadline.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Runs it; anything but exit code 0 is an error.
    pub async fn run(self) -> Result<Vec<u8>, Error> {
        let command = self.command;
        let done = self.finish(Sink::Memory).await?;
        done.success(command)
    }

    /// Runs it and gives the printed line.
    pub async fn line(self) -> Result<String, Error> {
        let command = self.command;
        let bytes = self.run().await?;
        let text = String::from_utf8(bytes).map_err(|_| Error::Unexpected {
            command: command.to_owned(),
            detail: "not UTF-8".to_owned(),
        })?;
        Ok(text.trim_end_matches('\n').to_owned())
    }

    /// Runs it; exit code 1 is git's way to say no, and gives `None`.
    pub async fn query(self) -> Result<Option<Vec<u8>>, Error> {
        let command = self.command;
        let done = self.finish(Sink::Memory).await?;
        if done.status.code() == Some(1) {
            return Ok(None);
        }
        done.success(command).map(Some)
    }

    /// Runs it, writing what it prints to `sink`.
    pub(crate) async fn run_into(self, sink: Sink) -> Result<(), Error> {
        let command = self.command;
        let done = self.finish(sink).await?;
        done.success(command).map(drop)
    }

    async fn finish(mut self, sink: Sink) -> Result<Done, Error> {
        let command = self.command;
        let limit = match &sink {
            Sink::File { limit, .. } => *limit,
            _ => self.git.max_output,
        };
        let feed = std::mem::replace(&mut self.feed, Feed::Nothing);
        let (child, bytes, file) = self.spawn(feed, sink)?;
        let mut running = Running::new(child, &self.git);
        let io_error = |source| Error::Io {
            command: command.to_owned(),
            source,
        };
        let Some(child) = &mut running.child else {
            return Err(io_error(std::io::Error::other("it is gone")));
        };
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let stderr = child.stderr.take();
        let timeout = self.timeout;
        let work = async {
            let feed = async {
                if let (Some(mut stdin), Some(bytes)) = (stdin, bytes) {
                    // A git that ends early tells why by its exit code; a closed pipe adds nothing.
                    if stdin.write_all(&bytes).await.is_ok() {
                        drop(stdin.shutdown().await);
                    }
                }
                Ok::<_, Error>(())
            };
            let out = async {
                match (stdout, file) {
                    (Some(stdout), None) => to_memory(stdout, limit, command).await,
                    (Some(stdout), Some(file)) => {
                        to_file(stdout, file, limit, command).await?;
                        Ok(Vec::new())
                    }
                    (None, _) => Ok(Vec::new()),
                }
            };
            let err = async {
                match stderr {
                    Some(stderr) => tail(stderr).await.map_err(io_error),
                    None => Ok(String::new()),
                }
            };
            let ((), stdout, stderr) = tokio::try_join!(feed, out, err)?;
            let status = child.wait().await.map_err(io_error)?;
            Ok(Done {
                status,
                stdout,
                stderr,
            })
        };
        let done = tokio::time::timeout(timeout, work)
            .await
            .map_err(|_| Error::Timeout {
                command: command.to_owned(),
                after: timeout,
            })
            .flatten()?;
        running.ended = true;
        Ok(done)
    }

    fn spawn(&self, feed: Feed, sink: Sink) -> Result<Spawned, Error> {
        let mut command = Command::new(&self.git.program);
        command.env_clear();
        command.env("PATH", search_path(&self.git.program));
        for (name, value) in [
            ("LC_ALL", "C"),
            ("TZ", "UTC"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_SYSTEM", "/dev/null"),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_ATTR_NOSYSTEM", "1"),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_OPTIONAL_LOCKS", "0"),
            ("GIT_NO_REPLACE_OBJECTS", "1"),
            ("GIT_NO_LAZY_FETCH", "1"),
            ("GIT_LITERAL_PATHSPECS", "1"),
            ("GIT_PROTOCOL_FROM_USER", "0"),
            ("GIT_ALLOW_PROTOCOL", ""),
            ("GIT_AUTHOR_NAME", IDENTITY_NAME),
            ("GIT_AUTHOR_EMAIL", IDENTITY_EMAIL),
            ("GIT_COMMITTER_NAME", IDENTITY_NAME),
            ("GIT_COMMITTER_EMAIL", IDENTITY_EMAIL),
        ] {
            command.env(name, value);
        }
        if let Some(ceiling) = &self.ceiling {
            command.env("GIT_CEILING_DIRECTORIES", ceiling);
        }
        if let Some(index) = &self.index {
            command.env("GIT_INDEX_FILE", index);
        }
        for setting in SETTINGS
            .iter()
            .copied()
            .chain(self.settings.iter().map(String::as_str))
        {
            command.arg("-c").arg(setting);
        }
        command.arg("--no-pager");
        if let Some(git_dir) = &self.git_dir {
            command.arg("--git-dir").arg(git_dir);
        }
        if let Some(work_tree) = &self.work_tree {
            command.arg("--work-tree").arg(work_tree);
        }
        command.arg(self.command).args(&self.args);
        command.current_dir(&self.cwd);
        if let Some(Ids { uid, gid }) = self.user
            && (uid, gid)
                != (
                    rustix::process::geteuid().as_raw(),
                    rustix::process::getegid().as_raw(),
                )
        {
            // The standard library drops supplementary groups when root changes the uid.
            command.uid(uid).gid(gid);
        }
        command.process_group(0);
        let bytes = match feed {
            Feed::Nothing => {
                command.stdin(Stdio::null());
                None
            }
            Feed::Bytes(bytes) => {
                command.stdin(Stdio::piped());
                Some(bytes)
            }
            Feed::Pipe(pipe) => {
                command.stdin(pipe);
                None
            }
        };
        let file = match sink {
            Sink::Memory => {
                command.stdout(Stdio::piped());
                None
            }
            Sink::File { file, .. } => {
                command.stdout(Stdio::piped());
                Some(file)
            }
            Sink::Pipe(pipe) => {
                command.stdout(pipe);
                None
            }
        };
        command.stderr(Stdio::piped());
        let child = command.spawn().map_err(|source| Error::Spawn {
            program: self.git.program.clone(),
            source,
        })?;
        Ok((child, bytes, file))
    }
}

/// Name that commits and reflog entries of ours carry.
pub(crate) const IDENTITY_NAME: &str = "Panda";
/// Address that goes with it.
pub(crate) const IDENTITY_EMAIL: &str = "panda@localhost";

fn search_path(program: &Path) -> OsString {
    let mut path = program
        .parent()
        .map(|p| p.as_os_str().to_owned())
        .unwrap_or_default();
    path.push(":/usr/local/bin:/usr/bin:/bin");
    path
}

/// A process, what it is still to be given, and where its output goes.
type Spawned = (Child, Option<Vec<u8>>, Option<File>);

struct Done {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: String,
}

impl Done {
    fn success(self, command: &str) -> Result<Vec<u8>, Error> {
        if self.status.success() {
            return Ok(self.stdout);
        }
        let status = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "unknown end".to_owned(),
        };
        Err(Error::Failed {
            command: command.to_owned(),
            status,
            stderr: self.stderr,
        })
    }
}
