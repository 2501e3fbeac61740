//! B27: the folder or branch that a run would take is there already.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::Context;
use panda_api::{Task, TaskPhase};
use panda_client::Api;
use panda_e2e::cluster::Cluster;
use serde_json::{Value, json};

use super::{once, runs, start};
use crate::support::{ended, example_repository, git};

/// Says where it works, by git's own answer, then changes a file and commits.
const WHERE: &str = "git rev-parse --show-toplevel --absolute-git-dir --path-format=absolute --git-common-dir
pwd
git symbolic-ref --short HEAD
echo new >new.txt
git add new.txt
git -c user.name=a -c user.email=a@localhost commit -qm new";

/// Everything about a tree: names, kinds, modes, times, contents.
fn fingerprint(root: &Path) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let meta = std::fs::symlink_metadata(&path)?;
        let content = if meta.is_dir() {
            for entry in std::fs::read_dir(&path)? {
                pending.push(entry?.path());
            }
            Vec::new()
        } else if meta.is_symlink() {
            std::fs::read_link(&path)?.into_os_string().into_encoded_bytes()
        } else {
            std::fs::read(&path)?
        };
        let (mode, inode, time) = (meta.mode(), meta.ino(), (meta.mtime(), meta.mtime_nsec()));
        found.insert(
            path,
            format!("{mode:o} {inode} {time:?} {}", content.escape_ascii()),
        );
    }
    Ok(found)
}

/// The task, created and not yet started, and the folder that it would take first.
async fn held(cluster: &Cluster, name: &str, repository: &Path) -> anyhow::Result<PathBuf> {
    let more = json!({
        "suspend": true,
        "workspace": {"git": {"path": repository}, "retain": "Always"},
    });
    start(cluster, name, &["sh", "-c", WHERE], Value::Null, more)?;
    let api: Api<Task> = Api::namespaced(cluster.client()?, "default");
    let uid = api.get(name).await?.metadata.uid;
    Ok(cluster.dir().join("work/tasks").join(format!("{uid}-0")))
}

/// Lets the task run and returns the folder that it worked in, proved to be its own.
async fn place(cluster: &Cluster, name: &str, repository: &Path) -> anyhow::Result<PathBuf> {
    let before = fingerprint(repository)?;
    cluster.ok(&["resume", &format!("task/{name}")])?;
    let task = ended(cluster, name).await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Succeeded),
        "{name}: {:#?}",
        task.status
    );
    let said = cluster.ok(&["logs", &format!("task/{name}"), "--stream", "stdout"])?;
    let mut lines = said.lines().map(PathBuf::from);
    let mut next = || {
        lines
            .next()
            .with_context(|| format!("{name}: too few lines: {said}"))
    };
    let (top, git_dir, common, cwd, branch) = (next()?, next()?, next()?, next()?, next()?);
    assert!(top.starts_with(cluster.dir().join("work")), "{name}: {said}");
    assert_eq!(top, cwd, "{name}");
    assert_eq!(git_dir, top.join(".git"), "{name}");
    assert_eq!(common, git_dir, "{name}");
    assert_eq!(branch, PathBuf::from(format!("panda/{name}")), "{name}");
    assert_eq!(
        fingerprint(repository)?,
        before,
        "{name}: the person's checkout is as it was"
    );
    let run = runs(cluster, &task).await?.remove(0);
    assert_eq!(run.status.changed_files, ["new.txt"], "{name}");
    top.parent()
        .map(Path::to_owned)
        .context("a work tree lies in a folder")
}

