//! Names that are taken, trees that were taken apart, trees that are hard to remove.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use panda_api::v1alpha1::{FailureReason, Retain};
use rustix::fs::{CWD, Mode, OFlags};

use crate::workspace::fixture::{Fixture, fingerprint, git, gone, key};
use crate::workspace::{Content, Error, Workspace, Workspaces};

fn wanted(fixture: &Fixture) -> PathBuf {
    fixture.path().join("work/task-a-0")
}

/// Prepares, and shows that the agent would work in a folder of its own and the user's checkout stayed as it was.
async fn prepare_beside(fixture: &Fixture, workspaces: &Workspaces) -> Workspace {
    let before = fingerprint(&fixture.repo());
    let workspace = fixture.prepare(workspaces, "run-1").await;
    let tree = fs::canonicalize(workspace.tree()).unwrap();
    assert!(tree.starts_with(fixture.path().join("work")));
    assert_eq!(
        git(&tree, &["rev-parse", "--show-toplevel"]),
        tree.to_str().unwrap()
    );
    let git_dir = tree.join(".git");
    for question in ["--absolute-git-dir", "--git-common-dir"] {
        let answer = git(&tree, &["rev-parse", "--path-format=absolute", question]);
        assert_eq!(answer, git_dir.to_str().unwrap());
    }
    assert_eq!(fingerprint(&fixture.repo()), before);
    workspace
}

#[tokio::test]
async fn empty_folder_of_the_right_name_is_used() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    fs::create_dir(wanted(&fixture)).unwrap();
    let workspace = prepare_beside(&fixture, &workspaces).await;
    assert_eq!(workspace.root, wanted(&fixture));
}

#[tokio::test]
async fn folder_with_unregistered_files_is_left_alone() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    fs::create_dir(wanted(&fixture)).unwrap();
    fs::write(wanted(&fixture).join("precious"), "x").unwrap();
    let before = fingerprint(&wanted(&fixture));
    let workspace = prepare_beside(&fixture, &workspaces).await;
    assert_eq!(workspace.root, fixture.path().join("work/task-a-0.1"));
    assert_eq!(fingerprint(&wanted(&fixture)), before);
}

#[tokio::test]
async fn folder_registered_to_another_task_is_not_used_even_if_empty() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    fs::create_dir(wanted(&fixture)).unwrap();
    let other = workspaces
        .prepare(&key("task-b"), "run-9", &Content::Empty, None)
        .await
        .unwrap();
    let record = fs::read_to_string(fixture.path().join("state/workspaces/task-b-0.json")).unwrap();
    fs::write(
        fixture.path().join("state/workspaces/task-a-0.json"),
        record.replace("\"folder\": \"task-b-0\"", "\"folder\": \"task-a-0\""),
    )
    .unwrap();
    let workspace = prepare_beside(&fixture, &workspaces).await;
    assert_eq!(workspace.root, fixture.path().join("work/task-a-0.1"));
    assert!(other.tree().exists());
}

#[tokio::test]
async fn file_or_link_of_the_right_name_is_left_alone() {
    for link in [false, true] {
        let fixture = Fixture::new();
        let workspaces = fixture.open().await;
        if link {
            symlink(fixture.repo(), wanted(&fixture)).unwrap();
        } else {
            fs::write(wanted(&fixture), "a file").unwrap();
        }
        let workspace = prepare_beside(&fixture, &workspaces).await;
        assert_eq!(workspace.root, fixture.path().join("work/task-a-0.1"));
        assert_eq!(wanted(&fixture).is_symlink(), link);
        workspaces
            .release(workspace, &gone("run-1"), Retain::Never, true)
            .await
            .unwrap();
        assert!(fixture.repo().join("README").exists());
        assert!(fs::symlink_metadata(wanted(&fixture)).is_ok());
    }
}

#[tokio::test]
async fn branch_that_exists_or_is_checked_out_does_not_matter() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    git(&fixture.repo(), &["branch", "panda/fix", "HEAD~1"]);
    let workspace = prepare_beside(&fixture, &workspaces).await;
    assert_eq!(git(&workspace.tree(), &["log", "--format=%s"]), "two\none");
    workspaces
        .release(workspace, &gone("run-1"), Retain::Never, true)
        .await
        .unwrap();
    git(&fixture.repo(), &["checkout", "-q", "-f", "panda/fix"]);
    let workspace = prepare_beside(&fixture, &workspaces).await;
    assert_eq!(git(&workspace.tree(), &["log", "--format=%s"]), "one");
}

#[tokio::test]
async fn attempt_fails_when_every_name_is_taken() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    fs::write(wanted(&fixture), "").unwrap();
    for n in 1..16 {
        fs::write(fixture.path().join(format!("work/task-a-0.{n}")), "").unwrap();
    }
    let error = workspaces
        .prepare(&key("task-a"), "run-1", &fixture.content(), None)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NoFreeName { .. }), "{error}");
    assert_eq!(error.reason(), FailureReason::WorkspaceFailed);
}

