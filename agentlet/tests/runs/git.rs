//! Runs on a repository: patch, scope, publication.

use std::path::Path;
use std::process::Command;

use panda_api::{FailureReason, GitSpec, PublishSpec, Push, ResultSpec, Run, RunPhase, WorkspaceSpec};

use crate::harness::*;

pub(crate) fn git(dir: &Path, args: &[&str]) -> String {
    let out = Command::new("git")
        .args([
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@example.org",
            "-c",
            "init.defaultBranch=main",
        ])
        .args(args)
        .current_dir(dir)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("HOME", dir)
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "git {args:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
}

/// A run that edits a fresh repository.
pub(crate) fn on_repository(device: &Device, push: Push) -> (std::path::PathBuf, Run) {
    let repo = device.path().join("repo");
    std::fs::create_dir(&repo).unwrap();
    git(&repo, &["init", "-q"]);
    std::fs::write(repo.join("a.txt"), "old\n").unwrap();
    git(&repo, &["add", "."]);
    git(&repo, &["commit", "-q", "-m", "start"]);
    let mut run = device.a_run(&["--edit", "a.txt", "old", "new", "--say", "done"]);
    run.spec.workspace = Some(WorkspaceSpec {
        git: Some(GitSpec {
            path: repo.display().to_string(),
            ..GitSpec::default()
        }),
        result: Some(ResultSpec {
            branch: String::new(),
            push,
        }),
        ..WorkspaceSpec::default()
    });
    (repo, run)
}

fn word(device: &Device, uid: &str, old: &str, try_number: u32) {
    device.server.change(uid, |run| {
        run.spec.publish = Some(PublishSpec {
            epoch: 1,
            expected_old_commit: old.into(),
            try_number,
        });
    });
}

#[tokio::test]
async fn patch_and_bundle_are_handed_over_and_nothing_is_pushed() {
    let device = Device::new().await;
    let (repo, run) = on_repository(&device, Push::Never);
    let head = git(&repo, &["rev-parse", "HEAD"]);
    let uid = device.give(run);
    let end = device.succeeds(&uid).await;
    let result = end.result.unwrap();
    assert_eq!(result.base_commit, head);
    let patch = String::from_utf8(device.blob(&result.patch.unwrap().digest)).unwrap();
    assert!(patch.contains("-old\n+new\n"), "{patch}");
    assert!(!device.blob(&result.bundle.unwrap().digest).is_empty());
    assert!(end.diffstat.unwrap().contains("1 file"));
    assert_eq!(git(&repo, &["branch", "--format=%(refname:short)"]), "main");
}

#[tokio::test]
async fn accepted_result_is_published_once_it_is_said() {
    let mut device = Device::new().await;
    let (repo, run) = on_repository(&device, Push::OnSuccess);
    let uid = device.give(run);
    device.reported(&uid, RunPhase::Publishing).await;
    // A run that waits for the word survives the agentlet, and even a reboot.
    device.kill().await;
    device.reboot_as("another-boot");
    device.start().await;
    word(&device, &uid, "", 1);
    let end = device.succeeds(&uid).await;
    let publish = end.publish.unwrap();
    assert_eq!((publish.state.as_str(), publish.try_number), ("Published", 1));
    assert_eq!(git(&repo, &["rev-parse", "panda/the-task"]), publish.commit);
    assert_eq!(git(&repo, &["show", "panda/the-task:a.txt"]), "new");
    assert_eq!(end.result.unwrap().branch, "panda/the-task");
}

#[tokio::test]
async fn branch_that_moved_is_a_conflict() {
    let device = Device::new().await;
    let (repo, run) = on_repository(&device, Push::OnSuccess);
    git(&repo, &["branch", "panda/the-task"]);
    let uid = device.give(run);
    device.reported(&uid, RunPhase::Publishing).await;
    word(&device, &uid, "", 1);
    device.fails(&uid, FailureReason::PublishConflict).await;
    assert_eq!(device.end_of(&uid).await.publish.unwrap().state, "Conflict");
}

#[tokio::test]
async fn failed_publication_is_tried_again_when_asked() {
    let device = Device::new().await;
    let (repo, run) = on_repository(&device, Push::OnSuccess);
    let uid = device.give(run);
    device.reported(&uid, RunPhase::Publishing).await;
    let away = device.path().join("away");
    std::fs::rename(&repo, &away).unwrap();
    word(&device, &uid, "", 1);
    let failed = |s: &crate::testing::State| {
        let of_run = s.reports.iter().filter(|r| r.1 == uid);
        let mut states = of_run.filter_map(|r| r.2.publish.as_ref());
        states
            .any(|p| p.state == "Failed" && p.try_number == 1)
            .then_some(())
    };
    device.server.until("a failed publication", failed).await;
    std::fs::rename(&away, &repo).unwrap();
    word(&device, &uid, "", 2);
    let end = device.succeeds(&uid).await;
    assert_eq!(end.publish.unwrap().try_number, 2);
}

#[tokio::test]
async fn change_outside_of_the_scope_is_a_violation() {
    let device = Device::new().await;
    let (_repo, mut run) = on_repository(&device, Push::Never);
    run.spec.workspace.as_mut().unwrap().writes = vec!["src/**".into()];
    let uid = device.give(run);
    let failure = device.fails(&uid, FailureReason::ScopeViolation).await;
    assert!(failure.message.contains("a.txt"), "{failure:?}");
    let patch = device.end_of(&uid).await.result.unwrap().patch.unwrap();
    assert!(
        !device.blob(&patch.digest).is_empty(),
        "the patch can be looked at"
    );
}

#[tokio::test]
async fn repository_outside_of_the_roots_fails_before_the_agent() {
    let device = Device::new().await;
    let mut run = device.a_run(&["--say", "x"]);
    run.spec.workspace = Some(WorkspaceSpec {
        git: Some(GitSpec {
            path: "/".into(),
            ..GitSpec::default()
        }),
        ..WorkspaceSpec::default()
    });
    let uid = device.give(run);
    device.fails(&uid, FailureReason::WorkspaceFailed).await;
    assert_eq!(device.starts(&uid), 0);
}
