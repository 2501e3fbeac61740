mod crash;
mod folders;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use panda_api::v1alpha1::{FailureReason, RefusalReason, Retain};

use super::fixture::{AGENT, Fixture, fingerprint, git, gone, is_root, key};
use super::{Content, Error, Workspaces};

#[tokio::test]
async fn empty_workspace_is_made_and_lent() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = workspaces
        .prepare(&key("task-a"), "run-1", &Content::Empty, None)
        .await
        .unwrap();
    assert_eq!(workspace.base_commit(), None);
    let proof = workspaces.prove(&workspace).await.unwrap();
    assert_eq!(fs::read_dir(proof.tree()).unwrap().count(), 0);
    let meta = fs::metadata(proof.home()).unwrap();
    assert_eq!(meta.mode() & 0o777, 0o700);
    if is_root() {
        assert_eq!(meta.uid(), AGENT.uid);
    }
}

#[tokio::test]
async fn git_workspace_is_a_private_clone_of_the_committed_state() {
    let fixture = Fixture::new();
    let before = fingerprint(&fixture.repo());
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    let tree = workspace.tree();
    assert_eq!(fs::read_to_string(tree.join("README")).unwrap(), "hello\n");
    assert_eq!(git(&tree, &["status", "--porcelain"]), "");
    assert_eq!(git(&tree, &["symbolic-ref", "HEAD"]), "refs/heads/panda/fix");
    assert_eq!(git(&tree, &["remote"]), "");
    assert_eq!(git(&tree, &["log", "--format=%s"]), "two\none");
    assert_eq!(
        Some(git(&fixture.repo(), &["rev-parse", "HEAD"]).as_str()),
        workspace.base_commit()
    );
    assert!(!tree.join(".git/hooks").exists());
    assert_eq!(
        fingerprint(&fixture.repo()),
        before,
        "nothing of the user's changed"
    );
    let proof = workspaces.prove(&workspace).await.unwrap();
    assert_eq!(
        proof.read_only().len(),
        usize::from(is_root()),
        "only what is borrowed"
    );
}

#[tokio::test]
async fn retry_finds_its_own_tree_and_other_tasks_do_not() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let first = fixture.prepare(&workspaces, "run-1").await;
    fixture.agent_writes(&first.tree().join("half-done"), "x");
    let held = workspaces
        .prepare(&key("task-a"), "run-2", &fixture.content(), None)
        .await
        .unwrap_err();
    assert!(matches!(&held, Error::Held { by } if by == "run-1"), "{held}");
    let wrong = gone("run-9");
    workspaces
        .prepare(&key("task-a"), "run-2", &fixture.content(), Some(&wrong))
        .await
        .unwrap_err();
    let second = workspaces
        .prepare(&key("task-a"), "run-2", &fixture.content(), Some(&gone("run-1")))
        .await
        .unwrap();
    assert!(second.resumed());
    assert_eq!(second.tree(), first.tree());
    assert!(second.tree().join("half-done").exists());
    let other = workspaces
        .prepare(&key("task-b"), "run-3", &fixture.content(), None)
        .await
        .unwrap();
    assert_ne!(other.tree(), second.tree());
    assert!(!other.tree().join("half-done").exists());
    workspaces.reopen(&key("task-a"), "run-2").await.unwrap();
    workspaces.reopen(&key("task-a"), "run-1").await.unwrap_err();
}