#[tokio::test]
async fn folder_replaced_by_a_link_to_the_users_checkout_is_not_resumed_or_removed() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    fs::rename(&workspace.root, fixture.path().join("moved")).unwrap();
    symlink(fixture.repo(), &workspace.root).unwrap();
    let error = workspaces.prove(&workspace).await.unwrap_err();
    assert!(matches!(error, Error::ProofFailed { .. }), "{error}");
    let before = fingerprint(&fixture.repo());
    let second = workspaces
        .prepare(&key("task-a"), "run-2", &fixture.content(), Some(&gone("run-1")))
        .await
        .unwrap();
    assert!(!second.resumed());
    assert_ne!(second.root, workspace.root);
    workspaces
        .release(second, &gone("run-2"), Retain::Never, true)
        .await
        .unwrap_err();
    assert_eq!(fingerprint(&fixture.repo()), before);
}

#[tokio::test]
async fn agent_that_points_its_git_folder_elsewhere_gets_a_fresh_tree_next_time() {
    for trick in ["worktree", "gitfile", "commondir", "tree"] {
        let fixture = Fixture::new();
        let workspaces = fixture.open().await;
        let workspace = fixture.prepare(&workspaces, "run-1").await;
        let tree = workspace.tree();
        let repo = fixture.repo();
        match trick {
            "worktree" => {
                git(&tree, &["config", "core.worktree", repo.to_str().unwrap()]);
            }
            "gitfile" => {
                fs::rename(tree.join(".git"), tree.join("old")).unwrap();
                fixture.agent_writes(&tree.join(".git"), format!("gitdir: {}/.git\n", repo.display()));
            }
            "commondir" => {
                fixture.agent_writes(&tree.join(".git/commondir"), format!("{}/.git\n", repo.display()));
            }
            _ => {
                fs::rename(&tree, workspace.root.join("old")).unwrap();
                symlink(&repo, &tree).unwrap();
            }
        }
        let error = workspaces.prove(&workspace).await.unwrap_err();
        assert!(matches!(error, Error::ProofFailed { .. }), "{trick}: {error}");
        let before = fingerprint(&repo);
        let second = workspaces
            .prepare(&key("task-a"), "run-2", &fixture.content(), Some(&gone("run-1")))
            .await
            .unwrap();
        assert!(!second.resumed(), "{trick}");
        assert_ne!(second.root, workspace.root, "{trick}");
        workspaces.prove(&second).await.unwrap();
        assert_eq!(fingerprint(&repo), before, "{trick}");
    }
}

#[tokio::test]
async fn another_source_or_rerun_gets_another_tree() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let first = fixture.prepare(&workspaces, "run-1").await;
    let edited = Content::Git {
        path: fixture.repo(),
        reference: "HEAD".to_owned(),
        branch: "panda/other".to_owned(),
    };
    let second = workspaces
        .prepare(&key("task-a"), "run-2", &edited, None)
        .await
        .unwrap();
    assert_ne!(first.tree(), second.tree());
    let mut rerun = key("task-a");
    rerun.rerun = 1;
    let third = workspaces
        .prepare(&rerun, "run-3", &fixture.content(), None)
        .await
        .unwrap();
    assert_eq!(third.root, fixture.path().join("work/task-a-1"));
}

/// Makes folders inside one another, deeper than any path may be long.
fn deep(root: &Path, levels: usize) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut dir = rustix::fs::openat(CWD, root, flags, Mode::empty()).unwrap();
    let name = CString::new("d".repeat(200)).unwrap();
    for _ in 0..levels {
        rustix::fs::mkdirat(&dir, &name, Mode::RWXU).unwrap();
        dir = rustix::fs::openat(&dir, &name, flags, Mode::empty()).unwrap();
    }
}

#[tokio::test]
async fn trees_that_are_hard_to_remove_are_removed_and_links_are_not_followed() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    let (tree, root) = (workspace.tree(), workspace.root.clone());
    let precious = fixture.path().join("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("file"), "x").unwrap();
    let before = fingerprint(&precious);
    symlink(&precious, tree.join("link")).unwrap();
    deep(&tree, 2000);
    fs::create_dir_all(tree.join("locked/inner/more")).unwrap();
    fs::write(tree.join("locked/inner/file"), "x").unwrap();
    symlink(&precious, tree.join("locked/inner/link")).unwrap();
    for dir in ["locked/inner/more", "locked/inner", "locked"] {
        fs::set_permissions(tree.join(dir), fs::Permissions::from_mode(0o000)).unwrap();
    }
    workspaces
        .release(workspace, &gone("run-1"), Retain::Never, true)
        .await
        .unwrap();
    assert!(!root.exists());
    assert_eq!(fingerprint(&precious), before);
}

#[tokio::test]
async fn tree_deeper_than_the_bound_is_refused_not_followed() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    deep(&workspace.tree(), 300);
    let stamp = crate::artifact::Stamp {
        message: String::new(),
        seconds: 0,
    };
    let error = workspaces
        .snapshot(&workspace, &gone("run-1"), &stamp)
        .await
        .unwrap_err();
    assert!(matches!(error, crate::artifact::Error::Limit { .. }), "{error}");
}
