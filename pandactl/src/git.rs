//! Calls of git that run nothing of the repository's own: no hooks, no file system monitor, no prompts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::error::{Error, Result};

/// How long one call may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a call came to.
#[derive(Debug)]
pub struct Output {
    /// Whether it succeeded.
    pub ok: bool,
    /// What it printed.
    pub stdout: Vec<u8>,
    /// What it said.
    pub stderr: String,
}

/// Calls git in a folder, with bytes for its standard input.
///
/// # Errors
/// When git cannot be started or takes too long.
pub async fn call(folder: &Path, args: &[&str], input: Option<&[u8]>) -> Result<Output> {
    run(folder, None, args, input).await
}

/// The same with an index of its own, so that the repository's stays as it is.
///
/// # Errors
/// See [`call`].
pub async fn call_with_index(
    folder: &Path,
    index: &str,
    args: &[&str],
    input: Option<&[u8]>,
) -> Result<Output> {
    run(folder, Some(index), args, input).await
}

async fn run(folder: &Path, index: Option<&str>, args: &[&str], input: Option<&[u8]>) -> Result<Output> {
    let mut command = Command::new("git");
    command
        .args([
            "-c",
            "core.fsmonitor=false",
            "-c",
            "core.hooksPath=/dev/null",
            "-c",
            "core.quotePath=false",
        ])
        .args(args)
        .current_dir(folder)
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("LC_ALL", "C")
        .env_remove("GIT_DIR")
        .env_remove("GIT_WORK_TREE")
        .env_remove("GIT_INDEX_FILE")
        .stdin(if input.is_some() {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    if let Some(index) = index {
        command.env("GIT_INDEX_FILE", index);
    }
    let mut child = command.spawn().map_err(|error| {
        Error::user(format!("cannot start git: {error}")).hint("install git, or put it on PATH")
    })?;
    let stdin = child.stdin.take();
    let feed = async {
        if let (Some(mut stdin), Some(input)) = (stdin, input) {
            // A git that reads no further says why by its exit code.
            let _: std::io::Result<()> = stdin.write_all(input).await;
        }
    };
    let run = async { tokio::join!(feed, child.wait_with_output()).1 };
    let output = tokio::time::timeout(PATIENCE, run)
        .await
        .map_err(|_| {
            Error::user(format!(
                "git {} did not end within {PATIENCE:?}",
                args.first().unwrap_or(&"")
            ))
            .hint("look at the repository with git itself")
        })?
        .map_err(|error| {
            Error::user(format!("cannot run git: {error}")).hint("look at the repository with git itself")
        })?;
    Ok(Output {
        ok: output.status.success(),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

/// The top folder of the repository that `path` is in, canonical.
///
/// # Errors
/// When it is in none.
pub async fn top_level(path: &Path) -> Result<PathBuf> {
    let canonical = std::fs::canonicalize(path).map_err(|error| Error::file("find", path, &error))?;
    let output = call(&canonical, &["rev-parse", "--show-toplevel"], None).await?;
    if !output.ok {
        return Err(Error::user(format!(
            "{} is in no git repository: {}",
            canonical.display(),
            output.stderr
        ))
        .hint("name a repository, or make one with `git init` and a first commit"));
    }
    let text = String::from_utf8(output.stdout).map_err(|_| {
        Error::user(format!(
            "the path of the repository at {} is not UTF-8",
            canonical.display()
        ))
        .hint("move it to another place")
    })?;
    let top = PathBuf::from(text.trim_end_matches('\n'));
    std::fs::canonicalize(&top).map_err(|error| Error::file("find", &top, &error))
}

/// Paths that differ from the last commit, new ones included; relative to the top folder.
///
/// # Errors
/// When git cannot tell.
pub async fn changed(top: &Path) -> Result<BTreeSet<Vec<u8>>> {
    let output = call(
        top,
        &[
            "status",
            "--porcelain=v1",
            "-z",
            "--untracked-files=all",
            "--no-renames",
            "--ignore-submodules=none",
        ],
        None,
    )
    .await?;
    if !output.ok {
        return Err(Error::user(format!(
            "git status in {} failed: {}",
            top.display(),
            output.stderr
        ))
        .hint("look at the repository with git itself"));
    }
    Ok(output
        .stdout
        .split(|&b| b == 0)
        .filter_map(|entry| entry.get(3..))
        .map(<[u8]>::to_vec)
        .collect())
}

/// Whether the repository has a commit.
///
/// # Errors
/// When git cannot tell.
pub async fn has_commit(top: &Path) -> Result<bool> {
    Ok(
        call(top, &["rev-parse", "--verify", "--quiet", "HEAD^{commit}"], None)
            .await?
            .ok,
    )
}