#[tokio::test]
async fn later_commits_reach_the_mirror_and_two_tasks_share_it() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let content = fixture.content();
    let (key_a, key_b) = (key("task-a"), key("task-b"));
    let (a, b) = tokio::join!(
        workspaces.prepare(&key_a, "run-1", &content, None),
        workspaces.prepare(&key_b, "run-2", &content, None),
    );
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!(a.record.mirror, b.record.mirror);
    git(&fixture.repo(), &["commit", "-q", "-a", "-m", "three"]);
    let c = workspaces
        .prepare(&key("task-c"), "run-3", &content, None)
        .await
        .unwrap();
    assert_eq!(git(&c.tree(), &["log", "--format=%s"]), "three\ntwo\none");
    // Collecting garbage on either side damages neither.
    let mirror = a.record.mirror.clone().unwrap();
    std::process::Command::new(super::fixture::git_program())
        .args(["-c", "safe.directory=*", "gc", "--prune=now", "-q"])
        .current_dir(&mirror)
        .output()
        .unwrap();
    git(&a.tree(), &["gc", "--prune=now", "-q"]);
    for workspace in [&a, &b, &c] {
        git(&workspace.tree(), &["fsck", "--strict"]);
    }
}

#[tokio::test]
async fn reference_may_be_a_branch_a_tag_or_a_commit() {
    let fixture = Fixture::new();
    let repo = fixture.repo();
    let first = git(&repo, &["rev-parse", "HEAD~1"]);
    git(&repo, &["tag", "-a", "v1", "-m", "v1", "HEAD~1"]);
    git(&repo, &["branch", "topic/x", "HEAD~1"]);
    let workspaces = fixture.open().await;
    for (n, reference) in ["v1", "topic/x", "refs/heads/topic/x", &first, &first[..10]]
        .iter()
        .enumerate()
    {
        let content = Content::Git {
            path: repo.clone(),
            reference: (*reference).to_owned(),
            branch: "panda/x".to_owned(),
        };
        let workspace = workspaces
            .prepare(&key(&format!("task-{n}")), "run-1", &content, None)
            .await
            .unwrap();
        assert_eq!(workspace.base_commit(), Some(first.as_str()), "{reference}");
    }
    for reference in [
        "nothing",
        "HEAD~1",
        "main@{0}",
        "--all",
        ":/one",
        "deadbeefdeadbeef",
    ] {
        let content = Content::Git {
            path: repo.clone(),
            reference: reference.to_owned(),
            branch: "panda/x".to_owned(),
        };
        let error = workspaces
            .prepare(&key("task-z"), "run-1", &content, None)
            .await
            .unwrap_err();
        assert!(
            matches!(
                &error,
                Error::Source(crate::git::source::Error::RefNotFound { .. })
            ),
            "{reference}: {error}"
        );
    }
}

async fn refusal(workspaces: &Workspaces, path: &Path) -> (Option<RefusalReason>, FailureReason) {
    let content = Content::Git {
        path: path.to_owned(),
        reference: String::new(),
        branch: "panda/x".to_owned(),
    };
    let error = workspaces
        .prepare(&key("task-r"), "run-1", &content, None)
        .await
        .unwrap_err();
    (error.refusal(), error.reason())
}

#[tokio::test]
async fn repository_must_lie_under_a_workspace_root_once_links_are_resolved() {
    let fixture = Fixture::new();
    let outside = fixture.path().join("outside");
    fs::create_dir(&outside).unwrap();
    git(&outside, &["init", "-q"]);
    let home = fixture.path().join("home");
    symlink(&outside, home.join("link")).unwrap();
    fs::create_dir(home.join("pointer")).unwrap();
    fs::write(
        home.join("pointer/.git"),
        format!("gitdir: {}/.git\n", outside.display()),
    )
    .unwrap();
    fs::create_dir(home.join("plain")).unwrap();
    let workspaces = fixture.open().await;
    let denied = (
        Some(RefusalReason::WorkspaceRootDenied),
        FailureReason::WorkspaceFailed,
    );
    let absent = (
        Some(RefusalReason::RepositoryAbsent),
        FailureReason::WorkspaceFailed,
    );
    assert_eq!(refusal(&workspaces, &outside).await, denied);
    assert_eq!(refusal(&workspaces, &home.join("link")).await, denied);
    assert_eq!(refusal(&workspaces, &home.join("pointer")).await, denied);
    assert_eq!(refusal(&workspaces, &home.join("plain")).await, absent);
    assert_eq!(refusal(&workspaces, &home.join("missing")).await, absent);
    assert_eq!(
        refusal(&workspaces, &home.join("repo/src")).await,
        absent,
        "no search upwards"
    );
}

