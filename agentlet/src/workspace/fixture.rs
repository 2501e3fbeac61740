//! A device with a user's repository, for tests.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use panda_api::meta::SystemClock;
use tempfile::TempDir;

use super::{Config, Content, Key, Limits, TreeEmpty, Workspace, Workspaces};
use crate::git::Ids;

pub(crate) struct Fixture {
    dir: TempDir,
    pub(crate) agent: Option<Ids>,
}

/// Whether tests can become another user.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The user that agents run as in tests run by root.
pub(crate) const AGENT: Ids = Ids {
    uid: 65534,
    gid: 65534,
};

impl Fixture {
    /// A device whose repository at [`Self::repo`] has two commits on `main`, and an uncommitted change.
    pub(crate) fn new() -> Self {
        Self::with_agent(is_root().then_some(AGENT))
    }

    pub(crate) fn with_agent(agent: Option<Ids>) -> Self {
        let dir = TempDir::new().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let this = Self { dir, agent };
        let repo = this.repo();
        fs::create_dir_all(&repo).unwrap();
        git(&repo, &["init", "-q", "-b", "main"]);
        fs::create_dir_all(repo.join("src")).unwrap();
        fs::create_dir_all(repo.join("tests")).unwrap();
        fs::write(repo.join("src/lib.rs"), "fn a() {}\n").unwrap();
        fs::write(repo.join("tests/t.rs"), "assert\n").unwrap();
        fs::write(repo.join(".gitignore"), "target/\n*.log\n").unwrap();
        git(&repo, &["add", "-A"]);
        git(&repo, &["commit", "-q", "-m", "one"]);
        fs::write(repo.join("README"), "hello\n").unwrap();
        git(&repo, &["add", "-A"]);
        git(&repo, &["commit", "-q", "-m", "two"]);
        fs::write(repo.join("README"), "hello, not committed\n").unwrap();
        this
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn repo(&self) -> PathBuf {
        self.dir.path().join("home/repo")
    }

    pub(crate) fn config(&self) -> Config {
        Config {
            state_dir: self.path().join("state"),
            mirrors_dir: self.path().join("mirrors"),
            work_dir: self.path().join("work"),
            workspace_roots: vec![self.path().join("home")],
            git: git_program(),
            agent: self.agent,
            limits: Limits {
                git_timeout: Duration::from_secs(60),
                ..Limits::default()
            },
            clock: Arc::new(SystemClock),
        }
    }

    pub(crate) async fn open(&self) -> Workspaces {
        Workspaces::open(self.config()).await.unwrap()
    }

    pub(crate) fn content(&self) -> Content {
        Content::Git {
            path: self.repo(),
            reference: String::new(),
            branch: "panda/fix".to_owned(),
        }
    }

    pub(crate) async fn prepare(&self, workspaces: &Workspaces, run: &str) -> Workspace {
        workspaces
            .prepare(&key("task-a"), run, &self.content(), None)
            .await
            .unwrap()
    }

    /// Writes a file as the agent would.
    pub(crate) fn agent_writes(&self, path: &Path, bytes: impl AsRef<[u8]>) {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).unwrap();
        }
        fs::write(path, bytes).unwrap();
        if let Some(Ids { uid, gid }) = self.agent {
            for path in path.ancestors() {
                let ours = fs::symlink_metadata(path).unwrap().uid() != uid;
                if path.ends_with("work") || !ours {
                    break;
                }
                std::os::unix::fs::lchown(path, Some(uid), Some(gid)).unwrap();
            }
        }
    }
}

pub(crate) fn key(task: &str) -> Key {
    Key {
        task_uid: task.to_owned(),
        rerun: 0,
    }
}

pub(crate) fn gone(run: &str) -> TreeEmpty {
    TreeEmpty::proved(run)
}

pub(crate) fn git_program() -> PathBuf {
    ["/usr/bin/git", "/usr/local/bin/git", "/opt/homebrew/bin/git"]
        .iter()
        .map(PathBuf::from)
        .find(|path| path.exists())
        .expect("git is installed")
}

/// Runs git as a person would, without this machine's configuration.
pub(crate) fn git<S: AsRef<OsStr>>(dir: &Path, args: &[S]) -> String {
    let out = Command::new(git_program())
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", "/nonexistent")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_AUTHOR_NAME", "User")
        .env("GIT_AUTHOR_EMAIL", "user@localhost")
        .env("GIT_COMMITTER_NAME", "User")
        .env("GIT_COMMITTER_EMAIL", "user@localhost")
        .args(["-c", "safe.directory=*"])
        .args(args)
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "git failed: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
}

/// Everything about a tree that can be seen without reading it wrong: names, kinds, modes, owners, times, contents.
pub(crate) fn fingerprint(root: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut out = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let content = if meta.is_dir() {
            for entry in fs::read_dir(&path).unwrap() {
                pending.push(entry.unwrap().path());
            }
            String::new()
        } else if meta.is_symlink() {
            format!("{:?}", fs::read_link(&path).unwrap())
        } else {
            format!("{:?}", fs::read(&path).unwrap())
        };
        out.insert(
            path.as_os_str().as_bytes().to_vec(),
            format!(
                "{:o} {} {} {}.{} {content}",
                meta.mode(),
                meta.uid(),
                meta.ino(),
                meta.mtime(),
                meta.mtime_nsec()
            ),
        );
    }
    out
}
