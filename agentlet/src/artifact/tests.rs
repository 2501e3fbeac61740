use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use panda_api::v1alpha1::{FailureReason, OutputSpec};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

use super::path::is_git_folder;
use super::{ChangeKind, Error, Globs, Snapshot, Stamp, display, parse, violations};
use crate::workspace::fixture::{Fixture, fingerprint, git, gone, is_root, key};
use crate::workspace::{Content, Workspace, Workspaces};

fn stamp() -> Stamp {
    Stamp {
        message: "fix: mended".to_owned(),
        seconds: 1_700_000_000,
    }
}

async fn take(workspaces: &Workspaces, workspace: &Workspace) -> Snapshot {
    workspaces
        .snapshot(workspace, &gone("run-1"), &stamp())
        .await
        .unwrap()
}

fn changes(snapshot: &Snapshot) -> BTreeMap<String, ChangeKind> {
    snapshot
        .changes
        .iter()
        .map(|change| (change.path.clone(), change.kind))
        .collect()
}

fn list(dir: &Path) -> Vec<String> {
    let root = dir.as_os_str().as_bytes().to_vec();
    fingerprint(dir)
        .keys()
        .filter(|path| path.len() > root.len())
        .map(|path| display(&path[root.len() + 1..]))
        .filter(|path| path != ".git" && !path.starts_with(".git/"))
        .collect()
}

#[tokio::test]
async fn snapshot_holds_tracked_and_untracked_but_not_ignored_files() {
    let fixture = Fixture::new();
    let before = fingerprint(&fixture.repo());
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    let tree = workspace.tree();
    fixture.agent_writes(&tree.join("src/lib.rs"), "fn a() { b() }\n");
    fixture.agent_writes(&tree.join("src/new.rs"), [0u8, 1, 2, 0xff, b'\n']);
    fixture.agent_writes(&tree.join("target/debug/x"), "built");
    fixture.agent_writes(&tree.join("a.log"), "noise");
    fixture.agent_writes(&tree.join("sub/.gitignore"), "*.tmp\n!keep.tmp\n");
    fixture.agent_writes(&tree.join("sub/x.tmp"), "no");
    fixture.agent_writes(&tree.join("sub/keep.tmp"), "yes");
    fixture.agent_writes(&tree.join("run.sh"), "#!/bin/sh\n");
    fs::set_permissions(tree.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::remove_file(tree.join("tests/t.rs")).unwrap();
    symlink("/etc/passwd", tree.join("link")).unwrap();
    let snapshot = take(&workspaces, &workspace).await;
    use ChangeKind::{Added, Deleted, Modified};
    let expected: BTreeMap<String, ChangeKind> = [
        ("link", Added),
        ("run.sh", Added),
        ("src/lib.rs", Modified),
        ("src/new.rs", Added),
        ("sub/.gitignore", Added),
        ("sub/keep.tmp", Added),
        ("tests/t.rs", Deleted),
    ]
    .map(|(path, kind)| (path.to_owned(), kind))
    .into();
    assert_eq!(changes(&snapshot), expected);
    assert!(
        snapshot.diffstat.starts_with("7 files changed"),
        "{}",
        snapshot.diffstat
    );
    let result = snapshot.git().unwrap();

    // The patch applies to the base and gives the tree of the commit; the bundle holds that commit.
    let copy = fixture.path().join("copy");
    git(fixture.path(), &["clone", "-q", "home/repo", "copy"]);
    git(&copy, &["apply", "--index", result.patch.path.to_str().unwrap()]);
    assert_eq!(git(&copy, &["write-tree"]), result.tree);
    let bundle = result.bundle.clone().unwrap();
    git(
        &copy,
        &[
            "fetch",
            "-q",
            bundle.path.to_str().unwrap(),
            "refs/heads/panda/fix",
        ],
    );
    assert_eq!(git(&copy, &["rev-parse", "FETCH_HEAD"]), result.commit);
    assert_eq!(
        git(&copy, &["log", "-1", "--format=%an %ae %at %s %P", "FETCH_HEAD"]),
        format!("Panda panda@localhost 1700000000 fix: mended {}", result.base)
    );
    for blob in [&result.patch, &bundle] {
        let bytes = fs::read(&blob.path).unwrap();
        assert_eq!(blob.size, bytes.len() as u64);
        assert_eq!(
            blob.digest,
            format!("sha256:{}", hex::encode(Sha256::digest(&bytes)))
        );
    }
    assert_eq!(
        fingerprint(&fixture.repo()),
        before,
        "nothing of the user's changed"
    );
}

#[tokio::test]
async fn snapshot_is_taken_once_and_the_same_tree_gives_the_same_commit() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let first = fixture.prepare(&workspaces, "run-1").await;
    fixture.agent_writes(&first.tree().join("x"), "x");
    let one = take(&workspaces, &first).await;
    fixture.agent_writes(&first.tree().join("y"), "too late");
    assert_eq!(take(&workspaces, &first).await, one);
    assert_eq!(
        workspaces.taken(&key("task-a"), "run-1").await.unwrap().as_ref(),
        Some(&one)
    );
    let other = workspaces
        .prepare(&key("task-b"), "run-1", &fixture.content(), None)
        .await
        .unwrap();
    fixture.agent_writes(&other.tree().join("x"), "x");
    workspaces.forget(&key("task-a"), "run-1").await.unwrap();
    let two = take(&workspaces, &other).await;
    assert_eq!(two.git().unwrap().commit, one.git().unwrap().commit);
    assert_eq!(two.digest, one.digest);
}