#[tokio::test]
async fn repository_of_another_user_is_read_as_that_user() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    for entry in fingerprint(&fixture.repo()).keys() {
        let path = Path::new(std::ffi::OsStr::from_bytes(entry));
        std::os::unix::fs::lchown(path, Some(1234), Some(1234)).unwrap();
    }
    fs::set_permissions(fixture.repo(), fs::Permissions::from_mode(0o700)).unwrap();
    let before = fingerprint(&fixture.repo());
    let workspaces = fixture.open().await;
    fixture.prepare(&workspaces, "run-1").await;
    assert_eq!(fingerprint(&fixture.repo()), before);
}

#[tokio::test]
async fn hostile_configuration_of_the_users_repository_runs_nothing() {
    let fixture = Fixture::new();
    let repo = fixture.repo();
    let canary = fixture.path().join("canary");
    let touch = format!("touch {}", canary.display());
    for name in [
        "core.fsmonitor",
        "core.sshCommand",
        "diff.external",
        "uploadpack.packObjectsHook",
        "filter.evil.smudge",
        "filter.evil.clean",
        "core.pager",
        "alias.rev-parse",
    ] {
        git(&repo, &["config", name, &touch]);
    }
    fs::write(repo.join(".gitattributes"), "* filter=evil\n").unwrap();
    git(&repo, &["-c", "filter.evil.clean=cat", "add", ".gitattributes"]);
    git(
        &repo,
        &["-c", "core.fsmonitor=false", "commit", "-q", "-m", "attributes"],
    );
    drop(fs::remove_file(&canary));
    let hooks = repo.join(".git/hooks");
    fs::create_dir_all(&hooks).unwrap();
    for hook in ["post-checkout", "post-index-change", "reference-transaction"] {
        fs::write(hooks.join(hook), format!("#!/bin/sh\n{touch}\n")).unwrap();
        fs::set_permissions(hooks.join(hook), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    assert!(workspace.tree().join(".gitattributes").exists());
    assert!(!canary.exists());
}

#[tokio::test]
async fn only_one_agentlet_uses_a_state_folder() {
    let fixture = Fixture::new();
    let first = fixture.open().await;
    let error = Workspaces::open(fixture.config()).await.unwrap_err();
    assert!(matches!(error, Error::InUse { .. }));
    // One that has state of its own, but works where the first does.
    let other = super::Config {
        state_dir: fixture.path().join("other-state"),
        ..fixture.config()
    };
    let error = Workspaces::open(other).await.unwrap_err().to_string();
    let work = fixture.config().work_dir;
    assert!(error.contains(&work.display().to_string()), "{error}");
    assert!(error.contains("its own data and work folder"), "{error}");
    drop(first);
    fixture.open().await;
}

#[tokio::test]
async fn work_folder_that_agents_cannot_reach_is_refused() {
    let fixture = Fixture::new();
    let Some(agent) = fixture.agent else {
        return;
    };
    let closed = fixture.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).unwrap();
    let config = super::Config {
        work_dir: closed.join("work"),
        ..fixture.config()
    };
    let error = Workspaces::open(config).await.unwrap_err();
    assert!(
        matches!(&error, Error::Unreachable { uid, closed: at, .. } if *uid == agent.uid && *at == closed),
        "{error}"
    );
}

#[tokio::test]
async fn names_that_could_leave_the_work_folder_are_refused() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    for (task, run) in [
        ("../x", "run"),
        ("", "run"),
        ("a/b", "run"),
        ("a", "../../etc"),
        ("a", "."),
    ] {
        let error = workspaces
            .prepare(&key(task), run, &Content::Empty, None)
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{task} {run}");
    }
}

