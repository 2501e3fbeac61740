//! Every step can be cut short and done again.

use std::fs;
use std::time::Duration;

use panda_api::v1alpha1::Retain;

use crate::artifact::Stamp;
use crate::workspace::Content;
use crate::workspace::fixture::{Fixture, git, gone, key};
use crate::workspace::record::Stage;

fn stamp() -> Stamp {
    Stamp {
        message: "x".to_owned(),
        seconds: 0,
    }
}

#[tokio::test]
async fn preparation_given_up_at_any_time_can_be_done_again() {
    let fixture = Fixture::new();
    for n in 0..12u64 {
        let workspaces = fixture.open().await;
        let task = key(&format!("task-{n}"));
        let content = fixture.content();
        let first = workspaces.prepare(&task, "run-1", &content, None);
        let finished = tokio::time::timeout(Duration::from_millis(n * 6), first).await;
        drop(finished);
        let workspace = workspaces.prepare(&task, "run-1", &content, None).await.unwrap();
        assert_eq!(workspace.root, fixture.path().join(format!("work/task-{n}-0")));
        workspaces.prove(&workspace).await.unwrap();
        assert_eq!(git(&workspace.tree(), &["status", "--porcelain"]), "");
    }
}

#[tokio::test]
async fn snapshot_given_up_at_any_time_can_be_done_again() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    fixture.agent_writes(&workspace.tree().join("x"), "x");
    let mut commits = Vec::new();
    for n in 0..12u64 {
        let (empty, stamp) = (gone("run-1"), stamp());
        let first = workspaces.snapshot(&workspace, &empty, &stamp);
        drop(tokio::time::timeout(Duration::from_millis(n * 4), first).await);
        let snapshot = workspaces.snapshot(&workspace, &empty, &stamp).await.unwrap();
        let task = key("task-a");
        let extraction = workspaces.extract(&task, &snapshot, "t", &[]);
        drop(tokio::time::timeout(Duration::from_millis(n * 2), extraction).await);
        let extraction = workspaces
            .extract(&key("task-a"), &snapshot, "t", &[])
            .await
            .unwrap();
        assert!(extraction.tree().join("x").exists());
        commits.push(snapshot.git().unwrap().commit.clone());
        workspaces.forget(&key("task-a"), "run-1").await.unwrap();
    }
    commits.dedup();
    assert_eq!(commits.len(), 1);
}

#[tokio::test]
async fn half_made_workspace_is_made_afresh_after_a_restart() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    let mut record = workspace.record.clone();
    record.stage = Stage::Creating;
    workspaces.records.save(&record).unwrap();
    fs::remove_file(workspace.tree().join(".git/HEAD")).unwrap();
    fs::write(workspace.tree().join("rubbish"), "x").unwrap();
    drop(workspaces);
    let workspaces = fixture.open().await;
    let again = fixture.prepare(&workspaces, "run-1").await;
    assert!(!again.resumed());
    assert_eq!(again.root, workspace.root);
    assert!(!again.tree().join("rubbish").exists());
}

#[tokio::test]
async fn removal_cut_short_is_gone_on_with_after_a_restart() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    let mut record = workspace.record.clone();
    record.stage = Stage::Removing;
    workspaces.records.save(&record).unwrap();
    fs::remove_dir_all(workspace.tree().join("src")).unwrap();
    workspaces.reopen(&key("task-a"), "run-1").await.unwrap_err();
    drop(workspaces);
    let workspaces = fixture.open().await;
    assert!(!workspace.root.exists());
    let again = fixture.prepare(&workspaces, "run-2").await;
    assert!(!again.resumed());
}

#[tokio::test]
async fn folder_made_and_not_written_down_does_not_stay() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let lent = fixture.prepare(&workspaces, "run-1").await;
    drop(workspaces);
    // The kill came between making the folder and its record; the next attempt runs elsewhere.
    let work = fixture.path().join("work");
    let lost = [work.join("task-b-0"), work.join("task-b-0.1")];
    // Not of that kind: something is inside, or the name is none of ours.
    let others = [work.join("task-c-0"), work.join("notes"), work.join("task-d-")];
    for folder in lost.iter().chain(&others) {
        fs::create_dir(folder).unwrap();
    }
    fs::write(others[0].join("file"), "x").unwrap();
    drop(fixture.open().await);
    assert!(lost.iter().all(|folder| !folder.exists()));
    assert!(others.iter().all(|folder| folder.exists()));
    assert!(others[0].join("file").exists() && lent.tree().join("README").exists());
}

#[tokio::test]
async fn discarding_may_take_the_folder_of_the_run_that_is_gone_and_no_others() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    let task = key("task-a");
    let error = workspaces.discard(&task, Some(&gone("run-2"))).await.unwrap_err();
    assert!(error.to_string().contains("run-1"), "{error}");
    workspaces.discard(&task, Some(&gone("run-1"))).await.unwrap();
    assert!(!workspace.root.exists());
}

#[tokio::test]
async fn folder_that_somebody_deleted_is_made_afresh() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    fs::remove_dir_all(&workspace.root).unwrap();
    let again = fixture.prepare(&workspaces, "run-1").await;
    assert!(!again.resumed());
    workspaces.prove(&again).await.unwrap();
}

#[tokio::test]
async fn record_that_cannot_be_read_makes_its_folder_somebody_elses() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    let record = fixture.path().join("state/workspaces/task-a-0.json");
    fs::write(&record, "{\"half").unwrap();
    let again = fixture.prepare(&workspaces, "run-1").await;
    assert_ne!(again.root, workspace.root);
    assert!(workspace.tree().join("README").exists());
}

#[tokio::test]
async fn success_removes_every_folder_of_the_task_but_none_that_is_lent() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let first = fixture.prepare(&workspaces, "run-1").await;
    let first_root = first.root.clone();
    workspaces
        .release(first, &gone("run-1"), Retain::OnFailure, false)
        .await
        .unwrap();
    let second = workspaces
        .prepare(&key("task-a"), "run-2", &Content::Empty, None)
        .await
        .unwrap();
    let second_root = second.root.clone();
    assert_ne!(first_root, second_root);
    let error = workspaces.discard(&key("task-a"), None).await.unwrap_err();
    assert!(error.to_string().contains("run-2"), "{error}");
    workspaces
        .release(second, &gone("run-2"), Retain::OnFailure, true)
        .await
        .unwrap();
    assert!(!first_root.exists());
    assert!(!second_root.exists());
    workspaces.discard(&key("task-a"), None).await.unwrap();
}

#[tokio::test]
async fn lock_files_of_a_killed_git_do_not_block_the_mirror() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    let mirror = workspace.record.mirror.clone().unwrap();
    git(&fixture.repo(), &["commit", "-q", "-a", "-m", "three"]);
    let head = git(&fixture.repo(), &["rev-parse", "HEAD"]);
    fs::write(mirror.join(format!("refs/panda/base/{head}.lock")), "").unwrap();
    fs::write(mirror.join("packed-refs.lock"), "").unwrap();
    let half = mirror.join("objects/pack/tmp_pack_abc");
    fs::write(&half, "").unwrap();
    workspaces
        .prepare(&key("task-b"), "run-2", &fixture.content(), None)
        .await
        .unwrap();
    assert!(!half.exists());
}