#[tokio::test]
async fn a_taken_folder_is_never_worked_in() -> anyhow::Result<()> {
    let cluster = Cluster::start(&[]).await?;
    let repository = example_repository(&cluster, "leap")?;

    let wanted = held(&cluster, "empty", &repository).await?;
    std::fs::create_dir(&wanted)?;
    assert_eq!(
        place(&cluster, "empty", &repository).await?,
        wanted,
        "an empty folder is used"
    );
    let of_empty = wanted;

    let wanted = held(&cluster, "files", &repository).await?;
    std::fs::create_dir(&wanted)?;
    std::fs::write(wanted.join("precious"), "mine")?;
    let before = fingerprint(&wanted)?;
    assert_ne!(place(&cluster, "files", &repository).await?, wanted);
    assert_eq!(fingerprint(&wanted)?, before, "files of others stay");

    let wanted = held(&cluster, "file", &repository).await?;
    std::fs::write(&wanted, "a file")?;
    assert_ne!(place(&cluster, "file", &repository).await?, wanted);
    assert_eq!(std::fs::read_to_string(&wanted)?, "a file");

    let wanted = held(&cluster, "link", &repository).await?;
    symlink(&repository, &wanted)?;
    assert_ne!(place(&cluster, "link", &repository).await?, wanted);
    assert!(wanted.is_symlink());

    // What another task has is not taken over through a link either.
    let wanted = held(&cluster, "other", &repository).await?;
    symlink(&of_empty, &wanted)?;
    let before = fingerprint(&of_empty)?;
    assert_ne!(place(&cluster, "other", &repository).await?, wanted);
    assert_eq!(fingerprint(&of_empty)?, before);

    // Registered to another task, though nothing lies there.
    let wanted = held(&cluster, "registered", &repository).await?;
    let name = |path: &Path| {
        path.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    let records = record_folder(&cluster.data(), &name(&of_empty))?;
    let theirs = std::fs::read_to_string(records.join(format!("{}.json", name(&of_empty))))?;
    let ours = theirs.replace(
        &format!("\"folder\": \"{}\"", name(&of_empty)),
        &format!("\"folder\": \"{}\"", name(&wanted)),
    );
    assert_ne!(ours, theirs);
    std::fs::write(records.join(format!("{}.json", name(&wanted))), ours)?;
    assert_ne!(place(&cluster, "registered", &repository).await?, wanted);
    Ok(())
}

/// The folder that holds the record of a workspace.
fn record_folder(root: &Path, workspace: &str) -> anyhow::Result<PathBuf> {
    let mut pending = vec![root.to_owned()];
    while let Some(folder) = pending.pop() {
        if folder.join(format!("{workspace}.json")).is_file() {
            return Ok(folder);
        }
        for entry in std::fs::read_dir(&folder)?.flatten() {
            if entry.file_type()?.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    anyhow::bail!("no record of {workspace}")
}

#[tokio::test]
async fn a_taken_branch_does_not_matter() -> anyhow::Result<()> {
    let cluster = Cluster::start(&[]).await?;
    let repository = example_repository(&cluster, "leap")?;
    let identity = ["-c", "user.name=a", "-c", "user.email=a@localhost"];
    git(&repository, &["branch", "panda/elsewhere"])?;
    git(
        &repository,
        &[
            &identity[..],
            &["commit", "--quiet", "--allow-empty", "--message", "later"],
        ]
        .concat(),
    )?;
    held(&cluster, "elsewhere", &repository).await?;
    place(&cluster, "elsewhere", &repository).await?;

    git(&repository, &["checkout", "--quiet", "-b", "panda/here"])?;
    std::fs::write(repository.join("uncommitted"), "mine")?;
    git(&repository, &["add", "uncommitted"])?;
    std::fs::write(repository.join("src/leap.c"), "dirty\n")?;
    held(&cluster, "here", &repository).await?;
    place(&cluster, "here", &repository).await?;
    assert_eq!(
        git(&repository, &["symbolic-ref", "--short", "HEAD"])?,
        "panda/here\n"
    );
    Ok(())
}

#[tokio::test]
async fn a_retry_finds_its_own_work_tree_and_a_rerun_a_fresh_one() -> anyhow::Result<()> {
    let cluster = Cluster::start(&[]).await?;
    let repository = example_repository(&cluster, "leap")?;
    let before = fingerprint(&repository)?;
    let script = "pwd; if [ -f first ]; then echo resumed; else echo 1 >first; exit 3; fi";
    let more = json!({
        "workspace": {"git": {"path": repository}, "retain": "Always"},
        "retry": {"limit": 1, "backoff": {"base": "100ms", "factor": 1, "cap": "100ms", "jitter": "None"}},
    });
    start(&cluster, "again", &["sh", "-c", script], Value::Null, more)?;
    let task = ended(&cluster, "again").await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Succeeded),
        "{:#?}",
        task.status
    );
    assert_eq!((task.status.attempts, task.status.retries.agent), (2, 1));
    let logs = runs(&cluster, &task)
        .await?
        .iter()
        .map(|run| {
            cluster.ok(&[
                "logs",
                &format!("run/{}", run.metadata.name),
                "--stream",
                "stdout",
            ])
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    assert_eq!(
        logs[1],
        format!("{}resumed\n", logs[0]),
        "the same folder, with what was in it"
    );

    cluster.ok(&["retry", "task/again"])?;
    let over = |task: &Task| task.status.rerun == Some(1) && task.status.phase == Some(TaskPhase::Succeeded);
    let task = once(&cluster, "again", over).await?;
    let logs2 = cluster.ok(&["logs", "task/again", "--stream", "stdout"])?;
    assert_eq!(task.status.attempts, 4, "the rerun starts from nothing");
    assert!(logs2.contains("-1"), "{logs2}");
    assert_eq!(fingerprint(&repository)?, before);
    Ok(())
}