#[tokio::test]
async fn unchanged_workspace_gives_the_base_itself() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    let snapshot = take(&workspaces, &workspace).await;
    let result = snapshot.git().unwrap();
    assert_eq!(result.commit, result.base);
    assert_eq!(result.bundle, None);
    assert_eq!(result.patch.size, 0);
    assert_eq!(snapshot.changes, []);
}

#[tokio::test]
async fn planted_git_configuration_hooks_and_filters_run_nothing() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    let tree = workspace.tree();
    let canary = fixture.path().join("canary");
    let touch = format!("touch {}", canary.display());
    let mut config = String::from("[core]\n\tfsmonitor = X\n\tsshCommand = X\n\tpager = X\n\teditor = X\n\thooksPath = hooks\n[filter \"evil\"]\n\tclean = X\n\tsmudge = X\n\tprocess = X\n\trequired\n[diff]\n\texternal = X\n[diff \"evil\"]\n\ttextconv = X\n\tcommand = X\n[gpg]\n\tprogram = X\n[commit]\n\tgpgSign = true\n[alias]\n\tstatus = !X\n\tdiff = !X\n[include]\n\tpath = ../more\n").replace('X', &touch);
    config.push_str(&fs::read_to_string(tree.join(".git/config")).unwrap());
    fixture.agent_writes(&tree.join(".git/config"), config);
    fixture.agent_writes(
        &tree.join(".gitattributes"),
        "* filter=evil diff=evil ident text eol=crlf\n",
    );
    for hook in [
        "pre-commit",
        "post-checkout",
        "post-index-change",
        "reference-transaction",
    ] {
        let path = tree.join(".git/hooks").join(hook);
        fixture.agent_writes(&path, format!("#!/bin/sh\n{touch}\n"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fixture.agent_writes(&tree.join("crlf"), "a\r\n$Id$\n");
    let snapshot = take(&workspaces, &workspace).await;
    let extraction = workspaces
        .extract(&key("task-a"), &snapshot, "tests", &[])
        .await
        .unwrap();
    assert_eq!(
        fs::read(extraction.tree().join("crlf")).unwrap(),
        b"a\r\n$Id$\n",
        "bytes stay as the agent wrote them"
    );
    assert!(!canary.exists());
    // A retry proves the same tree again, as the agent's user, with that configuration in place.
    workspaces.prove(&workspace).await.unwrap();
    assert!(!canary.exists());
}

#[tokio::test]
async fn a_broken_or_missing_git_folder_of_the_agent_does_not_matter() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    fs::remove_dir_all(workspace.tree().join(".git")).unwrap();
    fixture.agent_writes(&workspace.tree().join("x"), "x");
    let snapshot = take(&workspaces, &workspace).await;
    assert_eq!(snapshot.changes.len(), 1);
}

#[tokio::test]
async fn nested_repositories_become_plain_files_and_git_folders_never_enter() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    let tree = workspace.tree();
    fixture.agent_writes(&tree.join("app/main.js"), "1");
    fixture.agent_writes(&tree.join("app/.git/config"), "[core]\n");
    fixture.agent_writes(&tree.join("app/.git/HEAD"), "ref: refs/heads/main\n");
    fixture.agent_writes(&tree.join(".GIT/config"), "[core]\n");
    fixture.agent_writes(&tree.join("git~1/config"), "[core]\n");
    let snapshot = take(&workspaces, &workspace).await;
    assert_eq!(
        changes(&snapshot).into_keys().collect::<Vec<_>>(),
        ["app/main.js"]
    );
    let skipped: Vec<&str> = snapshot.skipped.iter().map(|s| s.path.as_str()).collect();
    assert_eq!(skipped, [".GIT", "app/.git", "git~1"]);
}

