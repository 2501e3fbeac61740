use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use panda_api::v1alpha1::FailureReason;

use super::{Error, Published};
use crate::artifact::{GitResult, Stamp};
use crate::workspace::fixture::{Fixture, fingerprint, git, gone, is_root};
use crate::workspace::{Content, Workspaces};

const BRANCH: &str = "refs/heads/panda/fix";

async fn result(fixture: &Fixture, workspaces: &Workspaces) -> GitResult {
    let workspace = fixture.prepare(workspaces, "run-1").await;
    fixture.agent_writes(&workspace.tree().join("src/lib.rs"), "mended\n");
    let stamp = Stamp {
        message: "x".to_owned(),
        seconds: 0,
    };
    let snapshot = workspaces
        .snapshot(&workspace, &gone("run-1"), &stamp)
        .await
        .unwrap();
    snapshot.git().unwrap().clone()
}

/// What publication may not touch: everything but objects, the branch, its log, and the folders around them.
fn untouched(repo: &Path) -> Vec<(String, String)> {
    fingerprint(repo)
        .into_iter()
        .map(|(path, print)| (String::from_utf8_lossy(&path).into_owned(), print))
        .filter(|(path, _)| {
            let inner = &path[repo.as_os_str().as_bytes().len()..];
            !inner.starts_with("/.git/objects")
                && !inner.contains("heads/panda")
                && !matches!(
                    inner,
                    "/.git" | "/.git/refs/heads" | "/.git/logs" | "/.git/logs/refs" | "/.git/logs/refs/heads"
                )
        })
        .collect()
}

#[tokio::test]
async fn branch_is_made_and_nothing_else_is_touched() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let result = result(&fixture, &workspaces).await;
    let before = untouched(&fixture.repo());
    assert_eq!(
        workspaces.branch(&fixture.repo(), "panda/fix").await.unwrap(),
        None
    );
    assert_eq!(workspaces.publish(&result, None).await.unwrap(), Published::Moved);
    assert_eq!(untouched(&fixture.repo()), before);
    assert_eq!(git(&fixture.repo(), &["rev-parse", BRANCH]), result.commit);
    git(&fixture.repo(), &["fsck", "--strict"]);
    assert_eq!(
        workspaces.branch(&fixture.repo(), "panda/fix").await.unwrap(),
        Some(result.commit.clone())
    );
    // After a crash between the ref and the report the same call finds its own work.
    assert_eq!(
        workspaces.publish(&result, None).await.unwrap(),
        Published::Already
    );
}

#[tokio::test]
async fn branch_moves_only_from_the_expected_commit() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let result = result(&fixture, &workspaces).await;
    let head = git(&fixture.repo(), &["rev-parse", "HEAD"]);
    let older = git(&fixture.repo(), &["rev-parse", "HEAD~1"]);
    git(&fixture.repo(), &["branch", "panda/fix", "HEAD"]);
    for expected in [None, Some(older.as_str())] {
        let error = workspaces.publish(&result, expected).await.unwrap_err();
        assert!(matches!(error, Error::Moved { .. }), "{error}");
        assert_eq!(error.reason(), FailureReason::PublishConflict);
    }
    assert_eq!(git(&fixture.repo(), &["rev-parse", BRANCH]), head);
    assert_eq!(
        workspaces.publish(&result, Some(&head)).await.unwrap(),
        Published::Moved
    );
}

#[tokio::test]
async fn branch_that_somebody_works_on_is_not_moved() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let result = result(&fixture, &workspaces).await;
    let repo = fixture.repo();
    let head = git(&repo, &["rev-parse", "HEAD"]);
    git(&repo, &["checkout", "-q", "-b", "panda/fix"]);
    let before = fingerprint(&repo);
    let error = workspaces.publish(&result, Some(&head)).await.unwrap_err();
    assert!(matches!(error, Error::CheckedOut { .. }), "{error}");
    assert_eq!(error.reason(), FailureReason::PublishConflict);
    assert_eq!(fingerprint(&repo), before);
    git(&repo, &["checkout", "-q", "main"]);
    let linked = fixture.path().join("home/linked");
    git(
        &repo,
        &["worktree", "add", "-q", linked.to_str().unwrap(), "panda/fix"],
    );
    let error = workspaces.publish(&result, Some(&head)).await.unwrap_err();
    assert!(
        matches!(&error, Error::CheckedOut { worktree, .. } if worktree.ends_with("linked")),
        "{error}"
    );
    fs::write(linked.join("other"), "x").unwrap();
    git(&linked, &["checkout", "-q", "--detach"]);
    let state = repo.join(".git/worktrees/linked/rebase-merge");
    fs::create_dir(&state).unwrap();
    fs::write(state.join("head-name"), format!("{BRANCH}\n")).unwrap();
    let error = workspaces.publish(&result, Some(&head)).await.unwrap_err();
    assert!(matches!(error, Error::CheckedOut { .. }), "{error}");
    fs::remove_dir_all(&state).unwrap();
    workspaces.publish(&result, Some(&head)).await.unwrap();
}