#[tokio::test]
async fn release_follows_the_retain_policy() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    for (n, (retain, succeeded, kept)) in [
        (Retain::Always, true, true),
        (Retain::OnFailure, false, true),
        (Retain::OnFailure, true, false),
        (Retain::Never, false, false),
    ]
    .into_iter()
    .enumerate()
    {
        let workspace = workspaces
            .prepare(&key(&format!("task-{n}")), "run-1", &Content::Empty, None)
            .await
            .unwrap();
        let root = workspace.root.clone();
        workspaces
            .release(workspace, &gone("run-1"), retain, succeeded)
            .await
            .unwrap();
        assert_eq!(root.exists(), kept, "{retain:?} {succeeded}");
    }
}

#[tokio::test]
async fn what_a_preparation_left_half_made_goes_and_nothing_else() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let missing = Content::Git {
        path: fixture.repo(),
        reference: "no-such-branch".to_owned(),
        branch: "panda/x".to_owned(),
    };
    let made = workspaces
        .prepare(&key("task-a"), "run-1", &Content::Empty, None)
        .await
        .unwrap();
    workspaces
        .prepare(&key("task-b"), "run-2", &missing, None)
        .await
        .unwrap_err();
    let folder = |task: &str| made.root.with_file_name(format!("{task}-0"));
    assert!(folder("task-b").exists(), "there is something to undo");
    workspaces.undo(&key("task-b"), "run-3").await.unwrap();
    assert!(folder("task-b").exists(), "it is another run's");
    for (task, run) in [("task-a", "run-1"), ("task-b", "run-2")] {
        workspaces.undo(&key(task), run).await.unwrap();
    }
    assert!(made.root.exists() && !folder("task-b").exists());
    workspaces.reopen(&key("task-a"), "run-1").await.unwrap();
}

#[tokio::test]
async fn base_older_than_the_mirror_needs_nothing_new() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    fixture.prepare(&workspaces, "run-1").await;
    let first = git(&fixture.repo(), &["rev-parse", "HEAD~1"]);
    let content = Content::Git {
        path: fixture.repo(),
        reference: first.clone(),
        branch: "panda/old".to_owned(),
    };
    let workspace = workspaces
        .prepare(&key("task-b"), "run-2", &content, None)
        .await
        .unwrap();
    assert_eq!(git(&workspace.tree(), &["rev-parse", "HEAD"]), first);
    git(&workspace.tree(), &["fsck", "--strict"]);
}

#[tokio::test]
async fn empty_shallow_and_sha256_repositories() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let home = fixture.path().join("home");
    git(&home, &["init", "-q", "unborn"]);
    let source = format!("file://{}", fixture.repo().display());
    git(&home, &["clone", "-q", "--depth=1", &source, "shallow"]);
    for (name, expected) in [("unborn", "HEAD"), ("shallow", "shallow")] {
        let content = Content::Git {
            path: home.join(name),
            reference: String::new(),
            branch: "panda/x".to_owned(),
        };
        let error = workspaces
            .prepare(&key(name), "run-1", &content, None)
            .await
            .unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    git(&home, &["init", "-q", "--object-format=sha256", "modern"]);
    git(
        &home.join("modern"),
        &["commit", "-q", "--allow-empty", "-m", "one"],
    );
    let content = Content::Git {
        path: home.join("modern"),
        reference: String::new(),
        branch: "panda/x".to_owned(),
    };
    let workspace = workspaces
        .prepare(&key("modern"), "run-1", &content, None)
        .await
        .unwrap();
    assert_eq!(workspace.base_commit().unwrap().len(), 64);
}

#[tokio::test]
async fn clone_for_an_agent_that_runs_as_ourselves_does_not_need_the_mirror() {
    let fixture = Fixture::with_agent(None);
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    assert!(workspaces.prove(&workspace).await.unwrap().read_only().is_empty());
    fs::rename(fixture.path().join("mirrors"), fixture.path().join("away")).unwrap();
    git(&workspace.tree(), &["fsck", "--strict"]);
    assert_eq!(git(&workspace.tree(), &["log", "--format=%s"]), "two\none");
}