#[tokio::test]
async fn links_are_kept_as_links_and_pipes_are_left_out() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    let tree = workspace.tree();
    let secret = fixture.path().join("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("key"), "secret").unwrap();
    symlink(&secret, tree.join("dir")).unwrap();
    symlink(secret.join("key"), tree.join("file")).unwrap();
    fs::remove_dir_all(tree.join("src")).unwrap();
    symlink(&secret, tree.join("src")).unwrap();
    fs::remove_file(tree.join(".gitignore")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        tree.join(".gitignore"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    let snapshot = take(&workspaces, &workspace).await;
    let patch = fs::read_to_string(&snapshot.git().unwrap().patch.path).unwrap();
    assert!(!patch.contains("+secret\n"), "{patch}");
    assert!(patch.contains("new file mode 120000"), "{patch}");
    assert_eq!(snapshot.skipped.len(), 1, "{:?}", snapshot.skipped);
    let extraction = workspaces
        .extract(&key("task-a"), &snapshot, "tests", &["src/**".to_owned()])
        .await
        .unwrap();
    assert_eq!(
        fs::read_to_string(extraction.tree().join("src/lib.rs")).unwrap(),
        "fn a() {}\n"
    );
    assert!(
        !secret.join("lib.rs").exists(),
        "nothing was written through a link"
    );
}

#[tokio::test]
async fn odd_file_names_survive_and_are_shown_reversibly() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    let names: [&[u8]; 6] = [
        b"caf\xe9",
        b"a\nb",
        b"back\\slash",
        b"\"quoted\"",
        b" space ",
        b"-dash",
    ];
    for name in names {
        fixture.agent_writes(&workspace.tree().join(OsStr::from_bytes(name)), name);
    }
    let snapshot = take(&workspaces, &workspace).await;
    let mut shown: Vec<Vec<u8>> = snapshot
        .changes
        .iter()
        .map(|change| parse(&change.path).unwrap())
        .collect();
    shown.sort();
    let mut expected: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).into();
    expected.sort();
    assert_eq!(shown, expected);
    assert!(snapshot.changes.iter().any(|change| change.path == "caf\\xE9"));
    let extraction = workspaces
        .extract(&key("task-a"), &snapshot, "tests", &[])
        .await
        .unwrap();
    for name in names {
        let path = extraction.tree().join(OsStr::from_bytes(name));
        assert_eq!(fs::read(path).unwrap(), name);
    }
}