#[tokio::test]
async fn symbolic_branches_and_name_clashes_are_conflicts() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let result = result(&fixture, &workspaces).await;
    let repo = fixture.repo();
    git(&repo, &["branch", "other"]);
    let before = git(&repo, &["for-each-ref"]);
    git(&repo, &["symbolic-ref", BRANCH, "refs/heads/other"]);
    let error = workspaces.publish(&result, None).await.unwrap_err();
    assert!(matches!(error, Error::Symbolic { .. }), "{error}");
    git(&repo, &["symbolic-ref", "-d", BRANCH]);
    assert_eq!(git(&repo, &["for-each-ref"]), before);
    git(&repo, &["branch", "panda"]);
    let error = workspaces.publish(&result, None).await.unwrap_err();
    assert!(
        matches!(&error, Error::InTheWay { other, .. } if other == "panda"),
        "{error}"
    );
    assert_eq!(error.reason(), FailureReason::PublishConflict);
}

#[tokio::test]
async fn hooks_of_the_users_repository_do_not_run() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let result = result(&fixture, &workspaces).await;
    let canary = fixture.path().join("canary");
    for hook in ["reference-transaction", "post-update", "update", "pre-receive"] {
        let path = fixture.repo().join(".git/hooks").join(hook);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\ntouch {}\n", canary.display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    workspaces.publish(&result, None).await.unwrap();
    assert!(!canary.exists());
}

#[tokio::test]
async fn repository_that_is_gone_or_forbidden_by_now_fails_and_may_be_retried() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let result = result(&fixture, &workspaces).await;
    fs::rename(fixture.repo(), fixture.path().join("home/away")).unwrap();
    let error = workspaces.publish(&result, None).await.unwrap_err();
    assert_eq!(error.reason(), FailureReason::PublishFailed);
    fs::rename(fixture.path().join("home/away"), fixture.repo()).unwrap();
    workspaces.publish(&result, None).await.unwrap();
}

#[tokio::test]
async fn base_that_the_user_threw_away_is_sent_again() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    git(&fixture.repo(), &["commit", "-q", "-a", "-m", "three"]);
    let result = result(&fixture, &workspaces).await;
    git(&fixture.repo(), &["reset", "-q", "--hard", "HEAD~1"]);
    git(&fixture.repo(), &["reflog", "expire", "--expire=all", "--all"]);
    git(&fixture.repo(), &["gc", "-q", "--prune=now"]);
    workspaces.publish(&result, None).await.unwrap();
    git(&fixture.repo(), &["fsck", "--strict"]);
    assert_eq!(
        git(&fixture.repo(), &["log", "--format=%s", BRANCH]),
        "x\nthree\ntwo\none"
    );
}

#[tokio::test]
async fn bare_repository_of_another_user_is_published_to_as_that_user() {
    let fixture = Fixture::new();
    let bare = fixture.path().join("home/bare.git");
    git(
        fixture.path(),
        &["clone", "-q", "--bare", "home/repo", "home/bare.git"],
    );
    let uid = if is_root() {
        1234
    } else {
        rustix::process::geteuid().as_raw()
    };
    for entry in fingerprint(&bare).keys() {
        let path = Path::new(std::ffi::OsStr::from_bytes(entry));
        std::os::unix::fs::lchown(path, Some(uid), None).unwrap();
    }
    let workspaces = fixture.open().await;
    let content = Content::Git {
        path: bare.clone(),
        reference: "main".to_owned(),
        branch: "panda/fix".to_owned(),
    };
    let workspace = workspaces
        .prepare(&crate::workspace::fixture::key("task-a"), "run-1", &content, None)
        .await
        .unwrap();
    fixture.agent_writes(&workspace.tree().join("x"), "x");
    let stamp = Stamp {
        message: "x".to_owned(),
        seconds: 0,
    };
    let snapshot = workspaces
        .snapshot(&workspace, &gone("run-1"), &stamp)
        .await
        .unwrap();
    workspaces.publish(snapshot.git().unwrap(), None).await.unwrap();
    for (path, print) in fingerprint(&bare) {
        let owner = print.split(' ').nth(1).unwrap();
        assert_eq!(owner, uid.to_string(), "{}", String::from_utf8_lossy(&path));
    }
}
