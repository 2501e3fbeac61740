use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use crate::artifact::{Snapshot, Stamp};
use crate::workspace::fixture::{AGENT, Fixture, git, gone, is_root, key};
use crate::workspace::{Workspace, Workspaces};

async fn take(workspaces: &Workspaces, workspace: &Workspace) -> Snapshot {
    let stamp = Stamp {
        message: "x".to_owned(),
        seconds: 0,
    };
    workspaces
        .snapshot(workspace, &gone("run-1"), &stamp)
        .await
        .unwrap()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[tokio::test]
async fn restored_paths_are_those_of_the_base() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    let tree = workspace.tree();
    fixture.agent_writes(&tree.join("tests/t.rs"), "always true\n");
    fixture.agent_writes(&tree.join("tests/added.rs"), "cheat\n");
    fixture.agent_writes(&tree.join("src/lib.rs"), "mended\n");
    fs::remove_file(tree.join("README")).unwrap();
    let snapshot = take(&workspaces, &workspace).await;
    let globs = ["tests/**".to_owned(), "README".to_owned()];
    let restored = workspaces
        .extract(&key("task-a"), &snapshot, "tests", &globs)
        .await
        .unwrap();
    assert_eq!(read(&restored.tree().join("tests/t.rs")), "assert\n");
    assert!(!restored.tree().join("tests/added.rs").exists());
    assert_eq!(read(&restored.tree().join("README")), "hello\n");
    assert_eq!(read(&restored.tree().join("src/lib.rs")), "mended\n");
    assert!(!restored.tree().join(".git").exists());
    let plain = workspaces
        .extract(&key("task-a"), &snapshot, "lint", &[])
        .await
        .unwrap();
    assert_eq!(read(&plain.tree().join("tests/t.rs")), "always true\n");
    assert_ne!(plain.tree(), restored.tree());
    assert_eq!(
        read(&tree.join("tests/t.rs")),
        "always true\n",
        "the agent's tree stays"
    );
    if is_root() {
        let meta = fs::metadata(plain.tree().join("src/lib.rs")).unwrap();
        assert_eq!(meta.uid(), AGENT.uid);
    }
    let root = plain.tree();
    workspaces.remove_extraction(&key("task-a"), plain).await.unwrap();
    assert!(!root.exists());
    workspaces
        .remove_extractions(&key("task-a"), "run-1")
        .await
        .unwrap();
    assert!(!restored.tree().exists());
    workspaces
        .remove_extractions(&key("task-a"), "run-1")
        .await
        .unwrap();
}

#[tokio::test]
async fn restored_folder_comes_back_in_place_of_a_file_or_link() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    for (n, link) in [true, false].into_iter().enumerate() {
        let task = key(&format!("task-{n}"));
        let run = "run-1";
        let workspace = workspaces
            .prepare(&task, run, &fixture.content(), None)
            .await
            .unwrap();
        let tests = workspace.tree().join("tests");
        fs::remove_dir_all(&tests).unwrap();
        if link {
            symlink(fixture.path(), &tests).unwrap();
        } else {
            fixture.agent_writes(&tests, "a file");
        }
        let snapshot = take(&workspaces, &workspace).await;
        let extraction = workspaces
            .extract(&task, &snapshot, "tests", &["tests/**".to_owned()])
            .await
            .unwrap();
        assert_eq!(read(&extraction.tree().join("tests/t.rs")), "assert\n");
        assert!(!fixture.path().join("t.rs").exists());
        workspaces.forget(&task, run).await.unwrap();
    }
}

#[tokio::test]
async fn extraction_replaces_what_a_crash_left() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    let snapshot = take(&workspaces, &workspace).await;
    let first = workspaces
        .extract(&key("task-a"), &snapshot, "tests", &[])
        .await
        .unwrap();
    fs::write(first.tree().join("left"), "x").unwrap();
    fs::create_dir(first.tree().join("locked")).unwrap();
    fs::set_permissions(first.tree().join("locked"), fs::Permissions::from_mode(0o000)).unwrap();
    let second = workspaces
        .extract(&key("task-a"), &snapshot, "tests", &[])
        .await
        .unwrap();
    assert_eq!(first.tree(), second.tree());
    assert!(!second.tree().join("left").exists());
}

#[tokio::test]
async fn submodules_and_filters_of_the_base_run_nothing() {
    let fixture = Fixture::new();
    let repo = fixture.repo();
    let head = git(&repo, &["rev-parse", "HEAD"]);
    fs::write(
        repo.join(".gitmodules"),
        "[submodule \"dep\"]\n\tpath = dep\n\turl = https://example.invalid/dep\n",
    )
    .unwrap();
    fs::write(
        repo.join(".gitattributes"),
        "*.bin filter=lfs\n*.txt text eol=crlf\n",
    )
    .unwrap();
    fs::write(repo.join("a.txt"), "one\n").unwrap();
    git(&repo, &["add", ".gitmodules", ".gitattributes", "a.txt"]);
    git(
        &repo,
        &[
            "update-index",
            "--add",
            "--cacheinfo",
            &format!("160000,{head},dep"),
        ],
    );
    git(&repo, &["commit", "-q", "-m", "submodule"]);
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    assert_eq!(read(&workspace.tree().join("a.txt")), "one\n");
    fixture.agent_writes(&workspace.tree().join("big.bin"), "raw");
    let snapshot = take(&workspaces, &workspace).await;
    assert_eq!(snapshot.changes.len(), 1, "{:?}", snapshot.changes);
    let extraction = workspaces
        .extract(&key("task-a"), &snapshot, "tests", &["*.txt".to_owned()])
        .await
        .unwrap();
    assert_eq!(read(&extraction.tree().join("big.bin")), "raw");
    assert_eq!(fs::read_dir(extraction.tree().join("dep")).unwrap().count(), 0);
}