#[tokio::test]
async fn limits_are_typed() {
    let fixture = Fixture::new();
    let mut config = fixture.config();
    config.limits.file_bytes = 1000;
    config.limits.depth = 5;
    let workspaces = Workspaces::open(config).await.unwrap();
    let big = fixture.prepare(&workspaces, "run-1").await;
    fixture.agent_writes(&big.tree().join("big"), vec![0; 1001]);
    let error = workspaces
        .snapshot(&big, &gone("run-1"), &stamp())
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::Limit { path, .. } if path == "big"),
        "{error}"
    );
    assert_eq!(error.reason(), FailureReason::AgentError);
    fs::remove_file(big.tree().join("big")).unwrap();
    fixture.agent_writes(&big.tree().join("1/2/3/4/5/6/7"), "deep");
    let error = workspaces
        .snapshot(&big, &gone("run-1"), &stamp())
        .await
        .unwrap_err();
    assert!(matches!(&error, Error::Limit { .. }), "{error}");
    fs::remove_dir_all(big.tree().join("1")).unwrap();
    take(&workspaces, &big).await;
}

#[tokio::test]
async fn snapshot_needs_the_proof_of_the_run_that_holds_the_workspace() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    workspaces
        .snapshot(&workspace, &gone("run-2"), &stamp())
        .await
        .unwrap_err();
}

#[tokio::test]
async fn unsafe_submodule_settings_are_refused() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    fixture.agent_writes(
        &workspace.tree().join(".gitmodules"),
        "[submodule \"x\"]\n\tpath = x\n\turl = -uevil\n",
    );
    let error = workspaces
        .snapshot(&workspace, &gone("run-1"), &stamp())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Unsafe { .. }), "{error}");
}

#[tokio::test]
async fn files_of_other_users_are_not_taken() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    let secret = fixture.path().join("shadow");
    fs::write(&secret, "root only").unwrap();
    fs::hard_link(&secret, workspace.tree().join("stolen")).unwrap();
    let snapshot = take(&workspaces, &workspace).await;
    assert_eq!(snapshot.changes, []);
    assert_eq!(snapshot.skipped.len(), 1);
    let output = OutputSpec {
        name: "x".to_owned(),
        path: "stolen".to_owned(),
    };
    let error = workspaces
        .output(&workspace, &gone("run-1"), &output)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::OutputRefused { .. }), "{error}");
}

#[tokio::test]
async fn writes_outside_the_declared_scope_are_listed() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    fixture.agent_writes(&workspace.tree().join("src/deep/x.rs"), "1");
    fixture.agent_writes(&workspace.tree().join("Makefile"), "1");
    let snapshot = take(&workspaces, &workspace).await;
    let none: [&str; 0] = [];
    assert_eq!(
        violations(&snapshot, &Globs::new(&["src/**", "tests/*"]).unwrap()),
        ["Makefile"]
    );
    assert_eq!(
        violations(&snapshot, &Globs::new(&["src/*"]).unwrap()),
        ["Makefile", "src/deep/x.rs"]
    );
    assert!(violations(&snapshot, &Globs::new(&none).unwrap()).is_empty());
    assert!(matches!(Globs::new(&["a{"]), Err(Error::Glob { .. })));
}

#[tokio::test]
async fn workspace_without_git_is_archived_and_unpacked_again() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = workspaces
        .prepare(&key("task-a"), "run-1", &Content::Empty, None)
        .await
        .unwrap();
    let tree = workspace.tree();
    fixture.agent_writes(&tree.join("out/report.md"), "# report\n");
    fixture.agent_writes(&tree.join("bin/run"), "#!/bin/sh\n");
    fs::set_permissions(tree.join("bin/run"), fs::Permissions::from_mode(0o755)).unwrap();
    fixture.agent_writes(&tree.join(OsStr::from_bytes(b"\xff")), "odd");
    fixture.agent_writes(&tree.join(".git/config"), "[core]\n");
    symlink("/etc", tree.join("etc")).unwrap();
    let snapshot = take(&workspaces, &workspace).await;
    assert_eq!(snapshot.files, 4);
    assert_eq!(snapshot.diffstat, "4 files changed");
    let extraction = workspaces
        .extract(&key("task-a"), &snapshot, "t", &["bin/**".to_owned()])
        .await
        .unwrap();
    assert_eq!(list(&extraction.tree()), ["etc", "out", "out/report.md", "\\xFF"]);
    assert!(extraction.tree().join("etc").is_symlink());
}

async fn output(workspaces: &Workspaces, workspace: &Workspace, path: &str) -> Result<super::Output, Error> {
    let spec = OutputSpec {
        name: "report".to_owned(),
        path: path.to_owned(),
    };
    workspaces.output(workspace, &gone("run-1"), &spec).await
}

#[tokio::test]
async fn outputs_are_copied_without_following_links_or_waiting() {
    let fixture = Fixture::new();
    let workspaces = fixture.open().await;
    let workspace = fixture.prepare(&workspaces, "run-1").await;
    let tree = workspace.tree();
    fixture.agent_writes(&tree.join("out/report.md"), "# report\n");
    let taken = output(&workspaces, &workspace, "out/report.md").await.unwrap();
    assert_eq!(fs::read(&taken.blob.path).unwrap(), b"# report\n");
    assert_eq!(taken.blob.size, 9);
    symlink("/etc", tree.join("etc")).unwrap();
    symlink("/etc/passwd", tree.join("passwd")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        tree.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    for path in [
        "etc/passwd",
        "passwd",
        "fifo",
        "out",
        "../home",
        "/etc/passwd",
        "a//b",
        "",
        "README/x",
    ] {
        let error = output(&workspaces, &workspace, path).await.unwrap_err();
        assert!(matches!(error, Error::OutputRefused { .. }), "{path}: {error}");
    }
    let error = output(&workspaces, &workspace, "out/none").await.unwrap_err();
    assert!(matches!(error, Error::OutputMissing { .. }), "{error}");
    assert_eq!(error.reason(), FailureReason::AgentError);
}

#[test]
fn archive_that_leaves_its_folder_or_is_cut_short_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let none: [&str; 0] = [];
    let none = Globs::new(&none).unwrap();
    let unpack = |body: &[u8]| -> std::io::Result<PathBuf> {
        let archive = dir.path().join("archive");
        let mut bytes = b"PANDA-TREE 1\n".to_vec();
        bytes.extend_from_slice(body);
        fs::write(&archive, bytes).unwrap();
        let to = dir.path().join("to");
        drop(fs::remove_dir_all(&to));
        fs::create_dir(&to).unwrap();
        super::archive::unpack(&archive, &to, &none).map(|()| to)
    };
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let outside = outside.to_str().unwrap();
    let linked = format!("l 1 {}\na{outside}f 3 1\na/bxend\n", outside.len());
    let good = unpack(b"f 3 2\na/bxyend\n").unwrap();
    assert_eq!(fs::read(good.join("a/b")).unwrap(), b"xy");
    for bad in [
        &b"f 4 1\n../xyend\n"[..],
        b"f 2 1\n/xyend\n",
        b"f 6 1\n.git/xyend\n",
        b"f 6 1\n.GIT/xyend\n",
        linked.as_bytes(),
        b"f 1 5\naxy",
        b"f 1 1\nax",
        b"f 1 99999999999999999999\na",
        b"f 99999999999 1\na",
        b"q 1 1\naxend\n",
        b"",
    ] {
        assert!(unpack(bad).is_err(), "{}", String::from_utf8_lossy(bad));
    }
    assert!(!Path::new(outside).join("b").exists());
}

#[test]
fn names_of_git_folders_are_recognised_in_disguise() {
    for name in [
        ".git",
        ".GIT",
        ".gIt",
        "git~1",
        "GIT~1",
        ".git.",
        ".git ",
        ".git::$INDEX_ALLOCATION",
        ".g\u{200c}it",
        "\u{feff}.git",
    ] {
        assert!(is_git_folder(name.as_bytes()), "{name:?}");
    }
    for name in [".gitignore", ".github", "git", "git~2", "x.git", ".gi"] {
        assert!(!is_git_folder(name.as_bytes()), "{name:?}");
    }
}

proptest! {
    #[test]
    fn every_path_can_be_shown_and_read_back(path in proptest::collection::vec(any::<u8>(), 0..40)) {
        let shown = display(&path);
        prop_assert!(!shown.chars().any(char::is_control));
        prop_assert_eq!(parse(&shown), Some(path));
    }

    #[test]
    fn reading_back_never_panics(text in ".*") {
        drop(parse(&text));
    }
}
